"""The same load from the pods' own pages and from a real Prometheus that scrapes them."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest
import pytest_asyncio

from specserver.api.conditions import Reason
from specserver.core.observed import Load, LoadUnknown, Pod
from specserver.engines.http import PodHttp, open_session
from specserver.load.prometheus import PrometheusLoad
from specserver.load.scrape import DirectScraper
from tests.fakes.engine import FakeEngine
from tests.fakes.pods import build_pod

# One Prometheus for all: it takes five seconds until it scrapes for the first time.
pytestmark = pytest.mark.asyncio(loop_scope="module")

Seen = TypeVar("Seen")

NAMESPACE = "t1"
STALENESS_SECONDS = 60.0
DEADLINE_SECONDS = 60.0

DATA_PARALLEL_PAGE = "".join(
    f'sglang:{name}{{dp_rank="{rank // 2}",tp_rank="{rank}",model_name="通义/mini"}} {values[rank // 2]}\n'
    for name, values in {"num_running_reqs": (3, 4), "num_queue_reqs": (0, 9), "token_usage": (0.25, 0.75)}.items()
    for rank in range(4)
)
ROUTER_PAGE = "sglang_num_running_reqs 5\nsglang_num_queue_reqs 1\nsglang_token_usage 0.5\n"
PRIORITY_PAGE = (
    'sglang:num_running_reqs{priority=""} 5\nsglang:num_running_reqs{priority="1"} 3\n'
    'sglang:num_running_reqs{priority="2"} 2\nsglang:num_queue_reqs{priority=""} 0\nsglang:token_usage{priority=""} 0\n'
)
BROKEN_PAGE = "sglang:num_running_reqs NaN\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n"
FOREIGN_PAGE = "vllm:num_requests_running 5\n"
IDLE_PAGE = "sglang:max_total_num_tokens 8192\n"


@dataclass(frozen=True)
class Fleet:
    """Engines that a Prometheus scrapes, as pods with names of the kind that a Deployment makes."""

    engines: dict[str, FakeEngine]
    pods: list[Pod]
    leaving: FakeEngine
    leaving_pod: Pod
    """Beside the others, for the test that takes it down."""
    port: int
    prometheus_url: str
    session: aiohttp.ClientSession


def find_prometheus() -> str:
    path = shutil.which("prometheus")
    if path is None:
        pytest.fail("prometheus is not installed: apt-get install prometheus")
    return path


@asynccontextmanager
async def running_prometheus(directory: Path, jobs: list[dict[str, object]]) -> AsyncIterator[str]:
    """Its URL. The port is its own choice and read from its log, so that two runs never meet."""
    configuration = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (directory / "prometheus.yml").write_text(json.dumps(configuration))
    process = await asyncio.create_subprocess_exec(
        find_prometheus(),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--log.format=json",
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            url = None
            while url is None:
                line = await process.stderr.readline()
                assert line, "prometheus ended at once"
                entry = json.loads(line)
                if entry.get("msg") == "Listening on" and "address" in entry:
                    url = f"http://{entry['address']}"
        drain = asyncio.create_task(process.stderr.read())
        yield url
        drain.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def wait_for(look: Callable[[], Awaitable[Seen]], wanted: Callable[[Seen], bool]) -> Seen:
    """Looks until the result is the wanted one: scrapes are a second apart."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not wanted(seen := await look()):
        assert time.monotonic() < deadline, f"still {seen}"
        await asyncio.sleep(0.2)
    return seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    first = FakeEngine(host="127.9.2.10", running=7, queued=2, token_usage=0.5)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(first)
        engines = {"chat-7c9-live": first}
        pages = {
            "chat-7c9-dp2": DATA_PARALLEL_PAGE, "chat-7c9-router": ROUTER_PAGE, "chat-7c9-prio": PRIORITY_PAGE,
            "chat-7c9-nan": BROKEN_PAGE, "chat-7c9-vllm": FOREIGN_PAGE, "chat-7c9-idle": IDLE_PAGE,
        }  # fmt: skip
        for index, (name, page) in enumerate(pages.items(), start=11):
            engine = FakeEngine(host=f"127.9.2.{index}", port=first.port, metrics_page=page)
            engines[name] = await stack.enter_async_context(engine)
        leaving = await stack.enter_async_context(FakeEngine(host="127.9.2.98", port=first.port))
        leaving_pod = build_pod("chat-7c9-leaving", ip=leaving.host)
        pods = [build_pod(name, ip=engine.host) for name, engine in engines.items()]
        pods.append(build_pod("chat-7c9-down", ip="127.9.2.99"))

        def target(pod: Pod, /, **labels: str) -> dict[str, object]:
            return {"targets": [f"{pod.ip}:{first.port}"], "labels": {"namespace": NAMESPACE, "pod": pod.name, **labels}}

        jobs: list[dict[str, object]] = [
            {"job_name": "t1/chat", "static_configs": [target(pod) for pod in (*pods, leaving_pod)]},
            # The same pods once more, as by an annotation, and under names that are somebody else's.
            {"job_name": "annotated", "static_configs": [target(pod) for pod in pods[:2]]},
            {
                "job_name": "foreign",
                "static_configs": [
                    target(pods[0], namespace="t2"), target(pods[0], pod=f"{pods[0].name}-rank-0"),
                    target(pods[0], namespace="monitoring", pod="exporter", exported_namespace="only-exported"),
                ],
            },
        ]  # fmt: skip
        url = await stack.enter_async_context(running_prometheus(tmp_path_factory.mktemp("prometheus"), jobs))
        session = await stack.enter_async_context(open_session())

        async def all_scraped() -> bool:
            async with session.get(f"{url}/api/v1/targets?state=active", auto_decompress=True) as response:
                if response.status != 200:
                    return False
                targets = (await response.json())["data"]["activeTargets"]
            return bool(targets) and all(one["health"] != "unknown" for one in targets)

        await wait_for(all_scraped, bool)
        yield Fleet(engines, pods, leaving, leaving_pod, first.port, url, session)


