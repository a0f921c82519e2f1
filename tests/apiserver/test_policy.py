"""The policy on its way into running engines, and what is told when one of them does not take it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.apiserver.world import World
from tests.fakes.engine import FakeEngine, Refusal
from tests.fakes.kubelet import Behaviour
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

REACHES_WITHIN_SECONDS = 2.0


def bound(engine: FakeEngine) -> int:
    return engine.policy.disable_above if engine.policy else 0


async def change_bound(world: World, value: int) -> None:
    await world.change(speculation={"policy": {"disableAbove": value}})


async def test_a_bound_reaches_all_engines_within_two_seconds(world: World) -> None:
    await world.create_ready(replicas=3)
    uids, generation = await world.pod_uids(), (await world.deployment())["metadata"]["generation"]
    engines = world.engines
    assert len(engines) == 3

    began = time.monotonic()
    await change_bound(world, 9)
    await eventually(lambda: all(bound(one) == 9 for one in engines.values()), "the bound in all engines")
    assert time.monotonic() - began < REACHES_WITHIN_SECONDS

    await world.wait_condition("PolicyApplied", "True", "AllReplicas", says="revision 2 is in force in 3 replicas")
    speculation = (await world.status())["speculation"]
    assert speculation["bounds"] == {"disableAbove": 9, "enableBelow": 4}
    assert (speculation["desiredRevision"], speculation["replicasApplied"]) == (2, 3)
    assert [len(engine.pushes) for engine in engines.values()] == [1, 1, 1], "told once each"

    assert await world.pod_uids() == uids
    assert (await world.deployment())["metadata"]["generation"] == generation
    document = json.loads((await world.api.get("ConfigMap", world.namespace, "chat-policy"))["data"]["policy.json"])
    assert (document["disableAbove"], document["revision"]) == (9, 2)
    event = await world.wait_event("PolicyPushed")
    assert all(pod in event["message"] for pod in engines)


async def test_an_engine_that_hangs_delays_no_other(world: World) -> None:
    """Not in the first change, and not in the next, while the operator still waits for the hung one's answer to the first."""
    await world.create_ready(replicas=3)
    (hung_pod, hung), *others = world.engines.items()
    hung.delay_seconds = 30.0
    await asyncio.sleep(1.5)  # so that a look of the operator hangs already
    for value in (9, 10):
        began = time.monotonic()
        await change_bound(world, value)
        await eventually(lambda value=value: all(bound(one) == value for _, one in others), "the bound in the others")
        assert time.monotonic() - began < 5.0, "the hung one costs the pass a second or two, and not its 6 s"
    await world.wait_condition("PolicyApplied", "False", says=hung_pod)
    await world.wait_condition("MetricsAvailable", "False", says=hung_pod)
    hung.delay_seconds = 0.0
    await world.wait_condition("PolicyApplied", "True", within_seconds=30)
    await world.wait_condition("MetricsAvailable", "True")


def break_refusing(engine: FakeEngine) -> None:
    engine.refusal = Refusal(422, "steps", "the ladder was not captured")


def break_unarmed(engine: FakeEngine) -> None:
    engine.unarmed_reason = "SGLang 9.9 is not supported"


def break_key(engine: FakeEngine) -> None:
    engine.admin_key = "some-other-key"


def break_rank(engine: FakeEngine) -> None:
    engine.stuck_rank = "tp1"


def break_plugin(engine: FakeEngine) -> None:
    engine.has_plugin = False


TROUBLES = [
    pytest.param(break_refusing, "EngineRejected", "HTTP 422 (steps): the ladder was not captured", id="refuses"),
    pytest.param(break_unarmed, "EngineUnarmed", "SGLang 9.9 is not supported", id="is not armed"),
    pytest.param(break_key, "EngineRejected", "the admin key is wrong", id="has another key"),
    pytest.param(break_rank, "PartiallyApplied", "tp1 has 1", id="one rank keeps the old one"),
    pytest.param(break_plugin, "EngineRejected", "plugin is not in this image", id="has no plugin"),
]


