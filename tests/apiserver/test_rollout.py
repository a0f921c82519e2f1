"""Rollouts, suspension and upgrades on real Deployments and ReplicaSets, with the controllers that Kubernetes runs.

Every turn that a rollout can take is in tests/unit/controller/test_rollouts.py, on controllers in memory; here is what those
must have right.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserver.api import v1alpha1
from specserver.build import build_all
from tests.apiserver.world import KIND, World, a_server
from tests.fakes.api import APPLY, JSON_PATCH, Body
from tests.fakes.engine import FakeEngine
from tests.fakes.kubelet import Behaviour, Ended
from tests.waiting import always, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

DRAINING_FOR = "specserver.io/draining-for"


def image_of(pod: Body) -> str:
    found: str = pod["spec"]["containers"][0]["image"]
    return found


async def images(world: World) -> list[str]:
    return sorted(image_of(pod) for pod in await world.pods())


async def draining(world: World) -> list[Body]:
    return [pod for pod in await world.pods() if DRAINING_FOR in pod["metadata"].get("annotations", {})]


async def is_at_rest(world: World) -> bool:
    """Ready, and the Deployment as it was before the rollout."""
    body, deployment = await world.read(), await world.deployment()
    ready = any(
        one["type"] == "Ready" and one["status"] == "True" and one["observedGeneration"] == body["metadata"]["generation"]
        for one in body["status"]["conditions"]
    )
    return ready and not deployment["spec"].get("minReadySeconds")


async def wait_rest(world: World) -> None:
    await eventually(lambda: is_at_rest(world), "the end of the rollout", within_seconds=90)


async def test_a_busy_pod_is_drained_before_it_is_replaced(world: World) -> None:
    await world.create_ready()
    await world.wait_condition("MetricsAvailable", "True")
    names = sorted(world.engines)
    engines = dict(world.engines)
    engines[names[0]].running, engines[names[1]].running = 5, 2
    await eventually(lambda: _has_load(world, 7), "the load in status")
    await world.change(engine={"image": "engine:2"})
    # 1. The idlest goes first: out of the Service, and not gone while it has requests.
    (marked,) = await eventually(lambda: draining(world), "a pod that is being drained")
    assert marked["metadata"]["name"] == names[1]
    assert await world.receiving() == {names[0]}
    await world.wait_condition("Progressing", "True", "Draining", says=names[1])
    assert (await world.condition("Ready"))["reason"] == "RollingOut"
    assert (await world.deployment())["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:1"

    async def both_are_there() -> bool:
        return set(names) <= {pod["metadata"]["name"] for pod in await world.pods()}

    await always(both_are_there, "a busy pod stays", for_seconds=7.0)
    # 2. Idle: it goes, and the other one only when its successor serves and it is idle itself.
    engines[names[1]].running = 0

    async def one_of_each() -> bool:
        return await images(world) == ["engine:1", "engine:2"]

    await eventually(one_of_each, "one pod of each revision", within_seconds=30)
    assert {pod["metadata"]["name"] for pod in await world.pods()} > {names[0]}
    (next_one,) = await eventually(lambda: draining(world), "the other pod being drained", within_seconds=30)
    assert next_one["metadata"]["name"] == names[0]
    assert len(await world.receiving()) == 1, "the new one serves meanwhile"
    engines[names[0]].running = 0
    await wait_rest(world)
    assert await images(world) == ["engine:2", "engine:2"]
    assert not set(names) & {pod["metadata"]["name"] for pod in await world.pods()}
    events = await world.events("DrainStarted", "DrainCancelled")
    assert [event["reason"] for event in events] == ["DrainStarted", "DrainStarted"]
    assert all("before it is replaced" in event["message"] for event in events)
    deployment = await world.deployment()
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


async def test_a_bad_revision_stops_after_its_first_pod(world: World) -> None:
    await world.create_ready(replicas=3)
    before = await world.pod_uids()
    world.behave(Behaviour(trouble=Ended(1, message="RuntimeError: no kernel image is available")))
    await world.change(engine={"image": "engine:bad"})
    stopped = await world.wait_condition("Progressing", "False", "RolloutStopped", says="no kernel image", within_seconds=40)
    assert "2 old pods are kept" in stopped["message"]
    await world.wait_condition("Ready", "False", "CrashLoop")
    await world.wait_condition("Available", "True")

    async def two_are_kept() -> bool:
        return len(before & await world.pod_uids()) == 2

    await always(two_are_kept, "the others stay", for_seconds=4.0)
    assert (await world.status())["rollout"]["phase"] == "Stalled"
    # An old pod that is lost meanwhile comes back as it was, not as the bad revision.
    world.behave(Behaviour())
    kept = [pod for pod in await world.pods() if image_of(pod) == "engine:1"]
    await world.api.delete("Pod", world.namespace, kept[0]["metadata"]["name"])

    async def it_came_back() -> bool:
        return await images(world) == ["engine:1", "engine:1", "engine:bad"] and len(await world.receiving()) == 2

    await eventually(it_came_back, "two old pods that serve")
    # Taken back: the bad pod goes, and nobody else.
    kept_uids = {pod["metadata"]["uid"] for pod in await world.pods() if image_of(pod) == "engine:1"}
    await world.change(engine={"image": "engine:1"})
    await wait_rest(world)
    assert kept_uids < await world.pod_uids()
    assert await images(world) == ["engine:1"] * 3


async def test_paused_and_deferred(world: World) -> None:
    await world.create_ready()
    before = await world.pod_uids()
    await world.change(engine={"image": "engine:2"}, rollout={"paused": True})
    await world.wait_condition("Progressing", "True", "RolloutPaused", says="rollout.paused")
    assert (await world.condition("Ready"))["reason"] == "RollingOut"
    world.behave(Behaviour(start_seconds=None))
    await world.change(replicas=3)
    await eventually(lambda: _count(world, 3), "scaling goes on")
    await world.change(rollout={"paused": False})
    await world.wait_condition("Progressing", "True", "RolloutDeferred", says="still loads its model")
    assert before < await world.pod_uids()
    assert await draining(world) == []
    world.behave(Behaviour())
    await world.change(rollout={"protectStartup": False})
    await wait_rest(world)
    assert await images(world) == ["engine:2"] * 3


async def test_a_draft_that_fits_nothing_stops_the_rollout(world: World) -> None:
    await world.create_ready()
    await world.wait_condition("MetricsAvailable", "True")

    def accepts_nothing(engine: FakeEngine) -> None:
        engine.accept_length = 1.0
        engine.running = 2
        engine.rounds[3] = 500

    world.behave(Behaviour(engine=accepts_nothing))
    await world.change(speculation={"draftModel": {"uri": "hf://org/other"}})
    stopped = await world.wait_condition("Progressing", "False", "DraftMismatch", within_seconds=40)
    assert "1 old pods are kept" in stopped["message"]
    active = await world.wait_condition("SpeculationActive", "False", "DraftMismatch", says="speculation.draftModel")
    assert any(f"pod {pod['metadata']['name']}: " in active["message"] for pod in await world.pods())
    kept = await world.pod_uids()

    async def stands_still() -> bool:
        return await world.pod_uids() == kept

    await always(stands_still, "no further pod is replaced", for_seconds=4.0)


async def test_suspended_and_resumed(world: World) -> None:
    await world.create_ready()
    await world.wait_condition("MetricsAvailable", "True")
    engine = next(iter(world.engines.values()))
    engine.running = 1
    await world.change(suspend=True)
    await world.wait_condition("Ready", "False", "Suspended", says="finish their requests first")

    async def nobody_receives() -> bool:
        return await world.receiving() == set()

    await eventually(nobody_receives, "no pod in the Service")
    assert await _count(world, 2), "they finish what they have"
    engine.running = 0
    await eventually(lambda: _count(world, 0), "no pods", within_seconds=30)
    await world.wait_condition("Ready", "False", "Suspended", says="no GPU is taken")
    for kind, name in (("Deployment", "chat"), ("Service", "chat"), ("ConfigMap", "chat-policy"), ("Secret", "chat-keys")):
        assert await world.api.find(kind, world.namespace, name) is not None
    # A change of the pods while there are none costs nothing.
    await world.change(engine={"image": "engine:2"})

    async def has_the_new_template() -> bool:
        return image_of(await _template(world)) == "engine:2"

    await eventually(has_the_new_template, "the new template")
    await world.change(suspend=False)
    await wait_rest(world)
    assert await images(world) == ["engine:2"] * 2


async def test_killed_in_the_middle_of_a_rollout(world: World) -> None:
    """What the operator knew is on the pods and on the Deployment."""
    await world.create_ready()
    await world.wait_condition("MetricsAvailable", "True")
    for engine in world.engines.values():
        engine.running = 1
    await eventually(lambda: _has_load(world, 2), "the load in status")
    engines = dict(world.engines)
    await world.change(engine={"image": "engine:2"})
    (marked,) = await eventually(lambda: draining(world), "a pod that is being drained")
    name = marked["metadata"]["name"]
    await world.operator.kill()
    engines[name].running = 0
    await world.operator.start()

    async def is_replaced() -> bool:
        return await images(world) == ["engine:1", "engine:2"]

    await eventually(is_replaced, "the marked pod replaced", within_seconds=30)
    assert name not in {pod["metadata"]["name"] for pod in await world.pods()}
    await world.operator.kill()

    async def stands_still() -> bool:
        return await images(world) == ["engine:1", "engine:2"] and len(await world.receiving()) >= 1

    await always(stands_still, "without an operator the rollout stands still", for_seconds=3.0)
    for engine in engines.values():
        engine.running = 0
    await world.operator.start()
    await wait_rest(world)
    assert await images(world) == ["engine:2"] * 2
    started = await world.events("DrainStarted")
    assert len({event["message"] for event in started}) == len(started) == 2, "each drain is told once"


# ---- another version of the operator ------------------------------------------------------------------------------------


EARLIER = Path(__file__).parent / "earlier" / "0.1.0.yaml"


async def install_as_an_earlier_version_did(world: World, edit: Any) -> None:
    """The server as the operator of 0.1.0 leaves it: its objects under its field managers, its pods, and a status about the
    present generation. Without `edit` its pods are those that are built today."""
    body = await world.read()
    text = EARLIER.read_text().replace("NAMESPACE", world.namespace).replace("SERVER-UID", body["metadata"]["uid"])
    objects: list[Body] = list(yaml.safe_load_all(text))
    if edit is None:
        objects = list(build_all(v1alpha1.parse(body)).values())
    for one in objects:
        one["metadata"]["annotations"] = {"specserver.io/desired-hash": "0123456789abcdef"}
        if one["kind"] == "Deployment" and edit is not None:
            edit(one["spec"]["template"]["spec"])
        await world.api.patch(one["kind"], world.namespace, one["metadata"]["name"], one, how=APPLY, manager="specserver")
    replicas = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat"}, "spec": {"replicas": 2}}
    await world.api.patch("Deployment", world.namespace, "chat", replicas, how=APPLY, manager="specserver-replicas")
    secret = {
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {
            "name": "chat-keys", "namespace": world.namespace, "ownerReferences": objects[0]["metadata"]["ownerReferences"],
        },
        "stringData": {"admin-key": "a" * 40, "api-key": "b" * 40},
    }  # fmt: skip
    await world.api.create(secret)
    status = {"status": {"observedGeneration": body["metadata"]["generation"]}}
    await world.api.patch(KIND, world.namespace, "chat", status, manager="specserver-status", subresource="status")


async def settled_pods(world: World) -> set[str]:
    async def serve() -> set[str]:
        return await world.pod_uids() if len(await world.receiving()) == 2 else set()

    return await eventually(serve, "two pods that serve")


def longer_pre_stop(pod: Body) -> None:
    pod["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 7}}}


@pytest.mark.parametrize(
    ("edit", "keeps", "policy"),
    [
        pytest.param(None, True, "Keep", id="same pods"),
        pytest.param(longer_pre_stop, True, "Keep", id="other pods, kept"),
        pytest.param(longer_pre_stop, False, "Roll", id="other pods, rolled"),
    ],
)
async def test_an_upgrade_of_the_operator(world: World, edit: Any, keeps: bool, policy: str) -> None:
    await world.operator.stop()
    await world.api.create(a_server(world.namespace, rollout={"onOperatorUpgrade": policy}))
    await install_as_an_earlier_version_did(world, edit)
    before = await settled_pods(world)
    await world.operator.start()
    if keeps:
        await world.wait_condition("Ready", "True")

        async def same_pods() -> bool:
            return await world.pod_uids() == before

        await always(same_pods, "no pod is replaced", for_seconds=4.0)
        annotations = (await world.deployment())["metadata"]["annotations"]
        assert "specserver.io/template-digest" in annotations
        assert "specserver.io/desired-hash" not in annotations
        earlier = edit is longer_pre_stop
        assert ("earlier version" in (await world.condition("Progressing"))["message"]) == earlier
        await world.change(speculation={"policy": {"disableAbove": 9}}, replicas=3)
        await world.wait_condition("PolicyApplied", "True", within_seconds=30)
        await eventually(lambda: _count(world, 3), "three pods")
        assert before < await world.pod_uids(), "what needs no new pods makes none, after an upgrade too"
        return
    await eventually(lambda: is_rolled(world, before), "all pods replaced", within_seconds=90)
    await wait_rest(world)


async def is_rolled(world: World, before: set[str]) -> bool:
    return not before & await world.pod_uids()


async def test_drift_of_a_kept_template_is_repaired_without_new_pods(world: World) -> None:
    await world.create_ready()
    await world.change(engine={"image": "engine:2"}, rollout={"paused": True})
    await world.wait_condition("Progressing", "True", "RolloutPaused")
    before = await world.pod_uids()
    pause = [{"op": "add", "path": "/spec/paused", "value": True}]
    await world.api.patch("Deployment", world.namespace, "chat", pause, how=JSON_PATCH)
    label = [{"op": "replace", "path": "/spec/template/spec/terminationGracePeriodSeconds", "value": 500}]
    await world.api.patch("Deployment", world.namespace, "chat", label, how=JSON_PATCH)

    async def is_back() -> bool:
        return bool((await _template(world))["spec"]["terminationGracePeriodSeconds"] != 500)

    await eventually(is_back, "the template as it was")
    assert image_of(await _template(world)) == "engine:1", "the one of the pods that there are"
    resume = [{"op": "remove", "path": "/spec/paused"}]
    await world.api.patch("Deployment", world.namespace, "chat", resume, how=JSON_PATCH)
    await asyncio.sleep(1.0)
    assert await world.pod_uids() == before


async def test_a_template_that_the_api_server_refuses_drains_nobody(world: World) -> None:
    await world.create_ready()
    await world.change(template={"spec": {"restartPolicy": "Sometimes"}})
    await world.wait_condition("Ready", "False", "ObjectRefused", says="restartPolicy")

    async def all_serve() -> bool:
        return len(await world.receiving()) == 2 and await draining(world) == []

    await always(all_serve, "both serve on", for_seconds=3.0)


async def _template(world: World) -> Body:
    found: Body = (await world.deployment())["spec"]["template"]
    return found


async def _count(world: World, wanted: int) -> bool:
    return len(await world.pods()) == wanted


async def _has_load(world: World, running: int) -> bool:
    return bool((await world.status()).get("load", {}).get("running") == running)

