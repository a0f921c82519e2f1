"""The phases of a run, each one measurement: what is done, what is waited for, what comes out as raw figures."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.operator.api import ScaleApi, bounded
from benchmarks.operator.fleet import BIG_PREFIX, Fleet
from benchmarks.operator.measure import Watched, cpu_seconds, resident_bytes
from specserver.api import labels
from tests.apiserver.operator_process import OperatorProcess
from tests.fakes.api import Body
from tests.localcluster.processes import start_child, stop_children
from tests.waiting import eventually

KEPT_KINDS = ("ConfigMap", "Service", "PodDisruptionBudget", "Secret", "Deployment")
_LONGEST_SYNC_SECONDS = 300.0
_LONGEST_CHANGE_SECONDS = 30.0

Figures = dict[str, Any]


@dataclass
class Run:
    """What all phases need."""

    api: ScaleApi
    fleet: Fleet
    operator: OperatorProcess
    baseline_program: Path
    kubeconfig: Path
    directory: Path
    workers: int
    say: Callable[[str], None]

    # ---- from nothing ----------------------------------------------------------------------------------------------------

    async def baseline_from_nothing(self, *kinds: str, change: int = 0) -> Figures:
        """The Go controller's first sync: until all objects of these kinds are there. Then `change` single changes."""
        templates = self.directory / "templates.json"
        templates.write_text(self.fleet.build_templates(*kinds))
        async with Watched(self.api, "Deployment", _replicas) as deployments:
            began = time.time()
            flags = [f"--kubeconfig={self.kubeconfig}", f"--templates={templates}", f"--workers={self.workers}"]
            process = start_child([self.baseline_program, *flags], self.directory / "baseline.log")
            try:
                running = lambda: process.poll() is None  # noqa: E731 - it is one
                seconds = await self._wait_for_objects(kinds, deployments, running) - began
                figures: Figures = {"seconds": seconds, "objects": self.fleet.size.all_servers * len(kinds)}
                if change:
                    await asyncio.sleep(2.0)
                    figures["change_seconds"] = await self._change(change, deployments, self.fleet.size.pods + 1)
                    figures["change_seconds"] += await self._change(change, deployments, self.fleet.size.pods)
                figures["cpu_seconds"] = cpu_seconds(process.pid)
                figures["resident_bytes"], figures["resident_peak_bytes"] = resident_bytes(process.pid)
            finally:
                stop_children([process])
        await self._remove_objects()
        return figures

    async def operator_from_nothing(self) -> Figures:
        """The operator's first sync: until all objects of all kinds and a status of each server are there."""
        async with (
            Watched(self.api, "Deployment", _replicas) as deployments,
            Watched(self.api, labels.KIND, _ready) as servers,
        ):
            before, began = await self.api.requests(), time.time()
            await self.operator.launch()
            objects = await self._wait_for_objects(KEPT_KINDS, deployments, lambda: self.operator.running) - began
            statuses = await servers.wait(
                lambda: all(body["told"] for body in servers.bodies.values()),
                "each server has a status",
                within_seconds=_LONGEST_SYNC_SECONDS,
                running=lambda: self.operator.running,
            )
            figures = await self._operator_figures(before)
        return {
            **figures,
            "seconds": objects,
            "objects": self.fleet.size.all_servers * len(KEPT_KINDS),
            "status_seconds": statuses - began,
        }

    async def _wait_for_objects(self, kinds: tuple[str, ...], deployments: Watched, running: Callable[[], bool]) -> float:
        wanted = self.fleet.size.all_servers
        at = await deployments.wait(
            lambda: len(deployments.bodies) == wanted,
            f"{wanted} Deployments",
            within_seconds=_LONGEST_SYNC_SECONDS,
            running=running,
        )
        for kind in kinds:
            if kind != "Deployment":
                while await self.api.count(kind) < wanted:
                    await asyncio.sleep(0.25)
                    at = time.time()
        return at

    async def _remove_objects(self) -> None:
        for kind in KEPT_KINDS:
            await bounded(self.api.delete_all(kind, namespace) for namespace in self.fleet.size.namespaces)

    # ---- all is there ----------------------------------------------------------------------------------------------------

    async def cold_sync(self) -> Figures:
        """The operator's start in front of everything: until each server is reported ready, its policy in force."""
        async with Watched(self.api, labels.KIND, _ready) as servers:
            reported = {key for key, body in servers.bodies.items() if body["ready"]}
            assert not reported, f"reported ready before the start: {sorted(reported)[:3]}"
            before, seen, began = await self.api.requests(), await self.fleet.seen("none"), time.time()
            await self.operator.launch()
            ended = await servers.wait(
                lambda: all(body["ready"] for body in servers.bodies.values()),
                "each server is ready and has its policy",
                within_seconds=_LONGEST_SYNC_SECONDS,
                running=lambda: self.operator.running,
            )
            figures = await self._operator_figures(before)
            first = sorted(servers.times[key] - began for key in servers.bodies)
        requests = (await self.fleet.seen("none"))["requests"] - seen["requests"]
        return {**figures, "seconds": ended - began, "ready_after_seconds": first, "engine_requests": requests}

    async def idle(self, seconds: float) -> Figures:
        """Nothing happens: what the operator does then."""
        before, cpu, passes = await self.api.requests(), cpu_seconds(self.operator.pid), await self._passes()
        engines = (await self.fleet.seen("none"))["requests"]
        await asyncio.sleep(seconds)
        figures = await self._operator_figures(before)
        return {
            **figures,
            "seconds": seconds,
            "reconciles": figures["reconciles"] - passes,
            "cpu_seconds": cpu_seconds(self.operator.pid) - cpu,
            "engine_requests": (await self.fleet.seen("none"))["requests"] - engines,
        }

    async def changes(self, count: int) -> Figures:
        """One server's replicas change, and its Deployment's follow; then the next server's."""
        before, passes = await self.api.requests(), await self._passes()
        async with Watched(self.api, "Deployment", _replicas) as deployments:
            seconds = await self._change(count, deployments, self.fleet.size.pods + 1)
        figures = await self._operator_figures(before)
        return {**figures, "reconciles": figures["reconciles"] - passes, "change_seconds": seconds}

    async def _change(self, count: int, deployments: Watched, replicas: int) -> list[float]:
        keys = self.fleet.keys()
        seconds = []
        for key in keys[:: max(1, len(keys) // count)][:count]:
            began = time.time()
            await self.api.patch(labels.KIND, *key, {"spec": {"replicas": replicas}}, manager="user")
            await deployments.wait(
                lambda key=key: deployments.bodies[key]["replicas"] == replicas,  # type: ignore[misc]
                f"the Deployment of {key} has {replicas} replicas",
                within_seconds=_LONGEST_CHANGE_SECONDS,
            )
            seconds.append(deployments.times[key] - began)
            await asyncio.sleep(0.1)
        return seconds

    async def pushes(self, rounds: int) -> Figures:
        """A new policy for the big server, until each of its engines has it; then the next."""
        seconds: list[float] = []
        for number in range(rounds):
            policy = {"speculation": {"policy": {"disableAbove": 40 + number}}}
            began = time.time()
            changed = await self.api.patch(labels.KIND, *self.fleet.big, {"spec": policy}, manager="user")
            revision = changed["metadata"]["generation"]

            async def taken(revision: int = revision) -> list[float]:
                engines = (await self.fleet.seen(BIG_PREFIX))["engines"].values()
                return [one["at"] for one in engines] if all(one["revision"] == revision for one in engines) else []

            what = f"all engines have revision {revision}"
            times: list[float] = await eventually(taken, what, within_seconds=_LONGEST_CHANGE_SECONDS)
            seconds += [at - began for at in times]
            await asyncio.sleep(0.5)
        return {"push_seconds": seconds, "engines": self.fleet.size.big, "rounds": rounds}

    # ---- the operator ----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def stopped_afterwards(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if self.operator.running:
                await self.operator.stop()  # in order: the next one must not wait for the Lease of one that was killed

    async def _operator_figures(self, before: Counter[tuple[str, str]]) -> Figures:
        now, peak = resident_bytes(self.operator.pid)
        spent = await self.api.requests() - before
        return {
            "resident_bytes": now,
            "resident_peak_bytes": peak,
            "cpu_seconds": cpu_seconds(self.operator.pid),
            "reconciles": await self._passes(),
            "requests": {f"{verb} {resource}": count for (verb, resource), count in sorted(spent.items())},
        }

    async def _passes(self) -> int:
        page = await self.operator.page("/metrics")
        found = re.findall(r"^specserver_operator_reconciles_total\{.*\} ([0-9.e+]+)$", page, re.MULTILINE)
        return sum(round(float(count)) for count in found)


def _replicas(body: Body) -> Body:
    return {"replicas": body["spec"].get("replicas")}


def _ready(body: Body) -> Body:
    """Of a server: whether it has a status of its present generation, and whether all is as it should be."""
    status = body.get("status") or {}
    true = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    told = status.get("observedGeneration") == body["metadata"]["generation"]
    return {"told": told, "ready": told and {"Ready", "PolicyApplied"} <= true}
