"""A server in miniature for the planners of scaling and drain: values to build tables with, and a cluster that obeys.

The cluster does what the API server, the Deployment's controllers and the engines would do, as far as the planners can see:
pods come up pending and get ready later, the ReplicaSet removes pods in its own order, requests run on the replicas of the
Service alone. The operator around the planners is as small as it can be: look, plan, write, remember.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from specserver.api import v1alpha1
from specserver.core import drain
from specserver.core.observed import (
    EngineState,
    EngineUnreachable,
    Load,
    LoadUnknown,
    Pod,
    PodLoad,
    PodLoadUnknown,
    RankState,
)
from specserver.core.scaling import ScalingHistory, ScalingPlan, plan_scaling, record_rescale

NOW = 1_000_000.0


# ---- values -----------------------------------------------------------------------------------------------------------


def a_pod(name: str, **fields: Any) -> Pod:
    """A ready, serving replica, except for `fields`."""
    return replace(
        Pod(
            name=name,
            uid=f"uid-{name}",
            ip="10.0.0.1",
            created_at=NOW - 3600,
            template_hash="rev1",
            phase="Running",
            ready=True,
            scheduled=True,
            unschedulable_message="",
            terminating=False,
            started=True,
            serving=True,
            draining_since=None,
            drained_idle_since=None,
            deletion_cost=None,
            failure=None,
        ),
        **fields,
    )


def pending(name: str, **fields: Any) -> Pod:
    return a_pod(name, phase="Pending", ready=False, scheduled=False, started=False, **fields)


def loading(name: str, **fields: Any) -> Pod:
    return a_pod(name, ready=False, started=False, **fields)


def draining(name: str, since: float, **fields: Any) -> Pod:
    marks = {"serving": False, "draining_since": since, "deletion_cost": drain.LOWEST_DELETION_COST}
    return a_pod(name, **{**marks, **fields})


def a_load(
    *running: float | None, queued: float | tuple[float, ...] = 0.0, at: float = NOW, names: tuple[str, ...] = ()
) -> Load:
    """The load of p0, p1, … (or `names`); None is a replica that could not be read."""
    known, unknown = [], []
    for index, value in enumerate(running):
        name = names[index] if names else f"p{index}"
        waiting = queued[index] if isinstance(queued, tuple) else queued
        if value is None:
            unknown.append(PodLoadUnknown(name, "connection refused"))
        else:
            known.append(PodLoad(name, value, waiting, 0.1, None, at))
    return Load(tuple(known), tuple(unknown))


def an_engine(pod: str, **fields: Any) -> EngineState:
    """An engine in mode Auto that has been decoding plainly for an hour, except for `fields` of its one rank."""
    policy = {
        "revision": 1, "mode": fields.pop("mode", "Auto"), "strategy": "Threshold", "steps": [0, 1, 2, 3],
        "disableAbove": 64, "enableBelow": 48, "minDwellSeconds": 0.25,
    }  # fmt: skip
    rank = RankState(
        rank="tp0", armed=True, reason="", revision=1, policy=policy, steps=0, decided_steps=0, running=0, queued=0,
        accept_length=None, rounds={}, switches=1, switches_last_hour=0, last_switch_at=NOW - 3600, hook_errors=0,
    )  # fmt: skip
    return EngineState(pod, "0.1.0", "0.5.23", (replace(rank, **fields),))


def a_scaling(low: int = 1, high: int = 10, behavior: dict[str, Any] | None = None, **targets: float) -> v1alpha1.Scaling:
    """`scaling` with targets by metric: a_scaling(Running=20)."""
    return v1alpha1.Scaling.model_validate(
        {
            "minReplicas": low,
            "maxReplicas": high,
            "targets": [{"metric": m, "value": f"{v:g}"} for m, v in (targets or {"Running": 20}).items()],
            "behavior": behavior or {},
        }
    )


# ---- the cluster ------------------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """Pods, requests and a clock. `demand(seconds since start)` is the number of requests that clients keep running."""

    demand: Callable[[float], float]
    replicas: int
    load_seconds: float = 60.0
    drain_seconds: float = 12.0
    """Time in which a replica outside the Service finishes the requests that it has."""
    unreadable: Callable[[float], set[str] | None] = lambda _: set()
    """Names of the replicas that can't be read at a time; None where no replica can."""
    now: float = NOW
    pods: list[Pod] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=dict)
    removed: list[tuple[str, float]] = field(default_factory=list)
    """Pods that were told to end, each with the requests it still had."""
    made: int = 0

    def __post_init__(self) -> None:
        for _ in range(self.replicas):
            self._make(age=3600)
        self._share_requests()

    @property
    def live(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.terminating]

    @property
    def serving(self) -> list[Pod]:
        return [pod for pod in self.live if pod.ready and pod.serving]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        # 1. The ReplicaSet: as many live pods as `replicas`, removed in its own order.
        self.pods = [pod for pod in self.pods if not pod.terminating]
        while len(self.live) < self.replicas:
            self._make(age=0)
        order = sorted(
            self.live,
            key=lambda p: (p.scheduled, p.phase != "Pending", p.ready, p.deletion_cost or 0, -p.created_at, p.name),
        )
        for pod in order[: len(order) - self.replicas]:
            self._write(pod, terminating=True)
            self.removed.append((pod.name, self.running.get(pod.name, 0.0)))
        # 2. Pods that have loaded their model.
        for pod in self.live:
            if not pod.ready and self.now - pod.created_at >= self.load_seconds:
                self._write(pod, phase="Running", scheduled=True, started=True, ready=True)
        self._share_requests()

    def _share_requests(self) -> None:
        """Over the Service's replicas; the others finish what they have, and what they have runs nowhere else."""
        leaving = 0.0
        for pod in self.live:
            if pod.draining_since is not None and self.now - pod.draining_since >= self.drain_seconds:
                self.running[pod.name] = 0.0
            if pod not in self.serving:
                leaving += self.running.get(pod.name, 0.0)
        for pod in self.serving:
            self.running[pod.name] = max(0.0, self.demand(self.now - NOW) - leaving) / len(self.serving)

    def observe_load(self) -> Load | LoadUnknown:
        hidden = self.unreadable(self.now - NOW)
        ready = [pod for pod in self.live if pod.ready]
        if hidden is None or all(pod.name in hidden for pod in ready):
            return LoadUnknown("ScrapeError", "no replica answered")
        known = [pod for pod in ready if pod.name not in hidden]
        return Load(
            tuple(PodLoad(pod.name, self.running.get(pod.name, 0.0), 0.0, 0.1, None, self.now) for pod in known),
            tuple(PodLoadUnknown(pod.name, "timed out") for pod in ready if pod.name in hidden),
        )

    def obey(self, action: drain.Action) -> None:
        match action:
            case drain.MarkDraining(pod, since):
                self._write(pod, serving=False, draining_since=since, deletion_cost=drain.LOWEST_DELETION_COST)
            case drain.NoteIdle(pod, at):
                self._write(pod, drained_idle_since=float(math.floor(at)))
            case drain.ClearIdle(pod):
                self._write(pod, drained_idle_since=None)
            case drain.ReturnToService(pod):
                self._write(pod, serving=True, draining_since=None, drained_idle_since=None, deletion_cost=None)
            case drain.ReleaseReplica(to):
                self.replicas = to

    def _make(self, *, age: float) -> None:
        make = a_pod if age else pending
        self.pods.append(make(f"p{self.made}", created_at=self.now - age + self.made / 1000))
        self.made += 1

    def _write(self, pod: Pod, **fields: Any) -> None:
        self.pods = [replace(one, **fields) if one.uid == pod.uid else one for one in self.pods]


