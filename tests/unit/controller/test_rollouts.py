"""Rollouts, scale-ups and suspensions as a whole, on controllers in memory: what happens, and that an operator which dies at
any write of it loses nothing and does nothing twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from specserver.controller.policies import Applied
from specserver.controller.queue import RequeueAfter
from specserver.controller.reconcile import Reconciler
from tests.fakes.deployments import LivingCluster

KEY = ("ns", "chat")
LONGEST_SECONDS = 900


def a_server(**spec: Any) -> dict[str, Any]:
    base = {
        "model": {"uri": "hf://org/model"}, "speculation": {"draftModel": {"uri": "hf://org/draft"}},
        "engine": {"image": "engine:1"}, "replicas": 3,
    }  # fmt: skip
    return {
        "apiVersion": "specserver.io/v1alpha1", "kind": "SpeculativeServer",
        "metadata": {"namespace": "ns", "name": "chat", "uid": "server-uid", "generation": 1, "resourceVersion": "1"},
        "spec": {**base, **spec},
    }  # fmt: skip


class Killed(BaseException):
    """The process is gone: nothing that comes after is run."""


class NoEngines:
    """In place of the pusher: what engines say is no matter of these tests."""

    async def apply_policy(self, *_: Any, **__: Any) -> Applied:
        return Applied({}, {}, ())

    def forget(self, _uids: Any) -> None: ...


class Play:
    """An operator on a cluster whose clock it moves itself: it looks when it said that it would."""

    def __init__(self, **spec: Any) -> None:
        self.cluster = LivingCluster(a_server(**spec))
        self.passes = 0
        self.restart()

    def restart(self) -> None:
        self.reconciler = Reconciler(
            self.cluster, NoEngines(), self, version="1.0",  # type: ignore[arg-type]
            clock=lambda: self.cluster.now, steady_clock=lambda: self.cluster.now,
        )  # fmt: skip

    async def observe_load(self, *_: Any) -> Any:
        return self.cluster.observe_load()

    async def look(self) -> None:
        """One pass; killed in it, a new operator comes 3 s later."""
        self.passes += 1
        try:
            outcome = await self.reconciler.reconcile(KEY)
        except Killed:
            self.restart()
            self.cluster.advance(3)
            return
        assert isinstance(outcome, RequeueAfter), outcome
        self.cluster.advance(min(outcome.seconds, 2.0))

    async def until(self, done: Callable[[], bool]) -> None:
        end = self.cluster.now + LONGEST_SECONDS
        while not done():
            assert self.cluster.now < end, (self.status, [pod["metadata"]["name"] for pod in self.cluster.live_pods])
            await self.look()

    async def run(self, seconds: float) -> None:
        end = self.cluster.now + seconds
        while self.cluster.now < end:
            await self.look()

    async def start(self) -> None:
        await self.until(self.is_ready)

    def change(self, **spec: Any) -> None:
        resource = self.cluster.objects["SpeculativeServer", "chat"]
        resource["spec"] = json.loads(json.dumps({**resource["spec"], **spec}))
        resource["metadata"]["generation"] += 1

    # ---- what is there ---------------------------------------------------------------------------------------------------

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects["SpeculativeServer", "chat"].get("status", {})
        return found

    def condition(self, kind: str) -> tuple[str, str, str]:
        one = next((one for one in self.status.get("conditions", []) if one["type"] == kind), None)
        return (one["status"], one["reason"], one["message"]) if one else ("", "", "")

    def is_ready(self) -> bool:
        generation = self.cluster.objects["SpeculativeServer", "chat"]["metadata"]["generation"]
        return self.condition("Ready")[0] == "True" and self.status["observedGeneration"] == generation

    def images(self) -> list[str]:
        return sorted(pod["spec"]["containers"][0]["image"] for pod in self.cluster.live_pods)

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.cluster.live_pods}

    def serving(self) -> int:
        return sum(
            self.cluster.is_ready(pod) and "specserver.io/serving" in pod["metadata"]["labels"] for pod in self.cluster.live_pods
        )

    def events(self, *reasons: str) -> list[str]:
        return [one["reason"] for one in self.cluster.of("Event") if not reasons or one["reason"] in reasons]

    @property
    def deployment(self) -> dict[str, Any]:
        return self.cluster.objects["Deployment", "chat"]

    def is_at_rest(self) -> bool:
        return "minReadySeconds" not in self.deployment["spec"] and self.is_ready()


@pytest.fixture
def play() -> Play:
    return Play()


# ---- a rollout ----------------------------------------------------------------------------------------------------------


async def test_one_pod_at_a_time_each_idle_before_it_goes(play: Play) -> None:
    await play.start()
    old = play.uids()
    for pod in play.cluster.live_pods:
        play.cluster.requests_of[pod["metadata"]["name"]] = 4
    play.change(engine={"image": "engine:2"})
    least, most, victims = 3, 3, []
    for _ in range(LONGEST_SECONDS):
        await play.look()
        least, most = min(least, play.serving()), max(most, len(play.cluster.of("Pod")))
        marked = [pod for pod in play.cluster.live_pods if "specserver.io/draining-for" in pod["metadata"]["annotations"]]
        assert len(marked) <= 1
        for pod in marked:  # it finishes what it has, some seconds after it left the Service
            name = pod["metadata"]["name"]
            if name not in victims:
                victims.append(name)
            elif play.cluster.requests_of.get(name):
                play.cluster.requests_of[name] -= 1
        if play.is_at_rest():
            break
    assert play.images() == ["engine:2"] * 3
    assert not old & play.uids()
    assert (least, len(victims), play.cluster.lost) == (2, 3, [])
    assert most <= 4, "an ending pod, and no more"
    assert play.deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert Counter(play.events("DrainStarted", "DrainCancelled")) == {"DrainStarted": 3}
    assert play.condition("Progressing")[1] == "RolloutComplete"


async def test_the_drain_timeout_bounds_each_pod() -> None:
    play = Play(rollout={"drainTimeout": "20s"}, replicas=2)
    await play.start()
    for pod in play.cluster.live_pods:
        play.cluster.requests_of[pod["metadata"]["name"]] = 1
    play.change(engine={"image": "engine:2"})
    began = play.cluster.now
    await play.until(play.is_at_rest)
    assert 40 <= play.cluster.now - began <= 120
    assert play.images() == ["engine:2"] * 2


async def test_a_bad_revision_stops_after_its_first_pod_and_can_be_taken_back(play: Play) -> None:
    await play.start()
    play.cluster.load_seconds["engine:bad"] = None
    before = play.uids()
    play.change(engine={"image": "engine:bad", "loadDeadline": "60s"})
    await play.until(lambda: play.condition("Progressing")[1] == "RolloutStopped")
    await play.run(300)
    assert play.images() == ["engine:1", "engine:1", "engine:bad"]
    assert play.serving() == 2
    assert len(before & play.uids()) == 2
    assert play.condition("Ready")[1] == "LoadDeadlineExceeded"
    assert play.status["rollout"]["phase"] == "Stalled"
    assert Counter(play.events())["RolloutStopped"] == 1

    play.change(engine={"image": "engine:1"})
    await play.until(play.is_at_rest)
    assert play.images() == ["engine:1"] * 3
    assert len(before & play.uids()) == 2, "those that served went on serving"
    assert play.cluster.lost == []


async def test_an_old_pod_that_dies_while_a_bad_revision_stands_comes_back_as_it_was(play: Play) -> None:
    await play.start()
    play.cluster.load_seconds["engine:bad"] = None
    play.change(engine={"image": "engine:bad", "loadDeadline": "60s"})
    await play.until(lambda: play.condition("Progressing")[1] == "RolloutStopped")
    victim = next(pod for pod in play.cluster.live_pods if pod["spec"]["containers"][0]["image"] == "engine:1")
    play.cluster.end_pod(victim["metadata"]["name"])
    await play.run(60)
    assert play.images() == ["engine:1", "engine:1", "engine:bad"]


async def test_a_third_revision_replaces_the_bad_one_first(play: Play) -> None:
    await play.start()
    play.cluster.load_seconds["engine:bad"] = None
    play.change(engine={"image": "engine:bad", "loadDeadline": "60s"})
    await play.until(lambda: play.condition("Progressing")[1] == "RolloutStopped")
    play.change(engine={"image": "engine:3"})
    least = 3
    while not play.is_at_rest():
        await play.look()
        least = min(least, play.serving())
        assert "engine:bad" not in play.images() or play.images().count("engine:1") == 2
    assert play.images() == ["engine:3"] * 3
    assert play.cluster.lost == []


async def test_a_change_taken_back_halfway_replaces_what_was_replaced(play: Play) -> None:
    await play.start()
    play.change(engine={"image": "engine:2"})
    await play.until(lambda: play.images().count("engine:2") == 2 and play.serving() == 3)
    kept = {pod["metadata"]["uid"] for pod in play.cluster.live_pods if pod["spec"]["containers"][0]["image"] == "engine:1"}
    play.change(engine={"image": "engine:1"})
    serving = []

    def rests() -> bool:
        serving.append(play.serving())
        return play.is_at_rest()

    await play.until(rests)
    assert play.images() == ["engine:1"] * 3
    assert kept <= play.uids()
    assert (min(serving), play.cluster.lost) == (2, []), "the way back is a rollout like any other"


async def test_paused(play: Play) -> None:
    await play.start()
    before = play.uids()
    play.change(engine={"image": "engine:2"}, rollout={"paused": True})
    await play.run(60)
    assert play.uids() == before
    assert play.condition("Progressing")[:2] == ("True", "RolloutPaused")
    assert play.status["rollout"]["phase"] == "Paused"
    assert play.condition("Ready")[:2] == ("False", "RollingOut")
    assert play.serving() == 3

    play.change(rollout={"paused": False})
    await play.until(lambda: len(before & play.uids()) == 2)
    play.change(rollout={"paused": True})
    await play.run(60)
    assert play.serving() == 3, "a pod that was being drained serves again"
    halfway = play.uids()
    assert len(before & halfway) == 2
    play.change(replicas=4)
    await play.until(lambda: play.serving() == 4)
    assert halfway < play.uids(), "scaling goes on"
    play.change(rollout={"paused": False})
    await play.until(play.is_at_rest)
    assert play.images() == ["engine:2"] * 4
    assert play.cluster.lost == []


async def test_no_roll_while_another_pod_loads(play: Play) -> None:
    await play.start()
    play.cluster.load_seconds["engine:1"] = 100.0
    play.change(replicas=4)
    await play.until(lambda: len(play.cluster.live_pods) == 4)
    play.change(engine={"image": "engine:2"})
    await play.run(60)
    assert play.images() == ["engine:1"] * 4
    status, reason, message = play.condition("Progressing")
    assert (status, reason) == ("True", "RolloutDeferred")
    assert "still loads its model" in message
    assert play.status["rollout"]["phase"] == "Deferred"
    await play.until(play.is_at_rest)
    assert play.images() == ["engine:2"] * 4

    play.change(rollout={"protectStartup": False}, engine={"image": "engine:3"})
    await play.until(play.is_at_rest)
    assert play.cluster.lost == []


async def test_broken_pods_are_no_reason_to_wait_for_their_own_cure(play: Play) -> None:
    play.cluster.load_seconds["engine:1"] = None
    play.change(engine={"image": "engine:1", "loadDeadline": "60s"})
    await play.until(lambda: play.condition("Ready")[1] == "LoadDeadlineExceeded")
    began = play.cluster.now
    play.change(engine={"image": "engine:2"})
    await play.until(play.is_at_rest)
    assert play.cluster.now - began < 60, "nobody has requests, so nobody is waited for"


async def test_no_gpu_to_spare_and_none_needed() -> None:
    play = Play()
    play.cluster.gpus = 3
    await play.start()
    play.change(engine={"image": "engine:2"})
    reasons = set()
    while not play.is_at_rest():
        await play.look()
        reasons.add(play.condition("Ready")[1])
    assert play.images() == ["engine:2"] * 3
    assert "Unschedulable" not in reasons, "the place becomes free in a moment"


async def test_a_surge_serves_before_the_first_old_pod_goes() -> None:
    play = Play(rollout={"maxSurge": 1, "maxUnavailable": 0})
    await play.start()
    play.change(engine={"image": "engine:2"})
    least = 3
    while not play.is_at_rest():
        await play.look()
        least = min(least, play.serving())
    assert play.images() == ["engine:2"] * 3
    assert (least, play.cluster.lost) == (3, [])


@pytest.mark.parametrize(
    ("rollout", "least"),
    [
        pytest.param({"maxUnavailable": 2, "protectStartup": False}, 2, id="two at a time"),
        pytest.param({"maxUnavailable": 2}, 3, id="one at a time, since loading pods are protected"),
        pytest.param({"maxSurge": 2, "maxUnavailable": 0}, 4, id="two more"),
    ],
)
async def test_as_many_are_out_of_service_as_the_resource_allows(rollout: dict[str, Any], least: int) -> None:
    play = Play(replicas=4, rollout=rollout)
    play.cluster.load_seconds = {"engine:2": 20.0}
    await play.start()
    play.change(engine={"image": "engine:2"})
    serving = []
    while not play.is_at_rest():
        await play.look()
        serving.append(play.serving())
    assert min(serving) == least
    assert play.images() == ["engine:2"] * 4
    assert play.cluster.lost == []


async def test_without_pods_the_next_ones_are_new_at_once() -> None:
    play = Play(replicas=0)
    await play.until(lambda: play.condition("Ready")[1] == "ScaledToZero")
    play.change(engine={"image": "engine:2"})
    await play.run(10)
    play.change(replicas=2)
    await play.until(play.is_at_rest)
    assert play.images() == ["engine:2"] * 2
    assert play.cluster._made == 2 + 2, "two ReplicaSets, two pods"


async def test_replicas_and_template_in_one_change(play: Play) -> None:
    await play.start()
    play.change(engine={"image": "engine:2"}, replicas=5)
    await play.until(play.is_at_rest)
    assert play.images() == ["engine:2"] * 5
    play.change(engine={"image": "engine:3"}, replicas=2)
    await play.until(play.is_at_rest)
    assert play.images() == ["engine:3"] * 2
    assert play.cluster.lost == []


async def test_what_needs_no_new_pods_makes_none(play: Play) -> None:
    await play.start()
    before, template = play.uids(), play.deployment["spec"]["template"]
    policy = {"draftModel": {"uri": "hf://org/draft"}, "policy": {"disableAbove": 99}}
    play.change(speculation=policy, rollout={"progressDeadline": "9h"})
    play.cluster.objects["SpeculativeServer", "chat"]["metadata"]["labels"] = {"team": "a"}
    await play.run(60)
    assert play.uids() == before
    assert play.deployment["spec"]["template"] == template
    assert play.is_at_rest()


async def test_whoever_else_adds_replicas_again_and_again_costs_none_that_serves(play: Play) -> None:
    """An autoscaler on the Deployment, where the resource's number is in force: what it adds goes first."""
    await play.start()
    before = play.uids()
    for _ in range(20):
        play.deployment["spec"]["replicas"] = 5
        await play.run(15)
        assert play.serving() == 3
    assert before == play.uids()
    assert play.deployment["spec"]["replicas"] == 3
    assert play.cluster.lost == []


