"""Clocks and counters: when a watch showed what, a process's memory, requests between two moments."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.operator.api import ScaleApi, WatchEnded
from tests.fakes.api import Body

Key = tuple[str, str]

_LOOK_SECONDS = 1.0
"""How often a wait looks whether what it waits for can still happen."""
_AGAIN_SECONDS = 0.1


class Watched:
    """A kind as a watch shows it: each object's newest body, and when it came. An async context manager."""

    def __init__(self, api: ScaleApi, kind: str, keep: Callable[[Body], Body] = lambda body: body) -> None:
        self._api, self._kind, self._keep = api, kind, keep
        self.bodies: dict[Key, Body] = {}
        self.times: dict[Key, float] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        listed, version = await self._api.list_all(self._kind)
        for body in listed:
            self._note("ADDED", body)
        self._task = asyncio.create_task(self._follow(version))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def wait(
        self, condition: Callable[[], bool], what: str, *, within_seconds: float, running: Callable[[], bool] = lambda: True
    ) -> float:
        """Waits until it holds; returns the time. AssertionError where it doesn't in time, or where nobody is `running`."""
        deadline = time.monotonic() + within_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS), self._changed:
                    await self._changed.wait_for(lambda: condition() or self._task.done())
            if condition():
                return time.time()
            if self._task.done() or not running() or time.monotonic() > deadline:
                state = f"watch of {self._kind} ended: {self._task.done()}, process runs: {running()}"
                raise AssertionError(f"not within {within_seconds:g} s ({state}): {what}")

    async def _follow(self, version: str) -> None:
        """From `version` on. A cache of the API server that has just begun may not know it: then all is listed anew."""
        while True:
            try:
                async for event, body in self._api.watch(self._kind, version):
                    self._note(event, body)
                    await self._tell()
            except WatchEnded as error:
                print(f"the watch of {self._kind} begins anew: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(_AGAIN_SECONDS)
            listed, version = await self._api.list_all(self._kind)
            self.bodies.clear()
            for body in listed:
                self._note("ADDED", body)
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _note(self, event: str, body: Body) -> None:
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if event == "DELETED":
            self.bodies.pop(key, None)
        else:
            self.bodies[key] = self._keep(body)
        self.times[key] = time.time()


def resident_bytes(pid: int) -> tuple[int, int]:
    """Memory of a process now, and at its highest."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return tuple(int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all are no larger than."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@contextlib.asynccontextmanager
async def stepping(name: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    began = time.monotonic()
    say(name)
    yield
    say(f"{name}: {time.monotonic() - began:.1f} s")
