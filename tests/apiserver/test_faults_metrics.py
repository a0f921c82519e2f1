"""Load that is lost: whatever is wrong with Prometheus, neither lever moves, and the condition says what failed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.apiserver.world import World
from tests.fakes.prometheus import FakePrometheus, serving
from tests.waiting import always, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELD_SECONDS = 1.5
"""A look of the operator and more."""
SCALING = {
    "minReplicas": 1,
    "maxReplicas": 5,
    "targets": [{"metric": "Running", "value": "4"}],
    "behavior": {
        "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 5, "periodSeconds": 1}]},
        "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 5, "periodSeconds": 1}]},
    },
}


@pytest_asyncio.fixture(loop_scope="session")
async def prometheus(world: World) -> AsyncIterator[FakePrometheus]:
    """Scrapes the namespace's engines whenever it is asked."""
    made = FakePrometheus()
    made.measure = lambda: scrape(world)
    async with serving(made):
        yield made


def scrape(world: World, *, age_seconds: float = 0.0, up: int = 1, change: Callable[[str, str], str] = lambda _, v: v) -> Any:
    at = time.time() - age_seconds
    series = []
    for pod, engine in world.engines.items():
        values = {
            "sglang:num_running_reqs": engine.running, "sglang:num_queue_reqs": engine.queued, "sglang:token_usage": 0.1,
            "sglang:realtime_tokens_total": engine.decoded_tokens, "up": up,
        }  # fmt: skip
        for name, value in values.items():
            mode = {"mode": "decode"} if "tokens_total" in name else {}
            metric = {"__name__": name, "namespace": world.namespace, "pod": pod, "instance": f"{pod}:30000", "job": "j", **mode}
            series.append({"metric": metric, "values": [[at, change(name, str(value))]]})
    return series


def broken(**fields: Any) -> Callable[[World, FakePrometheus], None]:
    def apply(world: World, prometheus: FakePrometheus) -> None:
        for name, value in fields.items():
            setattr(prometheus, name, value)

    return apply


def measured(make: Callable[[World], Any]) -> Callable[[World, FakePrometheus], None]:
    def apply(world: World, prometheus: FakePrometheus) -> None:
        prometheus.measure = lambda: make(world)

    return apply


def only(name: str, value: str) -> Callable[[str, str], str]:
    return lambda one, kept: value if one == name else kept


RUNNING = "sglang:num_running_reqs"
# All that a Prometheus can answer is in tests/unit/load; here is one of each kind.
STEPS: list[tuple[str, Callable[[World, FakePrometheus], None], str, str]] = [
    ("401", broken(status=401, body="<html>who?</html>"), "PrometheusError", "query load: answered 401"),
    ("empty", measured(lambda _: []), "MetricsMissing", "has no series with namespace="),
    ("NaN", measured(lambda world: scrape(world, change=only(RUNNING, "NaN"))), "MetricsMissing", f"{RUNNING} is 'NaN'"),
    ("stale", measured(lambda world: scrape(world, age_seconds=90)), "MetricsStale", "older than 5 s"),
    ("target down", measured(lambda world: scrape(world, up=0)), "ScrapeError", "up is 0"),
    ("one pod of three", measured(lambda world: scrape(world)[:5]), "MetricsMissing", "has no series of it"),
    ("slow", broken(delay_seconds=30.0), "MetricsStale", "has not been read within metrics.staleness"),
]
"""The last one leaves a query under way, which the next look would wait for."""


