"""One pass over one server: observe, plan, apply, push, report. Level-triggered: it looks at what is there, never at what
happened, so a missed event, a crash in the middle or a second run changes nothing in the result."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets as randomness
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specserver.api import labels, quantities
from specserver.api.conditions import Condition, ConditionType, Reason, Status
from specserver.api.v1alpha1 import InvalidResource, SpeculativeServer, parse
from specserver.build import build_all
from specserver.build.arguments import check_arguments
from specserver.build.config import build_policy, ladders_in
from specserver.build.metadata import BuildInvalid, build_selector
from specserver.build.secret import admin_key_ref, build_keys_secret, needed_secret_refs, needs_keys_secret
from specserver.build.workload import build_replicas
from specserver.cluster.apply import Applier
from specserver.cluster.client import Body, Cluster
from specserver.cluster.errors import Conflict, NotFound, Refused, Unavailable
from specserver.cluster.events import emit_event
from specserver.cluster.observe import ObservedObjects, is_ours, observe_objects
from specserver.cluster.pods import apply_drain_marks
from specserver.cluster.secrets import create_if_absent, decode_entry, read_entry
from specserver.cluster.status import invalid_status, write_status
from specserver.controller.policies import PATIENCE_SECONDS, Applied, PolicyPusher
from specserver.controller.queue import Gone, Key, Outcome, RequeueAfter, Retry
from specserver.controller.sources import LoadSources
from specserver.controller.workloads import Wanted, Workloads
from specserver.core.drain import DrainPlan, ReleaseReplica, plan_drain
from specserver.core.events import Event, plan_drain_events, plan_drift_events, plan_events, plan_rescale_events
from specserver.core.failures import find_stalled, is_stuck
from specserver.core.observed import EngineUnreachable, Load, LoadUnknown, Observed, Pod
from specserver.core.readiness import Problem
from specserver.core.rollout import RolloutPlan, Stand, Target, plan_rollout
from specserver.core.scaling import ScalingHistory, ScalingPlan, plan_scaling, record_rescale
from specserver.core.status import ScalingOutcome, build_status
from specserver.core.suspend import plan_suspension
from specserver.core.times import rfc3339
from specserver.load.replica import replicas_to_observe

_log = logging.getLogger(__name__)

_LOAD_FRESH_SECONDS = 1.0
"""A burst of events reads the load once."""
_CLOCK_JUMP_SECONDS = 5.0
_PLACE_TAKEN_SECONDS = 15.0
"""How long after a pod's end the scheduler may take to give its place to the next: its longest back-off, and some."""
_HEAD_START_SECONDS = 0.3
_NOT_KEPT_SECONDS = 600.0
"""How soon a status that the API server did not keep is written again: the definition may be the right one then."""
_UNREADY_SECONDS = 15.0
"""How soon to look again at a server that isn't ready, whatever its interval: news of its pods may be on a silent watch."""
_PENDING_SECONDS = 2.0
"""How soon to look again while something is on its way that no watch will tell of."""


@dataclass(frozen=True)
class _LoadLook:
    """A load, when its reading ended, and the UIDs of the pods that it is about."""

    load: Load | LoadUnknown
    at: float
    uids: frozenset[str]


@dataclass
class _Memory:
    """What is remembered of one server between passes. All of it may be lost: it only saves work and damps scaling."""

    history: ScalingHistory = field(default_factory=ScalingHistory)
    look: _LoadLook | None = None
    looking: asyncio.Task[_LoadLook] | None = None
    uids: frozenset[str] = frozenset()
    stalled: frozenset[str] = frozenset()
    """UIDs of pods whose engines are stalled, or were when their load was last known."""
    ending_at: float | None = None
    """When a pod was last seen that is ending and will be gone."""
    not_kept: Mapping[str, Any] = field(default_factory=dict)
    """What the API server did not keep of the status, and since when that is known."""
    not_kept_at: float = 0.0
    ahead: float | None = None
    """How far the clock was ahead of the steady one."""

    def mind_clock(self, now: float, steady: float) -> None:
        """Forgets what has times in it where the clock was set meanwhile: none of them means what it did."""
        before, self.ahead = self.ahead, now - steady
        if before is not None and abs(self.ahead - before) > _CLOCK_JUMP_SECONDS:
            _log.warning("the clock was set by %.0f s: what scaling remembers begins anew", self.ahead - before)
            self.history, self.look = ScalingHistory(), None


