"""Direct scrape against fake engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from specserver.api.conditions import Reason
from specserver.core.observed import Load, LoadUnknown
from specserver.engines.http import PodHttp, open_session
from specserver.load import scrape
from specserver.load.scrape import DirectScraper
from tests.fakes.engine import FakeEngine
from tests.fakes.pods import build_pod

NOW = 1_764_000_000.0


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as session:
        yield session


async def look(scraper: DirectScraper, engine: FakeEngine, *, now: float = NOW) -> Load | LoadUnknown:
    pod = build_pod("m-0", ip=engine.host)
    return await scraper.observe_load([pod], port=engine.port, now=now, staleness_seconds=60)


async def test_reads_all_ready_pods(session: aiohttp.ClientSession) -> None:
    async with (
        FakeEngine(host="127.9.0.2", running=3, token_usage=0.25) as one,
        FakeEngine(host="127.9.0.3", port=one.port, running=4, queued=2, token_usage=0.75) as other,
    ):
        load = await DirectScraper(PodHttp(session)).observe_load(
            [
                build_pod("m-0", ip=one.host),
                build_pod("m-1", ip=other.host),
                build_pod("m-2", ip="127.9.0.4", ready=False),
            ],
            port=one.port, now=NOW, staleness_seconds=60,
        )  # fmt: skip
    assert isinstance(load, Load)
    assert load.complete
    assert (load.running, load.queued, load.token_usage, load.tokens_per_second) == (7, 2, 0.5, None)
    assert NOW <= load.observed_at < NOW + 6, "when the pages came"


async def test_tokens_a_second_since_the_last_look_by_pod_uid(session: aiohttp.ClientSession) -> None:
    scraper = DirectScraper(PodHttp(session))
    async with FakeEngine(decoded_tokens=1000) as engine:
        await look(scraper, engine)
        engine.decoded_tokens = 1500
        load = await look(scraper, engine, now=NOW + 10)
        assert isinstance(load, Load)
        assert load.tokens_per_second == pytest.approx(50.0, rel=0.2)
        reborn = await scraper.observe_load(
            [build_pod("m-0", uid="another")], port=engine.port, now=NOW + 20, staleness_seconds=60
        )
    assert isinstance(reborn, Load)
    assert reborn.tokens_per_second is None


async def test_a_stall_ends_with_the_engine(session: aiohttp.ClientSession) -> None:
    scraper = DirectScraper(PodHttp(session))
    async with FakeEngine(queued=3) as engine:

        async def is_stalled(at: float) -> bool:
            load = await look(scraper, engine, now=NOW + at)
            assert isinstance(load, Load)
            return load.pods[0].stalled

        assert [await is_stalled(at) for at in (0, 25, 50)] == [False, False, True]
        restarting = build_pod("m-0", ip=engine.host, ready=False)
        await scraper.observe_load([restarting], port=engine.port, now=NOW + 60, staleness_seconds=60)
        assert not await is_stalled(75)


async def test_a_page_has_the_time_at_which_it_came(session: aiohttp.ClientSession) -> None:
    """Dated by the time of asking, the rate of a pod that answers late would be too high, and the next one too low."""
    async with FakeEngine(delay_seconds=0.4) as engine:
        load = await look(DirectScraper(PodHttp(session)), engine)
        assert isinstance(load, Load)
        assert load.observed_at >= NOW + 0.39


async def test_no_ready_pod(session: aiohttp.ClientSession) -> None:
    load = await DirectScraper(PodHttp(session)).observe_load(
        [build_pod(ready=False)], port=1, now=NOW, staleness_seconds=60
    )
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.NO_READY_REPLICAS


async def test_one_broken_pod_leaves_the_others_known(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(host="127.9.0.5", running=3) as engine:
        load = await DirectScraper(PodHttp(session)).observe_load(
            [build_pod("m-0", ip=engine.host), build_pod("m-1", ip="127.9.0.6"), build_pod("m-2", ip=None)],
            port=engine.port, now=NOW, staleness_seconds=60,
        )  # fmt: skip
        port = engine.port
    assert isinstance(load, Load)
    assert load.running == 3
    assert {one.pod: one.message for one in load.unknown} == {
        "m-1": f"GET http://127.9.0.6:{port}/metrics: connection refused",
        "m-2": "GET /metrics: the pod has no IP yet",
    }


async def test_metrics_switched_off_is_said(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(exports_metrics=False) as engine:
        load = await look(DirectScraper(PodHttp(session)), engine)
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.METRICS_MISSING
    assert load.message == "pod m-0: GET /metrics: the engine answered 404: it was started without --enable-metrics"


@pytest.mark.parametrize(
    ("page", "reason", "words"),
    [
        pytest.param("<html>login</html>", Reason.METRICS_MISSING, "sglang:num_running_reqs", id="login-page"),
        pytest.param("sglang:num_running_reqs{ 5\n", Reason.SCRAPE_ERROR, "line 1", id="broken-line"),
        pytest.param(
            f"sglang:num_running_reqs 5 {int(NOW - 61) * 1000}\n", Reason.METRICS_STALE, "older than 60 s", id="stale"
        ),
    ],
)
async def test_odd_pages(session: aiohttp.ClientSession, page: str, reason: Reason, words: str) -> None:
    async with FakeEngine(metrics_page=page) as engine:
        load = await look(DirectScraper(PodHttp(session)), engine)
    assert isinstance(load, LoadUnknown)
    assert load.reason == reason
    assert words in load.message


async def test_a_hung_pod_costs_its_time_limit_and_delays_no_other(session: aiohttp.ClientSession) -> None:
    scraper = DirectScraper(PodHttp(session, timeout_seconds=2))
    async with FakeEngine(host="127.9.0.7", running=2) as well, FakeEngine(host="127.9.0.8", port=well.port) as hung:
        hung.delay_seconds = 30
        started = time.monotonic()
        load = await scraper.observe_load(
            [build_pod("m-0", ip=well.host), build_pod("m-1", ip=hung.host)],
            port=well.port, now=NOW, staleness_seconds=60,
        )  # fmt: skip
        assert time.monotonic() - started < 20
    assert isinstance(load, Load)
    assert load.running == 2
    assert "no full answer within 2 s" in load.unknown[0].message


async def test_waiting_for_a_slot_is_not_slowness_of_the_pod(session: aiohttp.ClientSession) -> None:
    scraper = DirectScraper(PodHttp(session, timeout_seconds=2, at_once=1))
    async with FakeEngine(host="127.9.0.9", delay_seconds=0.3) as engine:
        load = await scraper.observe_load(
            [build_pod(f"m-{index}", ip=engine.host) for index in range(8)],
            port=engine.port, now=NOW, staleness_seconds=60,
        )  # fmt: skip
    assert isinstance(load, Load)
    assert load.complete


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def look_at(session: aiohttp.ClientSession, handler: Handler, *, timeout_seconds: float = 5) -> LoadUnknown:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        scraper = DirectScraper(PodHttp(session, timeout_seconds=timeout_seconds))
        load = await scraper.observe_load([build_pod()], port=port, now=NOW, staleness_seconds=60)
    finally:
        await runner.cleanup()
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.SCRAPE_ERROR
    return load


async def test_redirects_are_refused(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(running=5) as elsewhere:

        async def redirect(request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"http://127.0.0.1:{elsewhere.port}/metrics")

        load = await look_at(session, redirect)
        assert elsewhere.answers == []
    assert "answered 302; redirects are refused" in load.message


async def test_an_endless_page_is_cut_off(session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "PAGE_LIMIT_BYTES", 100_000)
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"sglang:num_running_reqs 5\n" * 1000)
            sent += 26_000

    load = await look_at(session, flood)
    assert "larger than 100000 bytes" in load.message
    assert sent < 50_000_000


async def test_a_page_that_drips_is_cut_off(session: aiohttp.ClientSession) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"#")
            await asyncio.sleep(0.05)

    load = await look_at(session, drip, timeout_seconds=0.4)
    assert "no full answer within 0.4 s" in load.message


async def test_a_compressed_page_is_not_unpacked(session: aiohttp.ClientSession) -> None:
    async def bomb(request: web.Request) -> web.StreamResponse:
        response = web.Response(body=b"#" * 10_000_000)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    load = await look_at(session, bomb)
    assert "compressed" in load.message


async def test_an_answer_that_breaks_off(session: aiohttp.ClientSession) -> None:
    async def torn(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"sglang:num_running_reqs 5\n")
        assert request.transport is not None
        request.transport.close()
        return response

    load = await look_at(session, torn)
    assert "the answer broke off" in load.message


async def test_what_speaks_no_http(session: aiohttp.ClientSession) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        load = await DirectScraper(PodHttp(session)).observe_load([build_pod()], port=port, now=NOW, staleness_seconds=60)
    assert isinstance(load, LoadUnknown)
    assert "the answer is not HTTP" in load.message


async def test_ipv6(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(host="::1", running=5) as engine:
        load = await look(DirectScraper(PodHttp(session)), engine)
    assert isinstance(load, Load)
    assert load.running == 5
