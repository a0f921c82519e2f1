"""The HorizontalPodAutoscaler's arithmetic: recommendation, stabilisation windows, speed limits.

`scaling.behavior` is autoscaling/v2 word for word, so whoever knows the HPA must find the HPA's numbers here. The steps are
those of kubernetes/pkg/controller/podautoscaler (`calcPlainMetricReplicas`, `stabilizeRecommendationWithBehaviors`,
`convertDesiredReplicasWithBehaviorRate`), with two differences that change no result: quotients are guarded against binary
rounding (the HPA counts in thousandths), and of equal recommendations only the latest is kept, because a window asks for
its greatest and its least member and nothing else. So a history stays small however often it is extended.

Rejected: a real HPA object on the scale subresource. It picks no victim, waits for no request, and can't know that engines
are about to decode plainly; it would need an adapter for custom metrics besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specserver.api import quantities, v1alpha1
from specserver.api.conditions import Reason

DEFAULT_TOLERANCE = 0.1
DEFAULT_UP_WINDOW_SECONDS = 0
DEFAULT_DOWN_WINDOW_SECONDS = 300
DEFAULT_UP_POLICIES = (
    v1alpha1.ScalingPolicy(type="Pods", value=4, period_seconds=15),
    v1alpha1.ScalingPolicy(type="Percent", value=100, period_seconds=15),
)
DEFAULT_DOWN_POLICIES = (v1alpha1.ScalingPolicy(type="Percent", value=100, period_seconds=15),)

LONGEST_WINDOW_SECONDS = 3600
"""The API's limit of a stabilisation window: older recommendations can't count."""
LONGEST_PERIOD_SECONDS = 1800
"""The API's limit of a policy's period: older changes can't count."""


@dataclass(frozen=True)
class Rules:
    """The rules of one direction, defaults filled in."""

    window_seconds: float
    select: str
    policies: tuple[v1alpha1.ScalingPolicy, ...]
    tolerance: float


@dataclass(frozen=True)
class Recommendation:
    """A replica count that the load asked for, and when it did so last."""

    at: float
    replicas: int


@dataclass(frozen=True)
class Rescale:
    """A change of the replica count that was written. `change` is positive in both directions."""

    at: float
    change: int


def resolve_rules(behavior: v1alpha1.Behavior) -> tuple[Rules, Rules]:
    """The rules up and down. ValueError names the field of a tolerance that is no quantity of 0 or more."""
    return (
        _resolve("scaleUp", behavior.scale_up, DEFAULT_UP_WINDOW_SECONDS, DEFAULT_UP_POLICIES),
        _resolve("scaleDown", behavior.scale_down, DEFAULT_DOWN_WINDOW_SECONDS, DEFAULT_DOWN_POLICIES),
    )


def recommend_replicas(
    *,
    current: int,
    target: float,
    values: Sequence[float],
    unready: int,
    missing: int,
    up_tolerance: float,
    down_tolerance: float,
) -> int:
    """Replicas that bring the average of `values` to `target`; `current` where the deviation is within tolerance.

    values    of the ready replicas that could be read; at least one
    unready   replicas that don't serve yet: on the way up they count with 0, on the way down not at all
    missing   ready replicas that could not be read: on the way up they count with 0, on the way down with the target

    Doubt never changes the direction: where these assumptions turn "more" into "fewer" or the reverse, `current` stands.
    """
    # 1. What the replicas say that can be read.
    total, count = sum(values), len(values)
    ratio = _quotient(total, target * count)
    if ratio < 1:
        total, count = total + missing * target, count + missing
    elif ratio > 1:
        count += missing + unready

    # 2. Nothing to do: within tolerance, or the assumptions turned the direction.
    assumed = _quotient(total, target * count)
    if 1 - down_tolerance <= assumed <= 1 + up_tolerance or (ratio - 1) * (assumed - 1) < 0:
        return current

    # 3. The count; never against the direction, which it could be where pods are still missing or still going.
    wanted = math.ceil(_quotient(total, target))
    against = (assumed < 1 and wanted > current) or (assumed > 1 and wanted < current)
    return current if against and (missing or (unready and ratio > 1)) else wanted


def add_recommendation(
    recommendations: Sequence[Recommendation], replicas: int, now: float
) -> tuple[Recommendation, ...]:
    """The recommendations with one more, without those that no window can reach."""
    kept = [r for r in recommendations if r.replicas != replicas and r.at > now - LONGEST_WINDOW_SECONDS]
    return (*kept, Recommendation(now, replicas))