# ---- another operator ---------------------------------------------------------------------------------------------------


def build_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the next version might: another pod from the same resource."""
    monkeypatch.setattr("specserver.build.workload.LAUNCHER", ["python", "-m", "specserver.plugin.launcher2"])


async def test_an_upgrade_makes_no_new_pods_until_the_resource_asks_for_them(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    await play.start()
    before = play.uids()
    build_otherwise(monkeypatch)
    play.restart()
    await play.run(60)
    assert play.uids() == before
    assert play.is_at_rest()
    assert "earlier version of the operator" in play.condition("Progressing")[2]
    writes = len(play.cluster.writes)
    await play.run(60)
    assert len(play.cluster.writes) == writes, "and is at rest"

    play.change(replicas=4, rollout={"maxUnavailable": 2})
    await play.until(play.is_at_rest)
    assert before < play.uids()
    assert {tuple(pod["spec"]["containers"][0]["command"]) for pod in play.cluster.live_pods} == {
        ("python", "-m", "specserver.plugin.launcher")
    }, "pods of one server are of one kind"
    assert play.deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 2

    play.change(engine={"image": "engine:2"})
    await play.until(play.is_at_rest)
    assert {pod["spec"]["containers"][0]["command"][2] for pod in play.cluster.live_pods} == {"specserver.plugin.launcher2"}
    assert "earlier version" not in play.condition("Progressing")[2]


async def test_an_upgrade_rolls_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(rollout={"onOperatorUpgrade": "Roll"})
    await play.start()
    build_otherwise(monkeypatch)
    play.restart()
    await play.until(lambda: not play.is_at_rest())
    await play.until(play.is_at_rest)
    assert {pod["spec"]["containers"][0]["command"][2] for pod in play.cluster.live_pods} == {"specserver.plugin.launcher2"}
    assert play.cluster.lost == []


def forget_origin(play: Play) -> None:
    """As an operator leaves it that wrote no annotations, or somebody who took them away."""
    for body in (play.deployment, *play.cluster.of("ReplicaSet")):
        for name in ("specserver.io/template-digest", "specserver.io/template-intent"):
            body["metadata"]["annotations"].pop(name, None)
    play.cluster._applied.pop(("Deployment", "chat", "specserver"))


@pytest.mark.parametrize("builds_otherwise", [False, True])
async def test_a_deployment_of_unknown_origin_is_taken_over_with_its_pods(
    play: Play, monkeypatch: pytest.MonkeyPatch, builds_otherwise: bool
) -> None:
    await play.start()
    before = play.uids()
    forget_origin(play)
    if builds_otherwise:
        build_otherwise(monkeypatch)
    play.restart()
    await play.run(60)
    assert play.uids() == before
    assert play.is_at_rest()
    assert ("earlier version" in play.condition("Progressing")[2]) == builds_otherwise
    play.change(engine={"image": "engine:2"})
    await play.until(play.is_at_rest)
    assert play.images() == ["engine:2"] * 3


# ---- suspension ---------------------------------------------------------------------------------------------------------


async def test_suspended_and_resumed(play: Play) -> None:
    await play.start()
    names = [pod["metadata"]["name"] for pod in play.cluster.live_pods]
    play.cluster.requests_of = dict.fromkeys(names, 1)
    play.change(suspend=True)
    await play.run(10)
    assert play.serving() == 0
    assert len(play.cluster.live_pods) == 3, "they finish what they have"
    assert play.condition("Ready") == ("False", "Suspended", "spec.suspend is true; 3 pods finish their requests first")
    play.cluster.requests_of = {}
    await play.until(lambda: not play.cluster.of("Pod"))
    await play.look()
    assert play.condition("Ready")[1:] == ("Suspended", "spec.suspend is true: no pod runs, and no GPU is taken")
    assert play.cluster.lost == []
    kinds = {kind for kind, _ in play.cluster.objects}
    assert {"Deployment", "Service", "ConfigMap", "Secret", "PodDisruptionBudget"} <= kinds
    writes = len(play.cluster.writes)
    await play.run(60)
    assert len(play.cluster.writes) == writes

    play.change(suspend=False)
    await play.until(play.is_at_rest)
    assert play.serving() == 3


async def test_a_suspension_taken_back_halfway(play: Play) -> None:
    await play.start()
    before = play.uids()
    play.cluster.requests_of = {pod["metadata"]["name"]: 1 for pod in play.cluster.live_pods}
    play.change(suspend=True)
    await play.run(10)
    play.change(suspend=False)
    await play.until(play.is_at_rest)
    assert (play.uids(), play.serving()) == (before, 3)


async def test_a_server_made_suspended_has_no_pods() -> None:
    play = Play(suspend=True)
    await play.run(20)
    assert play.cluster.of("Pod") == []
    assert play.condition("Ready")[1] == "Suspended"
    play.change(suspend=False)
    await play.start()


async def test_suspended_in_the_middle_of_a_rollout(play: Play) -> None:
    await play.start()
    play.change(engine={"image": "engine:2"})
    await play.until(lambda: "engine:2" in play.images())
    play.change(suspend=True)
    await play.until(lambda: not play.cluster.of("Pod"))
    play.change(suspend=False)
    await play.until(play.is_at_rest)
    assert play.images() == ["engine:2"] * 3
    assert play.cluster.lost == []


# ---- killed at every write ----------------------------------------------------------------------------------------------


async def roll(play: Play) -> None:
    play.change(engine={"image": "engine:2"})
    await play.until(play.is_at_rest)


async def scale_up(play: Play) -> None:
    play.change(replicas=3)
    await play.until(play.is_at_rest)


async def scale_down(play: Play) -> None:
    play.change(replicas=2)
    await play.until(lambda: play.is_at_rest() and len(play.cluster.live_pods) == 2)


async def suspend(play: Play) -> None:
    play.change(suspend=True)
    await play.until(lambda: not play.cluster.of("Pod") and play.condition("Ready")[1] == "Suspended")


STORIES = {"rollout": roll, "scale-up": scale_up, "scale-down": scale_down, "suspension": suspend}
ACTED = ("DrainStarted", "DrainCancelled", "ScaledUp", "ScaledDown")


async def tell(story: str, kill: Callable[[int, bool], bool]) -> tuple[Play, int]:
    """The story, with the operator killed where `kill` says: after the write with this number, which has changed something
    or has not, and before its answer. That is also before the next write."""
    play = Play(replicas=3 if story == "scale-down" else 2)
    await play.start()
    first = len(play.cluster.writes)
    store = play.cluster._store

    def killing_store(kind: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        before = play.cluster.objects.get((kind, name), {})
        stored = store(kind, name, body)
        changed = [key for key in ("spec", "status", "data") if stored.get(key) != before.get(key)]
        annotated = stored["metadata"].get("annotations") != before.get("metadata", {}).get("annotations")
        if kill(len(play.cluster.writes) - first - 1, bool(changed) or annotated):
            raise Killed
        return stored

    play.cluster._store = killing_store  # type: ignore[method-assign]
    await STORIES[story](play)
    play.cluster._store = store  # type: ignore[method-assign]
    writes = len(play.cluster.writes) - first
    await play.run(30)
    return play, writes


def outcome(play: Play) -> dict[str, Any]:
    """What must be the same, whoever died when."""
    return {
        "images": play.images(),
        "deployment": play.deployment["spec"],
        "marked": [pod for pod in play.cluster.live_pods if pod["metadata"]["annotations"]],
        "lost": play.cluster.lost,
        "acted": Counter(play.events(*ACTED)),
        "history": [(one["from"], one["to"]) for one in play.status["scaling"].get("history", [])],
        "ready": play.condition("Ready")[:2],
    }


@pytest.mark.parametrize("story", STORIES)
async def test_killed_at_any_write_it_ends_where_it_would_have(story: str) -> None:
    undisturbed, writes = await tell(story, lambda _number, _changed: False)
    wanted = outcome(undisturbed)
    assert writes > 4
    for point in range(writes):
        killed: list[int] = []

        def kill(number: int, _changed: bool, point: int = point, killed: list[int] = killed) -> bool:
            if number == point and not killed:
                killed.append(point)
                return True
            return False

        play, _ = await tell(story, kill)
        assert killed == [point]
        assert outcome(play) == wanted, f"killed at write {point}"


@pytest.mark.parametrize("story", STORIES)
async def test_an_operator_that_lives_for_one_change_gets_there_too(story: str) -> None:
    """It dies with each write that changes anything, again and again."""
    undisturbed, _ = await tell(story, lambda _number, _changed: False)
    play, _ = await tell(story, lambda _number, changed: changed)
    assert outcome(play) == outcome(undisturbed)
