"""The work queue: each key once, one worker a key, nothing lost, nothing ends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from specserver.controller import queue as queue_module
from specserver.controller.queue import Gone, Key, Outcome, RequeueAfter, Retry, WorkQueue
from tests.waiting import eventually

A, B = ("ns", "a"), ("ns", "b")


@contextlib.asynccontextmanager
async def running(reconcile: Callable[[Key], Awaitable[Outcome]], workers: int = 4) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(reconcile, workers=workers)
    task = asyncio.create_task(queue.run())
    yield queue
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Held:
    """Passes that begin at once and end when the test says so."""

    def __init__(self) -> None:
        self.passes: list[Key] = []
        self.go_on = asyncio.Event()

    async def reconcile(self, key: Key) -> Outcome:
        self.passes.append(key)
        await self.go_on.wait()
        return Gone()


async def until(check: Callable[[], bool]) -> None:
    await eventually(check, "what the test waits for", within_seconds=3.0)


async def test_a_burst_is_one_pass() -> None:
    passes: list[Key] = []

    async def reconcile(key: Key) -> Outcome:
        passes.append(key)
        return Gone()

    queue = WorkQueue(reconcile)
    for _ in range(100):
        queue.add(A)
    queue.add(B)
    assert len(queue) == 2
    task = asyncio.create_task(queue.run())
    await until(lambda: len(passes) == 2)
    await asyncio.sleep(0.05)
    assert sorted(passes) == [A, B]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_key_is_never_worked_on_twice_at_once_and_what_happens_meanwhile_is_not_lost() -> None:
    at_work: list[Key] = []
    passes, most = 0, 0
    go_on = asyncio.Event()

    async def reconcile(key: Key) -> Outcome:
        nonlocal passes, most
        at_work.append(key)
        passes, most = passes + 1, max(most, at_work.count(A))
        await go_on.wait()
        at_work.remove(key)
        return Gone()

    async with running(reconcile) as queue:
        queue.add(A)
        await until(lambda: passes == 1)
        for _ in range(5):
            queue.add(A)
            await asyncio.sleep(0.01)
        assert passes == 1
        assert queue.longest_run_seconds() > 0.04
        go_on.set()
        await until(lambda: passes == 2)
        await asyncio.sleep(0.05)
    assert (passes, most) == (2, 1)


async def test_one_that_hangs_does_not_hold_up_another() -> None:
    done: list[Key] = []

    async def reconcile(key: Key) -> Outcome:
        if key == A:
            await asyncio.Event().wait()
        done.append(key)
        return Gone()

    async with running(reconcile, workers=2) as queue:
        queue.add(A)
        queue.add(B)
        await until(lambda: done == [B])


async def test_the_earlier_of_two_times_wins() -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def reconcile(_key: Key) -> Outcome:
        times.append(loop.time())
        return Gone()

    async with running(reconcile) as queue:
        began = loop.time()
        queue.add(A, delay_seconds=30.0)
        queue.add(A, delay_seconds=0.1)
        queue.add(A, delay_seconds=20.0)
        await until(lambda: len(times) == 1)
        assert 0.09 < times[0] - began < 2.0
        assert len(queue) == 0


async def test_looking_again_after_a_while_and_at_once_when_something_happens() -> None:
    passes = 0

    async def reconcile(_key: Key) -> Outcome:
        nonlocal passes
        passes += 1
        return RequeueAfter(0.05 if passes == 1 else 60.0)

    async with running(reconcile) as queue:
        queue.add(A)
        await until(lambda: passes == 2)
        queue.add(A)
        await until(lambda: passes == 3)


async def test_what_nobody_foresaw_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    passes = 0

    async def reconcile(_key: Key) -> Outcome:
        nonlocal passes
        passes += 1
        if passes == 1:
            raise ZeroDivisionError("no one thought of this")
        return Gone()

    with caplog.at_level(logging.WARNING):
        async with running(reconcile) as queue:
            queue.add(A)
            await until(lambda: passes == 2)
    assert "ns/a: reconcile failed" in caplog.text
    assert "no one thought of this" in caplog.text


async def test_back_off_grows_and_ends_with_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specserver.controller.queue._FIRST_BACK_OFF_SECONDS", 0.02)
    outcomes: list[Outcome] = [Retry("x"), Retry("x"), Retry("x"), RequeueAfter(0.001), Retry("x"), Gone()]
    ahead, delays = iter(outcomes), list[float]()

    async def reconcile(_key: Key) -> Outcome:
        return next(ahead)

    async with running(reconcile) as queue:
        add = queue.add
        queue.add(A)

        def note(key: Key, *, delay_seconds: float = 0.0) -> None:
            delays.append(delay_seconds)
            add(key, delay_seconds=delay_seconds)

        monkeypatch.setattr(queue, "add", note)
        await until(lambda: len(delays) == len(outcomes) - 1)
    wanted = [0.02, 0.04, 0.08, 0.001, 0.02]
    assert delays == pytest.approx(wanted, rel=0.21), "a fifth more or less; after a success it begins anew"


async def test_after_days_of_failure_it_still_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power of two that grew with each failure once fitted no number any more, and ended the worker."""
    monkeypatch.setattr("specserver.controller.queue._LONGEST_BACK_OFF_SECONDS", 0.0)
    passes = 0

    async def reconcile(_key: Key) -> Outcome:
        nonlocal passes
        passes += 1
        return Retry("x") if passes < 1500 else Gone()

    async with running(reconcile) as queue:
        queue.add(A)
        await eventually(lambda: passes == 1500, "the last try")


