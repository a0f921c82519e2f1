"""Which replica goes, and when: one at a time, and only once it has finished its requests.

A Deployment that is told "one replica fewer" lets the ReplicaSet choose the pod: one that isn't ready, else the one with the
lowest deletion cost. So the victim is chosen and marked first, and `replicas` is lowered last:

    choose   what doesn't serve yet goes first, then the replica with the fewest requests
    mark     out of the Service (the label `serving` goes), lowest deletion cost, the time in `draining-since`: one patch
    settle   5 s, in which endpoints everywhere forget it
    watch    running + queued = 0 in two different samples, or the drain timeout. Unreachable counts as busy: a replica that
             can't be asked may well be decoding, and the timeout bounds the doubt
    release  replicas - 1; the ReplicaSet removes the marked pod

Everything is on the pods, nothing in the operator: after a crash at any point the next look goes on from there. When the
load comes back in between, or becomes unknown, the marked replica returns to service.

Between the lowering and the pod's end there are more live pods than `replicas`. Each such pod is one that the ReplicaSet is
about to remove, so it explains one mark: that is how a mark whose drain is over is not taken for a second removal, and how
a marked pod that survived (the ReplicaSet prefers one that isn't ready) is found and returned to service. A rollout's surge
looks the same; then a marked pod stays out of service until the rollout removes a pod, and the wanted number still serves.

While pods of two templates live, or one is drained for a rollout (`rollout.py`, which has marks of its own), no replica is
removed: a Deployment in mid-rollout spreads a change of `replicas` over its ReplicaSets, and the one that loses a pod need
not be the victim's.

Rejected: deletion costs kept up to date with the load. They would be a write per replica and sample, would be old at the
moment that counts, and would still take the busy with the idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specserver.core.observed import Load, LoadUnknown, Pod, PodLoad

LOWEST_DELETION_COST = -2147483647
"""Value of `controller.kubernetes.io/pod-deletion-cost` on a marked pod."""
SETTLE_SECONDS = 5.0
"""Time after the marking in which requests may still arrive by way of old endpoints."""
POLL_SECONDS = 2.0
"""How soon to look again at a replica that is being drained, or that should be gone."""
SAMPLE_GAP_SECONDS = 1.0
"""Least distance between two idle samples: annotations hold whole seconds, so less could be the same sample twice."""


@dataclass(frozen=True)
class MarkDraining:
    """Take the pod out of the Service, give it the lowest deletion cost and note `since` and what it is for: one patch."""

    pod: Pod
    since: float
    purpose: str = ""


@dataclass(frozen=True)
class NoteIdle:
    """Write down that the sample of `at` found the draining pod idle."""

    pod: Pod
    at: float


@dataclass(frozen=True)
class ClearIdle:
    """Remove the note of an idle sample: the pod is busy again, or can't be asked."""

    pod: Pod


@dataclass(frozen=True)
class ReturnToService:
    """Undo MarkDraining: label back, deletion cost and all notes of the drain away: one patch."""

    pod: Pod


@dataclass(frozen=True)
class ReleaseReplica:
    """Lower `replicas` to `to`, one less than now. `reason` is the sentence for the Event and the line in the history."""

    to: int
    reason: str


Action = MarkDraining | NoteIdle | ClearIdle | ReturnToService | ReleaseReplica


@dataclass(frozen=True)
class DrainPlan:
    """What to do now, in this order, and when to look again; None where nothing is under way.

    `message` says what is under way, without figures that change at every look; empty where nothing is.
    """

    actions: tuple[Action, ...] = ()
    requeue_after_seconds: float | None = None
    message: str = ""


@dataclass(frozen=True)
class DrainStep:
    """Where the drain of one pod stands. `done` says why the pod may go now; empty while it may not."""

    actions: tuple[Action, ...] = ()
    requeue_after_seconds: float | None = None
    done: str = ""


def plan_drain(
    *,
    pods: Sequence[Pod],
    load: Load | LoadUnknown,
    desired_replicas: int,
    current_replicas: int,
    drain_timeout_seconds: float,
    now: float,
) -> DrainPlan:
    """The next step from `current_replicas` (the Deployment's spec) down to `desired_replicas`, or back out of a drain.

    Raising `replicas` needs no plan: the caller writes `desired_replicas` after the actions. A fixed `spec.replicas` that
    the user lowered goes through here too.
    """
    live = [pod for pod in pods if pod.lives]
    marked = sorted((pod for pod in live if is_leaving(pod)), key=_removal_order)
    leaving = max(0, len(live) - current_replicas)
    pending = marked[leaving:]
    rolling = len({pod.template_hash for pod in live}) > 1 or any(pod.draining_for for pod in live)

    # 1. No fewer replicas wanted, or not now: what is marked and won't be removed serves again.
    if desired_replicas >= current_replicas or rolling:
        pending += [] if leaving else [pod for pod in live if _has_lost_its_time(pod)]
        message = "waiting for the rollout before removing a replica" if rolling and desired_replicas < current_replicas else ""
        return DrainPlan(_return(pending), POLL_SECONDS if marked[:leaving] else None, message)

    # 2. A replica was released and its pod is still here: one at a time.
    if leaving:
        return DrainPlan(_return(pending), POLL_SECONDS, "waiting for the removal of a drained replica")

    # 3. More replicas than pods: what doesn't exist needs no drain.
    if len(live) < current_replicas:
        return _release(current_replicas, "a replica had no pod")

    # 4. Nothing marked: choose.
    if not pending:
        victim = choose_victim(live, load)
        mark = MarkDraining(victim, now)
        if not victim.started:
            return _release(current_replicas, f"pod {victim.name} had not started", mark)
        return DrainPlan((mark,), SETTLE_SECONDS, f"draining pod {victim.name}")

    # 5. One at a time, and never at the price of the wanted capacity: another replica failed in the meantime, so that one goes.
    victim, *others = sorted(pending, key=lambda pod: (pod.draining_since or 0.0, pod.name))
    serving = sum(pod.works and pod.serving and pod.draining_since is None for pod in live)
    if victim.works and serving < desired_replicas:
        return DrainPlan(_return(pending), POLL_SECONDS, f"pod {victim.name} is needed while another doesn't serve")
    step = watch_drain(victim, load, drain_timeout_seconds, now)
    if step.done:
        return _release(current_replicas, step.done, *_return(others), *step.actions)
    return DrainPlan((*_return(others), *step.actions), step.requeue_after_seconds, f"draining pod {victim.name}")


