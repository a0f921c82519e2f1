"""The demo, step by step. Each step waits for what it promises and fails with what was there instead."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from demo.manifests import NAMESPACE, PHASES, SERVER, build_namespace, build_prometheus, build_server, build_traffic
from demo.record import Record, Watcher, follow_traffic
from tests.localcluster import LocalCluster
from tests.localcluster.images import RECIPES, build_image, find_builder, push_image
from tests.localcluster.progress import say

ROOT = Path(__file__).resolve().parent.parent
OPERATOR_NAMESPACE = "specserver-system"
BOUNDS_AFTER_PATCH = {"disableAbove": 12, "enableBelow": 8}


def run_story(cluster: LocalCluster, registry: str) -> Record:
    """From an empty cluster to the end of the traffic. The record holds everything that was seen."""
    record = Record()
    # 1. Images.
    images = push_images(registry)
    # 2. What a user installs.
    install_operator(cluster, images["operator"])
    apply(cluster, [*build_namespace(), *build_prometheus(images["prometheus"], images["operator"])])
    kubectl(cluster, "rollout", "status", "deployment/prometheus", "--timeout=120s")
    # 3. What a user applies.
    say("applying examples/tiny-cpu.yaml")
    apply(cluster, build_server(images["sglang-cpu"]))
    with watching(cluster, record) as watcher:
        record.note("applied")
        watcher.wait_for(
            "Ready with two replicas",
            lambda sample: sample.condition("Ready").get("status") == "True" and sample.status.get("readyReplicas") == 2,
            seconds=300,
        )
        record.note("ready: 2 replicas, speculating")
        pods = pod_identities(cluster)
        # 4. Quiet, busy, quiet. The clients report in a thread; this one watches for what should happen.
        apply(cluster, build_traffic(images["operator"]))
        kubectl(cluster, "wait", "pod/traffic", "--for=condition=Ready", "--timeout=60s")
        outcome: list[int | BaseException] = []
        phases: dict[str, threading.Event] = {name: threading.Event() for name, _, _ in PHASES}
        reader = threading.Thread(target=_read_traffic, args=(cluster, record, phases, outcome), daemon=True)
        reader.start()
        _busy(cluster, record, watcher, phases)
        _quiet_again(cluster, record, watcher, phases)
        reader.join(timeout=300)
        if not outcome or isinstance(outcome[0], BaseException):
            raise RuntimeError(f"the clients' report broke off: {outcome[0] if outcome else 'no end within 300 s'}")
        record.note(f"clients done: {record.traffic[-1]['completed']} requests, {outcome[0]} failed")
        # 5. What must be true at the end.
        check_end(cluster, record, pods, failed=outcome[0])
    return record


def _busy(cluster: LocalCluster, record: Record, watcher: Watcher, phases: dict[str, threading.Event]) -> None:
    _await_phase(phases, "busy")
    watcher.wait_for(
        "plain decode under load",
        lambda sample: sample.condition("SpeculationActive").get("reason") == "AboveCrossover",
        seconds=60,
    )
    record.note("engines decode plainly")
    watcher.wait_for("a third replica", lambda sample: sample.status.get("replicas") == 3, seconds=90)
    record.note("third replica asked for")
    before = pod_identities(cluster)
    kill_operator(cluster)
    record.note("operator killed")
    kubectl(cluster, "rollout", "status", "deployment/specserver", "--timeout=60s", namespace=OPERATOR_NAMESPACE)
    after = pod_identities(cluster)
    if not set(before) <= set(after):
        raise RuntimeError(f"killing the operator changed pods: before {sorted(before)}, after {sorted(after)}")
    record.note("operator back, pods unchanged")


def _quiet_again(cluster: LocalCluster, record: Record, watcher: Watcher, phases: dict[str, threading.Event]) -> None:
    _await_phase(phases, "quiet again")
    watcher.wait_for(
        "speculation after the load",
        lambda sample: sample.condition("SpeculationActive").get("reason") == "Speculating",
        seconds=60,
    )
    record.note("engines speculate again")
    patch = {"spec": {"speculation": {"policy": BOUNDS_AFTER_PATCH}}}
    kubectl(cluster, "patch", "ssv", SERVER, "--type=merge", "--patch", json.dumps(patch))
    began = time.monotonic()
    record.note("kubectl patch: disableAbove 12, enableBelow 8")
    watcher.wait_for(
        "the patched bounds in every engine",
        lambda sample: (
            sample.status.get("speculation", {}).get("bounds") == BOUNDS_AFTER_PATCH
            and sample.condition("PolicyApplied").get("status") == "True"
        ),
        seconds=30,
    )
    record.note(f"new bounds in force after {time.monotonic() - began:.1f} s, no pod restarted")
    watcher.wait_for(
        "two replicas again",
        lambda sample: sample.status.get("replicas") == 2 and sample.condition("Ready").get("status") == "True",
        seconds=120,
    )
    record.note("drained and scaled down to 2")


def check_end(cluster: LocalCluster, record: Record, pods: dict[str, int], *, failed: int) -> None:
    """Zero failed requests, no restart, and two of the three pods that there were."""
    if failed:
        raise RuntimeError(f"{failed} requests failed: {record.failures[:3]}")
    end = pod_identities(cluster)
    restarted = [uid for uid, restarts in end.items() if restarts]
    if restarted or len(end) != 2:
        raise RuntimeError(f"at the end two pods without restarts should be there, not {end}")
    say(f"{len(set(pods) & set(end))} of the first two pods are still there, no container restarted, no request failed")


def push_images(registry: str) -> dict[str, str]:
    builder = find_builder()
    return {
        name: push_image(build_image(RECIPES[name], builder), registry, builder).exact
        for name in ("operator", "sglang-cpu", "prometheus")
    }


def install_operator(cluster: LocalCluster, image: str) -> None:
    say("helm install specserver")
    repository, _, digest = image.partition("@")
    helm(
        cluster, "upgrade", "--install", "specserver", str(ROOT / "charts" / "specserver"), "--create-namespace",
        "--wait", "--timeout", "120s",
        "--set", f"image.repository={repository}", "--set", f"image.digest={digest}", "--set", "logFormat=text",
    )  # fmt: skip


def uninstall_operator(cluster: LocalCluster) -> None:
    helm(cluster, "uninstall", "specserver", "--ignore-not-found")


def helm(cluster: LocalCluster, *arguments: str) -> None:
    common = [f"--kubeconfig={cluster.kubeconfig}", "--namespace", OPERATOR_NAMESPACE]
    subprocess.run([str(cluster.helm), *arguments, *common], check=True, stdout=subprocess.DEVNULL)


def kill_operator(cluster: LocalCluster) -> None:
    """As a node's out-of-memory killer would: no grace, no warning."""
    kubectl(
        cluster, "delete", "pod", "--selector=app.kubernetes.io/name=specserver", "--grace-period=0", "--force",
        "--wait=false", namespace=OPERATOR_NAMESPACE,
    )  # fmt: skip


