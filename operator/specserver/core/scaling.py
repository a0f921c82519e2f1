"""How many replicas the load asks for: the HPA's arithmetic (`hpa.py`) after the engines' own lever.

Two levers act on an overload. The engines' is fast and free: above its bound an engine goes over to plain decode within
milliseconds, and plain decode carries more. The operator's is slow and costs a GPU and a model load. So the capacity that
counts is that of engines that decode plainly, and an overload that the first lever is just about to solve is no reason for
the second:

    A scale-up waits while a serving replica is going over to plain decode: its engine is armed, follows a policy of mode
    Auto, and either still speculates although the policy asks it to decode plainly, or has changed to steps 0 within the
    last FLIP_GRACE_SECONDS, so that the load seen is still the load of before.

It does not wait where no change is to come: an engine that speculates below its bound does so because it is faster there,
so plain decode would carry less; modes Always, Never and Observe don't change; an engine that is not armed, has no policy
or can't be asked won't tell. Nor where requests queue: then places are short, not speed; unless they queue for one
data-parallel rank while another is idle, which is the engine's to share out, and waited for in the same way. And never longer
than FLIP_GRACE_SECONDS from the first look that saw the overload, so engines that go back and forth delay it once, not for ever.

A stalled engine is no capacity and no load: what the others carry decides, and where they need more, one replica may be made
in place of stalled ones. Not one for each: the new ones have the same revision, and may stall as well. Nor does a stall remove
anything.

Unknown holds: without any load nothing changes; where one of several targets is unknown nothing is removed; a replica that
can't be read counts as in the HPA. After a start, and after the load was unknown (or scaling paused) for as long as the
window of scale-down, the present replicas count as a recommendation, so that nobody who has only just begun to look removes
anything. Replicas whose drain was under way at a start are left out of it: that decision had been made, and is carried on.

A scale-down is only a number here; `drain.py` takes the replicas one by one. A draining replica counts as gone already, and
the requests that it still has as the others': so the tolerance is that of the replicas that will be left, as it would be
under the HPA, which removes at once. Counted as present it would make every drain of a load near a boundary turn back.
Back to service it goes without a wait, a window or a speed limit, because its GPU was never given up.

Rejected: a margin for scale-down on top (Dynamo's planner asks that the load of N fits N - 1 with a fifth to spare). The
HPA's ceiling already projects the whole load on fewer replicas, and who wants more damping has `behavior`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specserver.api import v1alpha1
from specserver.api.conditions import Condition, ConditionType, Reason, Status
from specserver.core import hpa
from specserver.core.drain import count_drains
from specserver.core.observed import (
    EngineState,
    EngineUnreachable,
    Load,
    LoadUnknown,
    Pod,
    PodLoad,
    RankState,
)
from specserver.policy.document import PolicyInvalid, parse_policy

FLIP_GRACE_SECONDS = 30.0
"""Longest that a scale-up waits for engines to go over to plain decode, and how fresh such a change counts."""


@dataclass(frozen=True)
class ScalingHistory:
    """What scaling must remember of one server. Kept in the operator's memory; a fresh one is right after a start.

    recommendations   replica counts that the load asked for, each with its latest time
    scale_ups, scale_downs   changes that were written (`record_rescale`), for the speed limits
    overloaded_since  first of the uninterrupted looks at which more replicas were wanted
    blind_since       first of the uninterrupted looks without a recommendation: load unknown, or paused
    """

    recommendations: tuple[hpa.Recommendation, ...] = ()
    scale_ups: tuple[hpa.Rescale, ...] = ()
    scale_downs: tuple[hpa.Rescale, ...] = ()
    overloaded_since: float | None = None
    blind_since: float | None = None


@dataclass(frozen=True)
class ScalingPlan:
    """What scaling wants. `reason` is a sentence for the Event and the history; the conditions hold no changing figures."""

    desired_replicas: int
    reason: str
    conditions: tuple[Condition, Condition, Condition]
    """AbleToScale, ScalingActive, ScalingLimited."""
    history: ScalingHistory


def plan_scaling(
    *,
    scaling: v1alpha1.Scaling,
    current_replicas: int,
    pods: Sequence[Pod],
    load: Load | LoadUnknown,
    engines: Mapping[str, EngineState | EngineUnreachable],
    history: ScalingHistory,
    now: float,
) -> ScalingPlan:
    """Replicas for the load that was seen, within all limits, and the history to hand in next time.

    `current_replicas` is the Deployment's `spec.replicas`: pods that don't exist yet are in it, so no tick asks twice.
    """
    # 1. Times at which nothing is decided.
    blind = replace(history, overloaded_since=None, blind_since=now if history.blind_since is None else history.blind_since)
    if scaling.paused:
        active = _condition(ConditionType.SCALING_ACTIVE, Status.FALSE, Reason.SCALING_PAUSED, "scaling.paused is true")
        return _hold(current_replicas, "scaling is paused", active, blind)
    problem = _find_problem(scaling)
    if problem:
        active = _condition(ConditionType.SCALING_ACTIVE, Status.FALSE, Reason.INVALID_SPEC, problem)
        return _hold(current_replicas, problem, active, blind)
    up, down = hpa.resolve_rules(scaling.behavior)

    # 2. Outside the bounds: no load is needed to see what is wrong.
    if current_replicas > scaling.max_replicas:
        text = f"there are more replicas than maxReplicas ({scaling.max_replicas})"
        return _clamp(scaling.max_replicas, text, Reason.TOO_MANY_REPLICAS, load, history)
    if current_replicas < scaling.min_replicas:
        text = f"there are fewer replicas than minReplicas ({scaling.min_replicas})"
        return _clamp(scaling.min_replicas, text, Reason.TOO_FEW_REPLICAS, load, history)

    # 3. What each target asks for.
    if isinstance(load, LoadUnknown):
        return _hold(current_replicas, f"the load is unknown: {load.message}", _report_active(load), blind)
    present = current_replicas - count_drains(pods, current_replicas)
    asks = [_ask(target, pods, load, present, up, down) for target in scaling.targets]
    known = [ask for ask in asks if ask.replicas is not None]
    wanted = max((ask.replicas for ask in known if ask.replicas is not None), default=current_replicas)
    if not known or (len(known) < len(asks) and wanted < current_replicas):
        unknown = ", ".join(ask.metric for ask in asks if ask.replicas is None)
        text = f"no ready replica could be asked for {unknown}, or each is stalled"
        active = _condition(ConditionType.SCALING_ACTIVE, Status.FALSE, Reason.FAILED_GET_METRICS, text)
        return _hold(current_replicas, text, active, blind)
    metrics = ", ".join(ask.metric for ask in known)
    active = _condition(
        ConditionType.SCALING_ACTIVE, Status.TRUE, Reason.VALID_METRIC_FOUND, f"the replica count follows from {metrics}"
    )

    # 4. Recent recommendations. A draining replica that is wanted again serves again at once.
    seen = _recommendations(history, present, down, now)
    stable = hpa.stabilize(current=present, wanted=wanted, recommendations=seen, up=up, down=down, now=now)
    stable = max(stable, min(wanted, current_replicas))
    seen = hpa.add_recommendation(seen, wanted, now)
    able = _report_able(wanted, stable, seen, since=_last_change(history, now - down.window_seconds))

    # 5. The engines' own lever first.
    overloaded_since = None
    if stable > current_replicas:
        overloaded_since = now if history.overloaded_since is None else history.overloaded_since
        remedy = _find_remedy(pods, load, engines, now)
        if remedy and now - overloaded_since < FLIP_GRACE_SECONDS:
            stable = current_replicas
            text = f"waiting up to {FLIP_GRACE_SECONDS:g} s for {remedy}"
            able = _condition(ConditionType.ABLE_TO_SCALE, Status.TRUE, Reason.SCALE_UP_STABILIZED, text)

    # 6. Bounds and speed limits. On the way down a drain under way has used its share already.
    under_way = (hpa.Rescale(now, current_replicas - present),) if stable < current_replicas else ()
    desired, limit_reason, limit_text = hpa.limit(
        current=present if under_way else current_replicas,
        wanted=stable,
        minimum=scaling.min_replicas,
        maximum=scaling.max_replicas,
        scale_ups=history.scale_ups,
        scale_downs=(*history.scale_downs, *under_way),
        up=up,
        down=down,
        now=now,
    )
    limited = Status.FALSE if desired == stable else Status.TRUE
    if desired != current_replicas:
        able = _report_rescale(current_replicas, desired)
    return ScalingPlan(
        desired_replicas=desired,
        reason=_explain(known, current_replicas, desired, wanted),
        conditions=(able, active, _condition(ConditionType.SCALING_LIMITED, limited, limit_reason, limit_text)),
        history=replace(
            history,
            recommendations=seen,
            overloaded_since=overloaded_since,
            blind_since=None,
        ),
    )


def record_rescale(history: ScalingHistory, *, before: int, after: int, now: float) -> ScalingHistory:
    """The history with a change of `replicas` that the API server took: one that failed must not use up a speed limit."""
    ups, downs = (
        [event for event in events if event.at > now - hpa.LONGEST_PERIOD_SECONDS]
        for events in (history.scale_ups, history.scale_downs)
    )
    if after > before:
        ups.append(hpa.Rescale(now, after - before))
    elif after < before:
        downs.append(hpa.Rescale(now, before - after))
    return replace(history, scale_ups=tuple(ups), scale_downs=tuple(downs))


# ---- targets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ask:
    """What one target asks for; no replicas where no replica's value is known."""

    metric: str
    target: float
    average: float
    replicas: int | None


