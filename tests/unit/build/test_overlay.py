"""The overlay: merged as `kubectl patch --type strategic` does it, and never over what the operator stands on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import importlib_resources
import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.api.v1alpha1 import PodTemplateOverlay
from specserver.build.overlay import MERGE_KEYS, OverlayInvalid, apply_overlay
from tests.unit.build.support import pod_template

CHANGES = {"model.tokenSecretRef": {"name": "hub", "key": "token"}}
TEMPLATE = pod_template(CHANGES)


def merged(spec: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    return apply_overlay(TEMPLATE, PodTemplateOverlay(spec=spec, metadata=metadata))


def merged_engine(overlay: dict[str, Any]) -> dict[str, Any]:
    engine: dict[str, Any] = merged({"containers": [{"name": "engine", **overlay}]})["spec"]["containers"][0]
    return engine


def named(items: list[dict[str, Any]], key: str = "name") -> dict[Any, dict[str, Any]]:
    assert len({item[key] for item in items}) == len(items)
    return {item[key]: item for item in items}


# ---- the table of merge keys ------------------------------------------------------------------------------------------


def schema_merge_keys() -> Iterator[tuple[str, str]]:
    """Name and merge key of every list of maps below a pod template, in the newest Kubernetes schema at hand."""
    version = kubernetes_validate.latest_version()
    root = importlib_resources.files("kubernetes_validate") / "kubernetes-json-schema"
    text = (root / f"v{version}-local-strict" / "_definitions.json").read_text(encoding="utf-8")
    definitions = json.loads(text)["$defs"]

    def walk(node: dict[str, Any], seen: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        if "$ref" in node:
            name = node["$ref"].rsplit("/", 1)[-1]
            if name not in seen:
                yield from walk(definitions[name], (*seen, name))
        for field, child in node.get("properties", {}).items():
            if "x-kubernetes-patch-merge-key" in child:
                yield field, child["x-kubernetes-patch-merge-key"]
            yield from walk(child, seen)
        for branch in ("items", "additionalProperties"):
            if isinstance(node.get(branch), dict):
                yield from walk(node[branch], seen)

    yield from walk(definitions["io.k8s.api.core.v1.PodTemplateSpec"], ())


def test_merge_keys_are_those_of_the_kubernetes_api() -> None:
    assert set(schema_merge_keys()) == set(MERGE_KEYS.items())


# ---- the merge --------------------------------------------------------------------------------------------------------


def test_no_overlay_leaves_the_template() -> None:
    assert apply_overlay(TEMPLATE, None) == TEMPLATE
    assert merged() == TEMPLATE
    assert merged({}, {}) == TEMPLATE


def test_the_built_template_is_not_touched() -> None:
    before = deepcopy(TEMPLATE)
    merged(
        {"containers": [{"name": "engine", "env": [{"name": "A", "value": "1"}]}], "nodeSelector": {"a": "b"}},
        {"labels": {"team": "search"}},
    )
    assert before == TEMPLATE


def test_fields_of_a_pod_spec_are_added() -> None:
    spec = merged({"nodeSelector": {"gpu": "h200"}, "priorityClassName": "high", "hostIPC": True})["spec"]
    assert (spec["nodeSelector"], spec["priorityClassName"], spec["hostIPC"]) == ({"gpu": "h200"}, "high", True)


def test_labels_and_annotations_are_added() -> None:
    metadata = merged(metadata={"labels": {"team": "search"}, "annotations": {"note": "推理"}})["metadata"]
    assert metadata["labels"] == {**TEMPLATE["metadata"]["labels"], "team": "search"}
    assert metadata["annotations"] == {"note": "推理"}


def test_maps_are_merged_field_by_field() -> None:
    assert merged_engine({"securityContext": {"runAsUser": 1000}})["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": 1000,
    }


def test_null_takes_a_field_away() -> None:
    assert "livenessProbe" not in merged_engine({"livenessProbe": None})
    assert merged({"nodeSelector": {"a": None, "b": "c"}})["spec"]["nodeSelector"] == {"b": "c"}


def test_other_lists_are_replaced() -> None:
    assert merged_engine({"command": ["/opt/wrap.sh"]})["command"] == ["/opt/wrap.sh"]
    assert merged_engine({"securityContext": {"capabilities": {"drop": ["NET_RAW"]}}})["securityContext"]["capabilities"] == {
        "drop": ["NET_RAW"]
    }
    tolerations = [{"key": "a", "operator": "Exists"}]
    assert merged({"tolerations": tolerations})["spec"]["tolerations"] == tolerations


def test_sidecar_goes_after_the_engine() -> None:
    containers = merged({"containers": [{"name": "side", "image": "s"}]})["spec"]["containers"]
    assert [one["name"] for one in containers] == ["engine", "side"]
    assert containers[0] == TEMPLATE["spec"]["containers"][0]


def test_init_containers_are_added() -> None:
    containers = merged({"initContainers": [{"name": "fetch", "image": "f"}]})["spec"]["initContainers"]
    assert containers == [{"name": "fetch", "image": "f"}]


def test_pull_secrets_reach_the_pod_in_their_order() -> None:
    """There is one kind of pod, and its image, its sidecars and init containers are all pulled with them."""
    assert merged({"imagePullSecrets": [{"name": "reg-b"}, {"name": "reg-a"}]})["spec"]["imagePullSecrets"] == [
        {"name": "reg-b"}, {"name": "reg-a"},
    ]  # fmt: skip


def test_wrapper_command_keeps_our_arguments() -> None:
    assert merged_engine({"command": ["/opt/wrap.sh"]})["args"] == TEMPLATE["spec"]["containers"][0]["args"]


def test_mounts_merge_by_path_and_ports_by_number() -> None:
    engine = merged_engine(
        {
            "volumeMounts": [{"mountPath": "/dev/shm", "name": "other"}, {"mountPath": "/cache", "name": "cache"}],
            "ports": [{"containerPort": 9000, "name": "extra"}],
        }
    )
    mounts = named(engine["volumeMounts"], "mountPath")
    assert mounts["/dev/shm"] == {"mountPath": "/dev/shm", "name": "other"}
    assert mounts["/cache"] == {"mountPath": "/cache", "name": "cache"}
    assert set(named(engine["ports"], "containerPort")) == {30000, 9000}


def test_variable_is_replaced_whole() -> None:
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    env = named(merged_engine({"env": [{"name": "HF_TOKEN", "value": "t"}, {"name": "NEW", "valueFrom": source}]})["env"])
    assert env["HF_TOKEN"] == {"name": "HF_TOKEN", "value": "t"}
    assert env["NEW"] == {"name": "NEW", "valueFrom": source}


def test_of_a_volume_only_the_overlays_kind_is_kept() -> None:
    volumes = named(merged({"volumes": [{"name": "specserver-shm", "hostPath": {"path": "/dev/shm"}}]})["spec"]["volumes"])
    assert volumes["specserver-shm"] == {"name": "specserver-shm", "hostPath": {"path": "/dev/shm"}}


def test_volume_of_the_same_kind_is_merged() -> None:
    volumes = named(merged({"volumes": [{"name": "specserver-shm", "emptyDir": {"sizeLimit": "1Gi"}}]})["spec"]["volumes"])
    assert volumes["specserver-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


def test_delete_directive_takes_an_item_out() -> None:
    engine = merged_engine({"env": [{"name": "HF_TOKEN", "$patch": "delete"}, {"name": "ABSENT", "$patch": "delete"}]})
    assert set(named(engine["env"])) == set(named(TEMPLATE["spec"]["containers"][0]["env"])) - {"HF_TOKEN"}


def test_replace_directive_drops_what_was_there() -> None:
    engine = merged_engine({"securityContext": {"$patch": "replace", "runAsUser": 0}})
    assert engine["securityContext"] == {"runAsUser": 0}
    spec = merged({"imagePullSecrets": [{"$patch": "replace"}, {"name": "a"}]})["spec"]
    assert spec["imagePullSecrets"] == [{"name": "a"}]


def test_delete_directive_takes_a_field_away() -> None:
    assert "livenessProbe" not in merged_engine({"livenessProbe": {"$patch": "delete"}})


NAMES = st.sampled_from(["a", "b", "engine"])
TEXTS = st.text(max_size=3)
SIDECARS = st.lists(st.builds(lambda name, image: {"name": f"side-{name}", "image": image}, NAMES, TEXTS), max_size=4)
SELECTORS = st.dictionaries(NAMES, TEXTS, max_size=3)
VARIABLES = st.lists(st.builds(lambda name, value: {"name": name, "value": value}, NAMES, TEXTS), max_size=4)


@given(SIDECARS, SELECTORS, VARIABLES)
def test_merging_twice_is_merging_once(
    sidecars: list[dict[str, Any]], selector: dict[str, str], variables: list[dict[str, Any]]
) -> None:
    overlay = PodTemplateOverlay(
        spec={"containers": [*sidecars, {"name": "engine", "env": variables}], "nodeSelector": selector}
    )
    once = apply_overlay(TEMPLATE, overlay)
    assert apply_overlay(once, overlay) == once


# ---- refusals ---------------------------------------------------------------------------------------------------------

ENGINE = "spec.template.spec.containers[engine]"


def engine_with(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "engine", **fields}]}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "service links": ({"enableServiceLinks": True}, "spec.template.spec.enableServiceLinks"),
    "service links dropped": ({"enableServiceLinks": None}, "spec.template.spec.enableServiceLinks"),
    "no engine": ({"containers": [{"name": "engine", "$patch": "delete"}]}, ENGINE),
    "other containers instead": ({"containers": [{"$patch": "replace"}, {"name": "side", "image": "s"}]}, ENGINE),
    "no containers": ({"containers": None}, ENGINE),
    "image": (engine_with(image="other"), f"{ENGINE}.image"),
    "arguments": (engine_with(args=["--model-path", "x"]), f"{ENGINE}.args"),
    "no arguments": (engine_with(args=None), f"{ENGINE}.args"),
    "admin key": (engine_with(env=[{"name": "SPECSERVER_ADMIN_KEY", "value": "x"}]), f"{ENGINE}.env[SPECSERVER_ADMIN_KEY]"),
    "no api key": (engine_with(env=[{"name": "SPECSERVER_API_KEY", "$patch": "delete"}]), f"{ENGINE}.env[SPECSERVER_API_KEY]"),
    "no environment": (engine_with(env=None), f"{ENGINE}.env[SPECSERVER_ADMIN_KEY]"),
    "port renamed": (engine_with(ports=[{"containerPort": 30000, "name": "web"}]), f"{ENGINE}.ports[30000]"),
    "no port": (engine_with(ports=[{"containerPort": 30000, "$patch": "delete"}]), f"{ENGINE}.ports[30000]"),
    "policy elsewhere": (
        engine_with(volumeMounts=[{"mountPath": "/etc/specserver", "name": "specserver-shm"}]),
        f"{ENGINE}.volumeMounts[/etc/specserver]",
    ),
    "policy from elsewhere": (
        {"volumes": [{"name": "specserver-policy", "emptyDir": {}}]}, "spec.template.spec.volumes[specserver-policy]",
    ),
    "no volumes": ({"volumes": None}, "spec.template.spec.volumes[specserver-policy]"),
    "item without its key": ({"containers": [{"image": "x"}]}, "spec.template.spec.containers[0]"),
    "item that is no map": ({"volumes": ["cache"]}, "spec.template.spec.volumes[0]"),
    "list where a map is": (engine_with(securityContext=[]), f"{ENGINE}.securityContext"),
    "map where a list is": ({"containers": {"name": "engine"}}, "spec.template.spec.containers"),
    "text where a list is": ({"volumes": "cache"}, "spec.template.spec.volumes"),
    "map where a value is": ({"terminationGracePeriodSeconds": {"a": 1}}, "spec.template.spec.terminationGracePeriodSeconds"),
    "unknown patch": ({"securityContext": {"$patch": "drop"}}, "spec.template.spec.securityContext.$patch"),
    "everything deleted": ({"$patch": "delete"}, "spec.template.spec.$patch"),
    "unknown directive": ({"securityContext": {"$retainKeys": []}}, "spec.template.spec.securityContext.$retainKeys"),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal_names_the_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(OverlayInvalid) as refused:
        merged(spec)
    assert refused.value.field == field
    assert refused.value.message


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"specserver.io/server": "other"}}, "spec.template.metadata.labels[specserver.io/server]"),
        ({"labels": {"specserver.io/serving": None}}, "spec.template.metadata.labels[specserver.io/serving]"),
        ({"labels": None}, "spec.template.metadata.labels[app.kubernetes.io/managed-by]"),
        ({"name": "pod"}, "spec.template.metadata.name"),
        ({"ownerReferences": []}, "spec.template.metadata.ownerReferences"),
    ],
    ids=["another server", "not serving", "no labels", "a name", "owners"],
)
def test_refusal_in_metadata_names_the_field(metadata: dict[str, Any], field: str) -> None:
    with pytest.raises(OverlayInvalid) as refused:
        merged(metadata=metadata)
    assert refused.value.field == field


def test_own_value_repeated_is_not_a_change() -> None:
    assert merged({"enableServiceLinks": False}, {"labels": {"specserver.io/serving": "true"}}) == TEMPLATE