@dataclass
class Operator:
    """Look, plan, write, remember. `crash()` forgets what is only in memory."""

    cluster: Cluster
    scaling: v1alpha1.Scaling
    drain_timeout_seconds: float = 60.0
    engines: Callable[[Cluster], dict[str, EngineState | EngineUnreachable]] = lambda _: {}
    history: ScalingHistory = field(default_factory=ScalingHistory)
    changes: list[tuple[float, int, int]] = field(default_factory=list)
    """Written replica counts: seconds since start, before, after."""
    actions: list[tuple[float, str, str]] = field(default_factory=list)
    plan: ScalingPlan | None = None
    crash_after_action: Callable[[drain.Action], bool] = lambda _: False

    def crash(self) -> None:
        self.history = ScalingHistory()

    def look(self) -> float | None:
        """One pass. Returns when to look again, where the drain says so."""
        cluster = self.cluster
        load, before = cluster.observe_load(), cluster.replicas
        self.plan = plan_scaling(
            scaling=self.scaling,
            current_replicas=before,
            pods=cluster.pods,
            load=load,
            engines=self.engines(cluster),
            history=self.history,
            now=cluster.now,
        )
        self.history = self.plan.history
        step = drain.plan_drain(
            pods=cluster.pods,
            load=load,
            desired_replicas=self.plan.desired_replicas,
            current_replicas=before,
            drain_timeout_seconds=self.drain_timeout_seconds,
            now=cluster.now,
        )
        for action in step.actions:
            cluster.obey(action)
            target = action.to if isinstance(action, drain.ReleaseReplica) else action.pod.name
            self.actions.append((cluster.now - NOW, type(action).__name__, str(target)))
            if self.crash_after_action(action):
                self.crash()
                return 1.0
        if self.plan.desired_replicas > before:
            cluster.replicas = self.plan.desired_replicas
        if cluster.replicas != before:
            self.history = record_rescale(self.history, before=before, after=cluster.replicas, now=cluster.now)
            self.changes.append((cluster.now - NOW, before, cluster.replicas))
        return step.requeue_after_seconds

    def run(self, seconds: float, interval: float = 15.0) -> None:
        """Pass after pass: every `interval`, and sooner where a drain asks for it."""
        end = self.cluster.now + seconds
        while self.cluster.now < end:
            again = self.look()
            self.cluster.advance(min(interval, again if again is not None else interval))
