"""Engines that can't take what they are asked for, and arguments that none would take: said before it costs a pod."""

from __future__ import annotations

import base64

import pytest

from tests.apiserver.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

IMAGE = "registry.example/sglang:v0.5.23"


def encode(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


async def make_secret(world: World, name: str, **entries: str) -> None:
    await world.api.create({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": world.namespace},
        "data": {entry: encode(value) for entry, value in entries.items()},
    })  # fmt: skip


# ---- arguments -------------------------------------------------------------------------------------------------------------


async def test_no_pod_is_made_from_arguments_that_the_engine_refuses(world: World) -> None:
    await world.create(engine={"image": IMAGE, "args": ["--mem-fraction-statik", "0.8"]})
    said = "--mem-fraction-statik 0.8 (did you mean --mem-fraction-static?)"
    ready = await world.wait_condition("Ready", "False", "EngineArgumentsRefused", says=said)
    assert "engine.args" in ready["message"]
    await world.wait_condition("ArgumentsChecked", "False", "EngineArgumentsRefused")
    assert await world.api.find("Deployment", world.namespace, "chat") is None
    assert await world.api.find("Service", world.namespace, "chat") is not None, "all else is made"

    await world.change(engine={"args": ["--mem-fraction-static", "0.8"]})
    await world.wait_condition("Ready", "True")
    await world.wait_condition("ArgumentsChecked", "True", "ArgumentsFit", says="SGLang 0.5.23")


async def test_running_pods_stay_when_arguments_turn_bad(world: World) -> None:
    """Also where they are only another spelling of what the operator passes."""
    await world.create_ready(engine={"image": IMAGE})
    uids, template = await world.pod_uids(), (await world.deployment())["spec"]["template"]
    await world.change(engine={"args": ["--max-run", "4"]}, speculation={"policy": {"disableAbove": 9}})
    await world.wait_condition("Ready", "False", "EngineArgumentsRefused", says="--max-running-requests")
    await world.wait_condition("Available", "True")
    assert (await world.deployment())["spec"]["template"] == template
    assert await world.pod_uids() == uids
    await world.wait_condition("PolicyApplied", "True", says="revision 2")  # the policy has nothing to do with them

    await world.change(replicas=3)

    async def three() -> bool:
        return len(await world.pods()) == 3

    await eventually(three, "three pods")
    assert uids < await world.pod_uids()
    assert (await world.deployment())["spec"]["template"] == template, "a new replica is of the template that works"


async def test_an_image_of_unknown_release_is_served_and_its_arguments_are_not_checked(world: World) -> None:
    await world.create_ready(engine={"args": ["--only-in-our-own-build"]})
    await world.wait_condition("ArgumentsChecked", "Unknown", "ReleaseUnknown", says="engine:1")


# ---- keys ------------------------------------------------------------------------------------------------------------------


async def test_a_vanished_admin_key_is_named(world: World) -> None:
    await make_secret(world, "own", admin="first-key-of-ours")
    await world.create_ready(engine={"adminKeySecretRef": {"name": "own", "key": "admin"}})
    uids = await world.pod_uids()
    await world.api.delete("Secret", world.namespace, "own")
    await world.change(speculation={"policy": {"disableAbove": 9}})
    condition = await world.wait_condition("PolicyApplied", "False", "SecretMissing", says="Secret own has no entry admin")
    assert "in force in 0 of 2 replicas" in condition["message"]
    await world.wait_condition("MetricsAvailable", "True")

    await make_secret(world, "own", admin="first-key-of-ours")
    await world.wait_condition("PolicyApplied", "True", within_seconds=30)
    assert await world.pod_uids() == uids


async def test_a_rotated_admin_key_is_told_and_never_shown(world: World) -> None:
    await make_secret(world, "own", admin="first-key-of-ours")
    await world.create_ready(engine={"adminKeySecretRef": {"name": "own", "key": "admin"}})
    rotated = {"data": {"admin": encode("second-key-of-ours")}}
    await world.api.patch("Secret", world.namespace, "own", rotated)
    await world.change(speculation={"policy": {"disableAbove": 9}})
    condition = await world.wait_condition("PolicyApplied", "False", "EngineRejected", says="the admin key is wrong")
    assert "Restart the pod" in condition["message"]

    # One pod is restarted: it has the new key, and takes the policy while the other still can't.
    (first, *_) = await world.pods()
    await world.api.delete("Pod", world.namespace, first["metadata"]["name"])
    await world.wait_condition("PolicyApplied", "False", "EngineRejected", says="in force in 1 of 2 replicas", within_seconds=30)
    for pod in await world.pods():
        await world.api.delete("Pod", world.namespace, pod["metadata"]["name"])
    await world.wait_condition("PolicyApplied", "True", within_seconds=30)
    everything = str(await world.status()) + str(await world.events()) + world.operator.log.read_text()
    assert "key-of-ours" not in everything


async def test_an_engine_that_answers_slowly_is_no_unknown_one(world: World) -> None:
    """Slower than a pass waits, faster than the time limit: its answer is taken up by the next pass."""
    await world.create_ready()
    slow, other = world.engines.values()
    slow.delay_seconds = 1.5
    await world.change(speculation={"policy": {"disableAbove": 9}})
    await eventually(lambda: all(one.policy and one.policy.disable_above == 9 for one in (slow, other)), "the bound in both")
    await world.wait_condition("PolicyApplied", "True", says="revision 2", within_seconds=30)
    slow.delay_seconds = 0.0