async def test_the_api_server_says_when_to_come_back() -> None:
    times: list[float] = []

    async def reconcile(_key: Key) -> Outcome:
        times.append(asyncio.get_running_loop().time())
        return Retry("later", 0.2) if len(times) == 1 else Gone()

    async with running(reconcile) as queue:
        queue.add(A)
        await until(lambda: len(times) == 2)
    assert times[1] - times[0] >= 0.2


async def test_news_go_ahead_of_keys_whose_time_has_come() -> None:
    held = Held()
    passes = held.passes
    timers = [("ns", f"timer-{number}") for number in range(5)]
    async with running(held.reconcile, workers=1) as queue:
        queue.add(("ns", "first"))
        await until(lambda: len(passes) == 1)
        for key in timers:
            queue.add(key, delay_seconds=0.001)
        await asyncio.sleep(0.01)
        queue.add(A)
        queue.add(timers[4])
        queue.add(B)
        held.go_on.set()
        await until(lambda: len(passes) == 8)
    assert passes[1:] == [A, timers[4], B, *timers[:4]]


async def test_half_of_the_workers_are_kept_for_news() -> None:
    held = Held()
    passes = held.passes
    timers = [("ns", f"timer-{number}") for number in range(5)]
    async with running(held.reconcile, workers=4) as queue:
        for key in timers:
            queue.add(key, delay_seconds=0.001)
        await until(lambda: len(passes) == 2)
        queue.add(A)
        queue.add(B)
        await until(lambda: len(passes) == 4)
        assert passes[2:] == [A, B], "the other three wait for the first two"
        held.go_on.set()
        await until(lambda: len(passes) == 7)


async def test_a_key_that_is_very_late_goes_ahead_of_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_NEWS_AHEAD_SECONDS", 0.05)
    held = Held()
    passes = held.passes
    async with running(held.reconcile, workers=1) as queue:
        queue.add(("ns", "first"))
        await until(lambda: len(passes) == 1)
        queue.add(B, delay_seconds=0.001)
        await asyncio.sleep(0.1)
        queue.add(A)
        held.go_on.set()
        await until(lambda: len(passes) == 3)
    assert passes[1:] == [B, A]