@pytest.mark.parametrize(("break_it", "reason", "says"), TROUBLES)
async def test_one_engine_that_does_not_take_it_is_named(
    world: World, break_it: Callable[[FakeEngine], None], reason: str, says: str
) -> None:
    def two_ranks(engine: FakeEngine) -> None:
        engine.ranks = ("tp0", "tp1")
        engine.restart()

    world.behave(Behaviour(engine=two_ranks))
    await world.create_ready()
    (broken_pod, broken), (_, other) = world.engines.items()
    healthy = dict(vars(broken))
    break_it(broken)
    await change_bound(world, 9)

    condition = await world.wait_condition("PolicyApplied", "False", reason, says=says)
    assert f"pod {broken_pod}" in condition["message"]
    assert "in force in 1 of 2 replicas" in condition["message"]
    assert bound(other) == 9
    assert (await world.status())["speculation"]["replicasApplied"] == 1
    assert broken.admin_key is None or broken.admin_key not in condition["message"]
    await asyncio.sleep(2.5)  # several looks: it is told once
    told = [event for event in await world.events(reason) if event["type"] == "Warning"]
    assert len(told) == 1

    for name in ("refusal", "unarmed_reason", "admin_key", "stuck_rank", "has_plugin"):
        setattr(broken, name, healthy[name])
    await world.wait_condition("PolicyApplied", "True", within_seconds=25)
    assert bound(broken) == 9


async def test_an_engine_that_nobody_reaches(world: World) -> None:
    await world.create_ready(replicas=1)
    ((pod, engine),) = world.engines.items()
    await engine.__aexit__(None, None, None)
    condition = await world.wait_condition("PolicyApplied", "False", "EngineUnreachable")
    assert f"pod {pod}" in condition["message"]
    await world.wait_condition("SpeculationActive", "Unknown", "StateUnknown")
    await engine.__aenter__()
    await world.wait_condition("PolicyApplied", "True", within_seconds=25)


async def test_an_engine_that_forgets_is_told_again(world: World) -> None:
    await world.create_ready()
    engine = next(iter(world.engines.values()))
    await change_bound(world, 9)
    await world.wait_condition("PolicyApplied", "True")
    engine.restart()  # with the file as it was when the container was made
    assert bound(engine) == 8
    await eventually(lambda: bound(engine) == 9, "the bound again", within_seconds=10)


async def test_a_pod_that_comes_later_has_the_newest_policy_from_its_file(world: World) -> None:
    await world.create_ready(replicas=1)
    await change_bound(world, 9)
    await world.wait_condition("PolicyApplied", "True")
    first = set(world.engines)
    await world.change(replicas=2)
    await world.wait_condition("Ready", "True")
    (late,) = set(world.engines) - first
    engine = world.engines[late]
    assert engine.initial_policy is not None
    assert engine.initial_policy["disableAbove"] == 9
    assert engine.pushes == []


async def test_modes_of_running_engines(world: World) -> None:
    """Auto, Observe and Always differ in the policy alone: no pod is replaced for them."""
    await world.create_ready()
    uids, engines = await world.pod_uids(), list(world.engines.values())
    await world.wait_condition("SpeculationActive", "True", "Speculating")

    engines[0].running = 20
    await world.wait_condition("SpeculationActive", "True", "MixedReplicas", says="1 of 2")
    assert (await world.status())["speculation"]["steps"] == "0,3"
    engines[1].running = 20
    await world.wait_condition("SpeculationActive", "False", "AboveCrossover")
    speculation = (await world.status())["speculation"]
    assert (speculation["steps"], speculation["replicasPlain"], speculation["replicasSpeculating"]) == ("0", 2, 0)
    assert speculation["lastSwitchTime"]
    assert speculation["switchesLastHour"] == 2
    assert speculation["acceptLength"] == "2.5"

    await world.change(speculation={"mode": "Observe"})
    await world.wait_condition("SpeculationActive", "True", "Observing", says="2 of 2 replicas would decode plainly")
    await world.wait_condition("PolicyApplied", "True")
    assert (await world.status())["speculation"]["steps"] == "3"

    await world.change(speculation={"mode": "Always"})
    await world.wait_condition("SpeculationActive", "True", "Speculating")
    await world.wait_condition("PolicyApplied", "True")
    assert {engine.policy.mode for engine in engines if engine.policy} == {"Always"}
    assert await world.pod_uids() == uids


async def test_mode_never_runs_without_a_draft(world: World) -> None:
    await world.create_ready(replicas=1)
    (uid,) = await world.pod_uids()
    await world.change(speculation={"mode": "Never", "draftModel": None})
    await world.wait_condition("SpeculationActive", "False", "DisabledBySpec")
    await world.wait_condition("Ready", "True")
    await world.wait_condition("PolicyApplied", "True", "AllReplicas")
    (pod,) = await world.pods()
    assert pod["metadata"]["uid"] != uid
    arguments: list[Any] = pod["spec"]["containers"][0]["args"]
    assert not [argument for argument in arguments if "speculative" in argument or "draft" in argument]
    assert (await world.status())["speculation"]["steps"] == "0"
