"""One pass over one server: observe, plan, apply, push, report. Level-triggered: it looks at what is there, never at what
happened, so a missed event, a crash in the middle or a second run changes nothing in the result."""

from __future__ import annotations

import asyncio
import logging
import secrets as randomness
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specserver.api import labels, quantities
from specserver.api.conditions import Reason
from specserver.api.v1alpha1 import InvalidResource, SpeculativeServer, parse
from specserver.build import build_all
from specserver.build.config import build_policy, ladders_in
from specserver.build.metadata import BuildInvalid, build_selector
from specserver.build.secret import admin_key_ref, build_keys_secret, needed_secret_refs, needs_keys_secret
from specserver.build.workload import build_replicas
from specserver.cluster.apply import Applier
from specserver.cluster.client import Body, Cluster
from specserver.cluster.errors import Conflict, NotFound, Refused, Unavailable
from specserver.cluster.events import emit_event
from specserver.cluster.observe import ObservedObjects, observe_objects
from specserver.cluster.pods import apply_drain_marks
from specserver.cluster.secrets import create_if_absent, read_entry
from specserver.cluster.status import invalid_status, write_status
from specserver.controller.policies import Applied, PolicyPusher
from specserver.controller.queue import Gone, Key, Outcome, RequeueAfter, Retry
from specserver.controller.sources import LoadSources
from specserver.core.drain import DrainPlan, ReleaseReplica, plan_drain
from specserver.core.events import Event, plan_events
from specserver.core.observed import Load, LoadUnknown, Observed
from specserver.core.readiness import Problem
from specserver.core.scaling import ScalingHistory, ScalingPlan, plan_scaling, record_rescale
from specserver.core.status import ScalingOutcome, build_status

_log = logging.getLogger(__name__)

_LOAD_FRESH_SECONDS = 1.0
"""A burst of events reads the load once."""
_PENDING_SECONDS = 2.0
"""How soon to look again while something is on its way that no watch will tell of."""


