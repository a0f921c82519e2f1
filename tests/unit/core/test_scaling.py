"""How many replicas a load asks for, what the engines may solve first, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.api import v1alpha1
from specserver.api.conditions import ConditionType
from specserver.core.hpa import Recommendation, Rescale
from specserver.core.observed import EngineState, EngineUnreachable, Load, LoadUnknown, Pod
from specserver.core.scaling import FLIP_GRACE_SECONDS, ScalingHistory, ScalingPlan, plan_scaling, record_rescale
from tests.unit.core.scaling_cluster import NOW, a_load, a_pod, a_scaling, an_engine, draining, loading, pending

UNKNOWN = LoadUnknown("PrometheusError", "query sglang:num_running_reqs: 503")
SETTLED = ScalingHistory(recommendations=(Recommendation(NOW - 4000, 1),))
"""A history that holds nothing back: looked at for long, nothing recommended of late."""


def pods(count: int) -> list[Pod]:
    return [a_pod(f"p{index}") for index in range(count)]


def plan(
    load: Load | LoadUnknown,
    *,
    scaling: v1alpha1.Scaling | None = None,
    current: int | None = None,
    on: list[Pod] | None = None,
    engines: Mapping[str, EngineState | EngineUnreachable] | None = None,
    history: ScalingHistory = SETTLED,
    now: float = NOW,
) -> ScalingPlan:
    entries = len(load.pods) + len(load.unknown) if isinstance(load, Load) else 2
    seen = pods(entries) if on is None else on
    return plan_scaling(
        scaling=scaling or a_scaling(Running=20),
        current_replicas=len(seen) if current is None else current,
        pods=seen,
        load=load,
        engines=engines or {},
        history=history,
        now=now,
    )


STALLED = a_pod("p1", stalled=True)


def says(plan: ScalingPlan) -> list[tuple[str, str]]:
    return [(condition.status.value, condition.reason.value) for condition in plan.conditions]


READY = ("True", "ReadyForNewScale")
ACTIVE = ("True", "ValidMetricFound")
FREE = ("False", "DesiredWithinRange")

# ---- the decision, by table ---------------------------------------------------------------------------------------------

DECISIONS: dict[str, tuple[dict[str, Any], Load, int, list[tuple[str, str]]]] = {
    "at the target": ({}, a_load(20, 20), 2, [READY, ACTIVE, FREE]),
    "within tolerance": ({}, a_load(22, 22), 2, [READY, ACTIVE, FREE]),
    "above": ({}, a_load(25, 25), 3, [("True", "SucceededRescale"), ACTIVE, FREE]),
    "far above, as fast as allowed": (
        {}, a_load(300, 300), 6, [("True", "SucceededRescale"), ACTIVE, ("True", "ScaleUpLimit")]),
    "above the maximum": (
        {"scaling": a_scaling(high=3, Running=20)}, a_load(50, 50), 3,
        [("True", "SucceededRescale"), ACTIVE, ("True", "TooManyReplicas")]),
    "at the maximum already": (
        {"scaling": a_scaling(high=2, Running=20)}, a_load(50, 50), 2, [READY, ACTIVE, ("True", "TooManyReplicas")]),
    "below": ({}, a_load(5, 5, 5), 1, [READY, ACTIVE, FREE]),
    "below the minimum": (
        {"scaling": a_scaling(low=2, Running=20)}, a_load(0, 0, 0), 2, [READY, ACTIVE, ("True", "TooFewReplicas")]),
    "idle at the minimum of 1 is no news": ({}, a_load(0), 1, [READY, ACTIVE, FREE]),
    "the target that asks for most decides": (
        {"scaling": a_scaling(Running=20, Queued=2)}, a_load(10, 10, queued=4), 4,
        [("True", "SucceededRescale"), ACTIVE, FREE]),
    "one target alone removes nothing": (
        {"scaling": a_scaling(Running=20, Queued=2)}, a_load(2, 2, queued=2), 2, [READY, ACTIVE, FREE]),
    "pending pods count once": (
        {"on": [*pods(2), pending("p2"), loading("p3")]}, a_load(40, 40), 4, [READY, ACTIVE, FREE]),
    "pending pods will carry their share, within tolerance": (
        {"on": [*pods(2), pending("p2")]}, a_load(32, 31), 3, [READY, ACTIVE, FREE]),
    "pods that don't exist yet count once": ({"current": 4}, a_load(40, 40), 4, [READY, ACTIVE, FREE]),
    "pending pods block no way down": ({"on": [*pods(2), pending("p2")]}, a_load(5, 5), 1, [READY, ACTIVE, FREE]),
    "terminating pods carry nothing": (
        {"on": [*pods(2), a_pod("p2", terminating=True)], "current": 2}, a_load(30, 30, 9), 3,
        [("True", "SucceededRescale"), ACTIVE, FREE]),
    "evicted pods don't serve and don't come": (
        {"on": [*pods(2), a_pod("p2", phase="Failed", ready=False)], "current": 2}, a_load(30, 30), 3,
        [("True", "SucceededRescale"), ACTIVE, FREE]),
    "unreadable on the way down counts as full": ({}, a_load(5, 5, None), 2, [READY, ACTIVE, FREE]),
    "unreadable on the way up counts as empty": ({}, a_load(28, 28, None), 3, [READY, ACTIVE, FREE]),
    "a stalled engine is no load": ({"on": [a_pod("p0"), STALLED]}, a_load(20, 0, queued=(0, 99)), 2, [READY, ACTIVE, FREE]),
    "nor capacity: one is made in its place": (
        {"on": [a_pod("p0"), STALLED], "scaling": a_scaling(Running=20, Queued=2)}, a_load(30, 0, queued=(0, 99)), 3,
        [("True", "SucceededRescale"), ACTIVE, FREE]),
    "and no second one, which has the same revision": (
        {"on": [a_pod("p0"), STALLED, a_pod("p2", stalled=True)]}, a_load(30, 0, 0), 3, [READY, ACTIVE, FREE]),
    "a load that is too much for those that work asks for more": (
        {"on": [a_pod("p0"), STALLED, a_pod("p2", stalled=True)]}, a_load(60, 0, 0), 4,
        [("True", "SucceededRescale"), ACTIVE, FREE]),
    "a stall removes nothing": ({"on": [a_pod("p0"), STALLED]}, a_load(5, 0), 2, [READY, ACTIVE, FREE]),
    "and keeps nothing": (
        {"on": [*pods(1), STALLED, a_pod("p2")]}, a_load(5, 0, 5), 2, [READY, ACTIVE, FREE]),
    "a stalled engine that drains is gone, with what waits for it": (
        {"on": [*pods(2), draining("p2", NOW - 9, stalled=True)], "scaling": a_scaling(Running=20, Queued=2)},
        a_load(20, 20, 0, queued=(2, 2, 99)), 2, [READY, ACTIVE, FREE]),
    "a stalled pod of a rollout's surge is no replica": (
        {"on": [*pods(2), a_pod("p2", stalled=True)], "current": 2}, a_load(15, 15, 0), 2, [READY, ACTIVE, FREE]),
    "idle beside a stalled one": ({"on": [a_pod("p0"), STALLED]}, a_load(0, 0), 2, [READY, ACTIVE, FREE]),
    "a draining replica counts as gone": (
        {"on": [*pods(2), draining("p2", NOW - 9)]}, a_load(20, 20, 0), 2, [READY, ACTIVE, FREE]),
    "its requests count as the others', within their tolerance": (
        {"on": [*pods(2), draining("p2", NOW - 9)]}, a_load(18, 18, 8), 2, [READY, ACTIVE, FREE]),
    "and above it the replica is wanted back": (
        {"on": [*pods(2), draining("p2", NOW - 9)]}, a_load(18, 18, 9), 3, [READY, ACTIVE, FREE]),
    "a draining replica that can't be read is no reason to turn back": (
        {"on": [*pods(2), draining("p2", NOW - 9)]}, a_load(9, 9, None), 2, [READY, ACTIVE, FREE]),
    "a draining replica that isn't ready doesn't come": (
        {"on": [*pods(2), draining("p2", NOW - 9, ready=False)]}, a_load(30, 30), 3, [READY, ACTIVE, FREE]),
    "a drain under way has used the speed limit": (
        {"on": [*pods(4), draining("p4", NOW - 9)],
         "scaling": a_scaling(behavior={"scaleDown": {"policies": [
             {"type": "Pods", "value": 1, "periodSeconds": 60}]}})},
        a_load(1, 1, 1, 1, 1), 4, [READY, ACTIVE, ("True", "ScaleDownLimit")]),
    "wanted back although scale-up is disabled": (
        {"on": [*pods(2), draining("p2", NOW - 9)],
         "scaling": a_scaling(behavior={"scaleUp": {"selectPolicy": "Disabled"}})},
        a_load(40, 40, 9), 3, [READY, ACTIVE, ("True", "ScaleUpLimit")]),
    "wanted back although the window of scale-up is long": (
        {"on": [*pods(2), draining("p2", NOW - 9)],
         "history": ScalingHistory(recommendations=(Recommendation(NOW - 5, 2),)),
         "scaling": a_scaling(behavior={"scaleUp": {"stabilizationWindowSeconds": 600}})},
        a_load(40, 40, 9), 3, [("True", "ScaleUpStabilized"), ACTIVE, FREE]),
    "more than wanted back": (
        {"on": [*pods(2), draining("p2", NOW - 9)]}, a_load(40, 40, 5), 5,
        [("True", "SucceededRescale"), ACTIVE, FREE]),
    "tolerance of the resource, up": (
        {"scaling": a_scaling(behavior={"scaleUp": {"tolerance": "0.5"}})}, a_load(29, 29), 2, [READY, ACTIVE, FREE]),
    "scale-up disabled": (
        {"scaling": a_scaling(behavior={"scaleUp": {"selectPolicy": "Disabled"}})}, a_load(90, 90), 2,
        [READY, ACTIVE, ("True", "ScaleUpLimit")]),
}  # fmt: skip


@pytest.mark.parametrize(("given", "load", "desired", "conditions"), DECISIONS.values(), ids=DECISIONS.keys())
def test_decision(given: dict[str, Any], load: Load, desired: int, conditions: list[tuple[str, str]]) -> None:
    result = plan(load, **given)
    assert result.desired_replicas == desired
    assert says(result) == conditions
    assert [condition.type for condition in result.conditions] == [
        ConditionType.ABLE_TO_SCALE,
        ConditionType.SCALING_ACTIVE,
        ConditionType.SCALING_LIMITED,
    ]


@pytest.mark.parametrize(
    ("load", "scaling", "reason"),
    [
        pytest.param(a_load(31, 32), a_scaling(Running=20), "Running 31.5 per replica is above the target 20", id="up"),
        pytest.param(
            a_load(5, 5, queued=7), a_scaling(Running=20, Queued=2.5), "Queued 7 per replica is above the target 2.5",
            id="up by the target that decides",
        ),
        pytest.param(
            a_load(4, 5), a_scaling(Running=20, Queued=2),
            "fewer replicas carry the load: Running 4.5 per replica (target 20), Queued 0 per replica (target 2)", id="down",
        ),
        pytest.param(a_load(20, 20), a_scaling(Running=20), "the replicas stay as they are", id="stay"),
    ],
)  # fmt: skip
def test_reason(load: Load, scaling: v1alpha1.Scaling, reason: str) -> None:
    assert plan(load, scaling=scaling).reason == reason


# ---- holding ------------------------------------------------------------------------------------------------------------


def test_unknown_load_holds_and_says_which_query() -> None:
    result = plan(UNKNOWN)
    assert result.desired_replicas == 2
    assert says(result) == [READY, ("False", "FailedGetMetrics"), FREE]
    assert result.conditions[1].message == "query sglang:num_running_reqs: 503"
    assert result.reason == "the replicas are held: the load is unknown: query sglang:num_running_reqs: 503"


def test_where_no_replica_works_nobody_knows_what_another_would_carry() -> None:
    result = plan(a_load(0, 0, queued=40), on=[a_pod("p0", stalled=True), STALLED])
    assert result.desired_replicas == 2
    assert says(result) == [READY, ("False", "FailedGetMetrics"), FREE]
    assert "each is stalled" in result.reason


def test_load_of_other_pods_alone_is_no_load() -> None:
    result = plan(a_load(50, names=("foreign",)), on=pods(2))
    assert result.desired_replicas == 2
    assert says(result)[1] == ("False", "FailedGetMetrics")


@pytest.mark.parametrize(
    ("running", "desired", "active"),
    [
        pytest.param(2, 2, ("False", "FailedGetMetrics"), id="removes nothing"),
        pytest.param(50, 5, ACTIVE, id="still adds"),
    ],
)
def test_one_unknown_target(running: float, desired: int, active: tuple[str, str]) -> None:
    result = plan(a_load(running, running, queued=math.nan), scaling=a_scaling(Running=20, Queued=2))
    assert result.desired_replicas == desired
    assert says(result)[1] == active


@pytest.mark.parametrize("running", [0, 90], ids=["idle", "overload"])
def test_paused_leaves_the_replicas_even_outside_the_bounds(running: float) -> None:
    scaling = a_scaling(low=3, high=4).model_copy(update={"paused": True})
    result = plan(a_load(running, running), scaling=scaling)
    assert result.desired_replicas == 2
    assert says(result) == [READY, ("False", "ScalingPaused"), FREE]


INVALID = {
    "minimum above maximum": (a_scaling(low=5, high=2), "minReplicas (5) is greater than maxReplicas (2)"),
    "target 0": (a_scaling(Running=0), "the value of Running must be greater than 0"),
    "tolerance": (a_scaling(behavior={"scaleDown": {"tolerance": "some"}}), "scaling.behavior.scaleDown.tolerance"),
}


@pytest.mark.parametrize(("scaling", "message"), INVALID.values(), ids=INVALID.keys())
def test_a_stored_object_that_admission_would_refuse_holds(scaling: v1alpha1.Scaling, message: str) -> None:
    result = plan(a_load(90, 90), scaling=scaling)
    assert result.desired_replicas == 2
    assert says(result)[1] == ("False", "InvalidSpec")
    assert message in result.conditions[1].message


@pytest.mark.parametrize("load", [a_load(20, 20), UNKNOWN], ids=["known load", "unknown load"])
@pytest.mark.parametrize(
    ("current", "desired", "reason"),
    [(9, 4, "TooManyReplicas"), (1, 2, "TooFewReplicas"), (0, 2, "TooFewReplicas")],
    ids=["above the maximum", "below the minimum", "none yet"],
)
def test_the_bounds_hold_whatever_the_load(load: Load | LoadUnknown, current: int, desired: int, reason: str) -> None:
    result = plan(load, scaling=a_scaling(low=2, high=4), current=current, on=pods(2))
    assert result.desired_replicas == desired
    assert says(result)[2] == ("True", reason)
    assert says(result)[1][0] == ("True" if isinstance(load, Load) else "False")


# ---- windows and memory -------------------------------------------------------------------------------------------------


def test_a_restart_removes_nothing_for_a_whole_window() -> None:
    """Seven replicas, an operator that has just started, and no load in its first samples."""
    history = ScalingHistory()
    for second in range(0, 300, 15):
        result = plan(a_load(*[0] * 7), history=history, now=NOW + second)
        assert result.desired_replicas == 7
        assert says(result)[0] == ("True", "ScaleDownStabilized")
        history = result.history
    assert plan(a_load(*[0] * 7), history=history, now=NOW + 300).desired_replicas == 1


def test_a_restart_adds_at_once() -> None:
    assert plan(a_load(50, 50), history=ScalingHistory()).desired_replicas == 5


def test_a_restart_in_mid_drain_carries_the_drain_on() -> None:
    on = [*pods(2), draining("p2", NOW - 3)]
    assert plan(a_load(5, 5, 1), on=on, history=ScalingHistory()).desired_replicas == 2


@pytest.mark.parametrize(
    ("seconds", "desired"), [(299, 1), (300, 2)], ids=["shorter than the window", "as long as the window"]
)
@pytest.mark.parametrize("how", ["unknown", "paused"])
def test_after_blindness_the_window_begins_anew(how: str, seconds: float, desired: int) -> None:
    paused = a_scaling().model_copy(update={"paused": True})
    history = plan(a_load(2, 2), history=SETTLED).history
    for now in (NOW, NOW + seconds / 2):
        blind = plan(UNKNOWN if how == "unknown" else a_load(2, 2), scaling=paused if how == "paused" else None,
                     history=history, now=now)  # fmt: skip
        history = blind.history
    assert plan(a_load(2, 2), history=history, now=NOW + seconds).desired_replicas == desired


def test_sight_after_blindness_is_remembered() -> None:
    """Two short gaps are not one long one."""
    history = SETTLED
    for start in (0, 200):
        history = plan(UNKNOWN, history=history, now=NOW + start).history
        history = plan(a_load(2, 2), history=history, now=NOW + start + 150).history
    assert history.blind_since is None
    assert plan(a_load(2, 2), history=history, now=NOW + 360).desired_replicas == 1


def test_down_only_to_the_highest_of_the_window() -> None:
    history = replace(SETTLED, recommendations=(Recommendation(NOW - 100, 3), Recommendation(NOW - 400, 5)))
    result = plan(a_load(5, 5, 5, 5, 5), history=history)
    assert result.desired_replicas == 3
    assert result.conditions[0].message == "draining replicas one by one down to 3"


def test_up_only_to_the_lowest_of_the_window() -> None:
    scaling = a_scaling(behavior={"scaleUp": {"stabilizationWindowSeconds": 60}})
    history = replace(SETTLED, recommendations=(Recommendation(NOW - 30, 2),))
    result = plan(a_load(50, 50), scaling=scaling, history=history)
    assert result.desired_replicas == 2
    assert says(result) == [("True", "ScaleUpStabilized"), ACTIVE, FREE]
    assert plan(a_load(50, 50), scaling=scaling, history=result.history, now=NOW + 31).desired_replicas == 5


def test_noise_across_a_boundary_is_no_news() -> None:
    """1 or 2 replicas would do, from sample to sample: two stay, and the conditions stay word for word."""
    history, said = SETTLED, set()
    for tick in range(40):
        load = a_load(9, 10) if tick % 2 else a_load(10, 11)
        result = plan(load, history=history, now=NOW + 15 * tick)
        assert result.desired_replicas == 2
        history = result.history
        if tick > 1:
            said.add(result.conditions)
    assert len(said) == 1


def test_only_written_changes_use_up_a_speed_limit() -> None:
    first = plan(a_load(300, 300))
    assert first.desired_replicas == 6
    # The write failed: the next look may ask for the same.
    assert plan(a_load(300, 300), history=first.history, now=NOW + 1).desired_replicas == 6
    # It went through: no more in this period.
    written = record_rescale(first.history, before=2, after=6, now=NOW)
    on = [*pods(2), *(loading(f"p{index}") for index in range(2, 6))]
    assert plan(a_load(300, 300), on=on, history=written, now=NOW + 14).desired_replicas == 6
    assert plan(a_load(300, 300), on=on, history=written, now=NOW + 15).desired_replicas == 10


def test_record_rescale_keeps_directions_apart_and_forgets_what_is_too_old() -> None:
    history = ScalingHistory(scale_ups=(Rescale(NOW - 1800, 1), Rescale(NOW - 1799, 2)))
    history = record_rescale(history, before=3, after=5, now=NOW)
    history = record_rescale(history, before=5, after=4, now=NOW + 0.5)
    history = record_rescale(history, before=4, after=4, now=NOW + 0.5)
    assert history.scale_ups == (Rescale(NOW - 1799, 2), Rescale(NOW, 2))
    assert history.scale_downs == (Rescale(NOW + 0.5, 1),)


# ---- the engines' own lever first ---------------------------------------------------------------------------------------

OVERLOAD = a_load(80, 80)
FLIPS: dict[str, tuple[dict[str, Any], Load, bool]] = {
    # name: (fields of the engine of p0, load, does the scale-up wait?)
    "plain for long": ({}, OVERLOAD, False),
    "plain since a moment": ({"last_switch_at": NOW - 5}, OVERLOAD, True),
    "plain since the grace": ({"last_switch_at": NOW - FLIP_GRACE_SECONDS}, OVERLOAD, False),
    "always was plain": ({"last_switch_at": None}, OVERLOAD, False),
    "speculating above its bound": ({"steps": 3, "decided_steps": 3}, OVERLOAD, True),
    "speculating, plain decided": ({"steps": 3, "decided_steps": 0}, a_load(50, 50), True),
    "speculating below its bound": ({"steps": 3, "decided_steps": 3, "last_switch_at": NOW - 5}, a_load(50, 50), False),
    "requests queue": ({"last_switch_at": NOW - 5}, a_load(80, 80, queued=(0, 1)), False),
    "mode Always": ({"mode": "Always", "steps": 3, "decided_steps": 3}, OVERLOAD, False),
    "mode Never": ({"mode": "Never", "last_switch_at": NOW - 5}, OVERLOAD, False),
    "mode Observe": ({"mode": "Observe", "steps": 3, "decided_steps": 0}, OVERLOAD, False),
    "not armed": ({"armed": False, "steps": 3, "decided_steps": 3}, OVERLOAD, False),
    "no policy": ({"policy": None, "revision": None, "steps": 3, "decided_steps": 3}, OVERLOAD, False),
    "a policy that we don't understand": ({"policy": {"mode": "Auto"}, "steps": 3}, OVERLOAD, False),
}


@pytest.mark.parametrize(("engine", "load", "waits"), FLIPS.values(), ids=FLIPS.keys())
def test_a_scale_up_waits_for_the_engines(engine: dict[str, Any], load: Load, waits: bool) -> None:
    engines = {"p0": an_engine("p0", **engine), "p1": an_engine("p1")}
    result = plan(load, engines=engines)
    assert (result.desired_replicas == 2) is waits
    assert (says(result)[0] == ("True", "ScaleUpStabilized")) is waits


@pytest.mark.parametrize(
    "engines",
    [{}, {"p0": EngineUnreachable("p0", "timed out"), "p1": EngineUnreachable("p1", "timed out")}],
    ids=["not asked", "unreachable"],
)
def test_engines_that_don_t_tell_delay_nothing(engines: dict[str, EngineState | EngineUnreachable]) -> None:
    assert plan(OVERLOAD, engines=engines).desired_replicas > 2


@pytest.mark.parametrize(
    "pod",
    [draining("p0", NOW - 9), a_pod("p0", ready=False), a_pod("p0", terminating=True)],
    ids=["draining", "not ready", "terminating"],
)
def test_a_replica_that_doesn_t_serve_delays_nothing(pod: Pod) -> None:
    engines = {"p0": an_engine("p0", last_switch_at=NOW - 5)}
    on = [pod, a_pod("p1"), a_pod("p2")]
    assert plan(a_load(90, 90, 90), on=on, engines=engines, current=3).desired_replicas > 3


def test_the_wait_is_bounded_even_where_engines_go_back_and_forth() -> None:
    history, seen = SETTLED, []
    for second in range(0, 60, 5):
        now = NOW + second
        result = plan(OVERLOAD, engines={"p0": an_engine("p0", last_switch_at=now - 1)}, history=history, now=now)
        history = result.history
        seen.append((second, result.desired_replicas > 2))
    assert seen == [(second, second >= FLIP_GRACE_SECONDS) for second in range(0, 60, 5)]


def test_what_waits_for_a_stalled_engine_is_no_reason_not_to_wait_for_the_others() -> None:
    engines = {"p0": an_engine("p0", last_switch_at=NOW - 5), "p2": an_engine("p2")}
    result = plan(a_load(80, 0, 80, queued=(0, 9, 0)), on=[a_pod("p0"), STALLED, a_pod("p2")], engines=engines)
    assert (result.desired_replicas, says(result)[0]) == (3, ("True", "ScaleUpStabilized"))


@pytest.mark.parametrize(
    ("skewed", "waits"),
    [pytest.param((True, False), True, id="idle ranks"), pytest.param((False, False), False, id="all ranks are busy")],
)
def test_a_queue_beside_idle_ranks_is_not_answered_with_a_replica_at_once(skewed: tuple[bool, bool], waits: bool) -> None:
    busy = a_load(2, 2, queued=(13, 0))
    load = Load(tuple(replace(one, skewed=is_skewed) for one, is_skewed in zip(busy.pods, skewed, strict=True)))
    scaling = a_scaling(Running=20, Queued=2)
    first = plan(load, scaling=scaling)
    assert (first.desired_replicas == 2) is waits
    if waits:
        assert "data-parallel ranks of pod p0" in first.conditions[0].message
        later = plan(load, scaling=scaling, history=first.history, now=NOW + FLIP_GRACE_SECONDS)
        assert later.desired_replicas > 2


def test_a_queue_of_another_pod_has_no_ranks_to_wait_for() -> None:
    load = Load((replace(a_load(2, queued=13).pods[0], skewed=True), *a_load(2, queued=13, names=("p1",)).pods))
    assert plan(load, scaling=a_scaling(Running=20, Queued=2)).desired_replicas > 2


def test_a_draining_replica_comes_back_without_waiting_for_the_engines() -> None:
    engines = {"p0": an_engine("p0", last_switch_at=NOW - 1)}
    result = plan(a_load(80, 80, 5), on=[*pods(2), draining("p2", NOW - 9)], engines=engines)
    assert result.desired_replicas == 3
    assert says(result)[0] == ("True", "ScaleUpStabilized")


def test_the_wait_ends_when_the_engines_have_solved_it() -> None:
    engines: Mapping[str, EngineState | EngineUnreachable] = {"p0": an_engine("p0", last_switch_at=NOW - 1)}
    waiting = plan(OVERLOAD, engines=engines)
    solved = plan(a_load(20, 20), engines=engines, history=waiting.history, now=NOW + 15)
    assert solved.desired_replicas == 2
    assert solved.history.overloaded_since is None


def test_waiting_uses_up_the_window_of_scale_up() -> None:
    """Both delays run at the same time: the recommendation is remembered although it is not followed yet."""
    scaling = a_scaling(behavior={"scaleUp": {"stabilizationWindowSeconds": 30}})
    history = plan(a_load(20, 20), scaling=scaling, history=SETTLED, now=NOW - 5).history
    engines: Mapping[str, EngineState | EngineUnreachable] = {"p0": an_engine("p0", last_switch_at=NOW - 1)}
    for second in (0, 15):
        history = plan(OVERLOAD, scaling=scaling, engines=engines, history=history, now=NOW + second).history
    engines = {"p0": an_engine("p0")}
    assert plan(OVERLOAD, scaling=scaling, engines=engines, history=history, now=NOW + 26).desired_replicas > 2


# ---- what holds for every input -----------------------------------------------------------------------------------------


@given(
    running=st.lists(st.none() | st.floats(0, 500), min_size=1, max_size=8),
    unready=st.integers(0, 3),
    current=st.integers(0, 12),
    bounds=st.tuples(st.integers(1, 10), st.integers(1, 10)).map(sorted),
    paused=st.booleans(),
    ago=st.lists(st.tuples(st.floats(0, 4000), st.integers(1, 12)), max_size=5),
)
def test_every_plan_is_within_the_bounds_and_repeatable(
    running: list[float | None], unready: int, current: int, bounds: list[int], paused: bool,
    ago: list[tuple[float, int]],
) -> None:  # fmt: skip
    scaling = a_scaling(bounds[0], bounds[1], Running=20).model_copy(update={"paused": paused})
    load: Load | LoadUnknown = UNKNOWN if all(one is None for one in running) else a_load(*running)
    on = [*pods(len(running)), *(pending(f"q{index}") for index in range(unready))]
    history = ScalingHistory(recommendations=tuple(Recommendation(NOW - s, r) for s, r in ago))
    result = plan(load, scaling=scaling, current=current, on=on, history=history)
    if paused:
        assert result.desired_replicas == current
    else:
        assert bounds[0] <= result.desired_replicas <= bounds[1]
    if isinstance(load, LoadUnknown) and bounds[0] <= current <= bounds[1]:
        assert result.desired_replicas == current
    assert len(result.history.recommendations) <= len(ago) + 2
    assert result == plan(load, scaling=scaling, current=current, on=on, history=history)


@given(st.lists(st.floats(0, 200), min_size=2, max_size=6), st.integers(0, 3), st.integers(1, 200))
def test_more_load_never_asks_for_fewer_replicas(running: list[float], unready: int, more: int) -> None:
    on = [*pods(len(running)), *(pending(f"q{index}") for index in range(unready))]
    less, greater = (plan(a_load(running[0] + extra, *running[1:]), on=on) for extra in (0, more))
    assert greater.desired_replicas >= less.desired_replicas
