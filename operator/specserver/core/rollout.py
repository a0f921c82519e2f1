"""Pods replaced one at a time: each drained first, the next only once the one before serves.

Kubernetes' own rollout removes a pod the moment another has become ready, whatever requests it has, and goes on for as long
as pods become ready. So the Deployment is gated and taken forward by one pod, again and again:

    choose   an old pod: what doesn't serve goes first and undrained, then the one with the fewest requests
    mark     as a drain does, with a mark of its own (`draining-for: rollout`): a rollout's pod stays a replica
    watch    idle twice, or the drain timeout, as in a scale-down (`drain.py`)
    release  the gate is opened by one: the Deployment removes the marked pod, which has the lowest deletion cost, and makes
             one of the new template in its place
    wait     until that one serves; then the next

**The gate** is two fields of the Deployment, written together with the new template. With `minReadySeconds` at thirty years
no new pod ever counts as available to the Deployment's controller, and so `maxUnavailable` is the number of old pods that it
may have removed in all: `replicas - old pods that stay`. The number says where the rollout shall stand, not how far it shall
go on: written twice, or by an operator that died in between, it means the same. Pods, Service and disruption budget know
nothing of it. When no old pod is left, both fields are as the resource says again.

Everything is on the cluster, nothing in the operator: marks on pods, the gate on the Deployment. While the operator is away
the new pod comes up and serves, and the rollout stands still.

What stops it: a new pod that fails (the revision is bad, and the others keep serving), a new pod that loads, `paused`,
another pod that loads (`protectStartup`), a replica that is being removed, a draft that measurably fits nothing. A marked pod
that is still there then serves again. Broken old pods stop nothing, nor do pods that a change of the mind has left loading
the wrong thing: they are what is replaced first.

Rejected:
- the Deployment's own rollout, with preStop and grace period as the drain: it takes the next pod when the new one is ready,
  so a revision that loads and then fails takes all, and nobody can hold it for a load that is too high;
- `paused` on the Deployment, taken away for each step: between the step and the pausing the controller goes on by itself,
  and for good when the operator dies there;
- a StatefulSet with OnDelete: it removes the highest ordinal on a scale-down, busy or not;
- one ReplicaSet of ours whose template is changed under it: a replaced pod would be the new revision, but so would one that
  takes the place of an old pod that was evicted while the new revision is a bad one;
- ReplicaSets of our own, one a revision: it would work, and be the Deployment's controller written again, without what
  people and tools know of Deployments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specserver.api import quantities
from specserver.api.conditions import Reason, Status
from specserver.api.labels import DRAINING_FOR_ROLLOUT
from specserver.api.v1alpha1 import Mode, OperatorUpgrade, Rollout
from specserver.core.drain import (
    POLL_SECONDS,
    SETTLE_SECONDS,
    Action,
    MarkDraining,
    ReturnToService,
    choose_victim,
    is_leaving,
    watch_drain,
)
from specserver.core.engine_report import Engines, describe_misfit, find_misfit
from specserver.core.failures import classify_pod, classify_refusal, classify_unschedulable
from specserver.core.observed import EngineState, Load, LoadUnknown, Pod, Revision, Workload

DRAFT_PROOF_SECONDS = 30.0
"""Longest that a rollout waits, with requests about, for the first measured acceptance of a new draft."""

class Target(StrEnum):
    """What the Deployment's pod template should be: as it is, as it is although this operator would build another, or new."""

    CURRENT = "Current"
    KEPT = "Kept"
    NEW = "New"


@dataclass(frozen=True)
class Stand:
    """What is to be said of a rollout. `status`, `reason`, `message` are those of the condition Progressing."""

    status: Status
    reason: Reason
    message: str


