"""The pass as a whole on an API server in memory: killed at every request, refused at every write, it ends in the same place.

What Kubernetes itself does with the objects is shown on a real API server (tests/apiserver).
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from specserver.cluster.errors import ClusterError, Conflict, Refused, Unavailable
from specserver.controller.policies import PolicyPusher
from specserver.controller.queue import Gone, RequeueAfter, Retry
from specserver.controller.reconcile import Reconciler
from specserver.core import hpa
from specserver.core.observed import Load, LoadUnknown, PodLoad
from specserver.core.scaling import ScalingHistory
from specserver.engines.client import EngineClient
from specserver.engines.http import PodHttp, open_session
from tests.fakes.cluster import MemoryCluster, Request

KEY = ("ns", "chat")
UID = "server-uid"


def a_server(**spec: Any) -> dict[str, Any]:
    base = {
        "model": {"uri": "hf://org/model"}, "speculation": {"draftModel": {"uri": "hf://org/draft"}},
        "engine": {"image": "engine:1"}, "replicas": 2,
    }  # fmt: skip
    return {
        "apiVersion": "specserver.io/v1alpha1", "kind": "SpeculativeServer",
        "metadata": {"namespace": "ns", "name": "chat", "uid": UID, "generation": 1}, "spec": {**base, **spec},
    }  # fmt: skip


class FakeSources:
    """A load that a test decides on; a delay where it wants one."""

    def __init__(self) -> None:
        self.answer: Load | LoadUnknown = LoadUnknown("NoReadyReplicas", "none")
        self.delay_seconds = 0.0
        self.asked = 0

    async def observe_load(self, *_: Any) -> Load | LoadUnknown:
        self.asked += 1
        await asyncio.sleep(self.delay_seconds)
        return self.answer


class Operator:
    """A reconciler with a clock of its own; `restart` forgets everything."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster, self.sources, self.now = cluster, FakeSources(), 1000.0
        self.set_by = 0.0
        """By how much somebody has set the clock."""
        self.session = open_session()
        self.restart()

    def restart(self) -> None:
        pusher = PolicyPusher(EngineClient(PodHttp(self.session)))
        self.reconciler = Reconciler(
            self.cluster, pusher, self.sources, version="1.0",  # type: ignore[arg-type]
            clock=lambda: self.now + self.set_by, steady_clock=lambda: self.now,
        )  # fmt: skip

    async def settle(self) -> None:
        """Passes until one writes nothing."""
        for _ in range(10):
            before = len(self.cluster.writes)
            await self.reconciler.reconcile(KEY)
            if len(self.cluster.writes) == before:
                return
        raise AssertionError(f"never at rest: {self.cluster.writes[-10:]}")

    def outcome(self) -> dict[tuple[str, str], Any]:
        """What is there in the end, without what may differ: keys, Events and who wrote last."""
        return {
            (kind, name): {key: value for key, value in body.items() if key not in ("data", "metadata")}
            for (kind, name), body in self.cluster.objects.items()
            if kind != "Event"
        }


@pytest.fixture
async def operator() -> Any:
    made = Operator(MemoryCluster(a_server()))
    yield made
    await made.session.close()


async def test_two_passes_and_then_silence(operator: Operator) -> None:
    await operator.settle()
    writes = len(operator.cluster.writes)
    for _ in range(5):
        operator.now += 15
        assert isinstance(await operator.reconciler.reconcile(KEY), RequeueAfter)
    assert len(operator.cluster.writes) == writes


class OlderDefinition(MemoryCluster):
    """Drops a field of status, as an API server does whose definition lacks it."""

    lacks: tuple[str, ...] = ("url",)

    async def patch_status(self, kind: str, namespace: str, name: str, body: Any, *, field_manager: str) -> Any:
        kept = {field: value for field, value in body["status"].items() if field not in self.lacks}
        return await super().patch_status(kind, namespace, name, {"status": kept}, field_manager=field_manager)