async def test_neither_lever_moves_while_the_load_is_unknown(world: World, prometheus: FakePrometheus) -> None:
    """One server lives through all of it: the engines idle, which would remove replicas, or are flooded, which would add some."""
    metrics = {"prometheus": {"url": prometheus.url}, "interval": "1s", "staleness": "5s"}
    await world.create_ready(replicas=None, scaling={**SCALING, "minReplicas": 3}, metrics=metrics)
    load(world, 4)

    async def seen() -> bool:
        return (await world.status()).get("load", {}).get("running") == 12

    await eventually(seen, "the load in status")
    await world.change(scaling={"minReplicas": 1})
    await world.wait_condition("PolicyApplied", "True")
    pushes = {pod: len(engine.pushes) for pod, engine in world.engines.items()}
    uids, healthy = await world.pod_uids(), dict(vars(prometheus))
    for turn, (name, break_it, reason, says) in enumerate(STEPS):
        await world.wait_condition("MetricsAvailable", "True", "MetricsFound")
        break_it(world, prometheus)
        condition = await world.wait_condition("MetricsAvailable", "False", reason, says=says, within_seconds=40)
        assert len(condition["message"]) <= 1024
        load(world, (0, 40)[turn % 2])
        await always(lambda: holds(world, uids), f"{name}: three replicas", for_seconds=HELD_SECONDS)
        active = await world.condition("ScalingActive")
        assert (active["status"] == "False") is (name != "one pod of three"), name
        load(world, 4)
        for field, value in healthy.items():
            if field not in ("queries", "paths", "authorization"):
                setattr(prometheus, field, value)
    assert {pod: len(engine.pushes) for pod, engine in world.engines.items()} == pushes, "engines were told nothing"
    warnings = [event["reason"] for event in await world.events() if event["type"] == "Warning"]
    assert len(warnings) <= 2 * len(STEPS) + 2, "once each, not once a look"


async def test_a_loss_with_a_fallback_scales_by_the_pods(world: World, prometheus: FakePrometheus) -> None:
    """The Prometheus is lost, the pods say what they carry: replicas follow, and the condition says what failed."""
    metrics = {"prometheus": {"url": prometheus.url}, "interval": "1s", "staleness": "8s", "onLoss": "Fallback"}
    await world.create_ready(replicas=None, scaling={**SCALING, "minReplicas": 2}, metrics=metrics)
    load(world, 4)
    await world.wait_condition("MetricsAvailable", "True", "MetricsFound")
    prometheus.status, prometheus.body = 401, "<html>who?</html>"
    await world.wait_condition("MetricsAvailable", "True", "MetricsFallback", says="query load: answered 401")
    load(world, 8)

    async def grown() -> bool:
        return (await world.deployment())["spec"]["replicas"] == 4

    await eventually(grown, "four replicas", within_seconds=40)
    assert (await world.condition("ScalingActive"))["status"] == "True"
    prometheus.status, prometheus.body = 200, None
    await world.wait_condition("MetricsAvailable", "True", "MetricsFound")


def load(world: World, running: int) -> None:
    for engine in world.engines.values():
        engine.running = running


async def holds(world: World, uids: set[str]) -> bool:
    return (await world.deployment())["spec"]["replicas"] == 3 and await world.pod_uids() == uids


async def test_the_target_is_up_and_idle_is_zero(world: World, prometheus: FakePrometheus) -> None:
    """Engines that have had nothing to do have none of the gauges yet: that is zero, and may scale down."""
    metrics = {"prometheus": {"url": prometheus.url}, "interval": "1s", "staleness": "8s"}
    await world.create_ready(replicas=None, scaling={**SCALING, "minReplicas": 2}, metrics=metrics)

    def presence() -> Any:
        renamed = [one for one in scrape(world) if one["metric"]["__name__"] in ("up", "sglang:token_usage")]
        for one in renamed:
            if one["metric"]["__name__"] != "up":
                one["metric"]["__name__"] = "sglang:max_total_num_tokens"
        return renamed

    prometheus.measure = presence
    await world.change(scaling={"minReplicas": 1})
    await world.wait_condition("MetricsAvailable", "True")

    async def one_left() -> bool:
        return len(await world.pods()) == 1

    await eventually(one_left, "one replica", within_seconds=60)
    assert (await world.status())["load"]["running"] == 0
