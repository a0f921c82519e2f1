"""The definition in the chart: the repository's one source, kept at uninstall, small enough for every client."""

from __future__ import annotations

import json

import yaml

from tests.chart.helm import CHART, CRD_SOURCE, Helm, of_kind, only

COPY = CHART / "files" / "crd.yaml"

# `kubectl apply` stores the whole object in an annotation, and annotations together may have 262,144 bytes.
MOST_BYTES = 200_000


def test_the_copy_in_the_chart_is_the_source_byte_for_byte() -> None:
    assert COPY.read_bytes() == CRD_SOURCE.read_bytes(), f"run make generate, or: cp {CRD_SOURCE} {COPY}"


def test_rendered_is_the_source_with_labels_and_the_keep_policy(helm: Helm) -> None:
    rendered = only(helm.render(), "CustomResourceDefinition")
    assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert rendered["metadata"].pop("labels")["app.kubernetes.io/name"] == "specserver"
    assert rendered == yaml.safe_load(CRD_SOURCE.read_text())


def test_not_kept_has_no_policy(helm: Helm) -> None:
    assert "annotations" not in only(helm.render({"crds": {"keep": False}}), "CustomResourceDefinition")["metadata"]


def test_can_be_left_to_another_release(helm: Helm) -> None:
    assert of_kind(helm.render({"crds": {"install": False}}), "CustomResourceDefinition") == []


def test_small_enough_for_client_side_apply(helm: Helm) -> None:
    rendered = only(helm.render(), "CustomResourceDefinition")
    assert len(json.dumps(rendered, separators=(",", ":")).encode()) < MOST_BYTES
