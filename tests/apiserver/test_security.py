"""What a resource may not do, and what nobody may see: by the API server's own admission, and by looking everywhere."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.apiserver.operator_process import decode
from tests.apiserver.world import KIND, World, a_server
from tests.fakes.api import ApiError, Body

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENFORCE = "pod-security.kubernetes.io/enforce"
NOT_ROOT = {"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 65532}}}
HIDDEN = "a-key-of-another-namespace"


async def enforce(world: World, level: str) -> None:
    await world.api.patch("Namespace", "", world.namespace, {"metadata": {"labels": {ENFORCE: level}}})


async def test_engines_meet_the_baseline_as_they_are(world: World) -> None:
    await enforce(world, "baseline")
    await world.create_ready()


async def test_engines_are_restricted_where_the_image_needs_no_root(world: World) -> None:
    """Every other demand of "restricted" is met already: one overlay, and the API server's admission lets the pods in."""
    await enforce(world, "restricted")
    await world.create_ready(template=NOT_ROOT)
    (pod, *_) = await world.pods()
    pod["metadata"] = {"name": "other", "namespace": world.namespace}
    pod["spec"].pop("nodeName", None)
    for container in pod["spec"]["containers"]:
        container["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="allowPrivilegeEscalation"):
        await world.api.create({"apiVersion": "v1", "kind": "Pod", **pod}, dry_run=True)


@pytest_asyncio.fixture(loop_scope="session")
async def other(world: World) -> AsyncIterator[str]:
    """Another team's namespace, with a Secret."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    await world.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await world.api.create({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": name},
        "data": {"key": base64.b64encode(HIDDEN.encode()).decode()},
    })  # fmt: skip
    yield name
    await world.api.delete("Namespace", "", name)


WAYS_OUT = ["../../{}/secrets/theirs", "..%2F..%2F{}%2Fsecrets%2Ftheirs", "{}/theirs", "theirs?namespace={}", "theirs/../../{}"]


@pytest.mark.parametrize("name", WAYS_OUT)
async def test_no_field_names_a_secret_of_another_namespace(world: World, other: str, name: str) -> None:
    reference = {"name": name.format(other), "key": "key"}
    for spec in (
        {"model": {"tokenSecretRef": reference}},
        {"engine": {"adminKeySecretRef": reference}},
        {"engine": {"apiKeySecretRef": reference}},
        {"metrics": {"prometheus": {"url": "http://prometheus", "authSecretRef": reference}}},
        {"metrics": {"prometheus": {"url": "https://prometheus", "tls": {"caSecretRef": reference}}}},
    ):
        with pytest.raises(ApiError, match=r"SecretRef\.name"):
            await world.api.create(a_server(world.namespace, **spec), dry_run=True)
    away = {**reference, "name": "theirs", "namespace": other}
    with pytest.raises(ApiError, match="unknown field"):
        await world.api.create(a_server(world.namespace, model={"tokenSecretRef": away}), dry_run=True)


VARIABLES = [
    ({"name": "../../{}/secrets/theirs", "key": "key"}, "InvalidSpec"),
    ({"name": "theirs", "key": "key", "namespace": "{}"}, "SecretMissing"),
    ({"name": 5, "key": ["x"]}, "InvalidSpec"),
]


@pytest.mark.parametrize(("source", "reason"), VARIABLES)
async def test_no_variable_names_a_secret_of_another_namespace(
    world: World, other: str, source: Body, reason: str
) -> None:
    """This part of a resource is Kubernetes' own form, which the resource's schema lets through."""
    source = json.loads(json.dumps(source).replace("{}", other))
    await world.create(engine={"env": [{"name": "STOLEN", "valueFrom": {"secretKeyRef": source}}]})
    await world.wait_condition("Ready", "False", reason)
    pods = await world.pods()
    seen = str(await world.status()) + str(await world.events()) + str(pods) + world.operator.log.read_text()
    assert HIDDEN not in seen
    assert pods == []


async def test_keys_are_in_no_argument_no_log_no_event_and_no_status(world: World) -> None:
    """Of whatever origin, and also while the engine refuses them and quotes what it was sent."""
    keys = {"admin": "admin-" + uuid.uuid4().hex, "api": "api-" + uuid.uuid4().hex, "hub": "hub-" + uuid.uuid4().hex}
    await world.api.create({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own", "namespace": world.namespace},
        "data": {name: base64.b64encode(key.encode()).decode() for name, key in keys.items()},
    })  # fmt: skip
    engine = {"adminKeySecretRef": {"name": "own", "key": "admin"}, "apiKeySecretRef": {"name": "own", "key": "api"}}
    await world.create_ready(engine=engine, model={"tokenSecretRef": {"name": "own", "key": "hub"}})
    await world.create_ready("generated", replicas=1)
    generated = (await world.api.get("Secret", world.namespace, "generated-keys"))["data"]
    secret = [*keys.values(), decode(generated, "admin-key"), decode(generated, "api-key")]
    for one in world.engines.values():
        one.admin_key = "another"
    await world.change(speculation={"policy": {"disableAbove": 9}})
    await world.wait_condition("PolicyApplied", "False", "EngineRejected")

    kinds = (KIND, "Deployment", "ReplicaSet", "Service", "ConfigMap", "Pod", "Event", "PodDisruptionBudget")
    listed = await asyncio.gather(*(world.api.list(kind, world.namespace) for kind in kinds))
    pages = await world.operator.page("/metrics") + await world.operator.page("/readyz")
    everything = str(listed) + world.operator.log.read_text() + pages
    assert [key for key in secret if key in everything or base64.b64encode(key.encode()).decode() in everything] == []


async def test_the_operator_never_lists_secrets(world: World) -> None:
    await world.create_ready()
    page = await world.operator.page("/metrics")
    verbs = {line.split('verb="')[1].split('"')[0] for line in page.splitlines() if 'kind="Secret"' in line and "_total{" in line}
    assert verbs == {"get", "create"}
