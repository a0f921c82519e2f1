"""docs/fields.md from the CRD: every field of `SpeculativeServer` with type, default and meaning. `make generate` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from specserver.api.crd import build_crd


def render_reference() -> str:
    """The page as markdown."""
    schema = build_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    lines = ["# Fields of SpeculativeServer v1alpha1", "", "Generated from the types by `make generate`; do not edit.", ""]
    for part in ("spec", "status"):
        lines += [f"## {part}", "", "| field | type | default | meaning |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(cells)} |" for cells in _rows(schema[part], "")]
        lines.append("")
    return "\n".join(lines)


def _rows(node: dict[str, Any], path: str) -> Iterator[tuple[str, str, str, str]]:
    for name, child in node.get("properties", {}).items():
        items = child.get("items", {})
        field = f"{path}{name}" + ("[]" if items else "")
        default = child.get("default")
        shown = (
            "required"
            if name in node.get("required", ())
            else ""
            if default is None or child.get("type") == "object"
            else json.dumps(default)
        )
        meaning = child.get("description", "").replace("|", "\\|")
        yield f"`{field}`", _type(child), f"`{shown}`" if shown not in ("", "required") else shown, meaning
        yield from _rows(items or child, f"{field}.")


def _type(node: dict[str, Any]) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "number or string"
    if "enum" in node:
        return " \\| ".join(str(choice) for choice in node["enum"])
    if "items" in node:
        return f"list of {_type(node['items'])}"
    if "additionalProperties" in node:
        return f"map to {_type(node['additionalProperties'])}"
    return str(node["type"])


if __name__ == "__main__":
    print(render_reference(), end="")
