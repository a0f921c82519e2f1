"""What stands around the controllers that are measured: servers as users write them, ReplicaSets and pods as a
kube-controller-manager and kubelets make them, and an engine behind each pod's address.

Everything is written through the API, each pod with a create and a status update of its own, so what a controller reads is
what it would read anywhere. Pods are given a node at once; there is no scheduler, no garbage collector.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.operator.api import ScaleApi, bounded
from specserver.api import labels
from specserver.api.v1alpha1 import parse
from specserver.build import build_all
from specserver.build.config import build_policy
from specserver.build.secret import build_keys_secret
from tests.fakes.api import MERGE, Body
from tests.fakes.engine import FakeEngine
from tests.localcluster import ApiServer
from tests.localcluster.processes import free_ports, start_child, stop_children
from tests.waiting import eventually

SERVERS_A_NAMESPACE = 20
BIG = "big"
"""The one server with 100 pods, for the push."""
BIG_PREFIX = "127.200.0."
_NODE = "node-1"
_TIME = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class Size:
    """servers  each with `pods` pods; beside them one server with `big` pods"""

    servers: int = 1000
    pods: int = 10
    big: int = 100

    @property
    def namespaces(self) -> list[str]:
        return [f"models-{number:03d}" for number in range(-(-self.servers // SERVERS_A_NAMESPACE))]

    @property
    def all_servers(self) -> int:
        return self.servers + 1

    @property
    def all_pods(self) -> int:
        return self.servers * self.pods + self.big


@dataclass
class Fleet:
    """The servers of a run, and the process that plays their engines."""

    api: ScaleApi
    cluster: ApiServer
    size: Size
    directory: Path
    engines_program: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])

    # ---- the user --------------------------------------------------------------------------------------------------------

    def keys(self) -> list[tuple[str, str]]:
        """Namespace and name of the servers, the big one apart."""
        namespaces = self.size.namespaces
        return [(namespaces[number // SERVERS_A_NAMESPACE], f"server-{number:04d}") for number in range(self.size.servers)]

    @property
    def big(self) -> tuple[str, str]:
        return self.size.namespaces[0], BIG

    def server(self, namespace: str, name: str, replicas: int) -> Body:
        return {
            "apiVersion": labels.API_VERSION,
            "kind": labels.KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct"},
                "speculation": {
                    "draftModel": {"uri": "hf://org/Llama-3.1-8B-Instruct-EAGLE3"},
                    "policy": {"disableAbove": 32, "enableBelow": 24},
                },
                "engine": {"image": "registry.example/sglang:1", "port": self.port},
                "replicas": replicas,
            },
        }

    async def create_servers(self) -> None:
        wanted = []
        for namespace in self.size.namespaces:
            wanted.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            # Pods name it, and the controller that makes it is not there.
            account = {"name": "default", "namespace": namespace}
            wanted.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        self.cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(wanted))
        bodies = [self.server(*key, self.size.pods) for key in self.keys()]
        bodies.append(self.server(*self.big, self.size.big))
        await bounded(self.api.create(body) for body in bodies)

    def build_templates(self, *kinds: str) -> str:
        """The objects that the operator builds for one of these servers, as the baseline takes them."""
        body = self.server("specserver-namespace", "specserver-name", self.size.pods)
        body["metadata"] |= {"uid": "specserver-uid", "generation": 1}
        server = parse(body)
        built = [*build_all(server).values(), build_keys_secret(server, admin_key="admin-key", api_key="api-key")]
        text = json.dumps([one for one in built if not kinds or one["kind"] in kinds])
        for word in ("namespace", "name", "uid"):
            text = text.replace(f"specserver-{word}", f"@{word.upper()}@")
        return text

    # ---- kube-controller-manager and kubelets ----------------------------------------------------------------------------

    async def play_pods(self) -> None:
        """All pods of all Deployments, running and ready."""
        deployments, _ = await self.api.list_all("Deployment")
        deployments.sort(key=lambda one: (one["metadata"]["namespace"], one["metadata"]["name"]))
        await bounded(self._play_deployment(one, block) for block, one in enumerate(deployments))

    async def _play_deployment(self, deployment: Body, block: int) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        namespace, name, replicas = metadata["namespace"], metadata["name"], spec["replicas"]
        prefix = BIG_PREFIX if name == BIG else f"127.{16 + block // 250}.{block % 250}."
        # 1. The ReplicaSet.
        text = json.dumps(spec["template"], sort_keys=True)
        hashed = {"pod-template-hash": hashlib.sha256(text.encode()).hexdigest()[:10]}
        template: Body = json.loads(text)
        template["metadata"]["labels"] |= hashed
        replica_set = await self.api.create({
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {
                "name": f"{name}-{hashed['pod-template-hash']}", "namespace": namespace, "labels": template["metadata"]["labels"],
                "annotations": {**metadata["annotations"], **_annotations(replicas)}, "ownerReferences": [_owner(deployment)],
            },
            "spec": {
                "replicas": replicas, "template": template,
                "selector": {"matchLabels": {**spec["selector"]["matchLabels"], **hashed}},
            },
        })  # fmt: skip
        # 2. The pods.
        for number in range(replicas):
            pod = await self.api.create({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": f"{replica_set['metadata']['name']}-{number:05d}", "namespace": namespace,
                    "labels": template["metadata"]["labels"], "ownerReferences": [_owner(replica_set)],
                },
                "spec": {**template["spec"], "nodeName": _NODE},
            })  # fmt: skip
            await self._patch_status(pod, _running(pod, f"{prefix}{number % 250 + 1}"))
        # 3. What the two controllers report.
        counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), replicas)
        await self._patch_status(replica_set, {**counts, "fullyLabeledReplicas": replicas, "observedGeneration": 1})
        conditions = [
            {"type": kind, "status": "True", "reason": reason, "lastUpdateTime": _TIME, "lastTransitionTime": _TIME}
            for kind, reason in (("Available", "MinimumReplicasAvailable"), ("Progressing", "NewReplicaSetAvailable"))
        ]
        status = {
            **counts, "updatedReplicas": replicas, "observedGeneration": metadata["generation"], "conditions": conditions,
        }  # fmt: skip
        await self._patch_status(deployment, status)

    async def _patch_status(self, body: Body, status: Body) -> None:
        metadata = body["metadata"]
        await self.api.patch(
            body["kind"], metadata["namespace"], metadata["name"], {"status": status},
            how=MERGE, manager="kube-controller-manager", subresource="status",
        )  # fmt: skip

    # ---- engines ---------------------------------------------------------------------------------------------------------

    async def start_engines(self) -> subprocess.Popen[bytes]:
        """One process answers for all pods, each with the policy that the pod's ConfigMap holds."""
        process = start_child([self.engines_program, str(self.port)], self.directory / "engines.log")
        try:
            listens: bool = await eventually(self._reachable, "the engines' process listens")
            assert listens
            await self.play("answers", await _answers())
            await self.play("start", await self._initial_policies())
        except BaseException:
            stop_children([process])
            raise
        return process

    async def play(self, what: str, body: Body) -> None:
        url = f"http://127.0.0.1:{self.port}/play/{what}"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            response.raise_for_status()

    async def seen(self, prefix: str) -> dict[str, Any]:
        """Requests of all engines, and of those with this prefix the revision and since when they have it."""
        url = f"http://127.0.0.1:{self.port}/play/seen?prefix={prefix}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            answer: dict[str, Any] = await response.json(content_type=None)
            return answer

    async def _reachable(self) -> bool:
        try:
            await self.seen("none")
        except aiohttp.ClientError:
            return False
        return True

    async def _initial_policies(self) -> Body:
        servers, _ = await self.api.list_all(labels.KIND)
        documents = {
            (one["metadata"]["namespace"], one["metadata"]["name"]): build_policy(parse(one)).to_document() for one in servers
        }
        policies: Body = {}
        for namespace in self.size.namespaces:
            for pod in await self.api.list("Pod", namespace):
                policies[pod["status"]["podIP"]] = documents[namespace, pod["metadata"]["labels"][labels.SERVER]]
        return policies


