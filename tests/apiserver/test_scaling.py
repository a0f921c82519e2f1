"""Replicas by load, on real Deployments and ReplicaSets: who goes, when, and what is said of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.apiserver.world import SERVING, World
from tests.fakes.api import Body
from tests.fakes.engine import FakeEngine
from tests.waiting import always, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

DRAINING = "specserver.io/draining-since"
COST = "controller.kubernetes.io/pod-deletion-cost"
SETTLE_SECONDS = 5.0


def scaling(**different: Any) -> Body:
    """Two to three replicas at six running requests each, without the windows that make an HPA slow."""
    return {
        "minReplicas": 2, "maxReplicas": 3, "targets": [{"metric": "Running", "value": "6"}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}, **different,
    }  # fmt: skip


def load(world: World, *running: int, queued: int = 0) -> list[FakeEngine]:
    """Gives each engine its load; in the order of the pods' names."""
    engines = [engine for _, engine in sorted(world.engines.items())]
    for engine, value in zip(engines, running, strict=True):
        engine.running, engine.queued = value, queued
    return engines


async def replicas(world: World) -> int:
    count: int = (await world.deployment())["spec"]["replicas"]
    return count


async def wait_replicas(world: World, wanted: int, *, within_seconds: float = 20.0) -> None:
    async def check() -> bool:
        return await replicas(world) == wanted

    await eventually(check, f"{wanted} replicas", within_seconds=within_seconds)


async def draining(world: World) -> list[Body]:
    return [pod for pod in await world.pods() if DRAINING in pod["metadata"].get("annotations", {})]


async def start_three(world: World, **spec: Any) -> None:
    """Three replicas, the third because of the load, which is still there."""
    await world.create_ready(replicas=None, **{"scaling": scaling(), **spec})
    await world.wait_condition("MetricsAvailable", "True")
    load(world, 8, 8, queued=3)
    await wait_replicas(world, 3)
    await world.wait_condition("Ready", "True")
    await world.wait_condition("MetricsAvailable", "True", says="3 replicas")


async def test_up_with_the_load_and_down_by_the_idlest(world: World) -> None:
    # 1. Up: at once, since requests queue, and with a sentence in two places.
    await start_three(world)
    up = await world.wait_event("ScaledUp")
    assert "from 2 to 3 replicas: Running 8 per replica is above the target 6" in up["message"]
    status = (await world.status())["scaling"]
    (line,) = status["history"]
    assert (line["from"], line["to"], status["lastScaleTime"]) == (2, 3, line["time"])
    assert line["reason"] in up["message"]
    await world.wait_condition("ScalingActive", "True", "ValidMetricFound")

    # 2. Down: the idlest is chosen, out of the Service at once, and stays for as long as it has a request.
    everybody = sorted(world.engines)
    engines = load(world, 2, 1, 3)
    victim = everybody[1]
    (marked,) = await eventually(lambda: draining(world), "a pod that is being drained")
    assert marked["metadata"]["name"] == victim
    assert SERVING not in marked["metadata"]["labels"]
    assert int(marked["metadata"]["annotations"][COST]) < -1_000_000
    assert await world.receiving() == set(everybody) - {victim}
    await world.wait_condition("Progressing", "True", "Draining", says=victim)
    assert (await world.condition("Ready"))["status"] == "True", "two are wanted, and two serve"
    event = await world.wait_event("DrainStarted")
    assert victim in event["message"]

    async def three() -> bool:
        return await replicas(world) == 3

    await always(three, "the busy pod stays", for_seconds=SETTLE_SECONDS + 2.5)

    # 3. Idle: now it goes, it and no other.
    engines[1].running = 0
    await wait_replicas(world, 2)

    async def gone() -> bool:
        return victim not in world.engines

    await eventually(gone, f"pod {victim} gone")
    assert {pod["metadata"]["name"] for pod in await world.pods()} == set(everybody) - {victim}
    down = await world.wait_event("ScaledDown")
    assert "from 3 to 2 replicas: fewer replicas carry the load: Running 2.5 per replica (target 6)" in down["message"]
    assert f"pod {victim} finished its requests" in down["message"]

    async def history() -> bool:
        return [(line["from"], line["to"]) for line in (await world.status())["scaling"]["history"]] == [(3, 2), (2, 3)]

    await eventually(history, "both changes in the history")
    await world.wait_condition("Ready", "True")
    await world.wait_condition("Progressing", "True", "RolloutComplete")
    assert await draining(world) == []


async def test_a_drain_outlives_the_operator(world: World) -> None:
    await start_three(world)
    engines = load(world, 2, 3, 1)
    (marked,) = await eventually(lambda: draining(world), "a pod that is being drained")
    await world.wait_event("DrainStarted")
    await world.operator.kill()
    engines[2].running = 0
    await world.operator.start()
    await wait_replicas(world, 2)

    async def gone() -> bool:
        return marked["metadata"]["uid"] not in await world.pod_uids() and len(await world.pods()) == 2

    await eventually(gone, "the marked pod gone, and no other")
    assert len(await world.events("DrainStarted")) == 1, "not begun anew"