@dataclass(frozen=True)
class RolloutPlan:
    """What to do now.

    actions       marks on pods, in this order, before anything else
    new_template  whether the new template is to be written
    gate          `maxUnavailable` of a gated Deployment; None: as the resource says, ungated
    stand         what is to be said; None where nothing is being rolled
    newest        hash of the pods that have the wanted template; None where there are none
    known         whether that was looked at
    """

    actions: tuple[Action, ...] = ()
    new_template: bool = False
    gate: int | None = None
    requeue_after_seconds: float | None = None
    stand: Stand | None = None
    newest: str | None = None
    known: bool = True


def plan_target(workload: Workload, *, digest: str, intent: str, on_upgrade: OperatorUpgrade) -> Target:
    """Whether what is built now is another template, and whose change that is: the resource's or the operator's."""
    if workload.template_digest == digest:
        return Target.CURRENT
    if workload.template_intent == intent and on_upgrade is OperatorUpgrade.KEEP:
        return Target.KEPT
    return Target.NEW


def plan_rollout(
    *,
    pods: Sequence[Pod],
    load: Load | LoadUnknown,
    engines: Engines,
    workload: Workload,
    target: Target,
    digest: str,
    rollout: Rollout,
    mode: Mode,
    blocked: str,
    place_expected: bool,
    load_deadline_seconds: float,
    now: float,
) -> RolloutPlan:
    """The next step from old pods to new ones.

    blocked          why new pods could not start; empty where they could
    place_expected   whether an ending pod gives its place to one that waits for it
    """
    # 1. Old and new.
    newest = workload.current_template_hash if target is not Target.NEW else _hash_of(workload, digest)
    live = [pod for pod in pods if pod.lives]
    old = [pod for pod in live if pod.template_hash != newest]
    new = [pod for pod in live if pod.template_hash == newest]
    kept = [revision for revision in workload.revisions if revision.template_hash != newest]
    wanted_old = sum(revision.replicas for revision in kept)
    old_count = max(len(old), wanted_old)
    marked = [pod for pod in live if pod.draining_for == DRAINING_FOR_ROLLOUT]
    stray = tuple(ReturnToService(pod) for pod in marked if pod not in old)
    gate = workload.max_unavailable if workload.held else None

    def stay(stand: Stand, again: float | None = POLL_SECONDS, *, serve: bool = True) -> RolloutPlan:
        back = tuple(ReturnToService(pod) for pod in marked if pod in old) if serve else ()
        return RolloutPlan((*stray, *back), gate=gate, requeue_after_seconds=again, stand=stand, newest=newest)

    def step(actions: tuple[Action, ...], again: float | None, stand: Stand, *, opening: int | None = None) -> RolloutPlan:
        """With `opening`, the gate is opened so far, and a new template is written together with it."""
        writes = opening is not None
        return RolloutPlan(
            actions,
            new_template=writes and target is Target.NEW,
            gate=opening if writes else gate,
            requeue_after_seconds=again,
            stand=stand,
            newest=newest,
        )

    # 2. Nothing old: nothing to wait for.
    if old_count == 0:
        return RolloutPlan(stray, new_template=target is Target.NEW, newest=newest)

    # 3. What is under way in the Deployment's controller comes first.
    replicas = workload.spec_replicas
    progress = f"{len(new)} of {replicas} replicas have the newest revision"
    unsettled = any(one.replicas and one.scaled_for not in (None, replicas) for one in workload.revisions)
    if unsettled or old_count > replicas:
        return stay(Stand(Status.TRUE, Reason.NEW_REVISION, progress), serve=False)
    opened = gate is not None and target is not Target.NEW and gate > replicas - old_count
    if opened:
        return stay(Stand(Status.TRUE, Reason.NEW_REVISION, f"{progress}; an old one makes place"), serve=False)

    # 4. What holds the next step.
    due = 0 if target is Target.NEW else min(replicas, replicas + rollout.max_surge - old_count) - len(new)
    hold = _find_hold(
        new, old, load, engines, workload, rollout, mode, load_deadline_seconds, now,
        begins=target is Target.NEW, due=due, whole=len(old) >= wanted_old, blocked=blocked, place_expected=place_expected,
    )  # fmt: skip
    if hold is not None:
        return stay(hold)

    # 5. Room for new pods without the end of an old one.
    surge = rollout.max_surge > 0 and target is Target.NEW
    if surge:
        return step(stray, POLL_SECONDS, Stand(Status.TRUE, Reason.NEW_REVISION, progress), opening=0)

    # 6. The next old pod: the one that goes, or the place of one that is missing already.
    def release(*actions: Action) -> RolloutPlan:
        opening = 1 if target is Target.NEW else replicas - (old_count - 1)
        stand = Stand(Status.TRUE, Reason.NEW_REVISION, f"{progress}; an old one makes place")
        return step((*stray, *actions), POLL_SECONDS, stand, opening=opening)

    # Without its time a mark is none: somebody took that away, and the pod is marked anew.
    timed = (pod for pod in marked if pod in old and pod.draining_since is not None)
    draining = sorted(timed, key=lambda pod: (pod.draining_since or 0.0, pod.name))
    if not draining and len(old) < wanted_old:
        return release()
    if draining:
        victim = draining[0]
    else:
        first = _first_to_shrink(kept, old)
        victim = choose_victim([pod for pod in old if pod.template_hash == first] or old, load)
    serving = sum(pod.works and pod.serving and pod is not victim for pod in live)
    if victim.works and serving < replicas - rollout.max_unavailable:
        return stay(Stand(Status.TRUE, Reason.NEW_REVISION, f"{progress}; {serving} others serve"))
    others = tuple(ReturnToService(pod) for pod in draining[1:])
    stand = Stand(Status.TRUE, Reason.DRAINING, f"{progress}; pod {victim.name} finishes its requests before it is replaced")
    if not draining:
        mark = MarkDraining(victim, now, DRAINING_FOR_ROLLOUT)
        if not victim.started:
            return release(mark)
        return step((*stray, mark), SETTLE_SECONDS, stand)
    drain = watch_drain(victim, load, quantities.seconds(rollout.drain_timeout), now)
    if drain.done:
        return release(*others, *drain.actions)
    return step((*stray, *others, *drain.actions), drain.requeue_after_seconds, stand)