def _ask(
    target: v1alpha1.Target, pods: Sequence[Pod], load: Load, current: int, up: hpa.Rules, down: hpa.Rules
) -> _Ask:
    values, leaving, unready, missing, stalled = [], 0.0, 0, 0, 0
    for pod in pods:
        if pod.terminating or pod.phase in ("Succeeded", "Failed"):
            continue
        sample = load.of(pod.name)
        value = math.nan if sample is None else _value(target.metric, sample)
        if not pod.ready:
            unready += pod.draining_since is None
        elif pod.stalled:
            stalled += pod.draining_since is None
        elif not math.isfinite(value):
            missing += 1
        elif pod.draining_since is None:
            values.append(value)
        else:
            leaving += value
    # A rollout's surge is no replica, so of pods beyond `current` none is a stalled replica.
    stalled = max(0, stalled - max(0, len(values) + unready + missing + stalled - current))
    wanted = float(target.value)
    if not values:
        return _Ask(target.metric.value, wanted, math.nan, None)
    values = [value + leaving / len(values) for value in values]
    replicas = hpa.recommend_replicas(
        current=current - stalled,
        target=wanted,
        values=values,
        unready=unready,
        missing=missing,
        up_tolerance=up.tolerance,
        down_tolerance=down.tolerance,
    )
    # Never 0: there is no scaling to zero, and whether an idle server has 0 requests or 1 is no news.
    replicas = max(1, replicas)
    return _Ask(
        target.metric.value, wanted, sum(values) / len(values), min(replicas + stalled, max(current, replicas + 1))
    )