Tell = Callable[[Iterable[Event]], Awaitable[None]]


class Reconciler:
    """Holds the connections; `reconcile` is the entry for the queue."""

    def __init__(
        self,
        cluster: Cluster,
        pusher: PolicyPusher,
        sources: LoadSources,
        *,
        version: str,
        clock: Callable[[], float] = time.time,
        steady_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`steady_clock` is one that nobody sets: back-offs go by it, and it tells that the other one was set."""
        self._cluster, self._pusher, self._sources = cluster, pusher, sources
        self._applier = Applier(cluster)
        self._workloads = Workloads(cluster, self._applier)
        self._version, self._clock, self._steady_clock = version, clock, steady_clock
        self._memories: dict[Key, _Memory] = {}

    async def reconcile(self, key: Key) -> Outcome:
        """One pass. Expected trouble is an Outcome; what nobody foresaw is the queue's to catch."""
        namespace, name = key
        try:
            return await self._reconcile(key)
        except NotFound as error:
            return Retry(f"something vanished meanwhile: {error.message}")
        except Conflict as error:
            return Retry(f"somebody else wrote meanwhile: {error.message}")
        except Unavailable as error:
            return Retry(error.message, error.retry_after_seconds)
        except Refused as error:
            _log.error("%s/%s: the API server refuses the operator itself: %s", namespace, name, error.message)
            return Retry(error.message)

    async def _reconcile(self, key: Key) -> Outcome:
        namespace, name = key
        # 1. The resource, live.
        try:
            body = await self._cluster.get(labels.KIND, namespace, name)
        except NotFound:
            self._forget(key)
            return Gone()
        if "deletionTimestamp" in body["metadata"]:
            return RequeueAfter(_PENDING_SECONDS)  # owner references take its objects along; nothing may be made anew
        previous: Mapping[str, Any] = body.get("status") or {}
        now = self._clock()
        try:
            server = parse(body)
        except InvalidResource as error:
            await write_status(self._cluster, body, invalid_status(body, str(error), self._version, now))
            return RequeueAfter(60.0)
        memory = self._memories.setdefault(key, _Memory())
        memory.mind_clock(now, self._steady_clock())
        interval = quantities.seconds(server.spec.metrics.interval)

        # 2. What is there.
        seen = await self._observe_objects(server)
        gone, memory.uids = memory.uids - _uids(seen.pods), _uids(seen.pods)
        self._pusher.forget(gone)

        # 3. The objects, the keys first.
        problems, admin_key = await self._ensure_keys(server)
        arguments = check_arguments(server)
        missing = problems
        refused, changed, wanted = await self._apply_objects(server, seen, arguments, previous, blocked=bool(problems))
        problems += refused
        if changed:
            # So that what is told below is not about the Deployment as it was.
            seen = await self._observe_workload(server, seen)

        # 4. The policy, then the load over the same connections; but side by side where a pod hangs in one: it must not delay
        #    the other.
        document = build_policy(server).to_document()
        pushing = asyncio.create_task(self._apply_policy(server, seen, document, admin_key))

        async def look() -> Load | LoadUnknown:
            await asyncio.wait([pushing], timeout=_HEAD_START_SECONDS)
            return await self._observe_load(server, seen, memory, now)

        applied, load = await asyncio.gather(pushing, look())

        # 5. Replicas, then their revision.
        if any(pod.terminating and not is_stuck(pod, now) for pod in seen.pods):
            memory.ending_at = now
        expected = memory.ending_at is not None and 0 <= now - memory.ending_at < _PLACE_TAKEN_SECONDS
        memory.stalled = find_stalled(seen.pods, load, memory.stalled)
        observed = Observed(seen.workload, _with_stalls(seen.pods, memory.stalled), load, applied.engines, expected)
        tell = self._teller(server, body, now)
        scaling, drain = await self._scale(server, observed, seen, memory, tell, now)
        rollout = RolloutPlan(known=False)
        if seen.workload is not None and wanted is not None:
            moving = drain.actions or scaling.changed or (server.spec.suspend and seen.workload.spec_replicas > 0)
            why = "the number of replicas is being changed first" if moving else ""
            blocked = "; ".join(problem.message for problem in missing) or wanted.refusal
            rollout = await self._roll(server, observed, seen, wanted, tell, moving=why, blocked=blocked, now=now)
        if scaling.changed or rollout.new_template:
            seen = await self._observe_workload(server, seen)
        workload = seen.workload
        if workload is not None and rollout.known:
            workload = replace(workload, current_template_hash=rollout.newest)
        observed = replace(observed, workload=workload, pods=_with_stalls(seen.pods, memory.stalled))

        # 6. What is told.
        status = build_status(
            server,
            observed,
            scaling,
            policy=document,
            pushes=applied.pushes,
            problems=problems,
            further=(arguments,),
            stand=rollout.stand,
            kept=wanted is not None and wanted.target is Target.KEPT,
            selector=_selector(server),
            operator_version=self._version,
            previous=previous,
            now=now,
        )
        events: list[Event] = []
        if applied.pushed_now:
            message = f"revision {server.generation} is in force in {', '.join(applied.pushed_now)}"
            events.append(Event("Normal", "PolicyPushed", message, message))
        events.extend(plan_drift_events(self._applier.take_drifts(namespace, name)))
        events.extend(plan_rescale_events(scaling.rescales, previous.get("scaling", {}).get("history", [])))
        events.extend(plan_events(previous.get("conditions", []), status["conditions"]))
        await tell(events)
        await self._write_status(key, body, status, memory, now)

        # 7. When to look again.
        waiting = applied.waiting or memory.looking is not None
        ready = any(one["type"] == ConditionType.READY and one["status"] == Status.TRUE for one in status["conditions"])
        latest = interval if ready else min(interval, _UNREADY_SECONDS)
        return RequeueAfter(min(latest, *_sooner(drain, rollout, problems, scaling, waiting=waiting)))

    async def _write_status(self, key: Key, body: Body, status: Mapping[str, Any], memory: _Memory, now: float) -> None:
        """Writes what differs. What an older definition does not keep is tried again after a while only, and said once."""
        known = memory.not_kept if now - memory.not_kept_at < _NOT_KEPT_SECONDS else None
        lost = await write_status(self._cluster, body, status, not_kept=known)
        if lost and lost.keys() != memory.not_kept.keys():
            fields = ", ".join(f"status.{name}" for name in lost)
            _log.warning("%s/%s: the CustomResourceDefinition is not this operator's: it did not keep %s", *key, fields)
        if lost != known:
            memory.not_kept, memory.not_kept_at = lost, now

    def _teller(self, server: SpeculativeServer, body: Body, now: float) -> Tell:
        """Writes Events. The state of the resource is part of their names: the same news at the same state is told once."""
        version = body["metadata"].get("resourceVersion", "")

        async def tell(events: Iterable[Event]) -> None:
            for event in events:
                about = f"{event.about} {version}"
                await emit_event(
                    self._cluster, server, kind=event.kind, reason=event.reason, message=event.message, about=about, now=now
                )

        return tell

    def _forget(self, key: Key) -> None:
        memory = self._memories.pop(key, _Memory())
        self._pusher.forget(memory.uids)
        if memory.looking is not None:
            memory.looking.cancel()
        self._applier.forget(*key)
        self._workloads.forget(*key)

    # ---- 2. ----------------------------------------------------------------------------------------------------------

    async def _observe_objects(self, server: SpeculativeServer) -> ObservedObjects:
        return await observe_objects(
            self._cluster, server.namespace, _object_names(server), selector=_selector(server), owner_uid=server.uid
        )

    async def _observe_workload(self, server: SpeculativeServer, seen: ObservedObjects) -> ObservedObjects:
        """Again the Deployment and its pods alone, after a change of them."""
        now = await observe_objects(
            self._cluster, server.namespace, {"Deployment": server.name}, selector=_selector(server), owner_uid=server.uid
        )
        others = {kind: body for kind, body in seen.objects.items() if kind != "Deployment"}
        return replace(now, objects={**others, **now.objects})

    # ---- 3. ----------------------------------------------------------------------------------------------------------

    async def _ensure_keys(self, server: SpeculativeServer) -> tuple[tuple[Problem, ...], str | None]:
        """Makes the keys that the user names no Secret for; returns what is missing, and the admin key."""
        problems = []
        secret: Body | None = None
        if needs_keys_secret(server):
            generated = labels.keys_secret_name(server.name)
            try:
                secret = await self._cluster.get("Secret", server.namespace, generated)
            except NotFound:
                secret = build_keys_secret(server, admin_key=randomness.token_urlsafe(32), api_key=randomness.token_urlsafe(32))
                if not await create_if_absent(self._cluster, secret):
                    secret = await self._cluster.get("Secret", server.namespace, generated)
            if not is_ours(secret, server.uid):
                problems.append(_taken(secret, server))
            lost = [entry for entry in (labels.ADMIN_KEY_ENTRY, labels.API_KEY_ENTRY) if entry not in (secret.get("data") or {})]
            if lost:
                why = f"Secret {generated} has lost its entry {lost[0]}: delete the Secret, and both keys are made anew"
                problems.append(Problem(Reason.SECRET_MISSING, why))
        needed = needed_secret_refs(server)
        refs = list(dict.fromkeys(one.ref for one in needed))
        values = await asyncio.gather(*(read_entry(self._cluster, server.namespace, ref) for ref in refs))
        named = dict(zip(refs, values, strict=True))
        problems += [
            Problem(Reason.SECRET_MISSING, f"{one.field}: Secret {one.ref.name} has no entry {one.ref.key}: create it")
            for one in needed
            if named[one.ref] is None
        ]
        ref = admin_key_ref(server)
        if secret is not None and secret["metadata"]["name"] == ref.name:
            return tuple(problems), decode_entry(secret, ref.key)
        return tuple(problems), named[ref]

    async def _apply_objects(
        self,
        server: SpeculativeServer,
        seen: ObservedObjects,
        arguments: Condition,
        previous: Mapping[str, Any],
        *,
        blocked: bool,
    ) -> tuple[tuple[Problem, ...], bool, Wanted | None]:
        """Applies what differs, and says whether the Deployment did, and what the Deployment should become. A problem with one
        object leaves the others as they should be."""
        try:
            desired = build_all(server, ladders_in(seen.objects.get("ConfigMap")))
        except BuildInvalid as error:
            return (Problem(Reason.INVALID_SPEC, f"{error.field}: {error.message}"),), False, None
        problems: list[Problem] = []
        if arguments.status is Status.FALSE:
            problems.append(Problem(arguments.reason, arguments.message))
            del desired["workload"]  # neither made nor changed: pods of such arguments would end at once
        changed = False
        wanted: Wanted | None = None
        for body in desired.values():
            live = seen.objects.get(body["kind"])
            if body["kind"] == "Deployment" and live is None and blocked:
                continue  # pods that can't start would only hide what is missing
            if live is not None and not is_ours(live, server.uid):
                problems.append(_taken(live, server))
                blocked |= body["kind"] == "ConfigMap"  # pods would read another's policy, or wait for it to come back
                continue
            try:
                if body["kind"] == "Deployment" and live is None:
                    await self._create_workload(server, body)
                    changed = True
                elif body["kind"] == "Deployment":
                    wanted = await self._workloads.compare(server, body, seen, previous)
                    if wanted.refusal:
                        raise Refused(wanted.refusal)
                    changed |= await self._workloads.settle(wanted, seen)
                else:  # nothing that is told below, or decided, depends on the others
                    await self._applier.apply(body, live, field_manager=labels.MANAGER_OBJECTS)
            except Refused as error:
                problems.append(Problem(Reason.OBJECT_REFUSED, f"{body['kind']} {body['metadata']['name']}: {error.message}"))
                blocked |= body["kind"] == "ConfigMap"
        return tuple(problems), changed, wanted

    async def _create_workload(self, server: SpeculativeServer, body: Body) -> None:
        """Replicas have an owner of their own from the first moment: created without them there would be one pod for an
        instant, whatever the number wanted."""
        replicas = build_replicas(server, 0 if server.spec.suspend else _first_replicas(server), None)
        whole = {**body, "spec": {**body["spec"], **replicas["spec"]}}
        await self._cluster.apply(whole, field_manager=labels.MANAGER_REPLICAS)
        await self._applier.apply(body, None, field_manager=labels.MANAGER_OBJECTS)
        await self._applier.apply(replicas, None, field_manager=labels.MANAGER_REPLICAS)

    # ---- 4. ----------------------------------------------------------------------------------------------------------

    async def _apply_policy(
        self, server: SpeculativeServer, seen: ObservedObjects, document: Mapping[str, Any], admin_key: str | None
    ) -> Applied:
        if admin_key is None:
            ref = admin_key_ref(server)
            why = f"it can't be asked without its admin key: Secret {ref.name} has no entry {ref.key}: create it"
            started = [pod.name for pod in seen.pods if pod.started and not pod.terminating]
            return Applied({name: EngineUnreachable(name, why, Reason.SECRET_MISSING) for name in started}, {}, ())
        mode, port = server.spec.speculation.mode, server.spec.engine.port
        now = self._steady_clock()
        return await self._pusher.apply_policy(seen.pods, document, mode, port=port, admin_key=admin_key, now=now)

    async def _observe_load(
        self, server: SpeculativeServer, seen: ObservedObjects, memory: _Memory, now: float
    ) -> Load | LoadUnknown:
        """The load; where reading it takes long, the one before, and the next pass takes up the new one."""
        uids = _uids(replicas_to_observe(seen.pods))
        known = memory.look
        if known is not None and known.uids == uids and 0 <= now - known.at < _LOAD_FRESH_SECONDS:
            return known.load

        async def look() -> _LoadLook:
            # Not the pass's time: what the pass did before it may have taken a while, and rates are by the time of the look.
            load = await self._sources.observe_load(server, seen.pods, self._clock())
            return _LoadLook(load, self._clock(), uids)

        if memory.looking is None:
            memory.looking = asyncio.create_task(look())
        await asyncio.wait([memory.looking], timeout=PATIENCE_SECONDS)
        if memory.looking.done():
            task, memory.looking = memory.looking, None
            memory.look = known = task.result()
        too_old = known is not None and now - known.at > quantities.seconds(server.spec.metrics.staleness)
        if known is None or (too_old and isinstance(known.load, Load)):
            return LoadUnknown(Reason.METRICS_STALE, "the load has not been read within metrics.staleness")
        return known.load

    # ---- 5. ----------------------------------------------------------------------------------------------------------

    async def _scale(
        self, server: SpeculativeServer, observed: Observed, seen: ObservedObjects, memory: _Memory, tell: Tell, now: float
    ) -> tuple[ScalingOutcome, DrainPlan]:
        """Moves the replicas one step towards what is wanted."""
        workload = observed.workload
        if workload is None:
            return ScalingOutcome(0 if server.spec.suspend else _first_replicas(server), ()), DrainPlan()
        # 1. How many are wanted.
        current = workload.spec_replicas
        plan: ScalingPlan | None = None
        conditions: tuple[Condition, ...] = ()
        if server.spec.suspend:
            wanted, why = 0, "spec.suspend"
            if server.spec.scaling is not None:
                conditions = (
                    Condition(ConditionType.SCALING_ACTIVE, Status.FALSE, Reason.SUSPENDED, "spec.suspend is true"),
                )
        elif server.spec.scaling is None:
            wanted, why = _first_replicas(server), "spec.replicas"
        else:
            plan = plan_scaling(
                scaling=server.spec.scaling,
                current_replicas=current,
                pods=observed.pods,
                load=observed.load,
                engines=observed.engines,
                history=memory.history,
                now=now,
            )
            memory.history, conditions = plan.history, plan.conditions
            wanted, why = plan.desired_replicas, plan.reason
        # 2. Fewer go through the drain, also halfway ones.
        timeout = quantities.seconds(server.spec.rollout.drain_timeout)
        if server.spec.suspend:
            drain = plan_suspension(
                pods=observed.pods, load=observed.load, current_replicas=current, drain_timeout_seconds=timeout, now=now
            )
        else:
            drain = plan_drain(
                pods=observed.pods,
                load=observed.load,
                desired_replicas=wanted,
                current_replicas=current,
                drain_timeout_seconds=timeout,
                now=now,
            )
        await tell(plan_drain_events(drain.actions))
        await apply_drain_marks(self._cluster, server.namespace, drain.actions)
        release = next((action for action in drain.actions if isinstance(action, ReleaseReplica)), None)
        target = max(current, wanted) if release is None else release.to
        # 3. The number, and on it what is told of it: who dies between the change and the telling finds it there.
        before = _read_rescale(seen.objects["Deployment"])
        rescale = before
        if target != current:
            reason = why if release is None else f"{why}; {release.reason}"
            rescale = {"time": rfc3339(now), "from": current, "to": target, "reason": reason}
        # Also where the number is right: so that it is ours after somebody else wrote it, and alone ours after a crash
        # between the two steps of `_create_workload`.
        replicas = build_replicas(server, target, rescale)
        await self._applier.apply(replicas, seen.objects["Deployment"], field_manager=labels.MANAGER_REPLICAS)
        if target != current:
            memory.history = record_rescale(memory.history, before=current, after=target, now=now)
        changes = (before,) if rescale is before else (before, rescale)
        told = tuple(one for one in changes if one is not None)
        return ScalingOutcome(wanted, conditions, told, changed=target != current), drain

    async def _roll(
        self,
        server: SpeculativeServer,
        observed: Observed,
        seen: ObservedObjects,
        wanted: Wanted,
        tell: Tell,
        *,
        moving: str,
        blocked: str,
        now: float,
    ) -> RolloutPlan:
        """Takes the next step from old pods to new ones, unless the replicas are just `moving`."""
        assert observed.workload is not None
        plan = plan_rollout(
            pods=observed.pods,
            load=observed.load,
            engines=observed.engines,
            workload=observed.workload,
            target=wanted.target,
            digest=wanted.digest,
            rollout=server.spec.rollout,
            mode=server.spec.speculation.mode,
            blocked=blocked,
            place_expected=observed.place_expected,
            load_deadline_seconds=quantities.seconds(server.spec.engine.load_deadline),
            now=now,
        )
        if moving and (plan.stand is not None or plan.new_template):
            return RolloutPlan(stand=Stand(Status.TRUE, Reason.ROLLOUT_DEFERRED, moving), newest=plan.newest, known=True)
        if not wanted.refusal:
            await tell(plan_drain_events(plan.actions))
            await apply_drain_marks(self._cluster, server.namespace, plan.actions)
            await self._workloads.advance(wanted, plan, seen)
        return plan


def _read_rescale(deployment: Body) -> dict[str, Any] | None:
    """The last change of the replicas, as it was written with it; None where there is none that is whole."""
    try:
        rescale = json.loads(deployment["metadata"].get("annotations", {}).get(labels.RESCALE, ""))
    except ValueError:
        return None
    fields = {"time": str, "from": int, "to": int, "reason": str}
    whole = isinstance(rescale, dict) and all(isinstance(rescale.get(name), kind) for name, kind in fields.items())
    return {name: rescale[name] for name in fields} if whole else None


def _object_names(server: SpeculativeServer) -> dict[str, str]:
    return {
        "Deployment": server.name,
        "Service": server.name,
        "PodDisruptionBudget": server.name,
        "ConfigMap": labels.policy_config_map_name(server.name),
    }


def _first_replicas(server: SpeculativeServer) -> int:
    """Replicas before any load is known; with a fixed number, that number."""
    if server.spec.scaling is not None:
        return server.spec.scaling.min_replicas
    return 1 if server.spec.replicas is None else server.spec.replicas


def _selector(server: SpeculativeServer) -> str:
    return ",".join(f"{label}={value}" for label, value in build_selector(server).items())


def _uids(pods: Iterable[Pod]) -> frozenset[str]:
    return frozenset(pod.uid for pod in pods)


def _with_stalls(pods: Iterable[Pod], stalled: frozenset[str]) -> tuple[Pod, ...]:
    return tuple(replace(pod, stalled=True) if pod.uid in stalled else pod for pod in pods)


def _taken(live: Body, server: SpeculativeServer) -> Problem:
    """Another's object under a name of ours."""
    name = f"{live['kind']} {live['metadata']['name']}"
    owners = [(one.get("kind"), one.get("name")) for one in live["metadata"].get("ownerReferences", [])]
    if (labels.KIND, server.name) in owners:
        why = "belongs to a resource of this name that was deleted: Kubernetes removes it, and this one goes on then"
    else:
        why = "is there already and belongs to something else: delete it, or give this resource another name"
    return Problem(Reason.OBJECT_REFUSED, f"{name} {why}")


def _sooner(
    drain: DrainPlan, rollout: RolloutPlan, problems: tuple[Problem, ...], scaling: ScalingOutcome, *, waiting: bool
) -> tuple[float, ...]:
    """Times at which something may have moved without an event."""
    times = []
    if drain.requeue_after_seconds is not None:
        times.append(drain.requeue_after_seconds)
    if rollout.requeue_after_seconds is not None:
        times.append(rollout.requeue_after_seconds)
    if problems:
        times.append(_PENDING_SECONDS * 5)
    if scaling.changed or rollout.new_template or waiting:
        times.append(_PENDING_SECONDS)
    return (*times, 600.0)
