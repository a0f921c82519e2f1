"""The next step of a rollout, by table. How the steps add up to a rollout is in tests/unit/controller/test_rollouts.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.api.v1alpha1 import Mode, OperatorUpgrade, Rollout
from specserver.core.drain import (
    LOWEST_DELETION_COST,
    Action,
    DrainPlan,
    MarkDraining,
    ReleaseReplica,
    ReturnToService,
    plan_drain,
)
from specserver.core.engine_report import find_misfit, plan_speculation_active
from specserver.core.observed import ContainerFailure, Load, LoadUnknown, Pod, Revision, Workload
from specserver.core.rollout import RolloutPlan, Target, plan_rollout, plan_target
from specserver.core.scaling import ScalingHistory, plan_scaling
from specserver.core.suspend import plan_suspension
from tests.unit.core.scaling_cluster import NOW, a_load, a_pod, a_scaling, an_engine, loading, pending

UNKNOWN = LoadUnknown("ScrapeError", "no replica answered")
CRASH = ContainerFailure("Error", "RuntimeError: no kernel", 1, 2, NOW)


def old(name: str, **fields: Any) -> Pod:
    return a_pod(name, **{"template_hash": "old", **fields})


def new(name: str, **fields: Any) -> Pod:
    return a_pod(name, **{"template_hash": "new", "ready_since": NOW - 3600, **fields})


def marked(name: str, elapsed: float, **fields: Any) -> Pod:
    marks = {
        "serving": False, "draining_since": NOW - elapsed, "draining_for": "rollout", "deletion_cost": LOWEST_DELETION_COST,
    }  # fmt: skip
    return old(name, **{**marks, **fields})


def revision(template_hash: str, replicas: int, *, held: bool = False, created_at: float = 0.0, **fields: Any) -> Revision:
    values = {"digest": template_hash, "scaled_for": None, **fields}
    return Revision(template_hash, created_at=created_at, replicas=replicas, held=held, **values)


def workload(
    *revisions: Revision, replicas: int = 3, gate: int | None = None, newest: str | None = "new", **fields: Any
) -> Workload:
    return Workload(
        uid="w", generation=1, observed_generation=1, spec_replicas=replicas, replicas=replicas, ready_replicas=replicas,
        updated_replicas=replicas, available_replicas=replicas, current_template_hash=newest, progress_deadline_exceeded=False,
        revisions=revisions, held=gate is not None, max_unavailable=1 if gate is None else gate, **fields,
    )  # fmt: skip


def plan(
    pods: list[Pod], of: Workload, *, target: Target = Target.CURRENT, load: Load | LoadUnknown = UNKNOWN,
    engines: Any = None, mode: Mode = Mode.AUTO, blocked: str = "", place_expected: bool = False, **rollout: Any,
) -> RolloutPlan:  # fmt: skip
    return plan_rollout(
        pods=pods, load=load, engines=engines or {}, workload=of, target=target, digest="new",
        rollout=Rollout.model_validate(rollout), mode=mode, blocked=blocked, place_expected=place_expected,
        load_deadline_seconds=600.0, now=NOW,
    )  # fmt: skip


def brief(step: RolloutPlan) -> tuple[list[tuple[str, str]], bool, int | None, str]:
    actions = [(type(one).__name__, one.pod.name) for one in step.actions if not isinstance(one, ReleaseReplica)]
    return actions, step.new_template, step.gate, step.stand.reason.value if step.stand else ""


THREE = [old("p0"), old("p1"), old("p2")]
AT_REST = workload(revision("old", 3), newest="old")
ONE_DONE = workload(revision("old", 2), revision("new", 1, held=True), gate=1)
BUSY = a_load(4, 1, 9)

#  name: (pods, workload, more, expected)
STEPS: dict[str, tuple[list[Pod], Workload, dict[str, Any], tuple[list[tuple[str, str]], bool, int | None, str]]] = {
    "nothing to roll": (THREE, AT_REST, {}, ([], False, None, "")),
    "the first victim is the idlest": (
        THREE, AT_REST, {"target": Target.NEW, "load": BUSY}, ([("MarkDraining", "p1")], False, None, "Draining")),
    "one that serves nobody goes at once, and the template with it": (
        [old("p0"), old("p1", ready=False, started=False, failure=CRASH), old("p2")], AT_REST, {"target": Target.NEW},
        ([("MarkDraining", "p1")], True, 1, "NewRevision")),
    "not idle yet": (
        [old("p0"), marked("p1", 8), old("p2")], AT_REST, {"target": Target.NEW, "load": BUSY}, ([], False, None, "Draining")),
    "idle once": (
        [old("p0"), marked("p1", 8), old("p2")], AT_REST, {"target": Target.NEW, "load": a_load(4, 0, 9)},
        ([("NoteIdle", "p1")], False, None, "Draining")),
    "idle twice": (
        [old("p0"), marked("p1", 8, drained_idle_since=NOW - 2), old("p2")], AT_REST,
        {"target": Target.NEW, "load": a_load(4, 0, 9)}, ([], True, 1, "NewRevision")),
    "the drain timeout": (
        [old("p0"), marked("p1", 60), old("p2")], AT_REST, {"target": Target.NEW}, ([], True, 1, "NewRevision")),
    "the controller is about to take it": (
        [old("p0"), marked("p1", 9, drained_idle_since=NOW - 2), old("p2")],
        workload(revision("old", 3), gate=1, newest=None), {}, ([], False, 1, "NewRevision")),
    "the successor is about to be made": (
        [old("p0"), old("p2")], workload(revision("old", 2), revision("new", 0, held=True), gate=1), {},
        ([], False, 1, "NewRevision")),
    "the successor loads": (
        [old("p0"), new("p3", ready=False, started=False), old("p2")], ONE_DONE, {}, ([], False, 1, "NewRevision")),
    "the successor loads, and a broken one does not wait for it": (
        [new("p3", ready=False, started=False), old("p1", ready=False, started=False, failure=CRASH), old("p2")], ONE_DONE, {},
        ([("MarkDraining", "p1")], False, 2, "NewRevision")),
    "the successor is about to be made, and a broken one does not wait for it": (
        [old("p0", ready=False, started=False, failure=CRASH), old("p2")],
        workload(revision("old", 2), revision("new", 0, held=True), gate=1), {},
        ([("MarkDraining", "p0")], False, 2, "NewRevision")),
    "a mark that lost its time is made anew": (
        [marked("p0", 8, draining_since=None), new("p3"), old("p2")], ONE_DONE, {},
        ([("MarkDraining", "p0")], False, 1, "Draining")),
    "the successor serves: the next": (
        [old("p0"), new("p3"), old("p2")], ONE_DONE, {"load": a_load(4, 1, names=("p0", "p2"))},
        ([("MarkDraining", "p2")], False, 1, "Draining")),
    "idle twice, the second time": (
        [marked("p0", 8, drained_idle_since=NOW - 2), new("p3"), old("p2")], ONE_DONE, {"load": a_load(0)},
        ([], False, 2, "NewRevision")),
    "all are new": ([new("p3"), new("p4"), new("p5")], workload(revision("old", 0), revision("new", 3), gate=3), {},
        ([], False, None, "")),
    "the last one is still wanted by its ReplicaSet": (
        [new("p3"), new("p4")], workload(revision("old", 1), revision("new", 2, held=True), gate=2), {},
        ([], False, 3, "NewRevision")),
    "paused: a marked one serves again": (
        [marked("p0", 8), new("p3"), old("p2")], ONE_DONE, {"paused": True},
        ([("ReturnToService", "p0")], False, 1, "RolloutPaused")),
    "paused before it began": (
        [marked("p0", 8), old("p1"), old("p2")], AT_REST, {"target": Target.NEW, "paused": True},
        ([("ReturnToService", "p0")], False, None, "RolloutPaused")),
    "what new pods need is missing": (
        THREE, AT_REST, {"target": Target.NEW, "blocked": "Secret s"}, ([], False, None, "RolloutDeferred")),
    "the new one is ready and stalls": (
        [marked("p0", 8), new("p3", stalled=True), old("p2")], ONE_DONE, {},
        ([("ReturnToService", "p0")], False, 1, "RolloutStopped")),
    "a stalled one is none that serves meanwhile": (
        [old("p0", stalled=True), marked("p2", 8), new("p3")], ONE_DONE, {},
        ([("ReturnToService", "p2")], False, 1, "NewRevision")),
    "the successor loads, and a stalled one does not wait for it": (
        [new("p3", ready=False, started=False), old("p1", stalled=True), old("p2")], ONE_DONE, {},
        ([("MarkDraining", "p1")], False, 1, "Draining")),
    "the new one fails": (
        [marked("p0", 8), new("p3", ready=False, started=False, failure=CRASH), old("p2")], ONE_DONE, {},
        ([("ReturnToService", "p0")], False, 1, "RolloutStopped")),
    "the new one fails, whatever may be unavailable": (
        [old("p0"), new("p3", ready=False, started=False, failure=CRASH), old("p2")], ONE_DONE,
        {"maxUnavailable": 3, "protectStartup": False}, ([], False, 1, "RolloutStopped")),
    "no node takes the new one": (
        [old("p0"), pending("p3", template_hash="new", unschedulable_message="1 Insufficient nvidia.com/gpu"), old("p2")],
        ONE_DONE, {}, ([], False, 1, "RolloutStopped")),
    "its node is about to be free": (
        [old("p0"), pending("p3", template_hash="new", unschedulable_message="1 Insufficient nvidia.com/gpu"), old("p2")],
        ONE_DONE, {"place_expected": True}, ([], False, 1, "NewRevision")),
    "the API server makes no new one": (
        [old("p0"), old("p2")],
        workload(revision("old", 2), revision("new", 1, held=True), gate=1, creation_refused="exceeded quota: q"), {},
        ([], False, 1, "RolloutStopped")),
    "the API server made no old one: the new ones are its cure": (
        [], workload(revision("old", 3), newest="old", creation_refused="violates PodSecurity"), {"target": Target.NEW},
        ([], True, 1, "NewRevision")),
    "and the next ones, too": (
        [new("p3")],
        workload(revision("old", 2), revision("new", 1, held=True), gate=1, creation_refused="violates PodSecurity"), {},
        ([], False, 2, "NewRevision")),
    "the new one is late": (
        [old("p0"), new("p3", ready=False, started=False, created_at=NOW - 3601), old("p2")], ONE_DONE, {},
        ([], False, 1, "ProgressDeadlineExceeded")),
    "another one loads": (
        [old("p0"), loading("p1", template_hash="old"), old("p2")], AT_REST, {"target": Target.NEW},
        ([], False, None, "RolloutDeferred")),
    "another one loads, and is not protected": (
        [old("p0"), loading("p1", template_hash="old"), old("p2")], AT_REST, {"target": Target.NEW, "protectStartup": False},
        ([("MarkDraining", "p1")], True, 1, "NewRevision")),
    "another one loads, and a broken one does not wait for it": (
        [old("p0"), loading("p1", template_hash="old"), old("p2", ready=False, started=False, failure=CRASH)], AT_REST,
        {"target": Target.NEW}, ([("MarkDraining", "p2")], True, 1, "NewRevision")),
    "all load: there is nothing to protect": (
        [loading(f"p{i}", template_hash="old") for i in range(3)], AT_REST, {"target": Target.NEW},
        ([("MarkDraining", "p0")], True, 1, "NewRevision")),
    "a replica is being removed": (
        [old("p0"), old("p1", draining_since=NOW, serving=False), old("p2")], AT_REST, {"target": Target.NEW},
        ([], False, None, "RolloutDeferred")),
    "an old one is missing: its place is taken": (
        [old("p0"), old("p2")], AT_REST, {"target": Target.NEW}, ([], True, 1, "NewRevision")),
    "no pod at all: nothing to wait for": ([], AT_REST, {"target": Target.NEW}, ([], True, 1, "NewRevision")),
    "no replicas": ([], workload(revision("old", 0), replicas=0, newest="old"), {"target": Target.NEW}, ([], True, None, "")),
    "too few serve to take one": (
        [old("p0"), old("p1", ready=False), new("p3"), marked("p2", 8)],
        workload(revision("old", 3), revision("new", 1, held=True), replicas=4, gate=1), {"load": a_load(0)},
        ([("ReturnToService", "p2")], False, 1, "NewRevision")),
    "the scale is being changed": (
        [marked("p0", 60), new("p3"), old("p2")],
        workload(revision("old", 2, scaled_for=3), revision("new", 1, held=True, scaled_for=3), replicas=4, gate=1), {},
        ([], False, 1, "NewRevision")),
    "a surge comes before anybody goes": (
        THREE, AT_REST, {"target": Target.NEW, "maxSurge": 1}, ([], True, 0, "NewRevision")),
    "the surge is not there yet": (
        THREE, workload(revision("old", 3), revision("new", 1, held=True), gate=0), {"maxSurge": 1},
        ([], False, 0, "NewRevision")),
    "the surge serves": (
        [*THREE, new("p3")], workload(revision("old", 3), revision("new", 1, held=True), gate=0),
        {"maxSurge": 1, "maxUnavailable": 0, "load": BUSY}, ([("MarkDraining", "p1")], False, 0, "Draining")),
    "a new one has a rollout's mark: it was taken back": (
        [new("p0", serving=False, draining_since=NOW, draining_for="rollout"), new("p1"), new("p2")],
        workload(revision("new", 3)), {}, ([("ReturnToService", "p0")], False, None, "")),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "of", "more", "expected"), STEPS.values(), ids=STEPS.keys())
def test_step(
    pods: list[Pod], of: Workload, more: dict[str, Any], expected: tuple[list[tuple[str, str]], bool, int | None, str]
) -> None:
    assert brief(plan(pods, of, **more)) == expected


def test_a_revision_that_was_there_before_is_the_newest_again() -> None:
    """A change taken back: what it made is what goes."""
    seen = workload(revision("new", 2), revision("bad", 1, held=True), gate=1, newest="bad")
    pods = [new("p0"), new("p1"), a_pod("p2", template_hash="bad", ready=False, started=False, failure=CRASH)]
    step = plan(pods, seen, target=Target.NEW)
    assert step.newest == "new"
    assert brief(step) == ([("MarkDraining", "p2")], True, 1, "NewRevision")
    written = replace(seen, current_template_hash="new")
    assert brief(plan([*pods[:2], replace(pods[2], draining_since=NOW, draining_for="rollout")], written))[2] == 3


def test_pods_of_an_unfinished_rollout_go_first() -> None:
    """The controller never counts them as available, and so takes them first: whom it takes must be whom we drained."""
    seen = workload(revision("old", 2), revision("half", 1, held=True, created_at=9.0), gate=1, newest="half")
    pods = [old("p0"), old("p1"), a_pod("p2", template_hash="half")]
    assert brief(plan(pods, seen, target=Target.NEW, load=a_load(0, 0, 50)))[0] == [("MarkDraining", "p2")]


@pytest.mark.parametrize(
    ("digest", "intent", "on_upgrade", "target"),
    [
        pytest.param("d", "i", "Keep", Target.CURRENT, id="the same"),
        pytest.param("d", "other", "Keep", Target.CURRENT, id="a default written out"),
        pytest.param("other", "i", "Keep", Target.KEPT, id="another operator"),
        pytest.param("other", "i", "Roll", Target.NEW, id="another operator, and that is wanted"),
        pytest.param("other", "other", "Keep", Target.NEW, id="another resource"),
    ],
)
def test_whose_change_it_is(digest: str, intent: str, on_upgrade: str, target: Target) -> None:
    seen = workload(template_digest="d", template_intent="i")
    assert plan_target(seen, digest=digest, intent=intent, on_upgrade=OperatorUpgrade(on_upgrade)) is target


# ---- the draft ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "misfit"),
    [
        pytest.param({"accept_length": 1.0, "rounds": {3: 100}}, "p0", id="nothing is accepted"),
        pytest.param({"accept_length": 1.05, "rounds": {0: 9, 1: 50, 3: 50}}, "p0", id="next to nothing"),
        pytest.param({"accept_length": 1.06, "rounds": {3: 1000}}, "", id="something"),
        pytest.param({"accept_length": 1.0, "rounds": {3: 99, 0: 900}}, "", id="too few rounds to tell"),
        pytest.param({"accept_length": None, "rounds": {3: 1000}}, "", id="not measured is not nothing"),
    ],
)
def test_a_draft_that_fits_nothing(fields: dict[str, Any], misfit: str) -> None:
    engines = {"p0": an_engine("p0", steps=3, **fields)}
    assert find_misfit(engines, ["p0", "p1"]) == misfit
    said = plan_speculation_active(engines, Mode.AUTO)
    assert (said.reason == "DraftMismatch") == bool(misfit)
    step = plan([old("p1"), new("p0"), old("p2")], ONE_DONE, engines=engines, load=a_load(0, 0, 0))
    assert (step.stand is not None and step.stand.reason == "DraftMismatch") == bool(misfit)


@pytest.mark.parametrize(
    ("fields", "load", "mode", "waits"),
    [
        pytest.param({"ready_since": NOW - 29}, BUSY, Mode.AUTO, True, id="not measured yet"),
        pytest.param({"ready_since": NOW - 30}, BUSY, Mode.AUTO, False, id="long enough"),
        pytest.param({"ready_since": NOW - 1}, a_load(0, 0, 0), Mode.AUTO, False, id="nobody asks anything"),
        pytest.param({"ready_since": NOW - 1}, UNKNOWN, Mode.AUTO, False, id="nobody knows"),
        pytest.param({"ready_since": NOW - 1}, BUSY, Mode.NEVER, False, id="no draft"),
    ],
)
def test_a_new_draft_is_measured_before_the_next_pod(fields: dict[str, Any], load: Any, mode: Mode, waits: bool) -> None:
    pods = [old("p0"), new("p1", **fields), old("p2")]
    step = plan(pods, ONE_DONE, load=load, mode=mode)
    assert (step.stand is not None and "first measured acceptance" in step.stand.message) == waits
    measured = {"p1": an_engine("p1", accept_length=2.0)}
    step = plan(pods, ONE_DONE, load=load, mode=mode, engines=measured)
    assert step.stand is not None
    assert "first measured acceptance" not in step.stand.message


# ---- beside scaling -----------------------------------------------------------------------------------------------------


def remove(pods: list[Pod], *, desired: int, current: int) -> DrainPlan:
    return plan_drain(
        pods=pods, load=a_load(0, 0, 0), desired_replicas=desired, current_replicas=current, drain_timeout_seconds=60.0, now=NOW
    )


def test_a_rollouts_mark_is_no_scale_downs() -> None:
    pods = [marked("p0", 8, template_hash="rev1"), a_pod("p1"), a_pod("p2")]
    assert remove(pods, desired=3, current=3).actions == (), "it is not returned to service"
    step = remove(pods, desired=2, current=3)
    assert step.actions == ()
    assert "waiting for the rollout" in step.message


def test_a_pod_that_is_being_replaced_is_still_a_replica() -> None:
    """Its requests are the others', and it is counted: nothing is added or removed on its account."""
    scaled = plan_scaling(
        scaling=a_scaling(1, 10, Running=8), current_replicas=3, pods=[marked("p0", 8), a_pod("p1"), a_pod("p2")],
        load=a_load(8, 8, 8), engines={}, history=ScalingHistory(), now=NOW,
    )  # fmt: skip
    assert scaled.desired_replicas == 3