@pytest.fixture
def prometheus(fleet: Fleet) -> Iterator[PrometheusLoad]:
    source = PrometheusLoad(fleet.prometheus_url)
    yield source
    source.close()


async def ask(
    prometheus: PrometheusLoad, fleet: Fleet, pods: list[Pod], *, namespace: str = NAMESPACE, **labels: str
) -> Load | LoadUnknown:
    return await prometheus.observe_load(
        pods, namespace=namespace, port=fleet.port, now=time.time(), staleness_seconds=STALENESS_SECONDS, labels=labels
    )


def figures(load: Load | LoadUnknown) -> dict[str, object]:
    """All that two sources must agree on; when each of them looked is its own affair."""
    assert isinstance(load, Load), load
    known: dict[str, object] = {pod.pod: replace(pod, observed_at=0.0, tokens_per_second=None) for pod in load.pods}
    return {**known, **{one.pod: one.message for one in load.unknown}}


EXPECTED = {
    "chat-7c9-live": (7, 2, 0.5), "chat-7c9-dp2": (7, 9, 0.75), "chat-7c9-router": (5, 1, 0.5),
    "chat-7c9-prio": (5, 0, 0), "chat-7c9-idle": (0, 0, 0),
}  # fmt: skip


async def test_both_sources_see_the_same_load(fleet: Fleet, prometheus: PrometheusLoad) -> None:
    asked = await ask(prometheus, fleet, fleet.pods)
    read = await DirectScraper(PodHttp(fleet.session)).observe_load(
        fleet.pods, port=fleet.port, now=time.time(), staleness_seconds=STALENESS_SECONDS
    )
    assert isinstance(asked, Load)
    assert {pod.pod: (pod.running, pod.queued, pod.token_usage) for pod in asked.pods} == EXPECTED
    by_prometheus, by_hand = figures(asked), figures(read)
    assert "up is 0" in str(by_prometheus.pop("chat-7c9-down"))
    assert "connection refused" in str(by_hand.pop("chat-7c9-down"))
    assert by_prometheus == by_hand


async def test_both_sources_see_the_same_tokens_a_second(fleet: Fleet, prometheus: PrometheusLoad) -> None:
    engine, pods = fleet.engines["chat-7c9-live"], fleet.pods[:1]
    scraper, started = DirectScraper(PodHttp(fleet.session)), time.monotonic()

    async def generate() -> None:
        while True:
            engine.decoded_tokens = 100 * (time.monotonic() - started)
            await asyncio.sleep(0.02)

    async def look() -> tuple[float | None, float | None]:
        read = await scraper.observe_load(pods, port=fleet.port, now=time.time(), staleness_seconds=STALENESS_SECONDS)
        asked = await ask(prometheus, fleet, pods)
        return (
            read.tokens_per_second if isinstance(read, Load) else None,
            asked.tokens_per_second if isinstance(asked, Load) else None,
        )

    generating = asyncio.create_task(generate())
    try:
        # Not the first rate: a scrape from before the counter ran may be in it.
        await wait_for(look, lambda rates: None not in rates and min(rate or 0 for rate in rates) > 75)
        await asyncio.sleep(2.5)  # Two more scrapes.
        read, asked = await look()
    finally:
        generating.cancel()
    assert read == pytest.approx(100, rel=0.25)
    assert asked == pytest.approx(100, rel=0.25)


async def test_a_target_that_goes_down_is_unknown_at_once(fleet: Fleet, prometheus: PrometheusLoad) -> None:
    pods = [fleet.pods[0], fleet.leaving_pod]
    before = await ask(prometheus, fleet, pods)
    assert isinstance(before, Load)
    assert before.complete
    fleet.leaving.exports_metrics = False
    load = await wait_for(lambda: ask(prometheus, fleet, pods), lambda load: isinstance(load, Load) and not load.complete)
    assert isinstance(load, Load)
    assert [pod.pod for pod in load.pods] == [fleet.pods[0].name]
    assert "up is 0" in load.unknown[0].message


async def test_series_under_other_labels_are_shown_and_never_counted(fleet: Fleet, prometheus: PrometheusLoad) -> None:
    for namespace, pod, words in (
        ("only-exported", fleet.pods[0].name, "'exported_namespace': 'only-exported'"),
        (NAMESPACE, "nobody", "'namespace': 't1'"),
        ("empty", "nobody", "no series with namespace='empty'"),
    ):
        load = await ask(prometheus, fleet, [build_pod(pod)], namespace=namespace)
        assert isinstance(load, LoadUnknown)
        assert load.reason == Reason.METRICS_MISSING
        assert words in load.message


async def test_further_matchers_are_escaped_and_obeyed(fleet: Fleet, prometheus: PrometheusLoad) -> None:
    pods = fleet.pods[:1]
    assert isinstance(await ask(prometheus, fleet, pods, job="t1/chat"), Load)
    for value in ("eu-1", 'a"b\\c', 'x"} or up{a="', "通义"):
        load = await ask(prometheus, fleet, pods, cluster=value)
        assert isinstance(load, LoadUnknown)
        assert load.reason == Reason.METRICS_MISSING
