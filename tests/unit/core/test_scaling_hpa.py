"""The HPA's numbers: tables of what kubernetes/pkg/controller/podautoscaler computes for the same input."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.api import v1alpha1
from specserver.api.conditions import Reason
from specserver.core.hpa import (
    LONGEST_WINDOW_SECONDS,
    Recommendation,
    Rescale,
    add_recommendation,
    limit,
    recommend_replicas,
    resolve_rules,
    stabilize,
)

NOW = 10_000.0
UP, DOWN = resolve_rules(v1alpha1.Behavior())


def rules(**behavior: Any) -> Any:
    return resolve_rules(v1alpha1.Behavior.model_validate(behavior))


# ---- recommendation ---------------------------------------------------------------------------------------------------

RECOMMENDATIONS = {
    # name: (current, target, values, unready, missing, wanted)
    "at the target": (3, 20, [20, 20, 20], 0, 0, 3),
    "upper edge of tolerance": (3, 20, [22, 22, 22], 0, 0, 3),
    "just above tolerance": (3, 20, [22, 22, 22.1], 0, 0, 4),
    "lower edge of tolerance": (3, 20, [18, 18, 18], 0, 0, 3),
    "below tolerance, but two could not carry it": (3, 20, [17, 17, 17], 0, 0, 3),
    "below tolerance, two carry it exactly": (3, 20, [10, 10, 20], 0, 0, 2),
    "twice the target": (3, 20, [40, 40, 40], 0, 0, 6),
    "idle": (3, 20, [0, 0, 0], 0, 0, 0),
    "fractional target": (2, 0.5, [1, 1], 0, 0, 4),
    "binary rounding adds no replica": (1, 0.1, [0.1 + 0.2], 0, 0, 3),
    "pods that were not made yet are not asked for again": (6, 20, [40, 40, 40], 0, 0, 6),
    "up: pending pods count once": (6, 20, [40, 40, 40], 3, 0, 6),
    "up: pending pods solve it": (4, 20, [25, 25, 25], 1, 0, 4),
    "up: pending pods bring it within tolerance": (5, 20, [27.25] * 4, 1, 0, 5),
    "up: pending pods are not enough": (4, 20, [60, 60, 60], 1, 0, 9),
    "up: pending pods would turn it into down": (5, 20, [25], 4, 0, 5),
    "down: pending pods don't count": (5, 20, [5, 5, 5], 2, 0, 1),
    "down: a loading pod blocks nothing": (4, 20, [10, 10], 2, 0, 1),
    "missing on the way down counts with the target": (4, 20, [10, 10, 10], 0, 1, 3),
    "missing on the way down can stop it": (3, 20, [16, 16], 0, 1, 3),
    "missing on the way up counts with 0": (3, 20, [30, 30], 0, 1, 3),
    "missing on the way up, and still too much": (3, 20, [40, 40], 0, 1, 4),
    "missing would turn it into down": (5, 20, [25], 0, 4, 5),
    "missing at exactly the target": (4, 20, [20, 20], 0, 2, 4),
    "missing and unready on the way up": (4, 20, [70, 70], 1, 1, 7),
    "up, but a pod more than the spec is there": (1, 20, [30, 30], 0, 1, 1),
    "up, and fewer pods than the spec have come": (9, 20, [60, 60], 1, 0, 9),
}  # fmt: skip


@pytest.mark.parametrize(
    ("current", "target", "values", "unready", "missing", "wanted"),
    RECOMMENDATIONS.values(),
    ids=RECOMMENDATIONS.keys(),
)
def test_recommendation(
    current: int, target: float, values: list[float], unready: int, missing: int, wanted: int
) -> None:
    assert wanted == recommend_replicas(
        current=current,
        target=target,
        values=values,
        unready=unready,
        missing=missing,
        up_tolerance=0.1,
        down_tolerance=0.1,
    )


@pytest.mark.parametrize(
    ("up", "down", "average", "wanted"),
    [
        pytest.param(0.0, 0.1, 20.1, 4, id="no tolerance up"),
        pytest.param(0.5, 0.1, 29.9, 3, id="wide tolerance up"),
        pytest.param(0.1, 0.0, 13.3, 2, id="no tolerance down"),
        pytest.param(0.1, 0.5, 10.1, 3, id="wide tolerance down"),
    ],
)
def test_tolerance_by_direction(up: float, down: float, average: float, wanted: int) -> None:
    assert wanted == recommend_replicas(
        current=3, target=20, values=[average] * 3, unready=0, missing=0, up_tolerance=up, down_tolerance=down
    )


loads = st.lists(st.integers(0, 300), min_size=1, max_size=12)


@given(loads, st.integers(0, 5), st.integers(0, 5), st.integers(1, 100), st.integers(1, 200))
def test_recommendation_is_never_on_the_wrong_side(
    values: list[int], unready: int, missing: int, target: int, more: int
) -> None:
    """More load never asks for fewer replicas, and doubt never asks for more change than knowledge does."""
    current = len(values) + unready + missing

    def ask(values: list[int], unready: int, missing: int) -> int:
        return recommend_replicas(
            current=current, target=target, values=values, unready=unready, missing=missing,
            up_tolerance=0.1, down_tolerance=0.1,
        )  # fmt: skip

    wanted = ask(values, unready, missing)
    ratio = sum(values) / len(values) / target
    assert (wanted >= current) if ratio > 1 else (wanted <= current)
    assert wanted in (current, math.ceil(sum(values) / target), math.ceil(sum(values) / target + missing))
    assert ask([*values[:-1], values[-1] + more], unready, missing) >= wanted


# ---- stabilisation windows ----------------------------------------------------------------------------------------------

WINDOWS = {
    # name: (current, wanted, [(seconds ago, replicas)], up window, down window, stable)
    "empty history": (5, 3, [], 0, 300, 3),
    "up at once": (5, 8, [(15, 5), (30, 5)], 0, 300, 8),
    "down held by an older, higher one": (5, 3, [(15, 3), (299, 5)], 0, 300, 5),
    "down to the highest of the window": (5, 2, [(15, 3), (100, 4)], 0, 300, 4),
    "the window's edge is outside": (5, 3, [(300, 5)], 0, 300, 3),
    "older ones don't hold the way up": (5, 7, [(10, 20)], 0, 300, 7),
    "a former peak never raises": (5, 4, [(10, 20)], 0, 300, 5),
    "up held by an older, lower one": (5, 8, [(10, 5), (50, 7)], 60, 300, 5),
    "up to the lowest of the window": (5, 8, [(10, 7), (50, 6)], 60, 300, 6),
    "a former low never lowers": (5, 8, [(10, 2)], 60, 300, 5),
    "no windows": (5, 1, [(1, 9), (1, 1)], 0, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("current", "wanted", "ago", "up", "down", "stable"), WINDOWS.values(), ids=WINDOWS.keys()
)
def test_stabilize(
    current: int, wanted: int, ago: list[tuple[float, int]], up: int, down: int, stable: int
) -> None:
    up_rules, down_rules = rules(
        scaleUp={"stabilizationWindowSeconds": up}, scaleDown={"stabilizationWindowSeconds": down}
    )
    recommendations = [Recommendation(NOW - seconds, replicas) for seconds, replicas in ago]
    assert stable == stabilize(
        current=current, wanted=wanted, recommendations=recommendations, up=up_rules, down=down_rules, now=NOW
    )


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9)), max_size=60),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 3600),
    st.integers(0, 3600),
)
def test_the_short_history_decides_like_the_full_one(
    steps: list[tuple[int, int]], current: int, wanted: int, up: int, down: int
) -> None:
    up_rules, down_rules = rules(
        scaleUp={"stabilizationWindowSeconds": up}, scaleDown={"stabilizationWindowSeconds": down}
    )
    now = NOW
    full: list[Recommendation] = []
    short: tuple[Recommendation, ...] = ()
    for seconds, replicas in steps:
        now += seconds
        full.append(Recommendation(now, replicas))
        short = add_recommendation(short, replicas, now)
    decisions = {
        stabilize(current=current, wanted=wanted, recommendations=r, up=up_rules, down=down_rules, now=now)
        for r in (tuple(full), short)
    }
    assert len(decisions) == 1
    assert len(short) <= 10
    assert all(r.at > now - LONGEST_WINDOW_SECONDS for r in short)


def test_what_no_window_can_reach_is_forgotten() -> None:
    before = [Recommendation(NOW - 3600, 2), Recommendation(NOW - 3599, 3)]
    assert add_recommendation(before, 4, NOW) == (Recommendation(NOW - 3599, 3), Recommendation(NOW, 4))


# ---- speed limits -------------------------------------------------------------------------------------------------------

FOUR_A_MINUTE = {"type": "Pods", "value": 4, "periodSeconds": 60}
TENTH_A_MINUTE = {"type": "Percent", "value": 10, "periodSeconds": 60}
BOTH = [FOUR_A_MINUTE, TENTH_A_MINUTE]

LIMITS: dict[str, tuple[Any, ...]] = {
    # name: (behavior, current, wanted, ups, downs, allowed, reason)
    "default up from 1: four pods": ({}, 1, 20, [], [], 5, Reason.SCALE_UP_LIMIT),
    "default up from 10: double": ({}, 10, 50, [], [], 20, Reason.SCALE_UP_LIMIT),
    "default up within the limit": ({}, 10, 15, [], [], 15, Reason.DESIRED_WITHIN_RANGE),
    "default up, the period's share used": ({}, 5, 20, [(14, 4)], [], 5, Reason.SCALE_UP_LIMIT),
    "default up, the period is over": ({}, 5, 20, [(15, 4)], [], 10, Reason.SCALE_UP_LIMIT),
    "default down: all the way": ({}, 10, 1, [], [], 1, Reason.DESIRED_WITHIN_RANGE),
    "to the maximum": ({}, 90, 130, [], [], 100, Reason.TOO_MANY_REPLICAS),
    "to the minimum": ({}, 3, 0, [], [], 1, Reason.TOO_FEW_REPLICAS),
    "no change": ({}, 3, 3, [], [], 3, Reason.DESIRED_WITHIN_RANGE),
    "up, Max of pods and percent": ({"scaleUp": {"policies": BOTH}}, 80, 100, [], [], 88, Reason.SCALE_UP_LIMIT),
    "up, Min of pods and percent": (
        {"scaleUp": {"policies": BOTH, "selectPolicy": "Min"}}, 80, 100, [], [], 84, Reason.SCALE_UP_LIMIT),
    "up, Disabled": ({"scaleUp": {"selectPolicy": "Disabled"}}, 3, 9, [], [], 3, Reason.SCALE_UP_LIMIT),
    "up, percent rounds up": (
        {"scaleUp": {"policies": [TENTH_A_MINUTE]}}, 1, 9, [], [], 2, Reason.SCALE_UP_LIMIT),
    "up, percent of what the period began with": (
        {"scaleUp": {"policies": [TENTH_A_MINUTE]}}, 21, 99, [(30, 1)], [], 22, Reason.SCALE_UP_LIMIT),
    "up, what was removed in the period may come back": (
        {"scaleUp": {"policies": [FOUR_A_MINUTE]}}, 5, 99, [], [(30, 3)], 12, Reason.SCALE_UP_LIMIT),
    "up, an exceeded limit removes nothing": (
        {"scaleUp": {"policies": [FOUR_A_MINUTE]}}, 12, 99, [(30, 9)], [], 12, Reason.SCALE_UP_LIMIT),
    "down, Max of pods and percent": ({"scaleDown": {"policies": BOTH}}, 80, 9, [], [], 72, Reason.SCALE_DOWN_LIMIT),
    "down, Min of pods and percent": (
        {"scaleDown": {"policies": BOTH, "selectPolicy": "Min"}}, 80, 9, [], [], 76, Reason.SCALE_DOWN_LIMIT),
    "down, Disabled": ({"scaleDown": {"selectPolicy": "Disabled"}}, 9, 3, [], [], 9, Reason.SCALE_DOWN_LIMIT),
    "down, percent rounds down": (
        {"scaleDown": {"policies": [TENTH_A_MINUTE]}}, 5, 1, [], [], 4, Reason.SCALE_DOWN_LIMIT),
    "down, the period's share used": (
        {"scaleDown": {"policies": [FOUR_A_MINUTE]}}, 6, 1, [], [(59, 4)], 6, Reason.SCALE_DOWN_LIMIT),
    "down, the period is over": (
        {"scaleDown": {"policies": [FOUR_A_MINUTE]}}, 6, 1, [], [(60, 4)], 2, Reason.SCALE_DOWN_LIMIT),
    "down, what was added in the period may go": (
        {"scaleDown": {"policies": [FOUR_A_MINUTE]}}, 9, 1, [(10, 3)], [], 2, Reason.SCALE_DOWN_LIMIT),
    "down, an exceeded limit adds nothing": (
        {"scaleDown": {"policies": [FOUR_A_MINUTE]}}, 3, 1, [], [(10, 9)], 3, Reason.SCALE_DOWN_LIMIT),
}  # fmt: skip


@pytest.mark.parametrize(
    ("behavior", "current", "wanted", "ups", "downs", "allowed", "reason"), LIMITS.values(), ids=LIMITS.keys()
)
def test_limit(
    behavior: dict[str, Any],
    current: int,
    wanted: int,
    ups: list[tuple[float, int]],
    downs: list[tuple[float, int]],
    allowed: int,
    reason: Reason,
) -> None:
    up, down = rules(**behavior)
    got, got_reason, message = limit(
        current=current,
        wanted=wanted,
        minimum=1,
        maximum=100,
        scale_ups=[Rescale(NOW - ago, change) for ago, change in ups],
        scale_downs=[Rescale(NOW - ago, change) for ago, change in downs],
        up=up,
        down=down,
        now=NOW,
    )
    assert (got, got_reason) == (allowed, reason)
    assert message


# ---- rules --------------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_hpa() -> None:
    assert (UP.window_seconds, UP.select, UP.tolerance) == (0, "Max", 0.1)
    assert [(p.type, p.value, p.period_seconds) for p in UP.policies] == [("Pods", 4, 15), ("Percent", 100, 15)]
    assert (DOWN.window_seconds, DOWN.select, DOWN.tolerance) == (300, "Max", 0.1)
    assert [(p.type, p.value, p.period_seconds) for p in DOWN.policies] == [("Percent", 100, 15)]


def test_a_field_alone_leaves_the_other_defaults() -> None:
    up, down = rules(scaleDown={"stabilizationWindowSeconds": 0, "tolerance": "50m"})
    assert up == UP
    assert (down.window_seconds, down.select, down.tolerance, down.policies) == (0, "Max", 0.05, DOWN.policies)


@pytest.mark.parametrize("tolerance", ["much", "", "-0.1", "1 %"])
def test_a_tolerance_that_is_none_names_its_field(tolerance: str) -> None:
    with pytest.raises(ValueError, match=r"scaling\.behavior\.scaleUp\.tolerance"):
        rules(scaleUp={"tolerance": tolerance})
