"""The CRD that is made from the types: what a person reads in `kubectl explain`, and what the API server demands of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from specserver.api.crd import build_crd, render_crd
from specserver.api.rules import OWNED_ENVIRONMENT, RULES
from specserver.api.v1alpha1 import OWNED_FLAGS
from tests.localcluster.paths import REPOSITORY

(VERSION,) = build_crd()["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node below, by its path."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from nodes(child, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(child := schema.get(word), dict):
            yield f"{path}[]", child
            yield from nodes(child, f"{path}[]")


ALL = dict(nodes({"properties": {name: SCHEMA["properties"][name] for name in ("spec", "status")}}))


def test_the_file_in_the_repository_is_what_is_generated() -> None:
    generated = render_crd()
    for path in ("crds/specserver.io_speculativeservers.yaml", "charts/specserver/files/crd.yaml"):
        assert (REPOSITORY / path).read_text() == generated, "run `make generate`"
    assert yaml.safe_load(generated) == build_crd()


@pytest.mark.parametrize("path", [path for path in ALL if not path.endswith("[]")])
def test_every_field_is_described(path: str) -> None:
    assert ALL[path].get("description", "").endswith(".")


DEFAULTED = [path for path, node in ALL.items() if path.startswith(".spec") and "default" in node and "properties" not in node]


@pytest.mark.parametrize("path", DEFAULTED)
def test_a_default_is_said_in_the_description(path: str) -> None:
    default, description = ALL[path]["default"], ALL[path]["description"]
    if "enum" in ALL[path] and "Default" not in description:
        return  # one of few words, each of them explained; the schema shows which
    assert f"Default: {str(default).lower() if isinstance(default, bool) else default}" in description


def test_every_list_and_map_is_bounded() -> None:
    """Else the API server prices the rules as if they were endless, and refuses the definition."""
    spec = {path: node for path, node in ALL.items() if path.startswith(".spec")}
    unbounded = [path for path, node in spec.items() if node.get("type") == "array" and "maxItems" not in node]
    unbounded += [path for path, node in spec.items() if "additionalProperties" in node and "maxProperties" not in node]
    assert unbounded == []


def test_every_rule_names_a_field_and_the_fix() -> None:
    """A message is all that somebody sees who has made a mistake."""
    for one in RULES:
        field, _, fix = one.message.partition(": ")
        assert field.rpartition(".")[2] in one.rule, one.message
        assert len(fix.split()) >= 3, one.message


def test_rules_know_all_that_the_operator_owns() -> None:
    text = " ".join(rule.rule for rule in RULES)
    assert all(name in text for name in (*OWNED_FLAGS, *OWNED_ENVIRONMENT))


def test_conditions_are_merged_by_their_type() -> None:
    """A list without keys belongs as a whole to whoever applied it last."""
    conditions = ALL[".status.conditions"]
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])


def test_it_fits_into_an_annotation_of_kubectl_apply() -> None:
    assert len(yaml.safe_dump(build_crd())) < 200_000


def test_columns_and_subresources() -> None:
    columns = {column["name"]: column.get("priority", 0) for column in VERSION["additionalPrinterColumns"]}
    always = [name for name, priority in columns.items() if priority == 0]
    assert always == ["Ready", "Reason", "Mode", "Steps", "Replicas", "Age"]
    assert [name for name in columns if name not in always] == ["Accept", "Metrics", "Image"]
    assert set(VERSION["subresources"]) == {"status", "scale"}
    names = build_crd()["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["ssv"], ["all", "specserver"])
