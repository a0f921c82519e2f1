"""What Kubernetes itself refuses, loses or doesn't let go: on a real API server, scheduler and controllers.

What a container does wrong is in `test_status.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.apiserver.world import World
from tests.fakes.api import Body
from tests.fakes.kubelet import Behaviour, Ended
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

NO_SUCH_CLAIM = {"model": {"uri": "pvc://weights/llama"}}
NO_SUCH_NODE = {"template": {"spec": {"nodeSelector": {"zone": "mars"}}}}
TOO_MANY_GPUS = {"engine": {"resources": {"limits": {"nvidia.com/gpu": 16}}}}
TOO_MUCH_MEMORY = {"engine": {"resources": {"requests": {"memory": "900Ti"}}}}

SHORTAGES = [
    pytest.param(TOO_MANY_GPUS, "InsufficientGPU", "Insufficient nvidia.com/gpu", "engine.resources.limits", id="GPU"),
    pytest.param(TOO_MUCH_MEMORY, "InsufficientResources", "Insufficient memory", "engine.resources.requests", id="memory"),
    pytest.param(NO_SUCH_NODE, "NodeSelectorMismatch", "node affinity/selector", "nodeSelector", id="node selector"),
    pytest.param(NO_SUCH_CLAIM, "VolumeUnavailable", 'persistentvolumeclaim "weights" not found', "Create", id="volume"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "reason", "says", "to_do"), SHORTAGES)
async def test_what_the_scheduler_lacks_is_named(world: World, spec: Body, reason: str, says: str, to_do: str) -> None:
    await world.create(**spec)
    scheduled = await world.wait_condition("Scheduled", "False", reason, says=says)
    ready = await world.wait_condition("Ready", "False", "Unschedulable", says=says)
    names = [pod["metadata"]["name"] for pod in await world.pods()]
    for condition in (scheduled, ready):
        assert any(f"pod {name}: " in condition["message"] for name in names)
        assert to_do in condition["message"]
    await world.change(replicas=1)

    async def one_is_left() -> bool:
        return len(await world.pods()) == 1

    await eventually(one_is_left, "a shortage keeps nobody from scaling down")


async def test_a_taint_is_named(world: World) -> None:
    taint = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    node = world.kubelet.node
    await world.api.patch("Node", "", node, {"spec": {"taints": [taint]}})
    try:
        await world.create(replicas=1)
        await world.wait_condition("Scheduled", "False", "TaintMismatch", says="untolerated taint")
    finally:
        await world.api.patch("Node", "", node, {"spec": {"taints": None}})
    await world.wait_condition("Scheduled", "True", "AllPodsScheduled", within_seconds=60)


async def test_a_quota_is_named_and_those_that_run_stay(world: World) -> None:
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two-pods", "namespace": world.namespace},
        "spec": {"hard": {"pods": "2"}},
    }  # fmt: skip
    await world.api.create(quota)
    await world.create_ready()
    uids = await world.pod_uids()
    await world.change(replicas=3)
    ready = await world.wait_condition("Ready", "False", "QuotaExceeded", says="exceeded quota: two-pods")
    assert "Raise the ResourceQuota" in ready["message"]
    await world.wait_condition("Scheduled", "False", "QuotaExceeded")
    await world.wait_condition("Progressing", "False", "QuotaExceeded")
    await world.wait_condition("Available", "True")
    assert await world.pod_uids() == uids
    await world.change(replicas=2)
    await world.wait_condition("Ready", "True")
    assert await world.pod_uids() == uids


async def test_pod_security_is_named(world: World) -> None:
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await world.api.patch("Namespace", "", world.namespace, enforced)
    await world.create()
    ready = await world.wait_condition("Ready", "False", "PodSecurityRefused", says="runAsNonRoot")
    assert "template.spec" in ready["message"]
    await world.wait_condition("Progressing", "False", "PodSecurityRefused")
    user = {"runAsNonRoot": True, "runAsUser": 1000}
    await world.change(template={"spec": {"securityContext": user}})
    await world.wait_condition("Ready", "True", within_seconds=60)


async def test_an_evicted_pod_is_told_until_it_is_replaced(world: World) -> None:
    await world.create_ready()
    victim = (await world.pods())[0]["metadata"]["name"]
    world.behave(Behaviour(start_seconds=None))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ended = {"type": "Ready", "status": "False", "lastTransitionTime": now}
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.", "conditions": [ended]}
    await world.kubelet.set_phase(world.namespace, victim, evicted)
    await world.wait_condition("Ready", "False", "Evicted", says=f"pod {victim} was evicted: The node was low on resource")
    assert (await world.status())["lastFailure"]["reason"] == "Evicted"


async def test_a_lost_node_is_told(world: World) -> None:
    """What the node controller writes on the pods of a node that is silent: not ready, while the kubelet's word stands."""
    await world.create_ready()
    victim = (await world.pods())[0]["metadata"]["name"]
    conditions = [{"type": "Ready", "status": "False"}]
    await world.kubelet.api.patch(
        "Pod", world.namespace, victim, {"status": {"conditions": conditions}},
        how="application/strategic-merge-patch+json", subresource="status",
    )  # fmt: skip
    await world.wait_condition("Ready", "False", "NodeLost", says=f"pod {victim}: its node {world.kubelet.node}")
    await world.kubelet.set_ready(world.namespace, victim, ready=True)
    await world.wait_condition("Ready", "True")