# ---- suspension ---------------------------------------------------------------------------------------------------------


def suspend(pods: list[Pod], load: Load | LoadUnknown, current: int = 2) -> DrainPlan:
    return plan_suspension(pods=pods, load=load, current_replicas=current, drain_timeout_seconds=60.0, now=NOW)


def leaving(name: str, elapsed: float, **fields: Any) -> Pod:
    marks = {"serving": False, "draining_since": NOW - elapsed, "deletion_cost": LOWEST_DELETION_COST}
    return a_pod(name, **{**marks, **fields})


def names_of(actions: tuple[Action, ...]) -> list[tuple[str, str | int]]:
    return [
        (type(one).__name__, one.to if isinstance(one, ReleaseReplica) else one.pod.name) for one in actions
    ]  # fmt: skip


SUSPENSIONS: dict[str, tuple[list[Pod], Load | LoadUnknown, int, list[tuple[str, str | int]]]] = {
    "all leave at once": ([a_pod("p0"), a_pod("p1")], a_load(3, 0), 2, [("MarkDraining", "p0"), ("MarkDraining", "p1")]),
    "who loads needs no drain": ([a_pod("p0"), loading("p1")], a_load(3), 2, [("MarkDraining", "p0")]),
    "one is busy": (
        [leaving("p0", 9, drained_idle_since=NOW - 2), leaving("p1", 9)], a_load(0, 4), 2, []),
    "all are idle": (
        [leaving(f"p{i}", 9, drained_idle_since=NOW - 2) for i in range(2)], a_load(0, 0), 2, [("ReleaseReplica", 0)]),
    "the timeout": ([leaving("p0", 61), leaving("p1", 61)], UNKNOWN, 2, [("ReleaseReplica", 0)]),
    "nothing ever started": ([loading("p0"), pending("p1")], UNKNOWN, 2, [("ReleaseReplica", 0)]),
    "done": ([a_pod("p0", terminating=True)], UNKNOWN, 0, []),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "load", "current", "expected"), SUSPENSIONS.values(), ids=SUSPENSIONS.keys())