async def test_a_field_that_the_definition_lacks_is_not_written_over_and_over(caplog: pytest.LogCaptureFixture) -> None:
    operator = Operator(cluster := OlderDefinition(a_server()))
    await operator.settle()
    writes = len(cluster.writes)
    for _ in range(5):
        operator.now += 15
        await operator.reconciler.reconcile(KEY)
    assert len(cluster.writes) == writes
    assert [record.message for record in caplog.records].count(
        "ns/chat: the CustomResourceDefinition is not this operator's: it did not keep status.url"
    ) == 1
    cluster.lacks = ()
    operator.now += 600
    await operator.reconciler.reconcile(KEY)
    assert cluster.objects["SpeculativeServer", "chat"]["status"]["url"] == "http://chat.ns.svc:30000"
    await operator.session.close()


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_starts_the_memory_of_scaling_anew(operator: Operator, seconds: float) -> None:
    """A recommendation from the future would hold back a scale-down until then; a window that is over at once is none."""
    await operator.settle()
    memory = operator.reconciler._memories[KEY]
    memory.history = remembered = ScalingHistory(recommendations=(hpa.Recommendation(at=operator.now, replicas=7),))
    operator.now += 15
    await operator.reconciler.reconcile(KEY)
    assert memory.history == remembered, "time that passes is no jump"
    operator.set_by = seconds
    await operator.reconciler.reconcile(KEY)
    assert memory.history == ScalingHistory()
    await operator.settle()


async def test_keys_come_before_pods_and_mounts_before_what_mounts_them(operator: Operator) -> None:
    await operator.reconciler.reconcile(KEY)
    kinds = [kind for _, kind, _ in operator.cluster.writes]
    assert kinds[:2] == ["Secret", "ConfigMap"]
    assert kinds.index("Deployment") > kinds.index("Service")


class Killed(BaseException):
    """The process is gone: nothing that comes after is run."""


async def count_requests() -> int:
    operator = Operator(MemoryCluster(a_server()))
    await operator.reconciler.reconcile(KEY)
    await operator.session.close()
    return len(operator.cluster.requests)


async def test_killed_at_any_request_it_ends_where_it_would_have(operator: Operator) -> None:
    await operator.settle()
    wanted = operator.outcome()
    for point in range(await count_requests()):
        cluster = MemoryCluster(a_server())
        killed = Operator(cluster)

        def kill(_request: Request, cluster: MemoryCluster = cluster, point: int = point) -> None:
            if len(cluster.requests) > point:
                raise Killed

        cluster.on_request = kill
        with pytest.raises(Killed):
            await killed.reconciler.reconcile(KEY)
        keys = cluster.objects.get(("Secret", "chat-keys"))
        cluster.on_request = lambda _request: None
        killed.restart()
        await killed.settle()
        assert killed.outcome() == wanted, f"killed at request {point}: {cluster.requests[point]}"
        assert keys in (None, cluster.objects["Secret", "chat-keys"]), "keys that engines may have are kept"
        await killed.session.close()


@pytest.mark.parametrize("error", [Unavailable("500"), Conflict("409", status=409), Refused("422")], ids=lambda error: str(error))
async def test_an_error_at_any_write_passes(operator: Operator, error: ClusterError) -> None:
    await operator.settle()
    wanted = operator.outcome()
    for point in range(len(operator.cluster.writes)):
        cluster = MemoryCluster(a_server())
        failing = Operator(cluster)

        def fail(request: Request, cluster: MemoryCluster = cluster, point: int = point) -> None:
            if request in cluster.writes and len(cluster.writes) == point + 1:
                raise error

        cluster.on_request = fail
        await failing.reconciler.reconcile(KEY)
        cluster.on_request = lambda _request: None
        failing.now += 60
        await failing.settle()
        assert _without_times(failing.outcome()) == _without_times(wanted), f"failed at write {point}"
        await failing.session.close()


