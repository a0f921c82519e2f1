"""At rest nothing is written: no object, no Event, no request that could have been one, whatever trembles and whatever is broken
for good. (The operator's own Lease is renewed; that is all.)

In CI for some seconds, with a look every four: more often, and the delays of a busy machine are no noise. For ten minutes:

    SPECSERVER_STEADY_SECONDS=600 python -m pytest tests/apiserver/test_steady.py
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import Any

import pytest

from tests.apiserver.world import World
from tests.chart.helm import CRD_SOURCE
from tests.fakes.engine import FakeEngine, Refusal
from tests.fakes.prometheus import FakePrometheus, serving
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECONDS = float(os.environ.get("SPECSERVER_STEADY_SECONDS", "13"))
SCALING = {"minReplicas": 1, "maxReplicas": 3, "targets": [{"metric": "Running", "value": "6"}]}
SERVERS: dict[str, dict[str, Any]] = {
    "direct": {"replicas": None, "scaling": {**SCALING, "minReplicas": 2}},
    "prometheus": {"replicas": None, "scaling": SCALING},
    "refusing": {"replicas": 1},
    "blind": {"replicas": 1},
    "invalid": {"replicas": 1, "engine": {"image": "sglang:v0.5.23", "args": ["--no-such-option"]}},
    "overlaid": {"replicas": 1, "template": {"spec": {"containers": "none"}}},
}


def page(world: World) -> list[dict[str, Any]]:
    """What a Prometheus has of the engines now."""
    at = time.time()
    return [
        {
            "metric": {"__name__": name, "namespace": world.namespace, "pod": pod, "instance": f"{pod}:30000", "job": "j"},
            "values": [[at, str(value)]],
        }
        for pod, engine in world.engines.items()
        for name, value in (
            ("sglang:num_running_reqs", engine.running), ("sglang:num_queue_reqs", 0), ("sglang:token_usage", engine.token_usage),
            ("up", 1),
        )
    ]  # fmt: skip


@pytest.mark.timeout(SECONDS + 600)
async def test_at_rest_nothing_is_written(world: World) -> None:
    await world.wait_alone()
    good, bad = FakePrometheus(), FakePrometheus(status=401, body="<html>who?</html>")
    good.measure = lambda: page(world)
    async with serving(good), serving(bad):
        # 1. Six servers: in order, or broken in a way that stays.
        sources = {"prometheus": good.url, "blind": bad.url}
        for name, spec in SERVERS.items():
            metrics = {"interval": "4s", **({"prometheus": {"url": sources[name]}} if name in sources else {})}
            await world.create(name, **{**spec, "metrics": metrics})
        for name in ("direct", "prometheus", "refusing", "blind"):
            await world.wait_condition("Ready", "True", name=name, within_seconds=40)
        engines = world.engines
        for pod, engine in engines.items():
            engine.running, engine.token_usage, engine.decode_rate = 3, 0.1, 5.0
            if pod.startswith("refusing"):
                engine.refusal = Refusal(422, "steps", "not captured")
        await world.change("refusing", speculation={"policy": {"disableAbove": 9}})
        await world.wait_condition("PolicyApplied", "False", "EngineRejected", name="refusing")
        await world.wait_condition("MetricsAvailable", "False", "PrometheusError", name="blind")
        await world.wait_condition("MetricsAvailable", "True", name="prometheus")
        await world.wait_condition("Ready", "False", "EngineArgumentsRefused", name="invalid")
        await world.wait_condition("Ready", "False", "InvalidSpec", name="overlaid")
        # 2. They come to rest: rates need some looks.
        last: dict[tuple[str, str], str] = {}
        rested = 0

        async def rests() -> bool:
            nonlocal last, rested
            await asyncio.sleep(1.0)
            now = await world.versions()
            rested = rested + 1 if now == last else 0
            last = now
            return rested == 9

        trembling = asyncio.create_task(tremble(list(engines.values())))
        await eventually(rests, lambda: f"rest; the last changes were in {last}", within_seconds=90)
        # 3. And stay so.
        writes, events = await world.operator.writes(), len(await world.events())
        statuses = {name: await world.status(name) for name in SERVERS}
        await asyncio.sleep(SECONDS)
        for name, status in statuses.items():
            now = await world.status(name)
            assert {key: (status.get(key), value) for key, value in now.items() if status.get(key) != value} == {}, name
        after = await world.versions()
        assert {key: (last.get(key), version) for key, version in after.items() if last.get(key) != version} == {}
        assert await world.operator.writes() == writes
        assert len(await world.events()) == events
        trembling.cancel()


async def test_a_definition_that_lacks_a_field_of_status_costs_no_write_a_look(world: World) -> None:
    """Of an older release, say: what it does not keep would differ at every look."""
    await world.wait_alone()
    await world.create_ready(replicas=1)
    lacking = '[{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/url"}]'
    await world.kubectl("patch", "crd", "speculativeservers.specserver.io", "--type=json", f"-p={lacking}")
    try:
        said = f"{world.namespace}/chat: the CustomResourceDefinition is not this operator's: it did not keep status.url"
        await eventually(lambda: said in world.operator.log.read_text(), "it is said", within_seconds=30)
        await asyncio.sleep(2.0)
        writes, version = await world.operator.writes(), (await world.read())["metadata"]["resourceVersion"]
        await asyncio.sleep(4.0)
        assert await world.operator.writes() == writes
        assert (await world.read())["metadata"]["resourceVersion"] == version
        assert world.operator.log.read_text().count(said) == 1
    finally:
        await world.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD_SOURCE))


async def tremble(engines: list[FakeEngine]) -> None:
    """The load is never twice the same, and never another."""
    noise = itertools.cycle([(3, 0.10, 0), (4, 0.13, 5), (3, 0.08, 2)])
    while True:
        for engine in engines:
            engine.running, engine.token_usage, engine.decoded_tokens = next(noise)
        await asyncio.sleep(0.05)