def test_suspension(pods: list[Pod], load: Load | LoadUnknown, current: int, expected: list[tuple[str, str | int]]) -> None:
    assert names_of(suspend(pods, load, current).actions) == expected


# ---- whatever is there --------------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Pod], Workload, Target, dict[str, Any]]:
    kinds = st.sampled_from(["serves", "loads", "fails", "blip", "marked", "going"])
    pods = []
    for index in range(draw(st.integers(0, 5))):
        template_hash = draw(st.sampled_from(["old", "new"]))
        kind = draw(kinds)
        fields: dict[str, Any] = {
            "serves": {}, "loads": {"ready": False, "started": False}, "blip": {"ready": False},
            "fails": {"ready": False, "started": False, "failure": CRASH}, "going": {"terminating": True},
            "marked": {
                "serving": False, "draining_since": NOW - draw(st.integers(0, 90)), "draining_for": "rollout",
                "deletion_cost": LOWEST_DELETION_COST,
            },
        }[kind]  # fmt: skip
        pods.append(a_pod(f"p{index}", template_hash=template_hash, **fields))
    replicas = draw(st.integers(0, 5))
    sizes = (draw(st.integers(0, 5)), draw(st.integers(0, 5)))
    gate = draw(st.none() | st.integers(1, 5))
    seen = workload(revision("old", sizes[0]), revision("new", sizes[1], held=gate is not None), replicas=replicas, gate=gate)
    rollout = {"maxUnavailable": draw(st.integers(1, 3)), "protectStartup": draw(st.booleans()), "paused": draw(st.booleans())}
    return pods, seen, draw(st.sampled_from([Target.CURRENT, Target.NEW, Target.KEPT])), rollout