# ---- what holds a rollout ---------------------------------------------------------------------------------------------


def _find_hold(
    new: Sequence[Pod],
    old: Sequence[Pod],
    load: Load | LoadUnknown,
    engines: Engines,
    workload: Workload,
    rollout: Rollout,
    mode: Mode,
    load_deadline_seconds: float,
    now: float,
    *,
    begins: bool,
    due: int,
    whole: bool,
    blocked: str,
    place_expected: bool,
) -> Stand | None:
    """The first cause not to go on, or None.

    begins   the new template is not written yet
    due      pods of the new revision that the controller is about to make
    whole    no old pod is missing: a pod that the API server refuses is a new one
    """

    def fails(pod: Pod) -> str:
        trouble = None if pod.works else classify_pod(pod, load_deadline_seconds=load_deadline_seconds, now=now)
        return trouble.message if trouble else ""

    # 1. The user, and what new pods would lack.
    if rollout.paused:
        return Stand(Status.TRUE, Reason.ROLLOUT_PAUSED, f"rollout.paused is true; {len(old)} pods have an earlier revision")
    if blocked:
        return Stand(Status.FALSE, Reason.ROLLOUT_DEFERRED, f"new pods could not start: {blocked}")
    # 2. A bad revision: one pod of it is enough to see that.
    bad = next((message for pod in new if (message := fails(pod))), "")
    unplaced = None if place_expected else next((pod for pod in new if pod.unschedulable_message), None)
    if not bad and unplaced is not None:
        bad = f"pod {unplaced.name}: {classify_unschedulable(unplaced.unschedulable_message)[1]}"
    if not bad and workload.creation_refused and due > 0 and whole:
        bad = classify_refusal(workload.creation_refused).message
    if bad:
        return Stand(Status.FALSE, Reason.ROLLOUT_STOPPED, f"the new revision fails, and {len(old)} old pods are kept: {bad}")
    misfit = find_misfit(engines, [pod.name for pod in new])
    if misfit:
        return Stand(Status.FALSE, Reason.DRAFT_MISMATCH, f"{describe_misfit(misfit)}; {len(old)} old pods are kept")
    # 3. Pods on their way. Those that fail are no reason to wait: they are what is replaced first.
    broken = any(fails(pod) or pod.unschedulable_message for pod in old if not pod.works)
    starting = next((pod for pod in new if not pod.ready), None)
    late = starting is not None and now - starting.created_at > quantities.seconds(rollout.progress_deadline)
    if starting is not None and late:
        return Stand(
            Status.FALSE, Reason.PROGRESS_DEADLINE_EXCEEDED, f"pod {starting.name} is not ready within rollout.progressDeadline"
        )
    if starting is not None and rollout.protect_startup and not broken:
        return Stand(Status.TRUE, Reason.NEW_REVISION, f"{len(new)} pods have the newest revision; pod {starting.name} starts")
    if due > 0 and rollout.protect_startup and not broken:
        return Stand(Status.TRUE, Reason.NEW_REVISION, f"{len(new)} pods have the newest revision; {due} are being made")
    unfinished = {one.template_hash for one in workload.revisions if one.held}
    loading = next(
        (
            pod
            for pod in old
            if not (pod.started or fails(pod) or pod.unschedulable_message or pod.template_hash in unfinished)
        ),
        None,
    )
    serves = any(pod.ready and pod.serving for pod in (*old, *new))
    if loading is not None and begins and serves and rollout.protect_startup and not broken:
        return Stand(
            Status.TRUE,
            Reason.ROLLOUT_DEFERRED,
            f"pod {loading.name} still loads its model, and no other is replaced meanwhile (rollout.protectStartup)",
        )
    # 4. A replica that is being removed.
    leaving = next((pod for pod in (*old, *new) if is_leaving(pod)), None)
    if leaving is not None:
        return Stand(Status.TRUE, Reason.ROLLOUT_DEFERRED, f"pod {leaving.name} is being removed first")
    # 5. The new draft's first measured rounds.
    if _awaits_proof(new, load, engines, mode, now):
        return Stand(Status.TRUE, Reason.NEW_REVISION, "waiting for the first measured acceptance of the new revision's draft")
    return None