def count_drains(pods: Sequence[Pod], current_replicas: int) -> int:
    """Replicas that are marked to go and still counted in `current_replicas`."""
    live = [pod for pod in pods if pod.lives]
    marked = sum(is_leaving(pod) for pod in live)
    return max(0, marked - max(0, len(live) - current_replicas))


def is_leaving(pod: Pod) -> bool:
    """Marked as a replica to be removed; one that a rollout drains is replaced, and stays a replica."""
    return pod.draining_since is not None and not pod.draining_for


def choose_victim(pods: Sequence[Pod], load: Load | LoadUnknown) -> Pod:
    """Whom to remove first: who serves least."""
    return min(pods, key=lambda pod: _victim_order(pod, load))


def watch_drain(victim: Pod, load: Load | LoadUnknown, drain_timeout_seconds: float, now: float) -> DrainStep:
    """The next step with a marked pod, from what is on it."""
    since = victim.draining_since
    assert since is not None

    # 1. The clock went back: without this the drain would wait for the old time to come round again.
    if since > now + SETTLE_SECONDS:
        return DrainStep(_mark_again(victim, now), SETTLE_SECONDS)

    # 2. Nothing to wait for, or waited long enough. Somebody may have undone the marks by hand.
    intact = not victim.serving and victim.deletion_cost == LOWEST_DELETION_COST
    again = () if intact else _mark_again(victim, since)
    if not victim.started:
        return DrainStep(again, POLL_SECONDS, f"pod {victim.name} had not started")
    settled = since + SETTLE_SECONDS
    deadline = max(since + drain_timeout_seconds, settled)
    if now >= deadline:
        return DrainStep(again, POLL_SECONDS, f"pod {victim.name} was not seen idle within {drain_timeout_seconds:g} s")
    if again:
        return DrainStep(again, min(SETTLE_SECONDS, deadline - now))
    if now < settled:
        return DrainStep((), settled - now)

    # 3. Idle twice in a row?
    wait = min(POLL_SECONDS, deadline - now)
    noted = victim.drained_idle_since
    sample = load.of(victim.name) if isinstance(load, Load) else None
    if sample is None or _requests(sample) > 0:
        return DrainStep((ClearIdle(victim),) if noted is not None else (), wait)
    if sample.observed_at < settled:
        return DrainStep((), wait)
    if noted is None:
        return DrainStep((NoteIdle(victim, sample.observed_at),), wait)
    if sample.observed_at - noted >= SAMPLE_GAP_SECONDS:
        return DrainStep((), POLL_SECONDS, f"pod {victim.name} finished its requests")
    return DrainStep((), wait)


def _has_lost_its_time(pod: Pod) -> bool:
    """Marked by us, as its deletion cost tells, and somebody took the time away. Without that cost a person has taken the pod
    out of the Service, and may have a reason."""
    half = not pod.serving and pod.draining_since is None and not pod.draining_for
    return half and pod.deletion_cost == LOWEST_DELETION_COST


def _mark_again(victim: Pod, since: float) -> tuple[Action, ...]:
    clear = (ClearIdle(victim),) if victim.drained_idle_since is not None else ()
    return (MarkDraining(victim, since, victim.draining_for), *clear)


def _release(current_replicas: int, reason: str, *before: Action) -> DrainPlan:
    release = ReleaseReplica(current_replicas - 1, reason)
    return DrainPlan((*before, release), POLL_SECONDS, "waiting for the removal of a drained replica")


def _return(pods: Sequence[Pod]) -> tuple[Action, ...]:
    return tuple(ReturnToService(pod) for pod in pods)


def _removal_order(pod: Pod) -> tuple[bool, bool, bool, float, str]:
    """The order in which a ReplicaSet removes pods of equal deletion cost."""
    return (pod.scheduled, pod.phase != "Pending", pod.ready, -pod.created_at, pod.name)


def _victim_order(pod: Pod, load: Load | LoadUnknown) -> tuple[int, bool, float, float, str]:
    """Least first: not placed, not started, not ready or stalled, not in the Service; then by load, where unknown is the
    greatest. Of those that have not started, one that has failed is before one that may well."""
    sample = load.of(pod.name) if isinstance(load, Load) else None
    if not pod.scheduled or pod.phase == "Pending":
        rank = 0
    elif not pod.started:
        rank = 1
    elif not pod.works:
        rank = 2
    elif not pod.serving:
        rank = 3
    else:
        rank = 4
    hopeful = rank != 1 or pod.failure is None
    return (rank, hopeful, math.inf if sample is None else _requests(sample), -pod.created_at, pod.name)


def _requests(sample: PodLoad) -> float:
    return sample.running + sample.queued