@given(clusters())
def test_every_step_is_safe(cluster: tuple[list[Pod], Workload, Target, dict[str, Any]]) -> None:
    pods, seen, target, rollout = cluster
    step = plan(pods, seen, target=target, load=a_load(*[0] * len(pods)), **rollout)
    # A gate that Kubernetes takes: without surge, maxUnavailable is 1 at the least.
    assert step.gate is None or step.gate >= 1
    # The template changes only with a gate, or where there is nothing that it could replace.
    old_pods = [pod for pod in pods if pod.lives and pod.template_hash != step.newest]
    assert not step.new_template or step.gate is not None or not old_pods
    assert not step.new_template or target is Target.NEW
    # One pod is taken out of the Service at most, an old one, and never below what the rollout leaves.
    marks = [one.pod for one in step.actions if isinstance(one, MarkDraining) and one.pod.draining_since is None]
    assert len(marks) <= 1
    for pod in marks:
        assert pod in old_pods
        others = sum(one.ready and one.serving for one in pods if one.lives and one is not pod)
        assert not pod.ready or others >= seen.spec_replicas - rollout["maxUnavailable"]
    # Paused begins nothing.
    assert not (rollout["paused"] and marks)
    # A pod is told one thing.
    told = [one.pod.name for one in step.actions if isinstance(one, MarkDraining | ReturnToService)]
    assert len(told) == len(set(told))
    # What is under way is looked at again.
    assert step.stand is None or (step.requeue_after_seconds or 0) > 0
