"""The whole story on real pods, by the demo's own steps, so that the demo can't break unnoticed; and what holds around them."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.manifests import NAMESPACE, SERVER
from demo.record import Record
from demo.report import write_report
from demo.story import OPERATOR_NAMESPACE, kubectl, pod_identities, run_story
from tests.localcluster import LocalCluster, node_down, node_up


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
    replicas = list(dict.fromkeys(sample.status.get("readyReplicas") for sample in record.samples[1:]))
    steps = list(dict.fromkeys(sample.status["speculation"].get("steps") for sample in record.samples if sample.status))
    assert record.traffic[-1]["failed"] == 0
    assert record.traffic[-1]["completed"] > 100
    assert {2, 3} <= set(replicas)
    assert {"0", "3"} <= set(steps)


def test_every_change_of_replicas_is_an_event_and_a_line_in_status(record: Record, cluster: LocalCluster) -> None:
    history = record.samples[-1].status["scaling"]["history"]
    assert [(line["from"], line["to"]) for line in reversed(history)] == [(2, 3), (3, 2)]
    events = json.loads(kubectl(cluster, "get", "events", "--output=json"))["items"]
    reasons = {event["reason"] for event in events if event["involvedObject"]["kind"] == "SpeculativeServer"}
    assert {"ScaledUp", "ScaledDown", "DrainStarted", "PolicyPushed", "AboveCrossover", "Speculating"} <= reasons


def test_patched_bounds_reach_running_engines_within_seconds(record: Record) -> None:
    note = next(text for _, text in record.notes if text.startswith("new bounds in force after"))
    assert float(note.removeprefix("new bounds in force after ").split(" ")[0]) < 4.0, "2 s to the engines, 2 s to the next look"


def test_keys_stand_on_no_command_line_and_in_no_log(record: Record, cluster: LocalCluster) -> None:
    encoded = json.loads(kubectl(cluster, "get", "secret", f"{SERVER}-keys", "--output=json"))["data"]
    keys = [base64.b64decode(value).decode() for value in encoded.values()]
    told = kubectl(cluster, "get", "deployment,replicaset,pod,event,ssv", "--output=json")
    told += kubectl(cluster, "logs", "deployment/specserver", namespace=OPERATOR_NAMESPACE)
    told += kubectl(cluster, "logs", f"--selector=specserver.io/server={SERVER}", "--tail=-1")
    told += kubectl(
        cluster, "exec", f"deployment/{SERVER}", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    )
    assert "specserver.plugin.launcher" in told
    assert not [key for key in keys if key in told]


def test_the_report_is_written(record: Record, tmp_path: Path) -> None:
    picture, table = write_report(record, tmp_path)
    assert picture.stat().st_size > 50_000
    assert "| busy | 24 |" in table.read_text()


def test_uninstall_leaves_what_the_readme_names(record: Record, cluster: LocalCluster) -> None:
    """Last, since it ends the story."""
    command = (str(cluster.helm), f"--kubeconfig={cluster.kubeconfig}", "--namespace", OPERATOR_NAMESPACE)
    subprocess.run([*command, "uninstall", "specserver", "--wait"], check=True)
    assert kubectl(cluster, "get", "ssv", "--output=name").strip() == f"speculativeserver.specserver.io/{SERVER}"
    assert len(pod_identities(cluster)) == 2
    kinds = "deployment,service,configmap,secret,serviceaccount,role"
    left = kubectl(cluster, "get", kinds, "--output=name", namespace=OPERATOR_NAMESPACE).split()
    assert sorted(left) == ["configmap/kube-root-ca.crt", "serviceaccount/default"]
    # Without the operator, owner references take everything of a deleted server along.
    kubectl(cluster, "delete", "ssv", SERVER, "--wait=true")
    kubectl(
        cluster, "wait", "--for=delete", "deployment,service,configmap,secret,poddisruptionbudget",
        f"--selector=specserver.io/server={SERVER}", "--timeout=60s",
    )  # fmt: skip
    crds = cluster.kubectl("get", "crd", "--output=name")
    assert "speculativeservers.specserver.io" in crds
    assert kubectl(cluster, "get", "ssv", "--output=name", namespace=NAMESPACE).strip() == ""
