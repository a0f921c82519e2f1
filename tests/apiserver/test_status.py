"""Status through a server's life: what a person reads who was not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.apiserver.world import World
from tests.fakes.api import Body
from tests.fakes.kubelet import Behaviour, Ended, ImageTrouble
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def statuses_until(world: World, done: Callable[[Body], Awaitable[bool]], *, within_seconds: float = 20.0) -> list[Body]:
    """Every status that was seen until `done`; status of the resource and its generation side by side."""
    seen: list[Body] = []

    async def look() -> bool:
        body = await world.read()
        status = {**body.get("status", {}), "generation": body["metadata"]["generation"]}
        if not seen or seen[-1] != status:
            seen.append(status)
        return await done(status)

    await eventually(look, lambda: f"the end of {seen[-1]}", within_seconds=within_seconds)
    return seen


def ready_of(status: Body) -> Body:
    return next((one for one in status.get("conditions", []) if one["type"] == "Ready"), {})


async def is_ready(status: Body) -> bool:
    return bool(ready_of(status).get("status") == "True" and status["observedGeneration"] == status["generation"])


async def test_a_start_is_told_step_by_step(world: World) -> None:
    world.behave(Behaviour(start_seconds=1.5))
    await world.create()
    seen = await statuses_until(world, is_ready)
    reasons = list(dict.fromkeys(ready_of(status)["reason"] for status in seen if ready_of(status)))
    assert [reason for reason in reasons if reason != "RollingOut"] == ["ModelLoading", "AllReplicasReady"]
    loading = next(ready_of(status) for status in seen if ready_of(status).get("reason") == "ModelLoading")
    assert "loads its model; 0 of 2 replicas are ready" in loading["message"]

    await world.wait_condition("Available", "True", "MinimumReplicasAvailable")
    await world.wait_condition("Progressing", "True", "RolloutComplete")
    await world.wait_condition("MetricsAvailable", "True", "MetricsFound")
    status = await world.status()
    counts = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "unschedulableReplicas")
    assert [status[name] for name in counts] == [2, 2, 2, 2, 0]
    assert status["rollout"]["phase"] == "Complete"
    assert status["url"] == f"http://chat.{world.namespace}.svc:30000"
    assert status["selector"] == "specserver.io/server=chat"
    assert status["load"]["running"] == 0
    assert "lastFailure" not in status
    warnings = [event["reason"] for event in await world.events() if event["type"] == "Warning"]
    assert warnings == [], "a start is no trouble"


GPU_SHORTAGE = {"engine": {"resources": {"limits": {"nvidia.com/gpu": 16}}}}
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
USAGE = "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --spel-ling"
SEGFAULT = "Scheduler hit an exception\nFatal Python error: Segmentation fault\n"
MISMATCH = "Traceback (most recent call last):\n  File \"eagle.py\"\nRuntimeError: size mismatch for fc.weight\n\n"

FAILURES = [
    pytest.param(
        Ended(137, "OOMKilled"), {}, "OutOfMemory", "Raise engine.resources.limits.memory", ("OOMKilled", 137),
        id="container out of memory",
    ),
    pytest.param(Ended(1, message=CUDA), {}, "OutOfMemory", "the GPU ran out of memory", ("Error", 1), id="GPU out of memory"),
    pytest.param(
        Ended(1, message=SEGFAULT), {}, "CrashLoop", "Fatal Python error: Segmentation fault", ("Error", 1), id="crash loop",
    ),
    pytest.param(
        Ended(1, message=MISMATCH), {}, "DraftMismatch", "RuntimeError: size mismatch for fc.weight", ("Error", 1),
        id="draft that does not fit",
    ),
    pytest.param(
        Ended(2, message=USAGE), {}, "EngineArgumentsRefused", "unrecognized arguments: --spel-ling. Mend engine.args",
        ("Error", 2), id="argument that SGLang refuses",
    ),
    pytest.param(
        Ended(137, message="still loading shard 7", ran_seconds=320), {}, "LoadDeadlineExceeded", "Raise engine.loadDeadline",
        ("Error", 137), id="load past its deadline",
    ),
    pytest.param(ImageTrouble(), {}, "ImagePullError", "registry.example/none:1", ("ImagePullBackOff", None), id="no such image"),
    pytest.param(
        ImageTrouble("InvalidImageName", "couldn't parse image name"), {}, "ImagePullError", "InvalidImageName",
        ("InvalidImageName", None), id="invalid image name",
    ),
    pytest.param(
        ImageTrouble("CreateContainerError", "executable file `python` not found in $PATH"), {}, "ContainerNotCreated",
        "Check engine.image", ("CreateContainerError", None), id="no container of this image",
    ),
    pytest.param(None, GPU_SHORTAGE, "Unschedulable", "Insufficient nvidia.com/gpu", None, id="no node with enough GPUs"),
]  # fmt: skip


@pytest.mark.parametrize(("trouble", "spec", "reason", "says", "last_failure"), FAILURES)
async def test_a_failure_has_its_name(
    world: World, trouble: Any, spec: Body, reason: str, says: str, last_failure: tuple[str, int | None] | None
) -> None:
    world.behave(Behaviour(trouble=trouble))
    await world.create(**spec)
    condition = await world.wait_condition("Ready", "False", reason, says=says)
    pods = [pod["metadata"]["name"] for pod in await world.pods()]
    assert any(f"pod {pod}: " in condition["message"] for pod in pods)
    await world.wait_condition("Available", "False", "MinimumReplicasUnavailable")
    unschedulable = 2 if reason == "Unschedulable" else 0

    async def both_are_counted() -> bool:
        seen = await world.status()
        return bool(seen["replicas"] == 2 and seen["unschedulableReplicas"] == unschedulable)

    await eventually(both_are_counted, "two replicas in status")
    status = await world.status()
    assert (status["readyReplicas"], status["availableReplicas"]) == (0, 0)
    if last_failure is not None:
        failure = status["lastFailure"]
        assert failure["pod"] in pods
        assert (failure["reason"], failure.get("exitCode")) == last_failure

    await asyncio.sleep(1.5)  # some looks
    told = [event["message"] for event in await world.events(reason) if event["type"] == "Warning"]
    assert len(told) == 1

    world.behave(Behaviour())
    await world.change(engine={"image": "engine:2", "resources": {"limits": None}})
    await world.wait_condition("Ready", "True")
    assert ((await world.status()).get("lastFailure") is None) == (last_failure is None), "what happened is still to be read"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        pytest.param(Behaviour(start_seconds=None), "ModelLoading", id="loads for ever"),
        pytest.param(Behaviour(ready=False), "RollingOut", id="started and not ready"),
    ],
)
async def test_what_is_not_ready_is_not_called_ready(world: World, behaviour: Behaviour, reason: str) -> None:
    world.behave(behaviour)
    await world.create()
    await world.wait_condition("Ready", "False", reason, says="0 of 2 replicas are ready")
    await world.wait_condition("MetricsAvailable", "Unknown", "NoReadyReplicas")


async def test_old_pods_never_make_a_new_revision_look_ready(world: World) -> None:
    await world.create_ready()
    old = await world.pod_uids()
    world.behave(Behaviour(start_seconds=1.0))
    await world.change(engine={"image": "engine:2"})
    seen = await statuses_until(world, is_ready, within_seconds=30)
    assert not old & await world.pod_uids()

    of_the_new = [status for status in seen if status["observedGeneration"] == status["generation"] == 2]
    assert ready_of(of_the_new[0])["reason"] == "RollingOut"
    assert [status["updatedReplicas"] for status in of_the_new] == sorted(status["updatedReplicas"] for status in of_the_new)
    assert all(status["readyReplicas"] <= status["updatedReplicas"] for status in of_the_new)
    assert (await world.deployment())["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0, "GPUs are scarce"
    assert min(status["availableReplicas"] for status in seen) >= 1
    assert all(status["rollout"]["phase"] != "Complete" for status in of_the_new if status["updatedReplicas"] < 2)
    assert of_the_new[-1]["rollout"]["phase"] == "Complete"


async def test_more_replicas_are_not_ready_before_they_are(world: World) -> None:
    await world.create_ready()
    world.behave(Behaviour(start_seconds=1.0))
    await world.change(replicas=3)
    seen = await statuses_until(world, is_ready)
    assert seen[-1]["readyReplicas"] == 3
    for status in seen:
        if status["observedGeneration"] == 2 and ready_of(status)["status"] == "True":
            assert status["readyReplicas"] == 3


async def test_pods_that_their_node_refused_are_no_replicas(world: World) -> None:
    """As after the reboot of a GPU node: they stay in the list for days, beside those that replaced them."""
    await world.create_ready()
    names = [pod["metadata"]["name"] for pod in await world.pods()]
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
    await world.kubelet.set_phase(world.namespace, names[0], refused)
    await eventually(lambda: _has_pods(world, 3), "the replacement")

    async def counted() -> bool:
        status = await world.status()
        counts = (status["replicas"], status["readyReplicas"], status["availableReplicas"])
        return counts == (2, 2, 2) and ready_of(status)["status"] == "True"

    await world.wait_still()  # the status of before the refusal counts the same
    await eventually(counted, "two replicas, both ready")
    await world.wait_condition("Progressing", "True", "RolloutComplete")
    await world.wait_condition("MetricsAvailable", "True")


METRICS = [
    pytest.param({"metrics_status": 500}, "ScrapeError", "the engine answered 500", id="error"),
    pytest.param({"exports_metrics": False}, "MetricsMissing", "--enable-metrics", id="not enabled"),
    pytest.param({"metrics_page": "other_metric 1\n"}, "MetricsMissing", "is this SGLang", id="another program's"),
]


@pytest.mark.parametrize(("broken", "reason", "says"), METRICS)
async def test_metrics_that_cannot_be_read(world: World, broken: dict[str, Any], reason: str, says: str) -> None:
    await world.create_ready()
    await world.wait_condition("MetricsAvailable", "True")
    one, other = world.engines
    before = {name: getattr(world.engines[one], name) for name in broken}
    for name, value in broken.items():
        setattr(world.engines[one], name, value)
    await world.wait_condition("MetricsAvailable", "False", "MetricsMissing", says="1 of 2 replicas have no known load")
    assert f"pod {one}" in (await world.condition("MetricsAvailable"))["message"]
    for name, value in broken.items():
        setattr(world.engines[other], name, value)
    await eventually(lambda: _has_no_load(world), "no load in status: unknown is not zero")
    await world.wait_condition("MetricsAvailable", "False", reason, says=says)
    assert (await world.condition("Ready"))["status"] == "True", "who serves is ready, measured or not"
    for engine in world.engines.values():
        for name, value in before.items():
            setattr(engine, name, value)
    await world.wait_condition("MetricsAvailable", "True", "MetricsFound")


async def test_a_prometheus_that_is_not_there(world: World) -> None:
    await world.create_ready(metrics={"prometheus": {"url": "http://127.0.0.1:9"}})
    await world.wait_condition("MetricsAvailable", "False", "PrometheusError", says="127.0.0.1:9")
    await world.change(metrics={"prometheus": {"authSecretRef": {"name": "none", "key": "token"}}})
    await world.wait_condition("MetricsAvailable", "False", "PrometheusError", says="metrics.prometheus.authSecretRef")
    await world.change(metrics={"prometheus": None})
    await world.wait_condition("MetricsAvailable", "True")


async def test_what_kubectl_shows(world: World) -> None:
    await world.create_ready()
    await world.wait_condition("MetricsAvailable", "True")
    header, row = (await world.kubectl("get", "ssv")).splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "MODE", "STEPS", "REPLICAS", "AGE"]
    assert row.split()[:6] == ["chat", "True", "AllReplicasReady", "Auto", "3", "2"]
    header, row = (await world.kubectl("get", "ssv", "-o", "wide")).splitlines()
    assert header.split()[7:] == ["ACCEPT", "METRICS", "IMAGE"]
    assert row.split()[7:] == ["2.5", "MetricsFound", "engine:1"]
    for name in ("specserver", "all", "speculativeservers", "speculativeserver"):
        assert "chat" in await world.kubectl("get", name, "-o", "name")
    await world.kubectl("wait", "ssv/chat", "--for=condition=Ready", "--timeout=5s")


async def test_kubectl_scale(world: World) -> None:
    await world.create_ready()
    await world.kubectl("scale", "ssv/chat", "--replicas=3")
    await world.wait_condition("Ready", "True")
    assert (await world.deployment())["spec"]["replicas"] == 3
    path = f"/apis/specserver.io/v1alpha1/namespaces/{world.namespace}/speculativeservers/chat/scale"
    scale = await world.kubectl("get", "--raw", path)
    assert '"replicas":3,"selector":"specserver.io/server=chat"' in scale


async def _has_no_load(world: World) -> bool:
    return "load" not in await world.status()


async def _has_pods(world: World, count: int) -> bool:
    return len(await world.pods()) == count
