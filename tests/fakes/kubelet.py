"""A kubelet without containers: a node that the real scheduler fills, and pods whose engine is a FakeEngine on loopback.

It does for a pod what the real one does as far as the operator could tell: reads the Secret and the ConfigMap that the pod
names (and waits for them), starts the engine with the keys and the policy that it finds there, passes the startup probe when
the model is "loaded", reports readiness, and on deletion stops the engine and removes the pod. What goes wrong is a
`Behaviour`, by namespace, read when a pod starts; what goes wrong later is done to the engine itself.

Loopback addresses are no endpoints for Kubernetes, so no EndpointSlice names them: whether a pod takes traffic is told from
the Service's selector and the pod's labels.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.fakes.api import MERGE, STRATEGIC, Api, ApiError, Body
from tests.fakes.engine import FakeEngine
from tests.waiting import eventually

ENGINE = "engine"
_HEARTBEAT_SECONDS = 10.0
_AWAY = (aiohttp.ClientError, TimeoutError, ApiError)
"""What a request meets while the API server is busy or away."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Ended:
    """How a container ends soon after its start, again and again. `message` is the termination message: the log's end."""

    exit_code: int
    reason: str = "Error"
    message: str = ""
    ran_seconds: int = 1


@dataclass(frozen=True)
class ImageTrouble:
    """The image can't be had."""

    reason: str = "ImagePullBackOff"
    message: str = 'Back-off pulling image "registry.example/none:1"'


@dataclass(frozen=True)
class Behaviour:
    """start_seconds  from the container's start to the startup probe's success: the model load; None: never
    ready             whether the readiness probe succeeds then
    trouble           what keeps the engine from running at all
    stop_seconds      from deletion to the pod's end
    engine            called with each engine before it starts
    """

    start_seconds: float | None = 0.05
    ready: bool = True
    trouble: Ended | ImageTrouble | None = None
    stop_seconds: float = 0.05
    engine: Callable[[FakeEngine], None] = lambda _engine: None


@dataclass
class _Running:
    """A pod that is being played."""

    task: asyncio.Task[None]
    engine: FakeEngine | None = None
    stopping: asyncio.Task[None] | None = None


