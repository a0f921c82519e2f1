"""What the operator makes, keeps and leaves alone."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.apiserver.operator_process import decode
from tests.apiserver.world import KIND, World, a_server
from tests.fakes.api import JSON_PATCH, Body
from tests.fakes.kubelet import Behaviour
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OWNED = (("Deployment", "chat"), ("Service", "chat"), ("ConfigMap", "chat-policy"), ("PodDisruptionBudget", "chat"))


def managers_of(body: Body, path: tuple[str, ...]) -> set[tuple[str, str]]:
    """Manager and operation of everybody who owns a field, by `managedFields`."""
    found = set()
    for entry in body["metadata"]["managedFields"]:
        node: Any = entry["fieldsV1"]
        for part in path:
            node = node.get(f"f:{part}") if isinstance(node, dict) else None
        if node is not None:
            found.add((entry["manager"], entry["operation"]))
    return found


async def test_objects_are_made_each_field_by_its_manager(world: World) -> None:
    await world.create_ready()
    for kind, name in (*OWNED, ("Secret", "chat-keys")):
        body = await world.api.get(kind, world.namespace, name)
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == (KIND, "chat", True)
    deployment = await world.deployment()
    assert managers_of(deployment, ("spec", "replicas")) == {("specserver-replicas", "Apply")}
    assert managers_of(deployment, ("spec", "template")) == {("specserver", "Apply")}
    assert deployment["spec"]["replicas"] == 2

    server = await world.read()
    assert "finalizers" not in server["metadata"]
    assert "annotations" not in server["metadata"]
    status_managers = {entry["manager"] for entry in server["metadata"]["managedFields"] if entry.get("subresource") == "status"}
    assert status_managers == {"specserver-status"}


async def test_creation_asks_for_the_wanted_number_of_pods_from_the_start(world: World) -> None:
    """A Deployment applied without `replicas` has one for a moment, whatever the number wanted."""
    await world.create(replicas=0)
    await world.wait_condition("Ready", "False", "ScaledToZero")
    assert await world.api.list("Pod", world.namespace) == []
    events = await world.api.list("Event", world.namespace, fieldSelector="involvedObject.kind=Deployment")
    assert [event["message"] for event in events if "Scaled up" in event["message"]] == []


DRIFT = [
    pytest.param(
        "Deployment", "chat", [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil:1"}],
        lambda body: body["spec"]["template"]["spec"]["containers"][0]["image"], id="image of the Deployment",
    ),
    pytest.param(
        "Deployment", "chat", [{"op": "replace", "path": "/spec/strategy/rollingUpdate/maxSurge", "value": 3}],
        lambda body: body["spec"]["strategy"]["rollingUpdate"]["maxSurge"], id="strategy of the Deployment",
    ),
    pytest.param(
        "Service", "chat", [{"op": "replace", "path": "/spec/selector", "value": {"app": "other"}}],
        lambda body: body["spec"]["selector"], id="selector of the Service",
    ),
    pytest.param(
        "ConfigMap", "chat-policy", [{"op": "replace", "path": "/data/policy.json", "value": "{}"}],
        lambda body: body["data"], id="policy in the ConfigMap",
    ),
    pytest.param(
        "PodDisruptionBudget", "chat", [{"op": "replace", "path": "/spec/maxUnavailable", "value": 0}],
        lambda body: body["spec"]["maxUnavailable"], id="disruption budget",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "edit", "look"), DRIFT)
async def test_drift_is_repaired(world: World, kind: str, name: str, edit: list[Body], look: Any) -> None:
    await world.create_ready()
    await world.wait_still()  # a write that is under way would undo the edit without having seen it
    before = look(await world.api.get(kind, world.namespace, name))
    await world.api.patch(kind, world.namespace, name, edit, how=JSON_PATCH)

    async def is_back() -> bool:
        return bool(look(await world.api.get(kind, world.namespace, name)) == before)

    await eventually(is_back, f"{kind} as it was")
    event = await world.wait_event("DriftRepaired")
    assert (event["type"], event["message"]) == (
        "Warning", f"{kind} {name} was changed, last by somebody; it is as it should be again",
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [pytest.param(kind, name, id=kind) for kind, name in OWNED])
async def test_a_deleted_object_comes_back(world: World, kind: str, name: str) -> None:
    await world.create_ready()
    uid = (await world.api.get(kind, world.namespace, name))["metadata"]["uid"]
    await world.api.delete(kind, world.namespace, name)

    async def is_back() -> bool:
        found = await world.api.find(kind, world.namespace, name)
        return found is not None and found["metadata"]["uid"] != uid

    await eventually(is_back, f"a new {kind}")
    await world.wait_condition("Ready", "True")


async def test_replicas_changed_by_hand_are_put_right(world: World) -> None:
    await world.create_ready()
    await world.wait_still()
    await world.kubectl("scale", "deployment/chat", "--replicas=1")
    await eventually(lambda: _replicas(world, 2), "two replicas again")
    assert managers_of(await world.deployment(), ("spec", "replicas")) == {("specserver-replicas", "Apply")}
    told = await world.wait_event("DriftRepaired")
    assert told["message"] == "Deployment chat was changed, last by kubectl; it is as it should be again"

    world.behave(Behaviour(start_seconds=None))  # pods that serve nobody yet can go at once
    await world.kubectl("scale", "deployment/chat", "--replicas=4")
    await eventually(lambda: _replicas(world, 2), "two replicas again", within_seconds=10)


async def test_deletion_needs_no_operator(world: World) -> None:
    await world.create_ready()
    await world.operator.stop()
    await world.api.delete(KIND, world.namespace, "chat")

    async def is_gone() -> bool:
        kinds = ("Deployment", "ReplicaSet", "Service", "Secret", "PodDisruptionBudget", "Pod")
        left = await asyncio.gather(*(world.api.list(kind, world.namespace) for kind in kinds))
        names = {one["metadata"]["name"] for one in await world.api.list("ConfigMap", world.namespace)}
        return names == {"kube-root-ca.crt"} and not any(left)

    await eventually(is_gone, "everything of the server gone", within_seconds=60)


async def test_quiet_is_silent(world: World) -> None:
    """With a load that trembles: no write by anybody, no request that could have been one, no Event."""
    await world.wait_alone()
    scaling = {"minReplicas": 2, "maxReplicas": 3, "targets": [{"metric": "Running", "value": "6"}]}
    # A look each 4 s: a rate over less would tremble with the machine, not with the load.
    await world.create_ready(scaling=scaling, replicas=None, metrics={"interval": "4s"})
    await world.wait_condition("MetricsAvailable", "True")
    engines = list(world.engines.values())
    for engine, rate in zip(engines, (100.0, 150.0), strict=True):
        engine.running, engine.token_usage, engine.decode_rate = 3, 0.1, rate
    await eventually(lambda: _has_load(world, 6), "the load in status")
    noise = itertools.cycle([(3, 0.10, 0), (4, 0.13, 5), (3, 0.08, 2)])
    loop = asyncio.get_running_loop()

    async def tremble(seconds: float) -> None:
        end = loop.time() + seconds
        while loop.time() < end:
            engines[0].running, engines[0].token_usage, engines[0].decoded_tokens = next(noise)
            await asyncio.sleep(0.05)

    # The first rate is the jump of the counters; the true one, 250 a second, needs two more looks.
    for _ in range(15):
        await tremble(2)
        if 230 <= (await world.status())["load"].get("tokensPerSecond", 0) <= 270:
            break
    status, versions, writes = await world.status(), await world.versions(), await world.operator.writes()
    await tremble(13)
    assert await world.status() == status
    assert await world.versions() == versions
    assert await world.operator.writes() == writes


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_pods_outlive_the_operator(world: World, how: str) -> None:
    await world.create_ready()
    await world.wait_condition("MetricsAvailable", "True")
    await world.wait_still()  # Kubernetes' own controllers, too, have written what they had to
    before, uids = await world.versions(), await world.pod_uids()
    generation = (await world.deployment())["metadata"]["generation"]
    keys = (await world.api.get("Secret", world.namespace, "chat-keys"))["data"]

    if how == "kill":
        await world.operator.kill()
    else:
        assert await world.operator.stop() == 0
    await world.operator.start()
    await world.change(speculation={"policy": {"disableAbove": 9}})
    await world.wait_condition("PolicyApplied", "True")

    assert await world.pod_uids() == uids
    assert (await world.deployment())["metadata"]["generation"] == generation
    assert (await world.api.get("Secret", world.namespace, "chat-keys"))["data"] == keys
    after = await world.versions()
    changed = {key for key in after if after[key] != before.get(key)}
    assert {kind for kind, _ in changed} <= {KIND, "ConfigMap", "Event"}


async def test_two_servers_of_one_name_in_two_namespaces(world: World) -> None:
    other = World(world.api, world.server, world.kubelet, world.operator)
    await world.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other.namespace}})
    await asyncio.gather(world.create_ready(replicas=1), other.create_ready(replicas=2))
    assert (await world.status())["replicas"] == 1
    assert (await other.status())["replicas"] == 2
    keys = [(await one.api.get("Secret", one.namespace, "chat-keys"))["data"] for one in (world, other)]
    assert len({*keys[0].values(), *keys[1].values()}) == 4
    await world.api.delete(KIND, world.namespace, "chat")

    async def only_the_other_is_left() -> bool:
        return not await world.api.list("Pod", world.namespace) and len(await other.pods()) == 2

    await eventually(only_the_other_is_left, "the pods of the deleted one gone", within_seconds=60)
    await world.api.delete("Namespace", "", other.namespace)


async def test_a_foreign_deployment_is_left_alone(world: World) -> None:
    labels = {"app": "foreign", "specserver.io/server": "chat"}
    container = {"name": "engine", "image": "foreign:1"}
    foreign = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat", "namespace": world.namespace},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], "nodeName": "nowhere"}},
        },
    }  # fmt: skip
    await world.api.create(foreign)
    await eventually(lambda: world.pods(), "the foreign pod")
    before = await world.deployment()

    await world.create(replicas=3)
    condition = await world.wait_condition("Ready", "False", "ObjectRefused")
    assert "Deployment chat" in condition["message"]
    assert "another name" in condition["message"]
    await world.wait_condition("Ready", "False", "ObjectRefused")
    after = await world.deployment()
    assert after["spec"] == before["spec"]
    assert not [one for one in after["metadata"]["managedFields"] if one["manager"].startswith("specserver")]
    assert (await world.status())["replicas"] == 0, "a foreign pod is no replica"

    await world.api.delete("Deployment", world.namespace, "chat")
    await world.wait_condition("Ready", "True", within_seconds=25)


async def test_a_foreign_secret_of_the_keys_name_is_left_alone(world: World) -> None:
    data = {"admin-key": "Zm9yZWlnbg=="}
    await world.api.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys", "namespace": world.namespace}, "data": data}
    )
    await world.create()
    condition = await world.wait_condition("Ready", "False", "ObjectRefused")
    assert "Secret chat-keys" in condition["message"]
    assert (await world.api.get("Secret", world.namespace, "chat-keys"))["data"] == data
    await world.api.delete("Secret", world.namespace, "chat-keys")
    await world.wait_condition("Ready", "True", within_seconds=25)


async def test_a_missing_secret_is_named_and_waited_for(world: World) -> None:
    await world.create(
        engine={"adminKeySecretRef": {"name": "mine", "key": "admin"}}, model={"tokenSecretRef": {"name": "hub", "key": "token"}}
    )
    condition = await world.wait_condition("Ready", "False", "SecretMissing")
    assert "spec.engine.adminKeySecretRef: Secret mine has no entry admin: create it" in condition["message"]
    assert "spec.model.tokenSecretRef: Secret hub has no entry token: create it" in condition["message"]
    assert await world.api.find("Deployment", world.namespace, "chat") is None, "pods that can't start would hide it"

    for name, entry, value in (("mine", "admin", "my-admin-key"), ("hub", "token", "hub-token")):
        await world.api.create({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": world.namespace},
            "stringData": {entry: value},
        })  # fmt: skip
    await world.wait_condition("Ready", "True", within_seconds=25)
    await world.wait_condition("PolicyApplied", "True")
    assert {engine.admin_key for engine in world.engines.values()} == {"my-admin-key"}
    keys = (await world.api.get("Secret", world.namespace, "chat-keys"))["data"]
    assert decode(keys, "api-key")


async def test_keys_are_random_and_nowhere_in_the_open(world: World) -> None:
    await asyncio.gather(world.create_ready("one"), world.create_ready("two"))
    secrets = [(await world.api.get("Secret", world.namespace, f"{name}-keys"))["data"] for name in ("one", "two")]
    keys = [decode(secret, entry) for secret in secrets for entry in ("admin-key", "api-key")]
    assert len(set(keys)) == 4
    assert all(len(key) >= 32 for key in keys)

    kinds = (KIND, "Deployment", "ReplicaSet", "Service", "ConfigMap", "Pod", "Event")
    listed = await asyncio.gather(*(world.api.list(kind, world.namespace) for kind in kinds))
    open_to_read = str(listed) + world.operator.log.read_text()
    assert [key for key in keys if key in open_to_read] == []


async def test_what_the_api_server_refuses_becomes_a_condition(world: World) -> None:
    """An overlay that only the API server can judge; what runs already stays as it is."""
    await world.create_ready()
    uids = await world.pod_uids()
    await world.change(template={"spec": {"restartPolicy": "Sometimes"}})
    condition = await world.wait_condition("Ready", "False", "ObjectRefused")
    assert "Deployment chat" in condition["message"]
    assert "restartPolicy" in condition["message"]
    assert await world.pod_uids() == uids
    await world.change(template=None)
    await world.wait_condition("Ready", "True")


async def test_an_overlay_that_breaks_the_rules_becomes_a_condition(world: World) -> None:
    await world.create(template={"metadata": {"name": "mine"}})
    condition = await world.wait_condition("Ready", "False", "InvalidSpec")
    assert "spec.template.metadata.name" in condition["message"]


async def test_a_namespace_goes_with_all_that_is_in_it(world: World) -> None:
    await world.create_ready()
    await world.api.delete("Namespace", "", world.namespace)

    async def is_gone() -> bool:
        return await world.api.find("Namespace", "", world.namespace) is None

    await eventually(is_gone, "the namespace gone", within_seconds=60)


async def test_a_server_that_is_deleted_and_made_anew(world: World) -> None:
    """Its old objects are still on their way out, and belong to the one before."""
    await world.create_ready()
    uids = await world.pod_uids()
    await world.api.delete(KIND, world.namespace, "chat")
    await world.api.create(a_server(world.namespace))
    await world.wait_condition("Ready", "True", within_seconds=90)  # the collector learns of a new definition within a minute
    assert not uids & await world.pod_uids()


async def _replicas(world: World, wanted: int) -> bool:
    return bool((await world.deployment())["spec"]["replicas"] == wanted)


async def _has_load(world: World, running: int) -> bool:
    return bool((await world.status()).get("load", {}).get("running") == running)
