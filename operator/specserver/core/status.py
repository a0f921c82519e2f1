"""The whole status of a server, from what was seen and decided. Pure; the caller writes it only if it changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specserver.api import quantities
from specserver.api.conditions import Condition, ConditionType, Reason, Status, merge_conditions
from specserver.api.v1alpha1 import SpeculativeServer
from specserver.core.engine_report import build_speculation_status, plan_policy_applied, plan_speculation_active
from specserver.core.failures import classify_failure, plan_scheduled
from specserver.core.noise import settle
from specserver.core.observed import Load, LoadUnknown, Observed, Pod, PushResult
from specserver.core.readiness import (
    Problem,
    count_replicas,
    plan_available,
    plan_progressing,
    plan_ready,
)
from specserver.core.rollout import Stand
from specserver.core.times import rfc3339

_HISTORY_LENGTH = 5
_PHASES = {
    Reason.ROLLOUT_COMPLETE: "Complete",
    Reason.ROLLOUT_PAUSED: "Paused",
    Reason.ROLLOUT_DEFERRED: "Deferred",
    Reason.ROLLOUT_STOPPED: "Stalled",
    Reason.DRAFT_MISMATCH: "Stalled",
    Reason.PROGRESS_DEADLINE_EXCEEDED: "Stalled",
}
"""Phases of a rollout by the reason of Progressing; every other one is `Progressing`."""
_REQUESTS_SLACK = 1
_TOKEN_USAGE_SLACK = 0.05
_TOKENS_SLACK = 20
_LOAD_SHARE = 0.2


@dataclass(frozen=True)
class ScalingOutcome:
    """What scaling decided this time, for status. `rescales` are changes of the replicas to be told, oldest first."""

    desired_replicas: int
    conditions: tuple[Condition, ...]
    rescales: tuple[Mapping[str, Any], ...] = ()
    changed: bool = False
    """Whether the last was just now."""


def build_status(
    server: SpeculativeServer,
    observed: Observed,
    scaling: ScalingOutcome,
    *,
    policy: Mapping[str, Any],
    pushes: Mapping[str, PushResult],
    problems: tuple[Problem, ...],
    further: tuple[Condition, ...] = (),
    stand: Stand | None = None,
    kept: bool = False,
    selector: str,
    operator_version: str,
    previous: Mapping[str, Any],
    now: float,
) -> dict[str, Any]:
    """The status object; `further` are conditions that the caller has already.

    `stand` is where a rollout stands, `kept` whether the pods are as an earlier operator built them.

    Times inside move only with what they are about, so an unchanged server gives an equal status.
    """
    spec, workload = server.spec, observed.workload
    deadline = quantities.seconds(spec.engine.load_deadline)
    # What is wanted, not the Deployment's number: a replica that is being drained is in that one, and is none that is missing.
    replicas = count_replicas(workload, observed.pods, scaling.desired_replicas)
    ready = plan_ready(
        replicas,
        workload,
        observed.pods,
        problems,
        suspended=spec.suspend,
        place_expected=observed.place_expected,
        load_deadline_seconds=deadline,
        now=now,
    )
    progressing = plan_progressing(replicas, workload, observed.pods, stand, kept=kept, now=now)
    mode = spec.speculation.mode
    conditions = (
        ready,
        plan_available(replicas, max_unavailable=spec.rollout.max_unavailable),
        progressing,
        plan_scheduled(
            observed.pods,
            workload,
            missing=replicas.desired - replicas.present,
            place_expected=observed.place_expected,
        ),
        plan_metrics_available(observed.load, observed.pods),
        plan_speculation_active(observed.engines, mode),
        plan_policy_applied(observed.engines, pushes, observed.pods, document=policy, mode=mode),
        *further,
        *scaling.conditions,
    )
    status: dict[str, Any] = {
        "observedGeneration": server.generation,
        "replicas": replicas.present,
        "readyReplicas": replicas.ready,
        "updatedReplicas": replicas.updated,
        "availableReplicas": replicas.available,
        "unschedulableReplicas": replicas.unschedulable,
        "selector": selector,
        "speculation": build_speculation_status(
            observed.engines, document=policy, mode=mode, previous=previous.get("speculation", {})
        ),
        "scaling": _build_scaling_status(scaling, previous.get("scaling", {})),
        "url": f"http://{server.name}.{server.namespace}.svc:{spec.engine.port}",
        "operatorVersion": operator_version,
        "conditions": merge_conditions(
            conditions, previous.get("conditions", []), generation=server.generation, now=rfc3339(now)
        ),
    }
    if isinstance(observed.load, Load):
        status["load"] = _build_load_status(observed.load, previous.get("load", {}))
    if workload is not None:
        status["rollout"] = {"phase": _PHASES.get(progressing.reason, "Progressing")}
        if workload.current_template_hash:
            status["rollout"]["revision"] = workload.current_template_hash
    failure = _build_last_failure(observed.pods, deadline) or previous.get("lastFailure")
    if failure:
        status["lastFailure"] = failure
    return status


def plan_metrics_available(load: Load | LoadUnknown, pods: tuple[Pod, ...]) -> Condition:
    """The condition MetricsAvailable: True only where the load of every ready replica is known."""
    if not any(pod.ready for pod in pods):
        return Condition(
            ConditionType.METRICS_AVAILABLE, Status.UNKNOWN, Reason.NO_READY_REPLICAS, "no replica is ready to be asked"
        )
    if isinstance(load, LoadUnknown):
        return Condition(ConditionType.METRICS_AVAILABLE, Status.FALSE, Reason(load.reason), load.message)
    if load.unknown:
        return Condition(
            ConditionType.METRICS_AVAILABLE,
            Status.FALSE,
            Reason.METRICS_MISSING,
            f"no replica is removed meanwhile: {load.gap}",
        )
    if load.instead_of:
        message = f"the load is read from the pods, as metrics.onLoss asks: {load.instead_of}"
        return Condition(ConditionType.METRICS_AVAILABLE, Status.TRUE, Reason.METRICS_FALLBACK, message)
    return Condition(
        ConditionType.METRICS_AVAILABLE, Status.TRUE, Reason.METRICS_FOUND, f"the load of {len(load.pods)} replicas is known"
    )


def _build_load_status(load: Load, previous: Mapping[str, Any]) -> dict[str, Any]:
    """Rounded, and each figure stays as it was until it has really moved: noise writes nothing."""
    figures: dict[str, Any] = {
        name: settle(round(value), previous.get(name), slack=_REQUESTS_SLACK, share=_LOAD_SHARE)
        for name, value in (("running", load.running), ("queued", load.queued))
    }
    usage = settle(round(load.token_usage * 20) / 20, _number(previous.get("tokenUsage")), slack=_TOKEN_USAGE_SLACK)
    figures["tokenUsage"] = f"{usage:.2f}"
    if load.tokens_per_second is not None:
        rate = _two_digits(load.tokens_per_second)
        figures["tokensPerSecond"] = settle(rate, previous.get("tokensPerSecond"), slack=_TOKENS_SLACK, share=_LOAD_SHARE)
    unchanged = {key: value for key, value in previous.items() if key != "observedAt"} == figures
    return {
        **figures,
        "observedAt": previous["observedAt"] if unchanged and "observedAt" in previous else rfc3339(load.observed_at),
    }


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _two_digits(value: float) -> int:
    """Rounded to two significant digits: 1 234 → 1 200."""
    whole = round(value)
    return int(round(whole, 2 - len(str(whole)))) if whole >= 100 else whole


def _build_scaling_status(scaling: ScalingOutcome, previous: Mapping[str, Any]) -> dict[str, Any]:
    status: dict[str, Any] = {**previous, "desiredReplicas": scaling.desired_replicas}
    told = previous.get("history", [])
    news = [dict(one) for one in reversed(scaling.rescales) if one not in told]
    if news:
        status["lastScaleTime"] = news[0]["time"]
        status["history"] = [*news, *told][:_HISTORY_LENGTH]
    return status


def _build_last_failure(pods: tuple[Pod, ...], load_deadline_seconds: float) -> dict[str, Any] | None:
    """The newest failure among the pods that there are."""
    failed = [
        pod
        for pod in pods
        if pod.failure
        and (pod.phase == "Failed" or classify_failure(pod.failure, load_deadline_seconds=load_deadline_seconds))
    ]
    if not failed:
        return None
    newest = max(failed, key=lambda pod: (pod.failure.at or 0.0) if pod.failure else 0.0)
    failure = newest.failure
    assert failure is not None
    status: dict[str, Any] = {"pod": newest.name, "reason": failure.reason, "message": failure.message.strip()[-1024:]}
    if failure.exit_code is not None:
        status["exitCode"] = failure.exit_code
    if failure.at is not None:
        status["time"] = rfc3339(failure.at)
    return status