def _value(metric: v1alpha1.TargetMetric, sample: PodLoad) -> float:
    return sample.running if metric is v1alpha1.TargetMetric.RUNNING else sample.queued


def _find_problem(scaling: v1alpha1.Scaling) -> str:
    """Admission refuses these; an object stored under an older schema can still hold them."""
    if scaling.min_replicas > scaling.max_replicas:
        return f"scaling.minReplicas ({scaling.min_replicas}) is greater than maxReplicas ({scaling.max_replicas})"
    for target in scaling.targets:
        if float(target.value) <= 0:
            return f"scaling.targets: the value of {target.metric.value} must be greater than 0"
    try:
        hpa.resolve_rules(scaling.behavior)
    except ValueError as error:
        return str(error)
    return ""


def _recommendations(
    history: ScalingHistory, present: int, down: hpa.Rules, now: float
) -> tuple[hpa.Recommendation, ...]:
    """The recommendations to go by: those made, or the present replicas where nobody looked."""
    blind = history.blind_since is not None and now - history.blind_since >= down.window_seconds
    if history.recommendations and not blind:
        return history.recommendations
    return hpa.add_recommendation(history.recommendations, present, now)


# ---- the engines' lever -----------------------------------------------------------------------------------------------


def _find_remedy(
    pods: Sequence[Pod], load: Load, engines: Mapping[str, EngineState | EngineUnreachable], now: float
) -> str:
    """What engines are about to do that may end an overload without a replica; empty where nothing is."""
    serving = [pod.name for pod in pods if pod.works and pod.serving and not pod.terminating]
    samples = [sample for sample in load.pods if sample.pod in serving]
    queueing = [sample for sample in samples if sample.queued > 0]
    if queueing:
        skewed = all(sample.skewed for sample in queueing)
        return f"the data-parallel ranks of pod {queueing[0].pod}, of which some are idle while others queue" if skewed else ""
    for sample in samples:
        engine = engines.get(sample.pod)
        if isinstance(engine, EngineState) and any(_is_flipping(rank, sample.running, now) for rank in engine.ranks):
            return "engines that are going over to plain decode"
    return ""