def pod_identities(cluster: LocalCluster) -> dict[str, int]:
    """Restarts by UID, of the server's pods that are not going away."""
    pods = json.loads(kubectl(cluster, "get", "pods", f"--selector=specserver.io/server={SERVER}", "--output=json"))
    return {
        pod["metadata"]["uid"]: sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))
        for pod in pods["items"]
        if "deletionTimestamp" not in pod["metadata"]
    }


def apply(cluster: LocalCluster, objects: list[dict[str, Any]]) -> None:
    cluster.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(objects))


def kubectl(cluster: LocalCluster, *arguments: str, namespace: str = NAMESPACE) -> str:
    return cluster.kubectl("--namespace", namespace, *arguments, timeout_seconds=200)


@contextmanager
def watching(cluster: LocalCluster, record: Record) -> Iterator[Watcher]:
    watcher = Watcher(cluster, record)
    try:
        yield watcher
    finally:
        watcher.stop()


def _await_phase(phases: dict[str, threading.Event], name: str) -> None:
    if not phases[name].wait(timeout=300):
        raise RuntimeError(f"the clients did not reach the phase {name!r}: see `kubectl --namespace {NAMESPACE} logs traffic`")


def _read_traffic(
    cluster: LocalCluster, record: Record, phases: dict[str, threading.Event], outcome: list[int | BaseException]
) -> None:
    def enter(phase: str) -> None:
        concurrency = next((requests for name, requests, _ in PHASES if name == phase), 0)
        record.note(f"clients: {phase}" + (f", {concurrency} requests in flight" if concurrency else ""))
        if phase in phases:
            phases[phase].set()

    try:
        outcome.append(follow_traffic(cluster, record, enter))
    except (RuntimeError, ValueError, OSError) as error:
        outcome.append(error)
