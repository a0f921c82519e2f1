"""The Deployment: probes, times, mounts, environment. What changes the pod template is `test_rollouts.py`'s matter."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from specserver.build import build_all
from specserver.build.service import build_service
from specserver.build.workload import build_replicas, build_workload, gate_rollout, keep_template
from tests.unit.build.support import engine_container, environment, make_server, pod_template


def test_replicas_are_another_managers() -> None:
    assert "replicas" not in build_workload(make_server())["spec"]
    assert build_replicas(make_server(), 3, None) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "llama", "namespace": "models"},
        "spec": {"replicas": 3},
    }


def test_what_is_told_of_a_change_of_the_replicas_is_written_with_it() -> None:
    rescale = {"time": "2026-01-01T00:00:00Z", "from": 2, "to": 3, "reason": "负载"}
    annotations = build_replicas(make_server(), 3, rescale)["metadata"]["annotations"]
    assert json.loads(annotations["specserver.io/rescale"]) == rescale


def test_selectors_reach_the_pods_they_should() -> None:
    on_pod = pod_template()["metadata"]["labels"].items()
    objects = build_all(make_server())
    deployment, budget = (objects[role]["spec"]["selector"]["matchLabels"] for role in ("workload", "disruption"))
    service = objects["service"]["spec"]["selector"]
    assert deployment == budget == {"specserver.io/server": "llama"}
    assert service == {"specserver.io/server": "llama", "specserver.io/serving": "true"}
    assert service.items() <= on_pod


def test_a_node_drain_takes_one_replica_and_any_that_is_broken() -> None:
    spec = build_all(make_server())["disruption"]["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_service_finds_the_port_by_name() -> None:
    [port] = build_service(make_server({"engine.port": 8123}))["spec"]["ports"]
    [container_port] = engine_container({"engine.port": 8123})["ports"]
    assert port["port"] == container_port["containerPort"] == 8123
    assert port["targetPort"] == container_port["name"]


def test_what_pods_mount_comes_before_what_makes_pods() -> None:
    assert list(build_all(make_server()))[-1] == "workload"


@pytest.mark.parametrize(
    ("deadline", "failures"), [("30m", 360), ("5s", 1), ("1ms", 1), ("12s", 3), ("1h1s", 721)]
)
def test_startup_probe_gives_the_load_its_deadline(deadline: str, failures: int) -> None:
    probe = engine_container({"engine.loadDeadline": deadline})["startupProbe"]
    assert (probe["httpGet"]["path"], probe["periodSeconds"], probe["failureThreshold"]) == ("/ready", 5, failures)


def test_probes_are_looks_at_flags() -> None:
    container = engine_container()
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert {"name": "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "value": "false"} in container["env"]


@pytest.mark.parametrize(("drain", "grace"), [("60s", 100), ("0s", 40), ("500ms", 41), ("5m", 340)])
def test_grace_covers_the_whole_drain(drain: str, grace: int) -> None:
    template = pod_template({"rollout.drainTimeout": drain})
    assert template["spec"]["terminationGracePeriodSeconds"] == grace
    assert template["spec"]["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 10}}}


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 3600),
        ({"rollout.progressDeadline": "3h"}, 10800),
        ({"rollout.progressDeadline": "1m"}, 100 + 1800 + 60),
        ({"engine.loadDeadline": "2h"}, 100 + 7200 + 60),
        ({"engine.loadDeadline": "2h", "template.spec": {"terminationGracePeriodSeconds": 900}}, 900 + 7200 + 60),
        ({"engine.loadDeadline": "2h", "template.spec": {"terminationGracePeriodSeconds": None}}, 100 + 7200 + 60),
    ],
    ids=["default", "as asked", "shorter than a load", "load longer than default", "overlay's grace", "no grace"],
)
def test_a_slow_load_is_never_a_failed_rollout(changes: dict[str, Any], seconds: int) -> None:
    assert build_workload(make_server(changes))["spec"]["progressDeadlineSeconds"] == seconds


def test_rollout_strategy() -> None:
    strategy = build_workload(make_server({"rollout": {"maxSurge": 2, "maxUnavailable": 0}}))["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}


def test_launcher_is_the_containers_process() -> None:
    assert engine_container()["command"] == ["python", "-m", "specserver.plugin.launcher"]


def test_no_service_reaches_the_engines_environment() -> None:
    assert pod_template()["spec"]["enableServiceLinks"] is False


def test_pod_asks_for_no_privilege() -> None:
    spec = pod_template()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_users_variable_replaces_ours_whole() -> None:
    source = {"secretKeyRef": {"name": "other", "key": "t", "optional": True}}
    changes = {
        "model.tokenSecretRef": {"name": "hub", "key": "token"},
        "engine.env": [
            {"name": "HF_TOKEN", "valueFrom": source},
            {"name": "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "value": "true"},
        ],
    }
    variables = environment(changes)
    assert {"name": "HF_TOKEN", "valueFrom": source} in variables
    assert {"name": "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "value": "true"} in variables
    assert len({one["name"] for one in variables}) == len(variables)


def test_token_only_where_it_is_named() -> None:
    assert "HF_TOKEN" not in {one["name"] for one in environment()}


def test_policy_is_mounted_as_a_directory_so_that_changes_arrive() -> None:
    [mount] = [one for one in engine_container()["volumeMounts"] if one["mountPath"] == "/etc/specserver"]
    assert mount == {"name": "specserver-policy", "mountPath": "/etc/specserver", "readOnly": True}
    assert {"name": "specserver-policy", "configMap": {"name": "llama-policy"}} in pod_template()["spec"]["volumes"]
    assert {"name": "SPECSERVER_POLICY_FILE", "value": "/etc/specserver/policy.json"} in environment()


def test_every_path_on_the_command_line_is_in_the_config_map() -> None:
    files = {f"/etc/specserver/{name}" for name in build_all(make_server())["policy"]["data"]}
    named = {argument for argument in engine_container()["args"] if argument.startswith("/etc/specserver/")}
    assert named
    assert named <= files


def test_shared_memory_is_memory_of_the_given_size() -> None:
    volumes = pod_template({"engine.sharedMemory": "3Gi"})["spec"]["volumes"]
    assert {"name": "specserver-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "3Gi"}} in volumes


@pytest.mark.parametrize(
    ("target", "draft", "claims"),
    [
        ("hf://org/m", "file:///d", {}),
        ("pvc://a/m", "hf://org/d", {"specserver-model": "a"}),
        ("hf://org/m", "pvc://a/d", {"specserver-draft": "a"}),
        ("pvc://a/m", "pvc://b/d", {"specserver-model": "a", "specserver-draft": "b"}),
        ("pvc://a/m", "pvc://a/d", {"specserver-model": "a"}),
    ],
    ids=["none", "model", "draft", "two claims", "one claim for both"],
)
def test_claims_are_mounted_read_only_and_once(target: str, draft: str, claims: dict[str, str]) -> None:
    spec = pod_template({"model.uri": target, "speculation.draftModel.uri": draft})["spec"]
    mounted = {one["name"]: one["persistentVolumeClaim"] for one in spec["volumes"] if "persistentVolumeClaim" in one}
    assert mounted == {name: {"claimName": claim, "readOnly": True} for name, claim in claims.items()}
    for mount in spec["containers"][0]["volumeMounts"]:
        if mount["name"] in claims:
            assert mount["readOnly"] is True


def test_draft_is_not_mounted_in_mode_never() -> None:
    spec = pod_template({"speculation.mode": "Never", "speculation.draftModel.uri": "pvc://a/d"})["spec"]
    assert [one["name"] for one in spec["volumes"]] == ["specserver-policy", "specserver-shm"]


@pytest.mark.parametrize(
    "image",
    ["reg.local:5000/ai/sglang@sha256:" + "1" * 64, "reg.local:5000/ai/sglang:v1@sha256:" + "2" * 64, "odd:sha256:3"],
    ids=["digest", "tag and digest", "not an image"],
)
def test_image_is_copied_verbatim(image: str) -> None:
    assert engine_container({"engine.image": image})["image"] == image


def test_what_only_a_newer_kubernetes_knows_is_passed_on() -> None:
    """Models of today's fields would drop it without a word."""
    source = {"vaultKeyRef": {"name": "vault", "paths": [{"path": "/a"}]}}
    changes = {"engine.env": [{"name": "KEY", "valueFrom": source}], "template.spec": {"gangName": {"of": "four"}}}
    assert {"name": "KEY", "valueFrom": source} in environment(changes)
    assert pod_template(changes)["spec"]["gangName"] == {"of": "four"}