def _is_flipping(rank: RankState, running: float, now: float) -> bool:
    """Is this engine on its way to plain decode, or just there?"""
    if not rank.armed or rank.policy is None:
        return False
    try:
        policy = parse_policy(rank.policy)
    except PolicyInvalid:
        return False
    if policy.mode != "Auto":
        return False
    if rank.steps > 0:
        return rank.decided_steps == 0 or running > policy.disable_above
    return rank.last_switch_at is not None and now - rank.last_switch_at < FLIP_GRACE_SECONDS


# ---- what is said -----------------------------------------------------------------------------------------------------


def _explain(asks: Sequence[_Ask], current: int, desired: int, wanted: int) -> str:
    if desired > current:
        ask = next(ask for ask in asks if ask.replicas == wanted)
        return f"{ask.metric} {_figure(ask.average)} per replica is above the target {_figure(ask.target)}"
    if desired < current:
        each = (f"{ask.metric} {_figure(ask.average)} per replica (target {_figure(ask.target)})" for ask in asks)
        return f"fewer replicas carry the load: {', '.join(each)}"
    return "the replicas stay as they are"


def _figure(value: float) -> str:
    return f"{round(value, 1):g}"


def _condition(kind: ConditionType, status: Status, reason: Reason, message: str) -> Condition:
    return Condition(kind, status, reason, message)


def _report_able(
    wanted: int, stable: int, recommendations: Sequence[hpa.Recommendation], *, since: float
) -> Condition:
    """Whether a window holds something back. Down: has it within the window, not only now, or noise would be news."""
    if wanted > stable:
        reason, text = Reason.SCALE_UP_STABILIZED, "recent recommendations were lower: the lowest of them applies"
    elif any(r.replicas < stable and r.at > since for r in recommendations):
        reason, text = Reason.SCALE_DOWN_STABILIZED, "recent recommendations were higher: the highest of them applies"
    else:
        reason, text = Reason.READY_FOR_NEW_SCALE, "the recommended replica count can be applied"
    return _condition(ConditionType.ABLE_TO_SCALE, Status.TRUE, reason, text)


def _last_change(history: ScalingHistory, start: float) -> float:
    """Time of the last written change, but not before `start`: what was recommended for other replicas is past."""
    return max([start, *(event.at for event in (*history.scale_ups, *history.scale_downs))])


def _report_rescale(current: int, desired: int) -> Condition:
    if desired > current:
        reason, text = Reason.SUCCEEDED_RESCALE, f"replicas raised to {desired}"
    else:
        # Not done yet: replicas go one by one, each when it has finished its requests.
        reason, text = Reason.READY_FOR_NEW_SCALE, f"draining replicas one by one down to {desired}"
    return _condition(ConditionType.ABLE_TO_SCALE, Status.TRUE, reason, text)


def _report_active(load: Load | LoadUnknown) -> Condition:
    if isinstance(load, LoadUnknown):
        return _condition(ConditionType.SCALING_ACTIVE, Status.FALSE, Reason.FAILED_GET_METRICS, load.message)
    return _condition(ConditionType.SCALING_ACTIVE, Status.TRUE, Reason.VALID_METRIC_FOUND, "the load is known")


def _hold(current: int, reason: str, active: Condition, history: ScalingHistory) -> ScalingPlan:
    able = _condition(
        ConditionType.ABLE_TO_SCALE, Status.TRUE, Reason.READY_FOR_NEW_SCALE, "the replica count can be changed"
    )
    limited = _condition(
        ConditionType.SCALING_LIMITED, Status.FALSE, Reason.DESIRED_WITHIN_RANGE, "nothing is being limited"
    )
    return ScalingPlan(current, f"the replicas are held: {reason}", (able, active, limited), history)


def _clamp(
    desired: int, text: str, reason: Reason, load: Load | LoadUnknown, history: ScalingHistory
) -> ScalingPlan:
    able = _condition(
        ConditionType.ABLE_TO_SCALE, Status.TRUE, Reason.READY_FOR_NEW_SCALE, f"moving to {desired} replicas"
    )
    limited = _condition(ConditionType.SCALING_LIMITED, Status.TRUE, reason, text)
    return ScalingPlan(desired, text, (able, _report_active(load), limited), history)