@dataclass
class FakeKubelet:
    """One node. Use as an async context manager; its tasks live in the loop that entered it."""

    api: Api
    node: str = "node-1"
    gpus: int = 8
    address_block: int = field(default_factory=lambda: 16 + os.getpid() % 200)
    """Second number of the pods' 127.x addresses, so that two test processes don't meet."""

    def __post_init__(self) -> None:
        self.behaviours: dict[str, Behaviour] = {}
        self.errors: list[str] = []
        self._pods: dict[str, _Running] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._addresses = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []

    def engine(self, namespace: str, pod: str) -> FakeEngine:
        """The engine of a running pod. KeyError where there is none."""
        engine = self._pods[self._names[namespace, pod]].engine
        if engine is None:
            raise KeyError(pod)
        return engine

    def engines(self, namespace: str) -> dict[str, FakeEngine]:
        """Engines by pod name."""
        return {
            pod: running.engine
            for (pod_namespace, pod), uid in self._names.items()
            if pod_namespace == namespace and (running := self._pods.get(uid)) and running.engine is not None
        }

    # ---- life ------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._register()
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._watch())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._tasks]
        for running in self._pods.values():
            tasks += [task for task in (running.task, running.stopping) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for running in self._pods.values():
            await self._stop_engine(running)

    async def _register(self) -> None:
        amounts = {
            "cpu": "1000", "memory": "100Ti", "ephemeral-storage": "100Ti", "pods": "1000", "nvidia.com/gpu": str(self.gpus)
        }  # fmt: skip
        labels = {"kubernetes.io/hostname": self.node, "kubernetes.io/os": "linux"}
        await self.api.create({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node, "labels": labels},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [_node_ready()]},
        })  # fmt: skip
        await self.api.create({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.node, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": self.node, "leaseDurationSeconds": 40, "renewTime": _now_micro()},
        })  # fmt: skip
        await eventually(self._is_schedulable, f"node {self.node} free of the taint that every new one has", within_seconds=60)

    async def _is_schedulable(self) -> bool:
        return not (await self.api.get("Node", "", self.node))["spec"].get("taints")

    async def _beat(self) -> None:
        """Without it the controller-manager calls the node lost after 40 s; the node's own word takes that back."""
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            lease = {"spec": {"renewTime": _now_micro()}}
            status = {"status": {"conditions": [_node_ready()]}}
            with contextlib.suppress(*_AWAY):  # the next beat is in time, too
                await self.api.patch("Lease", "kube-node-lease", self.node, lease, manager="kubelet")
                await self.api.patch("Node", "", self.node, status, how=STRATEGIC, manager="kubelet", subresource="status")

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(*_AWAY):  # the API server may be restarted under test
                async for kind, pod in self.api.watch_pods(f"spec.nodeName={self.node}"):
                    self._on_event(kind, pod)
            await asyncio.sleep(0.1)

    def _on_event(self, kind: str, pod: Body) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if kind == "DELETED":
            self._names.pop((metadata["namespace"], metadata["name"]), None)
            running = self._pods.pop(uid, None)
            if running is not None and running.stopping is None:  # removed by force
                running.stopping = asyncio.create_task(self._stop_engine(running))
            return
        running = self._pods.get(uid)
        if running is None:
            self._names[metadata["namespace"], metadata["name"]] = uid
            running = self._pods[uid] = _Running(asyncio.create_task(self._guarded(self._play(pod), pod)))
        if "deletionTimestamp" in metadata and running.stopping is None:
            running.stopping = asyncio.create_task(self._guarded(self._stop(pod, running), pod))

    async def _guarded(self, work: Any, pod: Body) -> None:
        """A fault of the fake must not look like one of the operator: tests check `errors`."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - see above
            gone = False
            if isinstance(error, ApiError) and error.status in (404, 409):
                with contextlib.suppress(Exception):  # where nobody can be asked, it stays a fault
                    gone = await self._has_gone(pod)
            if not gone:
                self.errors.append(f"{pod['metadata']['name']}: {type(error).__name__} {error}")

    async def _has_gone(self, pod: Body) -> bool:
        """The pod ended, or was marked to, while it was worked on."""
        now = await self.api.find("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        return now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or "deletionTimestamp" in now["metadata"]

    # ---- one pod ---------------------------------------------------------------------------------------------------------

    async def _play(self, pod: Body) -> None:
        behaviour = self.behaviours.get(pod["metadata"]["namespace"], Behaviour())
        number = next(self._addresses)
        ip = f"127.{self.address_block}.{number // 250}.{number % 250 + 1}"
        if isinstance(behaviour.trouble, ImageTrouble):
            waiting = {"waiting": {"reason": behaviour.trouble.reason, "message": behaviour.trouble.message}}
            return await self._report(pod, ip, waiting, phase="Pending")
        if isinstance(behaviour.trouble, Ended):
            return await self._crash(pod, ip, behaviour.trouble)
        container = next(one for one in pod["spec"]["containers"] if one["name"] == ENGINE)
        engine = await self._build_engine(pod, container, ip)
        behaviour.engine(engine)
        await engine.__aenter__()
        self._pods[pod["metadata"]["uid"]].engine = engine
        running = {"running": {"startedAt": _now()}}
        await self._report(pod, ip, running)
        if behaviour.start_seconds is None:
            return None
        await asyncio.sleep(behaviour.start_seconds)
        return await self._report(pod, ip, running, started=True, ready=behaviour.ready)

    async def _crash(self, pod: Body, ip: str, ended: Ended) -> None:
        """Two restarts, then the back-off that lasts."""
        now = datetime.now(UTC).timestamp()
        terminated = {
            "terminated": {
                "exitCode": ended.exit_code, "reason": ended.reason, "message": ended.message,
                "startedAt": _rfc3339(now - ended.ran_seconds), "finishedAt": _rfc3339(now),
            }
        }  # fmt: skip
        await self._report(pod, ip, terminated)
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
        await self._report(pod, ip, waiting, last=terminated, restarts=2)

    async def _stop(self, pod: Body, running: _Running) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        await asyncio.sleep(self.behaviours.get(namespace, Behaviour()).stop_seconds)
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)
        await self._stop_engine(running)
        await self.api.delete("Pod", namespace, name, grace_seconds=0, uid=pod["metadata"]["uid"])

    @staticmethod
    async def _stop_engine(running: _Running) -> None:
        if running.engine is not None:
            await running.engine.__aexit__(None, None, None)

    async def _build_engine(self, pod: Body, container: Body, ip: str) -> FakeEngine:
        """The engine that the pod's command line, environment and volumes ask for."""
        # 1. What a container can't start without.
        key = await self._read_variable(pod, container, ip, "SPECSERVER_ADMIN_KEY")
        mounted = next(volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume)
        files = await self._read_files(pod["metadata"]["namespace"], mounted)
        # 2. SGLang's part of the command line.
        port = next(one["containerPort"] for one in container["ports"] if one["name"] == "http")
        arguments = container["args"]
        if "--speculative-algorithm" not in arguments:
            return FakeEngine(host=ip, port=port, admin_key=key, ladder=(0,), unarmed_reason="speculation is off")
        steps = [int(arguments[arguments.index("--speculative-num-steps") + 1])]
        if "--speculative-adaptive-config" in arguments:
            ladder_file = arguments[arguments.index("--speculative-adaptive-config") + 1].rpartition("/")[2]
            (candidates,) = json.loads(files[ladder_file]).values()
            steps = candidates["candidate_steps"]
        return FakeEngine(
            host=ip, port=port, admin_key=key, ladder=(0, *steps), accept_length=2.5,
            initial_policy=json.loads(files["policy.json"]),
        )  # fmt: skip

    async def _read_files(self, namespace: str, name: str) -> dict[str, str]:
        """The ConfigMap's files; waits for it, as the kubelet does: that of an owner before may be on its way out."""
        while True:
            found = await self.api.find("ConfigMap", namespace, name)
            if found is not None:
                files: dict[str, str] = found["data"]
                return files
            await asyncio.sleep(_POLL_SECONDS)

    async def _read_variable(self, pod: Body, container: Body, ip: str, name: str) -> str:
        """The value of a variable that comes from a Secret; waits for the Secret, as the kubelet does."""
        source = next(one for one in container["env"] if one["name"] == name)["valueFrom"]["secretKeyRef"]
        told = False
        while True:
            secret = await self.api.find("Secret", pod["metadata"]["namespace"], source["name"])
            value = ((secret or {}).get("data") or {}).get(source["key"])
            if value is not None:
                return base64.b64decode(value).decode()
            if not told:
                message = f'secret "{source["name"]}" or its entry {source["key"]} not found'
                waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": message}}
                await self._report(pod, ip, waiting, phase="Pending")
                told = True
            await asyncio.sleep(_POLL_SECONDS)

    async def _report(
        self, pod: Body, ip: str, state: Body, *, phase: str = "Running", last: Body | None = None, restarts: int = 0,
        started: bool = False, ready: bool = False,
    ) -> None:  # fmt: skip
        metadata = pod["metadata"]
        conditions = [
            {"type": kind, "status": "True" if status else "False", "lastTransitionTime": _now()}
            for kind, status in (("Initialized", True), ("ContainersReady", ready), ("Ready", ready))
        ]
        containers = [
            {
                "name": container["name"], "image": container["image"], "imageID": "", "containerID": f"fake://{metadata['uid']}",
                "state": state, "lastState": last or {}, "restartCount": restarts, "started": started, "ready": ready,
            }
            for container in pod["spec"]["containers"]
        ]  # fmt: skip
        status = {
            "phase": phase, "hostIP": "127.0.0.1", "podIP": ip, "podIPs": [{"ip": ip}],
            "startTime": metadata["creationTimestamp"], "conditions": conditions, "containerStatuses": containers,
        }  # fmt: skip
        await self.api.patch(
            "Pod", metadata["namespace"], metadata["name"], {"status": status, "metadata": {"uid": metadata["uid"]}},
            how=STRATEGIC, manager="kubelet", subresource="status",
        )  # fmt: skip

    # ---- what a test does to a pod ---------------------------------------------------------------------------------------

    async def set_ready(self, namespace: str, pod: str, *, ready: bool) -> None:
        """As if the readiness probe had changed its mind."""
        body = await self.api.get("Pod", namespace, pod)
        (container,) = body["status"]["containerStatuses"]
        await self._report(body, body["status"]["podIP"], container["state"], started=True, ready=ready)

    async def set_phase(self, namespace: str, pod: str, status: Body) -> None:
        """The pod's end as a whole: evicted, refused by the device plug-in, …"""
        await self.api.patch("Pod", namespace, pod, {"status": status}, how=MERGE, manager="kubelet", subresource="status")


def _node_ready() -> Body:
    return {
        "type": "Ready", "status": "True", "reason": "KubeletReady",
        "lastHeartbeatTime": _now(), "lastTransitionTime": _now(),
    }  # fmt: skip


def _now() -> str:
    return _rfc3339(datetime.now(UTC).timestamp())


def _now_micro() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