@dataclass
class _Memory:
    """What is remembered of one server between passes. All of it may be lost: it only saves work and damps scaling."""

    history: ScalingHistory = field(default_factory=ScalingHistory)
    load: Load | LoadUnknown | None = None
    load_at: float = 0.0


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
    ) -> None:
        self._cluster, self._pusher, self._sources = cluster, pusher, sources
        self._applier = Applier(cluster)
        self._version, self._clock = version, clock
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
            self._memories.pop(key, None)
            self._applier.forget(namespace, name)
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
        interval = quantities.seconds(server.spec.metrics.interval)

        # 2. What is there: objects, pods, load.
        selector = ",".join(f"{label}={value}" for label, value in build_selector(server).items())
        seen = await observe_objects(self._cluster, namespace, _object_names(server), selector=selector)
        load = await self._observe_load(server, seen, memory, now)

        # 3. The objects, the keys first.
        problems, admin_key = await self._ensure_keys(server)
        problems += await self._apply_objects(server, seen, blocked=bool(problems))
        if seen.workload is None:
            # The first pass makes the Deployment; the second, a moment later, sees it.
            seen = await observe_objects(self._cluster, namespace, _object_names(server), selector=selector)

        # 4. The policy: before scaling, which wants to know what the engines do.
        document = build_policy(server).to_document()
        applied = Applied({}, {}, ())
        if admin_key is not None:
            applied = await self._pusher.apply_policy(
                seen.pods, document, server.spec.speculation.mode, port=server.spec.engine.port, admin_key=admin_key, now=now
            )

        # 5. Replicas.
        observed = Observed(seen.workload, seen.pods, load, applied.engines)
        scaling, drain, events = await self._scale(server, observed, memory, now)

        # 6. What is told.
        status = build_status(
            server,
            observed,
            scaling,
            policy=document,
            pushes=applied.pushes,
            problems=problems,
            selector=selector,
            operator_version=self._version,
            previous=previous,
            now=now,
        )
        if applied.pushed_now:
            message = f"revision {server.generation} is in force in {', '.join(applied.pushed_now)}"
            events.append(Event("Normal", "PolicyPushed", message))
        events.extend(plan_events(previous.get("conditions", []), status["conditions"]))
        for event in events:
            await emit_event(self._cluster, server, kind=event.kind, reason=event.reason, message=event.message, now=now)
        await write_status(self._cluster, body, status)

        # 7. When to look again.
        return RequeueAfter(min(interval, *_sooner(drain, problems, scaling)))

    # ---- 2. ----------------------------------------------------------------------------------------------------------

    async def _observe_load(
        self, server: SpeculativeServer, seen: ObservedObjects, memory: _Memory, now: float
    ) -> Load | LoadUnknown:
        if memory.load is None or not 0 <= now - memory.load_at < _LOAD_FRESH_SECONDS:
            memory.load, memory.load_at = await self._sources.observe_load(server, seen.pods, now), now
        return memory.load

    # ---- 3. ----------------------------------------------------------------------------------------------------------

    async def _ensure_keys(self, server: SpeculativeServer) -> tuple[tuple[Problem, ...], str | None]:
        """Makes the keys that the user names no Secret for; returns what is missing, and the admin key."""
        if needs_keys_secret(server):
            generated = labels.keys_secret_name(server.name)
            try:
                await self._cluster.get("Secret", server.namespace, generated)
            except NotFound:
                made = build_keys_secret(server, admin_key=randomness.token_urlsafe(32), api_key=randomness.token_urlsafe(32))
                await create_if_absent(self._cluster, made)
        needed = needed_secret_refs(server)
        values = await asyncio.gather(*(read_entry(self._cluster, server.namespace, one.ref) for one in needed))
        problems = tuple(
            Problem(Reason.SECRET_MISSING, f"{one.field}: Secret {one.ref.name} has no entry {one.ref.key}: create it")
            for one, value in zip(needed, values, strict=True)
            if value is None
        )
        return problems, await read_entry(self._cluster, server.namespace, admin_key_ref(server))

    async def _apply_objects(self, server: SpeculativeServer, seen: ObservedObjects, *, blocked: bool) -> tuple[Problem, ...]:
        """Applies what differs. A problem with one object leaves the others as they should be."""
        try:
            desired = build_all(server, ladders_in(seen.objects.get("ConfigMap")))
        except BuildInvalid as error:
            return (Problem(Reason.INVALID_SPEC, f"{error.field}: {error.message}"),)
        problems: list[Problem] = []
        for body in desired.values():
            live = seen.objects.get(body["kind"])
            if body["kind"] == "Deployment" and live is None and blocked:
                continue  # pods that can't start would only hide what is missing
            if live is not None and not _is_ours(live, server):
                problems.append(_taken(body))
                continue
            try:
                if body["kind"] == "Deployment" and live is None:
                    await self._create_workload(server, body)
                else:
                    await self._applier.apply(body, live, field_manager=labels.MANAGER_OBJECTS)
            except Refused as error:
                problems.append(Problem(Reason.OBJECT_REFUSED, f"{body['kind']} {body['metadata']['name']}: {error.message}"))
        return tuple(problems)

    async def _create_workload(self, server: SpeculativeServer, body: Body) -> None:
        """Replicas have an owner of their own from the first moment: created without them there would be one pod for an
        instant, whatever the number wanted."""
        replicas = build_replicas(server, _first_replicas(server))
        whole = {**body, "spec": {**body["spec"], **replicas["spec"]}}
        await self._cluster.apply(whole, field_manager=labels.MANAGER_REPLICAS)
        await self._applier.apply(body, None, field_manager=labels.MANAGER_OBJECTS)
        await self._cluster.apply(replicas, field_manager=labels.MANAGER_REPLICAS)

    # ---- 5. ----------------------------------------------------------------------------------------------------------

    async def _scale(
        self, server: SpeculativeServer, observed: Observed, memory: _Memory, now: float
    ) -> tuple[ScalingOutcome, DrainPlan, list[Event]]:
        """Moves the replicas one step towards what is wanted."""
        workload = observed.workload
        if workload is None:
            return ScalingOutcome(_first_replicas(server), ()), DrainPlan(), []
        # 1. How many are wanted.
        current = workload.spec_replicas
        plan: ScalingPlan | None = None
        if server.spec.scaling is None:
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
            memory.history = plan.history
            wanted, why = plan.desired_replicas, plan.reason
        # 2. Fewer go through the drain, also halfway ones.
        drain = plan_drain(
            pods=observed.pods,
            load=observed.load,
            desired_replicas=wanted,
            current_replicas=current,
            drain_timeout_seconds=quantities.seconds(server.spec.rollout.drain_timeout),
            now=now,
        )
        events = await apply_drain_marks(self._cluster, server.namespace, drain.actions)
        release = next((action for action in drain.actions if isinstance(action, ReleaseReplica)), None)
        target = max(current, wanted) if release is None else release.to
        # 3. The number.
        change = None
        if target != current:
            await self._cluster.apply(build_replicas(server, target), field_manager=labels.MANAGER_REPLICAS)
            memory.history = record_rescale(memory.history, before=current, after=target, now=now)
            reason = why if release is None else f"{why}; {release.reason}"
            change = (current, target, reason)
            verb = "ScaledUp" if target > current else "ScaledDown"
            events.append(Event("Normal", verb, f"from {current} to {target} replicas: {reason}"))
        return ScalingOutcome(wanted, plan.conditions if plan else (), change), drain, events


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


def _is_ours(live: Body, server: SpeculativeServer) -> bool:
    return any(reference.get("uid") == server.uid for reference in live["metadata"].get("ownerReferences", []))


def _taken(body: Body) -> Problem:
    name = f"{body['kind']} {body['metadata']['name']}"
    return Problem(
        Reason.OBJECT_REFUSED,
        f"{name} is there already and belongs to something else: delete it, or give this resource another name",
    )


def _sooner(drain: DrainPlan, problems: tuple[Problem, ...], scaling: ScalingOutcome) -> tuple[float, ...]:
    """Times at which something may have moved without an event."""
    times = []
    if drain.requeue_after_seconds is not None:
        times.append(drain.requeue_after_seconds)
    if problems:
        times.append(_PENDING_SECONDS * 5)
    if scaling.change is not None:
        times.append(_PENDING_SECONDS)
    return (*times, 600.0)
