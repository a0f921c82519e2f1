"""Ready, Available and Progressing, and what the newest failure was: from pods and workload to a cause with a name.

The order of causes is the order in which a person would want to hear them: what blocks everything first, then what is wrong
with pods (`failures.py`), then pods that are on their way. One message names one pod and what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from specserver.api.conditions import Condition, ConditionType, Reason, Status
from specserver.core.failures import classify_refusal, find_stuck, find_trouble
from specserver.core.observed import Pod, Workload
from specserver.core.rollout import Stand


@dataclass(frozen=True)
class Problem:
    """Something that keeps the operator itself from going on: a missing Secret, a refused object, a spec it can't use."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Replicas:
    """Counts of status. `desired` is how many replicas are wanted; pods that terminate or have finished don't count."""

    desired: int
    present: int
    updated: int
    ready: int
    available: int
    unschedulable: int


def count_replicas(workload: Workload | None, pods: Iterable[Pod], desired: int) -> Replicas:
    """Only pods of the newest revision are `updated` and `ready`: an old pod never makes a rollout look finished."""
    live = [pod for pod in pods if pod.lives]
    newest = workload.current_template_hash if workload else None
    updated = [pod for pod in live if pod.template_hash == newest]
    return Replicas(
        desired=desired,
        present=len(live),
        updated=len(updated),
        ready=sum(pod.ready for pod in updated),
        available=sum(pod.works and pod.serving for pod in live),
        unschedulable=sum(bool(pod.unschedulable_message) for pod in live),
    )


def plan_ready(
    replicas: Replicas,
    workload: Workload | None,
    pods: tuple[Pod, ...],
    problems: tuple[Problem, ...],
    *,
    suspended: bool = False,
    place_expected: bool = False,
    load_deadline_seconds: float,
    now: float,
) -> Condition:
    """The condition Ready. True means: every wanted replica is of the newest revision, ready, and in the Service."""

    def not_ready(reason: Reason, message: str) -> Condition:
        return Condition(ConditionType.READY, Status.FALSE, reason, message)

    # 1. What keeps the operator from working at all.
    if problems:
        return not_ready(problems[0].reason, "; ".join(problem.message for problem in problems))
    if workload is None:
        return not_ready(Reason.ROLLING_OUT, "the Deployment is being made")
    if suspended:
        left = sum(not pod.terminating for pod in pods if pod.phase not in ("Succeeded", "Failed"))
        still = f"; {left} pods finish their requests first" if left else ": no pod runs, and no GPU is taken"
        return not_ready(Reason.SUSPENDED, f"spec.suspend is true{still}")
    # 2. What is wrong with pods, or keeps them from being made.
    live = [pod for pod in pods if pod.lives]
    ready = [pod for pod in live if pod.ready and pod.serving and pod.template_hash == workload.current_template_hash]
    trouble = find_trouble(
        pods,
        workload,
        missing=replicas.desired - replicas.present,
        unready=replicas.desired - len(ready),
        place_expected=place_expected,
        load_deadline_seconds=load_deadline_seconds,
        now=now,
    )
    if trouble is not None:
        return not_ready(trouble.reason, trouble.message)
    # 3. On the way.
    waiting = next((pod for pod in live if pod.unschedulable_message), None)
    if waiting is not None:
        return not_ready(Reason.ROLLING_OUT, f"pod {waiting.name} waits for the place of a pod that is ending")
    old = [pod for pod in live if pod.template_hash != workload.current_template_hash]
    if old or replicas.updated < replicas.desired:
        return not_ready(Reason.ROLLING_OUT, f"{replicas.updated} of {replicas.desired} replicas have the newest revision")
    loading = [pod for pod in live if not pod.started]
    if len(ready) < replicas.desired:
        if loading:
            waited = math.floor((now - loading[0].created_at) / 60)
            since = f", for {waited} min" if waited else ""
            return not_ready(
                Reason.MODEL_LOADING,
                f"pod {loading[0].name} loads its model{since}; {len(ready)} of {replicas.desired} replicas are ready",
            )
        return not_ready(Reason.ROLLING_OUT, f"{len(ready)} of {replicas.desired} replicas are ready")
    if replicas.desired == 0:
        return not_ready(Reason.SCALED_TO_ZERO, "replicas is 0: nothing is served")
    return Condition(ConditionType.READY, Status.TRUE, Reason.ALL_REPLICAS_READY, f"{len(ready)} replicas are ready")


def plan_available(replicas: Replicas, *, max_unavailable: int) -> Condition:
    """The condition Available: as many replicas serve as a rollout leaves at the least, and one in any case."""
    least = max(1, replicas.desired - max_unavailable)
    if replicas.available >= least:
        return Condition(
            ConditionType.AVAILABLE, Status.TRUE, Reason.MINIMUM_REPLICAS_AVAILABLE, f"{least} or more replicas serve"
        )
    return Condition(
        ConditionType.AVAILABLE,
        Status.FALSE,
        Reason.MINIMUM_REPLICAS_UNAVAILABLE,
        f"{replicas.available} replicas serve, at least {least} should",
    )


def plan_progressing(
    replicas: Replicas,
    workload: Workload | None,
    pods: tuple[Pod, ...],
    stand: Stand | None = None,
    *,
    kept: bool = False,
    now: float,
) -> Condition:
    """The condition Progressing, as a Deployment's: True also when all is done, False when it has come to a stop."""

    def progressing(reason: Reason, message: str, status: Status = Status.TRUE) -> Condition:
        return Condition(ConditionType.PROGRESSING, status, reason, message)

    if workload is not None and workload.progress_deadline_exceeded and stand is None:
        return progressing(
            Reason.PROGRESS_DEADLINE_EXCEEDED,
            "no progress within rollout.progressDeadline: see the condition Ready",
            Status.FALSE,
        )
    if workload is not None and workload.creation_refused and replicas.present < replicas.desired:
        refusal = classify_refusal(workload.creation_refused)
        return progressing(refusal.reason, refusal.message, Status.FALSE)
    if stuck := find_stuck(pods, now):
        return progressing(Reason.STUCK_TERMINATING, stuck, Status.FALSE)
    if stand is not None:
        return progressing(stand.reason, stand.message, stand.status)
    live = [pod for pod in pods if pod.lives]
    if workload is None or any(pod.template_hash != workload.current_template_hash for pod in live):
        return progressing(Reason.NEW_REVISION, f"{replicas.updated} of {replicas.desired} replicas have the newest revision")
    draining = [pod.name for pod in live if not pod.serving]
    if draining:
        return progressing(Reason.DRAINING, f"pod {draining[0]} finishes its requests before it goes")
    if replicas.ready != replicas.desired or replicas.present != replicas.desired:
        return progressing(Reason.SCALING, f"{replicas.ready} of {replicas.desired} replicas are ready")
    earlier = ", as an earlier version of the operator built it (rollout.onOperatorUpgrade is Keep)" if kept else ""
    return progressing(Reason.ROLLOUT_COMPLETE, f"all replicas have the newest revision{earlier}")
