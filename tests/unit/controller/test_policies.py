"""Pushing policies to fake engines over real HTTP: once where needed, again with a back-off, nobody waits for anybody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest_asyncio

from specserver.api.v1alpha1 import Mode
from specserver.controller.policies import PATIENCE_SECONDS, Applied, PolicyPusher
from specserver.core.observed import EngineState, EngineUnreachable, Pod, Pushed, PushRejected
from specserver.engines.client import EngineClient
from specserver.engines.http import PodHttp, open_session
from tests.fakes.engine import FakeEngine, Refusal
from tests.fakes.pods import build_pod

DOCUMENT = {
    "revision": 2, "mode": "Auto", "strategy": "Threshold", "steps": [0, 1, 2, 3], "disableAbove": 8, "enableBelow": 4,
    "minDwellSeconds": 0.25,
}  # fmt: skip


class Bench:
    """Two engines on one port, and a pusher."""

    def __init__(self, session: aiohttp.ClientSession, engines: tuple[FakeEngine, FakeEngine]) -> None:
        self.results: list[str] = []
        self.pusher = PolicyPusher(EngineClient(PodHttp(session, timeout_seconds=3.0)), on_push=self.results.append)
        self.engines = engines
        self.pods: tuple[Pod, ...] = (build_pod("a", ip="127.0.7.1"), build_pod("b", ip="127.0.7.2"))

    async def push(self, document: dict[str, Any] | None = None, *, now: float = 0.0) -> Applied:
        wanted = document or DOCUMENT
        return await self.pusher.apply_policy(
            self.pods, wanted, Mode.AUTO, port=self.engines[0].port, admin_key="admin-key", now=now
        )


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    session = open_session()
    async with FakeEngine(host="127.0.7.1") as first, FakeEngine(host="127.0.7.2", port=first.port) as second:
        yield Bench(session, (first, second))
        await session.close()


async def test_told_once_and_read_back(bench: Bench) -> None:
    first = await bench.push()
    assert first.pushed_now == ("a", "b")
    assert all(isinstance(state, EngineState) for state in first.engines.values())
    again = await bench.push(now=1.0)
    assert again.pushed_now == ()
    assert again.pushes == {}
    assert [len(engine.pushes) for engine in bench.engines] == [1, 1]
    assert bench.results == ["Pushed", "Pushed"]


async def test_who_refuses_is_told_again_with_a_back_off(bench: Bench) -> None:
    broken, healthy = bench.engines
    broken.refusal = Refusal(422, "steps", "no")
    told = []
    for now in range(12):
        applied = await bench.push(now=float(now))
        told.append(len(broken.pushes))
    assert told == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3], "after 2 s, then 4 s, then 8 s"
    assert isinstance(applied.pushes["a"], PushRejected)
    assert len(healthy.pushes) == 1
    broken.refusal = None
    assert (await bench.push(now=14.0)).pushed_now == ("a",)


async def test_who_refuses_for_days_is_still_told(bench: Bench) -> None:
    broken, _ = bench.engines
    broken.refusal = Refusal(422)
    applied = await bench.push()
    bench.pusher._attempts["uid-a"] = replace(bench.pusher._attempts["uid-a"], failures=5000)
    applied = await bench.push(now=1e6)
    assert len(broken.pushes) == 2
    assert isinstance(applied.pushes["a"], PushRejected)


async def test_a_new_document_is_not_held_back_by_an_old_refusal(bench: Bench) -> None:
    bench.engines[0].refusal = Refusal(422)
    await bench.push()
    bench.engines[0].refusal = None
    applied = await bench.push({**DOCUMENT, "revision": 3}, now=0.1)
    assert isinstance(applied.pushes["a"], Pushed)


async def test_who_hangs_is_not_waited_for(bench: Bench) -> None:
    hung, healthy = bench.engines
    hung.delay_seconds = 60.0
    began = time.monotonic()
    applied = await bench.push()
    assert time.monotonic() - began < 20 * PATIENCE_SECONDS, "of the 60 that it hangs"
    assert applied.waiting
    assert applied.pushed_now == ("b",)
    assert isinstance(applied.engines["a"], EngineUnreachable)
    applied = await bench.push({**DOCUMENT, "revision": 3}, now=1.0)
    assert healthy.policy is not None
    assert healthy.policy.revision == 3
    hung.delay_seconds = 0.0
    async with asyncio.timeout(20):
        while "a" not in applied.pushed_now:
            applied = await bench.push({**DOCUMENT, "revision": 3}, now=time.monotonic())
    assert not applied.waiting


async def test_what_was_known_of_one_that_hangs_stays_until_more_is_known(bench: Bench) -> None:
    """A text that alternates between two is a write of status each time."""
    await bench.push()
    bench.engines[0].delay_seconds = 60.0
    applied = await bench.push(now=1.0)
    assert isinstance(applied.engines["a"], EngineState)


async def test_who_is_not_armed_is_not_told(bench: Bench) -> None:
    bench.engines[0].unarmed_reason = "topk 4 is not supported"
    await bench.push()
    assert bench.engines[0].pushes == []


async def test_pods_that_have_not_started_or_are_going_are_not_asked(bench: Bench) -> None:
    bench.pods = (
        build_pod("a", ip="127.0.7.1", started=False), build_pod("b", ip="127.0.7.2", terminating=True), build_pod("c", ip=None),
    )  # fmt: skip
    assert (await bench.push()).engines == {}
    assert [engine.answers for engine in bench.engines] == [[], []]


async def test_pods_that_are_gone_are_forgotten(bench: Bench) -> None:
    bench.engines[0].refusal = Refusal(422)
    bench.engines[1].delay_seconds = 60.0
    await bench.push()
    bench.pusher.forget(pod.uid for pod in bench.pods)
    assert not any(vars(bench.pusher)[name] for name in ("_attempts", "_known", "_exchanges"))
