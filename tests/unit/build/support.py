"""A small server to start from, with fields changed by path."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from specserver.api import v1alpha1
from specserver.api.v1alpha1 import SpeculativeServer
from specserver.build.workload import build_workload

SPEC: dict[str, Any] = {
    "model": {"uri": "hf://org/target"},
    "speculation": {"draftModel": {"uri": "hf://org/draft"}},
    "engine": {"image": "registry.example.com/sglang:1"},
}
_UID = "0b5c2f0e-0000-4000-8000-000000000001"


def make_server(changes: Mapping[str, Any] | None = None, *, name: str = "llama", generation: int = 7) -> SpeculativeServer:
    """The server of SPEC; `changes` are values by dotted path, and None takes the field away."""
    spec = deepcopy(SPEC)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        node = spec
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = value
    metadata = {"namespace": "models", "name": name, "uid": _UID, "generation": generation}
    return v1alpha1.parse({"metadata": metadata, "spec": spec})


def pod_template(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    template: dict[str, Any] = build_workload(make_server(changes))["spec"]["template"]
    return template


def engine_container(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    container: dict[str, Any] = pod_template(changes)["spec"]["containers"][0]
    return container


def environment(changes: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = engine_container(changes)["env"]
    return variables