def test_amounts_are_written_as_the_api_server_gives_them_back() -> None:
    resources = engine_container({"engine.resources": {"limits": {"nvidia.com/gpu": 4, "memory": "8Gi"}}})["resources"]
    assert resources == {"limits": {"nvidia.com/gpu": "4", "memory": "8Gi"}}


def test_objects_of_a_server_with_the_longest_name_are_valid() -> None:
    for built in build_all(make_server(name="a" * 63)).values():
        kubernetes_validate.validate(built, "1.36", strict=True)
        for value in built["metadata"]["labels"].values():
            assert len(value) <= 63


def test_a_held_rollout_differs_in_the_gate_alone() -> None:
    built = build_workload(make_server({"rollout.maxSurge": 2}))
    held = gate_rollout(built, 3)
    assert held["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 2, "maxUnavailable": 3}
    assert held["spec"]["minReadySeconds"] < held["spec"]["progressDeadlineSeconds"] < 2**31
    gate = ("strategy", "minReadySeconds", "progressDeadlineSeconds")
    assert {key: value for key, value in held["spec"].items() if key not in gate} == {
        key: value for key, value in built["spec"].items() if key not in gate
    }
    assert held["metadata"] == built["metadata"]
    assert "minReadySeconds" not in built["spec"]


def test_a_kept_template_keeps_where_it_came_from() -> None:
    built = build_workload(make_server({"rollout.maxSurge": 2}))
    kept = keep_template(built, {"spec": {"earlier": True}}, {"a": "b"})
    assert (kept["spec"]["template"], kept["metadata"]["annotations"]) == ({"spec": {"earlier": True}}, {"a": "b"})
    assert kept["spec"]["strategy"] == built["spec"]["strategy"]


def test_building_twice_gives_the_same() -> None:
    assert build_all(make_server()) == build_all(make_server())
