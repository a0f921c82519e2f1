"""A keyed work queue, as controller-runtime's: each key once in the queue, one worker a key, back-off on failure.

kopf's own retries are not used: an `on.event` handler may only enqueue, since its errors are dropped, and kopf's other
handlers write to the resource. Time is the event loop's, which no clock jump moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace and name of a SpeculativeServer."""

_FIRST_BACK_OFF_SECONDS = 0.5
_LONGEST_BACK_OFF_SECONDS = 15.0
"""Short, so that a server is in order again within 30 s of the end of whatever was wrong."""
_NEWS_AHEAD_SECONDS = 30.0
"""News go ahead of keys that are late by less than this: news without end must not keep the others from their turn."""
_ROUTINE_SHARE = 0.5
"""Of the workers, for keys that nothing happened to. A user's change finds a free worker then, and its hundred exchanges with
engines compete with fewer."""


@dataclass(frozen=True)
class RequeueAfter:
    """Look again after `seconds`, even if nothing happens."""

    seconds: float


@dataclass(frozen=True)
class Retry:
    """It went wrong in a way that was expected; look again after a back-off, or after what the API server asked for."""

    message: str
    after_seconds: float | None = None


@dataclass(frozen=True)
class Gone:
    """The resource is not there any more: forget the key."""


Outcome = RequeueAfter | Retry | Gone


class WorkQueue:
    """Runs `reconcile` for keys. `add` is safe to call at any time from the event loop's thread."""

    def __init__(self, reconcile: Callable[[Key], Awaitable[Outcome]], *, workers: int = 8) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._running: dict[Key, float] = {}
        self._routine: set[Key] = set()
        self._most_routine = max(1, round(workers * _ROUTINE_SHARE))
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Condition()

    def add(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """Queues a key. The earlier of two due times wins; a key that is being worked on runs once more afterwards.

        Without a delay it is news, and goes ahead of keys whose time has come but that nothing has happened to: with a
        thousand servers there are always some, and a user's change must not wait for them.
        """
        if key in self._running and delay_seconds == 0.0:
            self._again.add(key)
            return
        due = asyncio.get_running_loop().time() + (delay_seconds or -_NEWS_AHEAD_SECONDS)
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, next(self._order), key))
        self._notify()

    def __len__(self) -> int:
        return len(self._due)

    def longest_run_seconds(self) -> float:
        """Age of the oldest reconcile in progress: what liveness looks at."""
        now = asyncio.get_running_loop().time()
        return max((now - since for since in self._running.values()), default=0.0)

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._take()
            self._running[key] = asyncio.get_running_loop().time()
            try:
                outcome = await self._reconcile(key)
            # The boundary of the whole operator: whatever a reconcile did not foresee must not end the worker. It is logged with
            # its trace and tried again.
            except Exception:  # noqa: BLE001 - see above
                _log.exception("%s/%s: reconcile failed", *key)
                outcome = Retry("unforeseen error")
            finally:
                del self._running[key]
                if key in self._routine:
                    self._routine.discard(key)
                    self._notify()
            self._settle(key, outcome)

    def _settle(self, key: Key, outcome: Outcome) -> None:
        again = key in self._again
        self._again.discard(key)
        if isinstance(outcome, Retry):
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            # Cut before it is raised: after a thousand failures, four hours, the power would fit no float.
            back_off = min(_FIRST_BACK_OFF_SECONDS * 2 ** min(failures - 1, 10), _LONGEST_BACK_OFF_SECONDS)
            delay = outcome.after_seconds if outcome.after_seconds is not None else back_off * random.uniform(0.8, 1.2)
            _log.warning("%s/%s: %s; next try in %.1f s", *key, outcome.message, delay)
            self.add(key, delay_seconds=min(delay, _LONGEST_BACK_OFF_SECONDS))
            return
        self._failures.pop(key, None)
        if again:
            self.add(key)
        elif isinstance(outcome, RequeueAfter):
            self.add(key, delay_seconds=outcome.seconds)

    async def _take(self) -> Key:
        """Waits for the next key that is due."""
        loop = asyncio.get_running_loop()
        while True:
            while self._heap:
                due, _, key = self._heap[0]
                if self._due.get(key) != due or key in self._running:
                    heapq.heappop(self._heap)  # superseded by an earlier time, or running: `again` brings it back
                    if self._due.get(key) == due:
                        del self._due[key]
                        self._again.add(key)
                elif due <= loop.time():
                    is_routine = due > loop.time() - _NEWS_AHEAD_SECONDS
                    if is_routine and len(self._routine) >= self._most_routine:
                        wake_at = due + _NEWS_AHEAD_SECONDS
                        break
                    heapq.heappop(self._heap)
                    del self._due[key]
                    if is_routine:
                        self._routine.add(key)
                    return key
                else:
                    wake_at = due
                    break
            timeout = wake_at - loop.time() if self._heap else None
            with contextlib.suppress(TimeoutError):
                # Not wait_for: it makes a task, and kopf's shutdown waits 5 s for every task that was made since its start.
                async with self._wake, asyncio.timeout(timeout):
                    await self._wake.wait()

    def _notify(self) -> None:
        async def wake() -> None:
            async with self._wake:
                self._wake.notify_all()

        task = asyncio.get_running_loop().create_task(wake())
        self._wakers = {task, *(t for t in getattr(self, "_wakers", ()) if not t.done())}