async def test_a_load_past_its_deadline_is_told_even_while_it_goes_on(world: World) -> None:
    world.behave(Behaviour(start_seconds=None))
    await world.create(engine={"loadDeadline": "5s"}, replicas=1)
    await world.wait_condition("Ready", "False", "LoadDeadlineExceeded", says="not loaded in 5 s", within_seconds=30)


async def test_an_init_container_that_fails_is_named(world: World) -> None:
    """Its download is refused, say: that is known at once, and not only when the model has not been loaded in time."""
    world.behave(Behaviour(start_seconds=None))
    await world.create(replicas=1, template={"spec": {"initContainers": [{"name": "fetch", "image": "fetch:1"}]}})
    await world.wait_condition("Ready", "False", "ModelLoading")
    (pod,) = await world.pods()
    fetch = {
        "name": "fetch", "image": "fetch:1", "imageID": "", "ready": False, "restartCount": 2,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "Fetching\n403 gated repo: org/model\n"}},
    }  # fmt: skip
    await world.kubelet.set_phase(world.namespace, pod["metadata"]["name"], {"initContainerStatuses": [fetch]})
    said = "container fetch ended with exit code 1, 2 restarts: 403 gated repo: org/model"
    await world.wait_condition("Ready", "False", "CrashLoop", says=said)


async def test_a_failure_is_one_event_however_often_it_is_seen(world: World) -> None:
    """Each restart of the container is a change of the pod, and a look at it."""
    world.behave(Behaviour(trouble=Ended(1, message="RuntimeError: no kernel image")))
    await world.create(replicas=1)
    await world.wait_condition("Ready", "False", "CrashLoop")
    (pod,) = await world.pods()
    name = pod["metadata"]["name"]
    for restarts in range(3, 8):
        live = await world.api.get("Pod", world.namespace, name)
        (container,) = live["status"]["containerStatuses"]
        changed = {**container, "restartCount": restarts}
        await world.kubelet.set_phase(world.namespace, name, {"containerStatuses": [changed]})
        await world.wait_condition("Ready", "False", "CrashLoop", says=f"{restarts} restarts")
    await asyncio.sleep(1.0)
    reasons: Counter[Any] = Counter(event["reason"] for event in await world.events())
    assert reasons["CrashLoop"] == 1
    assert reasons.most_common(1)[0][1] == 1, reasons