def stabilize(
    *, current: int, wanted: int, recommendations: Sequence[Recommendation], up: Rules, down: Rules, now: float
) -> int:
    """`current` moved no further than every recommendation of the window agrees to: up to the least, down to the greatest."""
    least = min([wanted, *(r.replicas for r in recommendations if r.at > now - up.window_seconds)])
    greatest = max([wanted, *(r.replicas for r in recommendations if r.at > now - down.window_seconds)])
    return min(max(current, least), greatest)


def limit(
    *,
    current: int,
    wanted: int,
    minimum: int,
    maximum: int,
    scale_ups: Sequence[Rescale],
    scale_downs: Sequence[Rescale],
    up: Rules,
    down: Rules,
    now: float,
) -> tuple[int, Reason, str]:
    """`wanted` within the bounds and the speed limits, the reason for ScalingLimited and its message."""
    if wanted > current:
        fastest = max(_up_limit(current, up, scale_ups, scale_downs, now), current)
        if wanted > min(fastest, maximum):
            if fastest < maximum:
                return fastest, Reason.SCALE_UP_LIMIT, "the replica count rises as fast as behavior.scaleUp allows"
            return maximum, Reason.TOO_MANY_REPLICAS, f"the load asks for more than maxReplicas ({maximum})"
    elif wanted < current:
        fastest = min(_down_limit(current, down, scale_ups, scale_downs, now), current)
        if wanted < max(fastest, minimum):
            if fastest > minimum:
                return fastest, Reason.SCALE_DOWN_LIMIT, "the replica count falls as fast as behavior.scaleDown allows"
            return minimum, Reason.TOO_FEW_REPLICAS, f"the load asks for fewer than minReplicas ({minimum})"
    return wanted, Reason.DESIRED_WITHIN_RANGE, "the wanted replica count is within the bounds"


def _resolve(
    name: str, rules: v1alpha1.ScalingRules | None, window: int, policies: tuple[v1alpha1.ScalingPolicy, ...]
) -> Rules:
    rules = rules or v1alpha1.ScalingRules()
    tolerance = DEFAULT_TOLERANCE
    if rules.tolerance is not None:
        field = f"scaling.behavior.{name}.tolerance"
        try:
            tolerance = quantities.amount(rules.tolerance)
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from error
        if tolerance < 0:
            raise ValueError(f"{field}: {rules.tolerance} is negative; write 0 or more, for example 100m")
    return Rules(
        window_seconds=window if rules.stabilization_window_seconds is None else rules.stabilization_window_seconds,
        select=rules.select_policy or "Max",
        policies=rules.policies or policies,
        tolerance=tolerance,
    )


def _quotient(numerator: float, denominator: float) -> float:
    # 3 × 0.1 ÷ 0.1 is 3.0000000000000004, and its ceiling would be a whole replica more.
    return round(numerator / denominator, 9)


def _up_limit(
    current: int, rules: Rules, scale_ups: Sequence[Rescale], scale_downs: Sequence[Rescale], now: float
) -> int:
    if rules.select == "Disabled":
        return current
    proposals = []
    for policy in rules.policies:
        start = current - _changed(scale_ups, policy, now) + _changed(scale_downs, policy, now)
        if policy.type == "Pods":
            proposals.append(start + policy.value)
        else:
            # Rounded up: otherwise a small percentage of a few replicas would never add one.
            proposals.append(math.ceil(_quotient(start * (100 + policy.value), 100)))
    return min(proposals) if rules.select == "Min" else max(proposals)


def _down_limit(
    current: int, rules: Rules, scale_ups: Sequence[Rescale], scale_downs: Sequence[Rescale], now: float
) -> int:
    if rules.select == "Disabled":
        return current
    proposals = []
    for policy in rules.policies:
        start = current + _changed(scale_downs, policy, now) - _changed(scale_ups, policy, now)
        if policy.type == "Pods":
            proposals.append(start - policy.value)
        else:
            proposals.append(int(_quotient(start * (100 - policy.value), 100)))
    # Here the policy that allows the greater change ("Max") is the one with the lower limit.
    return max(proposals) if rules.select == "Min" else min(proposals)


def _changed(rescales: Sequence[Rescale], policy: v1alpha1.ScalingPolicy, now: float) -> int:
    return sum(rescale.change for rescale in rescales if rescale.at > now - policy.period_seconds)
