"""Streaming requests while pods are replaced and removed: none may fail.

    PYTHONPATH=operator python -m tests.node.streams 10000

brings up a node of its own, and rolls and scales until so many streams have ended. The node tier does one rollout of it, in the
story's cluster.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from demo.manifests import NAMESPACE, SERVER, build_namespace
from demo.story import apply, install_operator, kubectl, push_images
from specserver.api import labels
from tests.localcluster import LocalCluster, node_down, node_up
from tests.localcluster.progress import say

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = "streams"
CONCURRENCY = 4
STEP_SECONDS = 900.0
"""Longest that a start, or a rollout of all pods, may take here, on two busy cores."""


@dataclass
class Streams:
    """Clients that stream, until the end of the `with`. completed, failed: requests; failures: what the first of them were."""

    cluster: LocalCluster
    image: str
    completed: int = 0
    failed: int = 0
    failures: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        apply(self.cluster, build_clients(self.image))
        kubectl(self.cluster, "wait", f"pod/{CLIENTS}", "--for=condition=Ready", "--timeout=60s")
        wait(self.cluster, "the first streams", lambda: self.look()["completed"] >= CONCURRENCY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            kubectl(self.cluster, "exec", CLIENTS, "--", "touch", "/tmp/stop")
            wait(self.cluster, "the last streams", lambda: self.look().get("end", False))
        kubectl(self.cluster, "delete", "pod", CLIENTS, "--grace-period=0", "--force")

    def look(self) -> dict[str, Any]:
        """The clients' newest line."""
        lines = [json.loads(line) for line in kubectl(self.cluster, "logs", CLIENTS).splitlines() if line.startswith("{")]
        self.failures = tuple(line["failure"] for line in lines if "failure" in line)[:5]
        counts = [line for line in lines if "completed" in line]
        newest = counts[-1] if counts else {"completed": 0, "failed": 0}
        self.completed, self.failed = newest["completed"], newest["failed"]
        return newest


def hold_replicas(cluster: LocalCluster, replicas: int) -> None:
    """So many, whatever the load."""
    _patch(cluster, {"scaling": None, "replicas": replicas})
    wait(cluster, f"{replicas} replicas", lambda: len(_pods(cluster)) == replicas and _is_ready(cluster))


def roll(cluster: LocalCluster) -> None:
    """Every pod is replaced by a new one."""
    before = set(_pods(cluster))
    _patch(cluster, {"engine": {"env": [{"name": "ROUND", "value": str(time.time())}]}})
    wait(cluster, "all pods replaced and ready", lambda: not before & set(_pods(cluster)) and _is_ready(cluster))


def build_clients(image: str) -> list[dict[str, Any]]:
    port = yaml.safe_load((ROOT / "examples" / "tiny-cpu.yaml").read_text())["spec"]["engine"].get("port", 30000)
    key = {"secretKeyRef": {"name": labels.keys_secret_name(SERVER), "key": labels.API_KEY_ENTRY}}
    metadata = {"name": CLIENTS, "namespace": NAMESPACE}
    script = (Path(__file__).parent / "stream_clients.py").read_text()
    container = {
        "name": CLIENTS,
        "image": image,
        "command": ["python", "/clients/clients.py"],
        "env": [
            {"name": "URL", "value": f"http://{SERVER}.{NAMESPACE}.svc:{port}/generate"},
            {"name": "CLIENTS", "value": str(CONCURRENCY)},
            {"name": "API_KEY", "valueFrom": key},
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [{"name": "script", "mountPath": "/clients"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes = [{"name": "script", "configMap": {"name": CLIENTS}}, {"name": "tmp", "emptyDir": {}}]
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"clients.py": script}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    ]


def start_server(cluster: LocalCluster, images: dict[str, str]) -> None:
    """The operator, and the example with two replicas, measured directly."""
    install_operator(cluster, images["operator"])
    server = yaml.safe_load((ROOT / "examples" / "tiny-cpu.yaml").read_text())
    server["metadata"]["namespace"] = NAMESPACE
    del server["spec"]["scaling"]
    server["spec"] |= {"replicas": 2, "metrics": {"interval": "2s", "staleness": "20s"}}
    server["spec"]["engine"]["image"] = images["sglang-cpu"]
    apply(cluster, [*build_namespace(), server])
    wait(cluster, "the server ready", lambda: _is_ready(cluster))


def _patch(cluster: LocalCluster, spec: dict[str, Any]) -> None:
    kubectl(cluster, "patch", "ssv", SERVER, "--type=merge", "--patch", json.dumps({"spec": spec}))


def _is_ready(cluster: LocalCluster) -> bool:
    body = json.loads(kubectl(cluster, "get", "ssv", SERVER, "--output=json"))
    generation = body["metadata"]["generation"]
    return any(
        one["type"] == "Ready" and one["status"] == "True" and one["observedGeneration"] == generation
        for one in body.get("status", {}).get("conditions", [])
    )


def _pods(cluster: LocalCluster) -> list[str]:
    """UIDs of the pods that are not ending."""
    pods = json.loads(kubectl(cluster, "get", "pods", f"--selector=specserver.io/server={SERVER}", "--output=json"))["items"]
    return [pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def wait(cluster: LocalCluster, what: str, done: Callable[[], bool]) -> None:
    end = time.monotonic() + STEP_SECONDS
    while not done():
        if time.monotonic() > end:
            status = kubectl(cluster, "get", "ssv", SERVER, "--output=jsonpath={.status}")
            raise RuntimeError(f"not within {STEP_SECONDS:g} s: {what}; the status is {status}")
        time.sleep(1.0)


def main(arguments: list[str]) -> int:
    requests = int(arguments[0]) if arguments else 300
    cluster = node_up("streams")
    try:
        assert cluster.registry is not None
        images = push_images(cluster.registry)
        start_server(cluster, images)
        rounds = 0
        with Streams(cluster, images["operator"]) as streams:
            while not rounds or streams.completed < requests:
                roll(cluster)
                hold_replicas(cluster, 1)
                hold_replicas(cluster, 2)
                rounds += 1
                say(f"round {rounds}: {streams.look()}")
    finally:
        node_down("streams")
    say(f"{streams.completed} streams, {streams.failed} failed, {rounds} rollouts and removals {streams.failures}")
    return 1 if streams.failed or streams.completed < requests else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