async def test_a_load_that_returns_ends_the_drain(world: World) -> None:
    await start_three(world)
    uids = await world.pod_uids()
    load(world, 2, 1, 3)
    (marked,) = await eventually(lambda: draining(world), "a pod that is being drained")
    load(world, 8, 8, 8)

    async def back() -> bool:
        return await draining(world) == [] and marked["metadata"]["name"] in await world.receiving()

    await eventually(back, "the pod back in the Service")
    pod = await world.api.get("Pod", world.namespace, marked["metadata"]["name"])
    assert COST not in pod["metadata"].get("annotations", {})
    assert await world.pod_uids() == uids
    assert await replicas(world) == 3
    await world.wait_event("DrainCancelled")


async def test_fewer_replicas_by_hand_are_drained_too_and_the_timeout_bounds_it(world: World) -> None:
    await world.create_ready(rollout={"drainTimeout": "7s"})
    await world.wait_condition("MetricsAvailable", "True")
    load(world, 3, 2)

    async def seen() -> bool:
        return bool((await world.status()).get("load", {}).get("running") == 5)

    await eventually(seen, "the load in status")
    began = time.monotonic()
    await world.change(replicas=1)
    (marked,) = await eventually(lambda: draining(world), "a pod that is being drained")
    assert marked["metadata"]["name"] == sorted(world.engines)[1]
    await wait_replicas(world, 1)
    assert time.monotonic() - began > 6.0
    down = await world.wait_event("ScaledDown")
    assert "was not seen idle within 7 s" in down["message"]


HOLDS = [
    pytest.param({"paused": True}, {}, "ScalingPaused", id="paused"),
    pytest.param({}, {"metrics_status": 500}, "FailedGetMetrics", id="load unknown"),
]


@pytest.mark.parametrize(("different", "broken", "reason"), HOLDS)
async def test_replicas_are_held(world: World, different: Body, broken: dict[str, Any], reason: str) -> None:
    await start_three(world, scaling=scaling(maxReplicas=5))
    await world.change(scaling=different)
    if different:
        await world.wait_condition("ScalingActive", "False", reason)
    for running in (100, 0):
        for engine in load(world, running, running, running, queued=running):
            for name, value in broken.items():
                setattr(engine, name, value)
        await world.wait_condition("ScalingActive", "False", reason)

        async def held() -> bool:
            return await replicas(world) == 3 and await draining(world) == []

        await always(held, "three replicas, and none is drained", for_seconds=2.5)


async def test_the_engines_own_lever_comes_first(world: World) -> None:
    """They have just gone over to plain decode, and nothing queues: what that brings is seen before a GPU is spent."""
    await world.create_ready(replicas=None, scaling=scaling())
    await world.wait_condition("MetricsAvailable", "True")
    load(world, 20, 20)
    await world.wait_condition("AbleToScale", "True", "ScaleUpStabilized", says="going over to plain decode")
    await world.wait_condition("SpeculationActive", "False", "AboveCrossover")
    assert await replicas(world) == 2
    load(world, 20, 20, queued=1)
    await wait_replicas(world, 3)


async def test_no_more_than_the_most(world: World) -> None:
    await start_three(world)
    load(world, 50, 50, 50, queued=20)
    await world.wait_condition("ScalingLimited", "True", "TooManyReplicas", says="maxReplicas (3)")
    await asyncio.sleep(1.5)
    assert await replicas(world) == 3


async def test_stalled_engines_are_named_and_one_is_made_in_their_place(world: World) -> None:
    """Ready for the kubelet, and they decode nothing: half a minute later the third one's load is what counts."""
    await world.create_ready(replicas=None, scaling=scaling(minReplicas=3, maxReplicas=9))
    stalled = load(world, 0, 0, 15)[:2]
    for engine in stalled:
        engine.queued = 9
    await world.wait_condition("Ready", "False", "EngineStalled", says=f"pod {min(world.engines)}: ", within_seconds=60)
    await wait_replicas(world, 4)
    await world.wait_still()
    assert await replicas(world) == 4, "not one for each: they may stall as well"
    assert len(await world.events("EngineStalled")) == 1
    for engine in stalled:
        engine.running, engine.queued = 6, 0
    await world.wait_condition("Ready", "True")


async def test_from_a_fixed_number_to_scaling_and_back(world: World) -> None:
    await world.create_ready(replicas=1)
    uids = await world.pod_uids()
    await world.change(replicas=None, scaling=scaling())
    await wait_replicas(world, 2)
    await world.wait_condition("ScalingActive", "True")
    await world.change(replicas=2, scaling=None)
    await world.wait_condition("Ready", "True")
    kinds = {condition["type"] for condition in (await world.status())["conditions"]}
    assert not kinds & {"AbleToScale", "ScalingActive", "ScalingLimited"}
    assert uids <= await world.pod_uids()
