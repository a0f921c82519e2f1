"""One replica at a time, marked before `replicas` falls, and gone only once it is idle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.core.drain import (
    LOWEST_DELETION_COST,
    Action,
    ClearIdle,
    DrainPlan,
    MarkDraining,
    NoteIdle,
    ReleaseReplica,
    ReturnToService,
    count_drains,
    plan_drain,
)
from specserver.core.observed import Load, LoadUnknown, Pod
from tests.fakes.pods import build_failure
from tests.unit.core.scaling_cluster import NOW, a_load, a_pod, draining, loading, pending

UNKNOWN = LoadUnknown("ScrapeError", "no replica answered")


def plan(
    pods: list[Pod], load: Load | LoadUnknown, *, desired: int, current: int, timeout: float = 60.0, now: float = NOW
) -> DrainPlan:
    return plan_drain(
        pods=pods,
        load=load,
        desired_replicas=desired,
        current_replicas=current,
        drain_timeout_seconds=timeout,
        now=now,
    )


def brief(actions: tuple[Action, ...]) -> list[tuple[str, str | int]]:
    return [
        (type(action).__name__, action.to if isinstance(action, ReleaseReplica) else action.pod.name)
        for action in actions
    ]


# ---- whom ---------------------------------------------------------------------------------------------------------------

VICTIMS: dict[str, tuple[list[Pod], Load | LoadUnknown, str]] = {
    "the idlest": ([a_pod("p0"), a_pod("p1"), a_pod("p2")], a_load(14, 0, 2), "p1"),
    "running and queued both count": ([a_pod("p0"), a_pod("p1")], a_load(3, 1, queued=(0, 5)), "p0"),
    "a tie goes to the newest": (
        [a_pod("p0", created_at=NOW - 90), a_pod("p1", created_at=NOW - 60), a_pod("p2", created_at=NOW - 70)],
        a_load(2, 2, 2), "p1"),
    "a tie of age goes by name": ([a_pod("p1"), a_pod("p0")], a_load(2, 2), "p0"),
    "one that can't be read is taken last": ([a_pod("p0"), a_pod("p1"), a_pod("p2")], a_load(14, None, 20), "p0"),
    "without any load the newest": (
        [a_pod("p0", created_at=NOW - 90), a_pod("p1", created_at=NOW - 60)], UNKNOWN, "p1"),
    "not ready before idle": ([a_pod("p0"), a_pod("p1", ready=False)], a_load(0), "p1"),
    "stalled before idle": ([a_pod("p0"), a_pod("p1", stalled=True)], a_load(0, 0, queued=(0, 9)), "p1"),
    "loading before not ready": ([a_pod("p0", ready=False), loading("p1")], UNKNOWN, "p1"),
    "failing before loading": ([loading("p0"), loading("p1", failure=build_failure(), created_at=NOW - 9000)], UNKNOWN, "p1"),
    "pending before loading": ([loading("p0"), pending("p1")], UNKNOWN, "p1"),
    "placed but pending before loading": ([loading("p0"), pending("p1") , a_pod("p2")], a_load(0, names=("p2",)), "p1"),
    "outside the Service before idle": ([a_pod("p0"), a_pod("p1", serving=False)], a_load(0, 9), "p1"),
    "terminating and finished pods are no candidates": (
        [a_pod("p0"), a_pod("p1", terminating=True), a_pod("p2", phase="Failed", ready=False), a_pod("p3")],
        a_load(4, 0, 0, 5), "p0"),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "load", "victim"), VICTIMS.values(), ids=VICTIMS.keys())
def test_victim(pods: list[Pod], load: Load | LoadUnknown, victim: str) -> None:
    live = sum(not pod.terminating and pod.phase != "Failed" for pod in pods)
    step = plan(pods, load, desired=live - 1, current=live)
    assert brief(step.actions)[0] == ("MarkDraining", victim)


def test_a_replica_that_takes_requests_is_marked_and_only_marked() -> None:
    step = plan([a_pod("p0"), a_pod("p1")], a_load(0, 9), desired=1, current=2)
    assert step.actions == (MarkDraining(a_pod("p0"), NOW),)
    assert step.requeue_after_seconds == 5
    assert step.message == "draining pod p0"


def test_a_replica_that_never_started_goes_at_once() -> None:
    """It had no request, but it is marked all the same: it could become ready before the ReplicaSet chooses."""
    step = plan([a_pod("p0"), loading("p1")], a_load(9), desired=1, current=2)
    assert brief(step.actions) == [("MarkDraining", "p1"), ("ReleaseReplica", 1)]


# ---- when ---------------------------------------------------------------------------------------------------------------

#  name: (seconds since the marking, load of the victim, age of that sample, note of an idle sample, expected, again after)
STEPS: dict[str, tuple[float, float | None, float, float | None, list[tuple[str, str | int]], float]] = {
    "settling": (1, 0, 0, None, [], 4),
    "settled, busy": (5, 4, 0, None, [], 2),
    "an idle sample of before it settled proves nothing": (6, 0, 2, None, [], 2),
    "idle once": (5, 0, 0, None, [("NoteIdle", "p0")], 2),
    "the same sample again": (9, 0, 2, 7, [], 2),
    "the same sample, noted in whole seconds": (9.8, 0, 2, 7, [], 2),
    "idle twice": (9, 0, 0, 7, [("ReleaseReplica", 2)], 2),
    "busy after idle": (9, 1, 0, 7, [("ClearIdle", "p0")], 2),
    "unreachable is busy": (9, None, 0, None, [], 2),
    "unreachable after idle": (9, None, 0, 7, [("ClearIdle", "p0")], 2),
    "busy, a second before the deadline": (59, 4, 0, None, [], 1),
    "busy at the deadline": (60, 4, 0, None, [("ReleaseReplica", 2)], 2),
    "unreachable at the deadline": (60, None, 0, None, [("ReleaseReplica", 2)], 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("elapsed", "requests", "age", "noted", "expected", "again"), STEPS.values(), ids=STEPS.keys()
)
def test_step_of_a_drain(
    elapsed: float,
    requests: float | None,
    age: float,
    noted: float | None,
    expected: list[tuple[str, str | int]],
    again: float,
) -> None:
    since = NOW - elapsed
    victim = draining("p0", since, drained_idle_since=None if noted is None else since + noted)
    load = a_load(requests, at=NOW - age)
    load = Load((*load.pods, *a_load(9, 9, names=("p1", "p2")).pods), load.unknown)
    step = plan([victim, a_pod("p1"), a_pod("p2")], load, desired=2, current=3)
    assert brief(step.actions) == expected
    assert step.requeue_after_seconds == pytest.approx(again)
    assert step.message


def test_queued_requests_keep_a_replica_busy() -> None:
    step = plan([draining("p0", NOW - 9, drained_idle_since=NOW - 3), a_pod("p1")],
                a_load(0, 9, queued=(1, 0)), desired=1, current=2)  # fmt: skip
    assert brief(step.actions) == [("ClearIdle", "p0")]


@pytest.mark.parametrize(
    ("victim", "load", "reason"),
    [
        pytest.param(
            draining("p0", NOW - 9, drained_idle_since=NOW - 2), a_load(0, 9), "pod p0 finished its requests", id="idle"
        ),
        pytest.param(draining("p0", NOW - 60), a_load(3, 9), "pod p0 was not seen idle within 60 s", id="deadline"),
        pytest.param(draining("p0", NOW - 1, ready=False, started=False), a_load(0, 9), "pod p0 had not started",
                     id="never started"),
    ],
)  # fmt: skip
def test_the_reason_of_a_release_is_a_sentence(victim: Pod, load: Load, reason: str) -> None:
    assert plan([victim, a_pod("p1")], load, desired=1, current=2).actions == (ReleaseReplica(1, reason),)


def test_a_drain_timeout_below_the_settling_time_still_settles() -> None:
    victim = draining("p0", NOW - 4)
    assert plan([victim, a_pod("p1")], a_load(3, 3), desired=1, current=2, timeout=1).actions == ()
    assert brief(plan([victim, a_pod("p1")], a_load(3, 3), desired=1, current=2, timeout=1, now=NOW + 1).actions) == [
        ("ReleaseReplica", 1)
    ]


# ---- marks that are not as they were made -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "undone", [{"serving": True}, {"deletion_cost": None}, {"deletion_cost": 0}], ids=["label", "no cost", "other cost"]
)
def test_marks_undone_by_hand_are_made_again_with_the_old_time(undone: dict[str, object]) -> None:
    victim = draining("p0", NOW - 9, drained_idle_since=NOW - 2, **undone)
    step = plan([victim, a_pod("p1")], a_load(0, 9), desired=1, current=2)
    assert step.actions == (MarkDraining(victim, NOW - 9), ClearIdle(victim))


def test_marks_undone_again_and_again_don_t_put_off_the_deadline() -> None:
    victim = draining("p0", NOW - 60, serving=True)
    step = plan([victim, a_pod("p1")], a_load(5, 9), desired=1, current=2)
    assert brief(step.actions) == [("MarkDraining", "p0"), ("ReleaseReplica", 1)]


def test_a_mark_from_the_future_starts_anew() -> None:
    """The clock went back; waiting for it to come round could take for ever."""
    victim = draining("p0", NOW + 86_400)
    step = plan([victim, a_pod("p1")], a_load(5, 9), desired=1, current=2)
    assert step.actions == (MarkDraining(victim, NOW),)


@pytest.mark.parametrize("desired", [1, 2], ids=["still wanted to go", "wanted back"])
def test_a_mark_that_lost_its_time_is_made_anew_or_taken_back(desired: int) -> None:
    half = a_pod("p0", serving=False, deletion_cost=LOWEST_DELETION_COST)
    step = plan([half, a_pod("p1")], a_load(4, 0), desired=desired, current=2)
    assert step.actions == ((MarkDraining(half, NOW),) if desired == 1 else (ReturnToService(half),))


def test_a_pod_that_a_person_took_out_of_the_service_stays_out() -> None:
    assert plan([a_pod("p0", serving=False), a_pod("p1")], a_load(4, 0), desired=2, current=2).actions == ()


# ---- back out -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("desired", [2, 3, 5], ids=["load came back", "and a bit more", "more than ever"])
def test_the_load_comes_back(desired: int) -> None:
    victim = draining("p0", NOW - 9, drained_idle_since=NOW - 2)
    step = plan([victim, a_pod("p1")], a_load(0, 40), desired=desired, current=2)
    assert step.actions == (ReturnToService(victim),)
    assert step.requeue_after_seconds is None


def test_nothing_to_do() -> None:
    assert plan([a_pod("p0"), a_pod("p1")], a_load(3, 3), desired=2, current=2) == DrainPlan()


def test_a_survivor_returns_to_service() -> None:
    """`replicas` fell, and the ReplicaSet took another pod: the marked one is still here and wanted."""
    step = plan([draining("p0", NOW - 20), a_pod("p1"), loading("p2", terminating=True)],
                a_load(0, 9), desired=2, current=2)  # fmt: skip
    assert brief(step.actions) == [("ReturnToService", "p0")]


def test_another_replica_fails_during_the_drain() -> None:
    """The victim is needed then, and the broken one goes in its place."""
    pods = [draining("p0", NOW - 3), a_pod("p1"), a_pod("p2", ready=False)]
    step = plan(pods, a_load(4, 9), desired=2, current=3)
    assert brief(step.actions) == [("ReturnToService", "p0")]
    pods[0] = a_pod("p0")
    assert brief(plan(pods, a_load(4, 9), desired=2, current=3).actions) == [("MarkDraining", "p2")]


def test_two_marked_at_once_become_one() -> None:
    """Two operators, or an older version: the drain that is further on continues."""
    pods = [draining("p0", NOW - 3), draining("p1", NOW - 8), a_pod("p2"), a_pod("p3")]
    step = plan(pods, a_load(0, 0, 9, 9), desired=2, current=4)
    assert brief(step.actions) == [("ReturnToService", "p0"), ("NoteIdle", "p1")]


# ---- lowered, not gone yet ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("desired", [1, 2, 3], ids=["further down", "there", "up again"])
def test_a_released_pod_that_is_still_here_is_not_released_again(desired: int) -> None:
    pods = [draining("p0", NOW - 20, drained_idle_since=NOW - 8), a_pod("p1"), a_pod("p2")]
    step = plan(pods, a_load(0, 9, 9), desired=desired, current=2)
    assert step.actions == ()
    assert step.requeue_after_seconds == 2


def test_a_terminating_pod_blocks_nothing() -> None:
    """A node that is lost keeps its pods terminating for ever."""
    pods = [draining("p0", NOW - 20, terminating=True), a_pod("p1"), a_pod("p2")]
    step = plan(pods, a_load(0, 9, 3), desired=1, current=2)
    assert brief(step.actions) == [("MarkDraining", "p2")]


def test_of_two_marked_the_one_that_is_leaving_is_left_alone() -> None:
    pods = [draining("p0", NOW - 20), draining("p1", NOW - 30, ready=False), a_pod("p2")]
    step = plan(pods, a_load(0, 9, 9), desired=2, current=2)
    assert brief(step.actions) == [("ReturnToService", "p0")]


def test_replicas_without_pods_need_no_drain() -> None:
    """Say a quota refuses the third pod."""
    step = plan([a_pod("p0"), a_pod("p1")], a_load(9, 9), desired=2, current=3)
    assert brief(step.actions) == [("ReleaseReplica", 2)]


@pytest.mark.parametrize(
    ("stalled", "comes_back"),
    [pytest.param("p0", True, id="one that stays"), pytest.param("p2", False, id="the one that goes")],
)
def test_a_stalled_replica_is_none_to_count_on(stalled: str, *, comes_back: bool) -> None:
    pods = [a_pod("p0"), a_pod("p1", ready=comes_back), draining("p2", NOW - 8)]
    pods = [replace(pod, stalled=pod.name == stalled) for pod in pods]
    step = plan(pods, a_load(3, 3, 3), desired=2, current=3)
    assert brief(step.actions) == ([("ReturnToService", "p2")] if comes_back else [])


# ---- rollouts -----------------------------------------------------------------------------------------------------------


def test_a_rollout_puts_a_drain_off() -> None:
    pods = [a_pod("p0"), a_pod("p1"), loading("p2", template_hash="rev2")]
    step = plan(pods, a_load(0, 0), desired=1, current=3)
    assert step.actions == ()
    assert step.message == "waiting for the rollout before removing a replica"


def test_a_rollout_gets_the_draining_replica_back() -> None:
    pods = [draining("p0", NOW - 4), a_pod("p1"), loading("p2", template_hash="rev2")]
    assert brief(plan(pods, a_load(0, 0), desired=2, current=3).actions) == [("ReturnToService", "p0")]


# ---- counting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "current", "drains"),
    [
        pytest.param([a_pod("p0"), a_pod("p1")], 2, 0, id="none"),
        pytest.param([draining("p0", NOW), a_pod("p1")], 2, 1, id="under way"),
        pytest.param([draining("p0", NOW), a_pod("p1")], 1, 0, id="lowered already"),
        pytest.param([draining("p0", NOW, terminating=True), a_pod("p1")], 1, 0, id="going"),
        pytest.param([draining("p0", NOW), draining("p1", NOW), a_pod("p2")], 2, 1, id="one lowered, one under way"),
    ],
)
def test_count_drains(pods: list[Pod], current: int, drains: int) -> None:
    assert count_drains(pods, current) == drains


# ---- what holds for every cluster ---------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Pod], Load | LoadUnknown, int, int]:
    pods, loads = [], []
    for index in range(draw(st.integers(0, 6))):
        name = f"p{index}"
        kind = draw(st.sampled_from(["ready", "ready", "ready", "draining", "draining", "loading", "pending", "blip"]))
        created = NOW - draw(st.integers(1, 5000))
        gone = draw(st.sampled_from([False, False, False, True]))
        if kind == "draining":
            since = NOW - draw(st.integers(-10, 90))
            noted = draw(st.none() | st.integers(0, 80))
            pods.append(
                draining(
                    name, since, created_at=created, terminating=gone, ready=draw(st.booleans()),
                    drained_idle_since=None if noted is None else since + noted,
                )
            )  # fmt: skip
        else:
            make = {"loading": loading, "pending": pending}.get(kind, a_pod)
            fields = {"ready": False} if kind == "blip" else {}
            pods.append(make(name, created_at=created, terminating=gone, **fields))
        loads.append(draw(st.none() | st.sampled_from([0, 0, 0, 1, 30])))
    load: Load | LoadUnknown = UNKNOWN if all(one is None for one in loads) else a_load(*loads)
    return pods, load, draw(st.integers(0, 6)), draw(st.integers(0, 6))


@given(clusters())
def test_every_plan_is_safe(cluster: tuple[list[Pod], Load | LoadUnknown, int, int]) -> None:
    pods, load, desired, current = cluster
    step = plan(pods, load, desired=desired, current=current)
    released = [action for action in step.actions if isinstance(action, ReleaseReplica)]
    marks = [action for action in step.actions if isinstance(action, MarkDraining)]
    live = [pod for pod in pods if not pod.terminating]

    # One replica, one step, never below what is wanted, and always last: marks come before `replicas` falls.
    assert len(released) <= 1
    assert all(action.to == current - 1 >= desired for action in released)
    assert not released or step.actions[-1] is released[0]
    # At most one replica is on its way out, and no serving one is taken where that leaves fewer than wanted.
    assert len(marks) <= 1
    for mark in marks:
        others = [pod for pod in live if pod.ready and pod.serving and pod is not mark.pod]
        assert not (mark.pod.ready and mark.pod.serving) or len(others) >= min(desired, len(live) - 1)
    # A busy replica goes at its deadline alone.
    for action in released:
        marked = [p for p in live if p.draining_since is not None]
        if len(live) == current and marked:
            sample = load.of(min(marked, key=lambda p: (p.draining_since or 0, p.name)).name) if isinstance(load, Load) else None
            busy = sample is None or sample.running + sample.queued > 0
            assert not busy or "not seen idle" in action.reason or "not started" in action.reason
    # A pod is told one thing, not two.
    told = [action.pod.name for action in step.actions if not isinstance(action, ReleaseReplica | ClearIdle)]
    assert len(told) == len(set(told))
    # Whatever is under way is looked at again.
    under_way = [a for a in step.actions if isinstance(a, MarkDraining | NoteIdle | ReleaseReplica)]
    assert not under_way or (step.requeue_after_seconds or 0) > 0


@given(clusters())
def test_a_second_look_at_the_same_moment_adds_nothing(
    cluster: tuple[list[Pod], Load | LoadUnknown, int, int],
) -> None:
    """Crash after the marks and before anything else: the next look goes on, and marks nobody else."""
    pods, load, desired, current = cluster
    step = plan(pods, load, desired=desired, current=current)
    by_name = {pod.name: pod for pod in pods}
    for action in step.actions:
        if isinstance(action, MarkDraining):
            by_name[action.pod.name] = draining(action.pod.name, action.since, ready=action.pod.ready,
                                                started=action.pod.started, scheduled=action.pod.scheduled,
                                                phase=action.pod.phase, created_at=action.pod.created_at)  # fmt: skip
    again = plan(list(by_name.values()), load, desired=desired, current=current)
    if any(isinstance(action, MarkDraining) for action in step.actions):
        assert not any(isinstance(action, MarkDraining) for action in again.actions)
        assert [a for a in step.actions if isinstance(a, ReleaseReplica)] == [
            a for a in again.actions if isinstance(a, ReleaseReplica)
        ]


def test_the_deletion_cost_is_the_lowest_that_kubernetes_takes() -> None:
    assert -(2**31) <= LOWEST_DELETION_COST < -(2**30)
