"""Helm as the tests use it: one binary, homes of its own, values as Python dictionaries.

Values go through a file and not through `--set`: that has a syntax of its own, in which types are guessed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "specserver"
CRD_SOURCE = REPOSITORY / "crds" / "specserver.io_speculativeservers.yaml"

RELEASE = "demo"
NAMESPACE = "specserver-system"

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class HelmRefused(Exception):
    """Helm ended with an error; the text is what it said."""


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that stands twice, which YAML parsers swallow and the API server's strict decoding does not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _value in node.value]
        doubled = {key for key in keys if keys.count(key) > 1}
        if doubled:
            raise yaml.constructor.ConstructorError(None, None, f"keys that stand twice: {doubled}", node.start_mark)
        return dict(super().construct_mapping(node, deep))


@dataclass(frozen=True)
class Helm:
    """binary: the helm program. home: where it may write; never the user's own. kubeconfig: the cluster, if any."""

    binary: Path
    home: Path
    kubeconfig: Path = Path(os.devnull)

    def run(self, *arguments: str, values: Values | None = None) -> str:
        """What helm prints. HelmRefused where it fails."""
        if values is not None:
            arguments = (*arguments, "--values", "-")
        homes = {f"HELM_{kind}_HOME": str(self.home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HELM_")}
        result = subprocess.run(
            [str(self.binary), *arguments],
            input=None if values is None else yaml.safe_dump(dict(values)),
            env={**environment, **homes, "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        if result.returncode != 0:
            raise HelmRefused(result.stderr + result.stdout)
        return result.stdout

    def render_text(
        self, values: Values | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE, chart: Path = CHART
    ) -> str:
        """The manifests as text."""
        return self.run("template", release, str(chart), "--namespace", namespace, values=values or {})

    def render(
        self, values: Values | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE, chart: Path = CHART
    ) -> list[Manifest]:
        """The manifests as objects."""
        text = self.render_text(values, release=release, namespace=namespace, chart=chart)
        return [manifest for manifest in yaml.load_all(text, Loader=StrictLoader) if manifest is not None]


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def only(manifests: list[Manifest], kind: str) -> Manifest:
    """The one manifest of a kind."""
    (manifest,) = of_kind(manifests, kind)
    return manifest


def leaves(values: Values, prefix: str = "") -> dict[str, Any]:
    """Dotted path to default of everything that can be set; an empty map or list is one thing."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found |= leaves(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def nested(path: str, value: Any) -> dict[str, Any]:
    """`nested("a.b", 1)` is `{"a": {"b": 1}}`."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def default_values() -> dict[str, Any]:
    return dict(yaml.load((CHART / "values.yaml").read_text(), Loader=StrictLoader))