async def test_outcomes(operator: Operator) -> None:
    def unavailable(_request: Request) -> None:
        raise Unavailable("etcd is slow", retry_after_seconds=7.0)

    operator.cluster.on_request = unavailable
    assert await operator.reconciler.reconcile(KEY) == Retry("etcd is slow", 7.0)
    operator.cluster.on_request = lambda _request: None
    del operator.cluster.objects["SpeculativeServer", "chat"]
    assert await operator.reconciler.reconcile(KEY) == Gone()
    assert operator.cluster.writes == []


async def test_nothing_is_made_for_a_server_that_is_being_deleted(operator: Operator) -> None:
    operator.cluster.objects["SpeculativeServer", "chat"]["metadata"]["deletionTimestamp"] = "T"
    await operator.reconciler.reconcile(KEY)
    assert operator.cluster.writes == []


async def test_a_resource_of_another_schema_is_told_and_its_objects_are_left_alone(operator: Operator) -> None:
    await operator.settle()
    operator.cluster.objects["SpeculativeServer", "chat"]["spec"]["engine"]["prot"] = 1
    writes = len(operator.cluster.writes)
    await operator.reconciler.reconcile(KEY)
    assert operator.cluster.writes[writes:] == [("patch_status", "SpeculativeServer", "chat")]
    (ready,) = (
        one for one in operator.cluster.objects["SpeculativeServer", "chat"]["status"]["conditions"] if one["type"] == "Ready"
    )
    assert (ready["reason"], ready["message"].partition(":")[0]) == ("InvalidSpec", "spec.engine.prot")


async def test_a_refused_object_keeps_the_others_from_nothing(operator: Operator) -> None:
    def refuse(request: Request) -> None:
        if request[:2] == ("apply", "Service"):
            raise Refused("service: no more load balancers")

    operator.cluster.on_request = refuse
    await operator.reconciler.reconcile(KEY)
    assert ("Deployment", "chat") in operator.cluster.objects
    (ready,) = (
        one for one in operator.cluster.objects["SpeculativeServer", "chat"]["status"]["conditions"] if one["type"] == "Ready"
    )
    assert ready["reason"] == "ObjectRefused"
    assert "Service chat: service: no more load balancers" in ready["message"]


@pytest.mark.parametrize(
    ("owner", "says"),
    [
        ({"kind": "SpeculativeServer", "name": "chat", "uid": "before"}, "Kubernetes removes it"),
        ({"kind": "SpeculativeServer", "name": "other", "uid": "other"}, "delete it"),
    ],
)
async def test_no_pod_is_made_on_the_policy_of_another(operator: Operator, owner: dict[str, str], says: str) -> None:
    """It would run under that policy, or, once that is removed, wait minutes for the kubelet to look again."""
    metadata = {"namespace": "ns", "name": "chat-policy", "ownerReferences": [owner]}
    operator.cluster.objects["ConfigMap", "chat-policy"] = {"kind": "ConfigMap", "metadata": metadata, "data": {}}
    await operator.settle()
    assert ("Service", "chat") in operator.cluster.objects
    assert ("Deployment", "chat") not in operator.cluster.objects
    conditions = operator.cluster.objects["SpeculativeServer", "chat"]["status"]["conditions"]
    (ready,) = (one for one in conditions if one["type"] == "Ready")
    assert ready["message"].startswith("ConfigMap chat-policy ")
    assert says in ready["message"]

    del operator.cluster.objects["ConfigMap", "chat-policy"]
    await operator.settle()
    assert ("Deployment", "chat") in operator.cluster.objects


async def test_keys_that_lost_an_entry_are_told(operator: Operator) -> None:
    await operator.settle()
    del operator.cluster.objects["Secret", "chat-keys"]["data"]["admin-key"]
    await operator.reconciler.reconcile(KEY)
    conditions = operator.cluster.objects["SpeculativeServer", "chat"]["status"]["conditions"]
    (ready,) = (one for one in conditions if one["type"] == "Ready")
    assert (ready["reason"], "delete the Secret" in ready["message"]) == ("SecretMissing", True)


# ---- load ---------------------------------------------------------------------------------------------------------------


