"""The whole story on real pods, by the demo's own steps, so that the demo can't break unnoticed."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.manifests import NAMESPACE, SERVER
from demo.record import Record
from demo.report import write_report
from demo.story import OPERATOR_NAMESPACE, kubectl, run_story
from tests.localcluster import LocalCluster, node_down, node_up
from tests.node.streams import Streams, hold_replicas, roll
from tests.waiting import eventually

ENGINES = f"--selector=specserver.io/server={SERVER}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    name = "story"
    try:
        yield node_up(name)
    finally:
        node_down(name)


@pytest.fixture(scope="module")
def record(cluster: LocalCluster) -> Record:
    assert cluster.registry is not None
    return run_story(cluster, cluster.registry)


@pytest.mark.timeout(2400)  # the first run on a machine builds the images
def test_engines_flip_and_replicas_follow_the_load_without_a_failed_request(record: Record) -> None:
    replicas = list(dict.fromkeys(sample.status.get("replicas") for sample in record.samples[1:]))
    steps = list(dict.fromkeys(sample.status["speculation"].get("steps") for sample in record.samples if sample.status))
    assert record.traffic[-1]["failed"] == 0
    assert record.traffic[-1]["completed"] > 100
    assert {2, 3} <= set(replicas)
    assert {"0", "3"} <= set(steps)


def test_patched_bounds_reach_running_engines_within_seconds(record: Record) -> None:
    note = next(text for _, text in record.notes if text.startswith("new bounds in force after"))
    assert float(note.removeprefix("new bounds in force after ").split(" ")[0]) < 4.0, "2 s to the engines, 2 s to the next look"


def test_the_report_is_written(record: Record, tmp_path: Path) -> None:
    picture, table = write_report(record, tmp_path)
    assert picture.stat().st_size > 50_000
    assert "| busy | 24 |" in table.read_text()


# ---- what stands in the cluster afterwards, from the reading to the removal: the tests run in this order ------------------


def items(cluster: LocalCluster, *arguments: str, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl(cluster, "get", *arguments, "--output=json", namespace=namespace))["items"]
    return found


def test_scaling_is_told_in_events_and_in_the_history(cluster: LocalCluster, record: Record) -> None:
    history = record.samples[-1].status["scaling"]["history"]
    assert sorted((one["from"], one["to"]) for one in history) == [(2, 3), (3, 2)]
    events = {one["reason"]: one["message"] for one in items(cluster, "events") if one["reason"] in ("ScaledUp", "ScaledDown")}
    assert events["ScaledUp"].startswith("from 2 to 3 replicas: ")
    assert events["ScaledDown"].startswith("from 3 to 2 replicas: ")


def test_a_rollout_fails_no_stream(cluster: LocalCluster, record: Record) -> None:
    (operator,) = items(cluster, "pods", "--selector=app.kubernetes.io/name=specserver", namespace=OPERATOR_NAMESPACE)
    hold_replicas(cluster, 2)
    with Streams(cluster, operator["spec"]["containers"][0]["image"]) as streams:
        roll(cluster)
    assert streams.failures == ()
    assert streams.failed == 0
    assert streams.completed > 50


def test_no_key_is_to_be_read_but_in_its_secret(cluster: LocalCluster, record: Record) -> None:
    secret = json.loads(kubectl(cluster, "get", "secret", f"{SERVER}-keys", "--output=json"))
    keys = [base64.b64decode(value).decode() for value in secret["data"].values()]
    assert len(keys) == 2
    assert all(len(key) >= 32 for key in keys)
    pods = items(cluster, "pods", ENGINES)
    kinds = ("ssv", "pods", "deployments", "events", "configmaps")
    shown = {kind: kubectl(cluster, "get", kind, "--output=yaml") for kind in kinds}
    for pod in pods:
        name = pod["metadata"]["name"]
        shown[f"log of {name}"] = kubectl(cluster, "logs", name, "--all-containers")
        processes = kubectl(cluster, "exec", name, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "specserver.plugin.serve" in processes
        shown[f"processes of {name}"] = processes
    shown["log of the operator"] = kubectl(cluster, "logs", "deployment/specserver", namespace=OPERATOR_NAMESPACE)
    assert len(pods) == 2
    assert [where for where, text in shown.items() if any(key in text for key in keys)] == []


async def test_a_server_goes_with_all_that_was_made_for_it_without_an_operator(cluster: LocalCluster, record: Record) -> None:
    kubectl(cluster, "scale", "deployment/specserver", "--replicas=0", "--timeout=60s", namespace=OPERATOR_NAMESPACE)
    kubectl(cluster, "wait", "pod", "--selector=app.kubernetes.io/name=specserver", "--for=delete", namespace=OPERATOR_NAMESPACE)
    kubectl(cluster, "delete", "ssv", SERVER, "--timeout=30s")

    def left() -> list[str]:
        kinds = "deployments,replicasets,pods,services,configmaps,secrets,poddisruptionbudgets"
        return [f"{one['kind']}/{one['metadata']['name']}" for one in items(cluster, kinds, ENGINES)]

    await eventually(lambda: not left(), lambda: f"nothing of the server left, not {left()}", within_seconds=120)


def test_an_uninstall_leaves_what_the_chart_says(cluster: LocalCluster, record: Record) -> None:
    helm = [str(cluster.helm), f"--kubeconfig={cluster.kubeconfig}", "--namespace", OPERATOR_NAMESPACE]
    subprocess.run([*helm, "uninstall", "specserver", "--wait"], check=True, stdout=subprocess.DEVNULL)
    named = "clusterroles,clusterrolebindings,customresourcedefinitions,priorityclasses,namespaces"
    left = kubectl(cluster, "get", named, "--output=name").split()
    assert sorted(name for name in left if "specserver" in name) == [
        "customresourcedefinition.apiextensions.k8s.io/speculativeservers.specserver.io", f"namespace/{OPERATOR_NAMESPACE}",
    ]  # fmt: skip
    own = kubectl(cluster, "get", "all,roles,rolebindings,serviceaccounts,secrets,configmaps,leases", "--output=name",
                  namespace=OPERATOR_NAMESPACE).split()  # fmt: skip
    assert [name for name in own if name.split("/")[1] not in ("default", "kube-root-ca.crt")] == []