def _awaits_proof(new: Sequence[Pod], load: Load | LoadUnknown, engines: Engines, mode: Mode, now: float) -> bool:
    if mode is Mode.NEVER or not new or not isinstance(load, Load) or load.running + load.queued == 0:
        return False
    measured = any(
        rank.accept_length is not None
        for pod in new
        if isinstance(engine := engines.get(pod.name), EngineState)
        for rank in engine.ranks
    )
    youngest = max((pod.ready_since or 0.0) for pod in new)
    return not measured and now - youngest < DRAFT_PROOF_SECONDS


# ---- the Deployment's ways --------------------------------------------------------------------------------------------


def _hash_of(workload: Workload, digest: str) -> str | None:
    """The revision that had this template before: a change taken back finds its pods still there."""
    return next((one.template_hash for one in workload.revisions if one.digest == digest), None)


def _first_to_shrink(revisions: Sequence[Revision], old: Sequence[Pod]) -> str | None:
    """The revision from which the controller takes the next pod: first one with pods that it doesn't count as available,
    those of an unfinished earlier rollout among them, then the oldest."""

    def order(revision: Revision) -> tuple[bool, float]:
        ready = sum(pod.ready for pod in old if pod.template_hash == revision.template_hash)
        return (not revision.held and ready >= revision.replicas, revision.created_at)

    with_pods = [one for one in revisions if one.replicas and any(pod.template_hash == one.template_hash for pod in old)]
    return min(with_pods, key=order).template_hash if with_pods else None