def with_a_pod(cluster: MemoryCluster, *, ready: bool) -> None:
    """The ReplicaSet of the Deployment that was made, and a pod of it."""
    deployment = cluster.objects["Deployment", "chat"]
    labels = {"specserver.io/server": "chat", "pod-template-hash": "h", "specserver.io/serving": "true"}
    metadata = {"namespace": "ns", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    template = copy.deepcopy(deployment["spec"]["template"])
    template["metadata"]["labels"]["pod-template-hash"] = "h"
    owner = [{"uid": deployment["metadata"]["uid"]}]
    cluster.objects["ReplicaSet", "rs"] = {
        "kind": "ReplicaSet", "metadata": {**metadata, "name": "rs", "uid": "rs", "ownerReferences": owner},
        "spec": {"template": template},
    }  # fmt: skip
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    cluster.objects["Pod", "p"] = {
        "kind": "Pod", "metadata": {**metadata, "name": "p", "uid": "p", "ownerReferences": [{"uid": "rs"}]}, "status": status,
    }  # fmt: skip


def metrics(operator: Operator) -> tuple[str, str]:
    conditions = operator.cluster.objects["SpeculativeServer", "chat"]["status"]["conditions"]
    (found,) = (one for one in conditions if one["type"] == "MetricsAvailable")
    return found["status"], found["reason"]


def a_load() -> Load:
    return Load((PodLoad("p", 3, 0, 0.1, None, 1000.0),))


async def test_a_burst_reads_the_load_once_and_another_pod_reads_it_anew(operator: Operator) -> None:
    """A load read a moment before the first pod became ready would be shown as an error of the metrics."""
    await operator.settle()
    with_a_pod(operator.cluster, ready=False)
    await operator.reconciler.reconcile(KEY)
    assert metrics(operator) == ("Unknown", "NoReadyReplicas")
    asked = operator.sources.asked
    await operator.reconciler.reconcile(KEY)
    assert operator.sources.asked == asked
    with_a_pod(operator.cluster, ready=True)
    operator.sources.answer = a_load()
    await operator.reconciler.reconcile(KEY)
    assert metrics(operator) == ("True", "MetricsFound")


async def test_a_load_that_takes_long_holds_up_nothing_and_counts_until_it_is_stale(operator: Operator) -> None:
    await operator.settle()
    with_a_pod(operator.cluster, ready=True)
    operator.sources.answer = a_load()
    await operator.reconciler.reconcile(KEY)
    operator.sources.delay_seconds = 60.0
    operator.now += 30
    outcome = await operator.reconciler.reconcile(KEY)
    assert metrics(operator) == ("True", "MetricsFound"), "30 s old, with a staleness of 60 s"
    assert isinstance(outcome, RequeueAfter)
    assert outcome.seconds <= 2.0
    operator.now += 31
    await operator.reconciler.reconcile(KEY)
    assert metrics(operator) == ("False", "MetricsStale")
    operator.reconciler._forget(KEY)


async def test_a_server_that_is_not_ready_is_looked_at_again_soon_whatever_its_interval(operator: Operator) -> None:
    """Its pods' news may be on a watch that has fallen silent."""
    operator.cluster.objects["SpeculativeServer", "chat"]["spec"] |= {
        "metrics": {"interval": "10m", "staleness": "20m"}, "replicas": 1,
    }  # fmt: skip
    await operator.settle()
    with_a_pod(operator.cluster, ready=False)
    waits = []
    for ready in (False, True):
        operator.cluster.objects["Pod", "p"]["status"]["conditions"][0]["status"] = str(ready)
        operator.sources.answer = a_load()
        await operator.settle()
        operator.now += 60
        outcome = await operator.reconciler.reconcile(KEY)
        assert isinstance(outcome, RequeueAfter)
        waits.append(outcome.seconds)
    assert waits == [15.0, 600.0]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(inner) for key, inner in value.items() if not str(key).endswith("Time")}
    return [_without_times(inner) for inner in value] if isinstance(value, list) else value