def _annotations(replicas: int) -> Body:
    """What Kubernetes' controller adds to those that it copies from the Deployment."""
    names = ("revision", "desired-replicas", "max-replicas")
    return {f"deployment.kubernetes.io/{name}": str(value) for name, value in zip(names, (1, replicas, replicas), strict=True)}


def _owner(body: Body) -> Body:
    return {
        "apiVersion": body["apiVersion"], "kind": body["kind"], "name": body["metadata"]["name"],
        "uid": body["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def _running(pod: Body, ip: str) -> Body:
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": _TIME}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    containers = [
        {
            "name": one["name"], "image": one["image"], "imageID": f"registry.example/sglang@sha256:{'0' * 64}",
            "containerID": f"containerd://{pod['metadata']['uid']}", "state": {"running": {"startedAt": _TIME}},
            "lastState": {}, "restartCount": 0, "started": True, "ready": True,
        }
        for one in pod["spec"]["containers"]
    ]  # fmt: skip
    return {
        "phase": "Running", "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}], "podIP": ip, "podIPs": [{"ip": ip}],
        "startTime": _TIME, "qosClass": "BestEffort", "conditions": conditions, "containerStatuses": containers,
    }  # fmt: skip


async def _answers() -> Body:
    """What an idle engine says of itself, from the tests' own fake."""
    async with FakeEngine(admin_key="k", accept_length=2.5) as engine, aiohttp.ClientSession() as session:
        base = f"http://{engine.host}:{engine.port}"
        async with session.get(f"{base}/metrics") as response:
            metrics = await response.text()
        async with session.get(f"{base}/specserver/v1/state", headers={"Authorization": "Bearer k"}) as response:
            state = await response.json(content_type=None)
    (rank,) = state.pop("ranks")
    return {"metrics": metrics, "state": state, "rank": rank}
