"""The CustomResourceDefinition, made from the pydantic types and the CEL rules. `python -m specserver.api.crd` prints it.

pydantic speaks JSON Schema 2020-12; the API server wants a structural OpenAPI v3 schema
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema).
The differences are few, so they are translated here; a hand-written CRD beside the types would drift.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from specserver.api import labels, v1alpha1
from specserver.api.rules import RULES

Schema = dict[str, Any]

_KEPT = (
    "type", "description", "enum", "pattern", "format", "default", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
)  # fmt: skip

_LONGEST_MAP = 64
"""Every map and list needs a bound, or the API server prices the CEL rules as if it were endless and refuses the CRD."""


def build_crd() -> dict[str, Any]:
    """The CRD as a plain object."""
    schema: Schema = {
        "type": "object",
        "description": "A language-model server whose speculation and replicas follow the load.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _structural_schema(v1alpha1.Spec, "What the user wants."),
            "status": _structural_schema(v1alpha1.Status, "What the operator saw and did."),
        },
    }
    for rule in RULES:
        node = schema
        for part in rule.path.split(".") if rule.path else []:
            node = node["properties"][part]
        node.setdefault("x-kubernetes-validations", []).append({"rule": rule.rule, "message": rule.message})
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{labels.PLURAL}.{labels.GROUP}"},
        "spec": {
            "group": labels.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": labels.KIND,
                "listKind": f"{labels.KIND}List",
                "plural": labels.PLURAL,
                "singular": "speculativeserver",
                "shortNames": ["ssv"],
                "categories": ["all", "specserver"],
            },
            "versions": [
                {
                    "name": labels.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": _PRINTER_COLUMNS,
                }
            ],
        },
    }


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}


def _of_condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_PRINTER_COLUMNS = [
    _column("Ready", _of_condition("Ready", "status")),
    _column("Reason", _of_condition("Ready", "reason")),
    _column("Mode", ".spec.speculation.mode"),
    _column("Steps", ".status.speculation.steps"),
    _column("Replicas", ".status.replicas", "integer"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    _column("Accept", ".status.speculation.acceptLength", wide=True),
    _column("Metrics", _of_condition("MetricsAvailable", "reason"), wide=True),
    _column("Image", ".spec.engine.image", wide=True),
]


def _structural_schema(model: type[BaseModel], description: str) -> Schema:
    document = model.model_json_schema(by_alias=True)
    schema = _translate(document, document.get("$defs", {}))
    return {"type": schema.pop("type"), "description": description, **_without(schema, "description")}


def _translate(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """One node of pydantic's schema, made structural."""
    # 1. References are inlined; what stands beside one (its description, its default) wins.
    if "$ref" in node:
        target = definitions[node["$ref"].removeprefix("#/$defs/")]
        node = {**target, **_without(node, "$ref")}
    # 2. "or null" means optional here; what is left is the type itself, or int-or-string.
    if "anyOf" in node:
        choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
        rest = _without(node, "anyOf")
        if {choice.get("type") for choice in choices} == {"integer", "string"}:
            (string,) = (choice for choice in choices if choice["type"] == "string")
            kept = _without_null_default(_kept({**_without(string, "type"), **_without(rest, "type")}))
            return {"x-kubernetes-int-or-string": True, **kept}
        if len(choices) != 1:
            raise NotImplementedError(f"a union that no structural schema can say: {node}")
        return _translate({**choices[0], **_without_null_default(rest)}, definitions)
    # 3. Words that OpenAPI v3 spells otherwise.
    if "const" in node:
        node = {**node, "enum": [node["const"]]}
    if "exclusiveMinimum" in node:
        node = {**node, "minimum": node["exclusiveMinimum"] + 1}
    schema = _without_null_default(_kept(node))
    if schema.get("default") == []:
        del schema["default"]
    # 4. Children.
    if node.get("type") == "array":
        schema["items"] = _translate(node["items"], definitions)
    elif node.get("type") == "object":
        _translate_object(node, schema, definitions)
    return schema


def _translate_object(node: Schema, schema: Schema, definitions: dict[str, Schema]) -> None:
    if "properties" in node:
        # pydantic's "no further properties" has no structural form: the API server prunes them, and kubectl refuses them.
        schema["properties"] = {name: _translate(child, definitions) for name, child in node["properties"].items()}
        for name, child in schema["properties"].items():
            defaults = _defaults_inside(child)
            if defaults and "required" not in child and name not in node.get("required", ()):
                child["default"] = defaults  # so that the defaults inside appear where the whole object is left out
        if "required" in node:
            schema["required"] = node["required"]
    elif node["additionalProperties"] is True:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    else:
        schema["additionalProperties"] = _translate(node["additionalProperties"], definitions)
        schema["maxProperties"] = _LONGEST_MAP


def _defaults_inside(schema: Schema) -> dict[str, Any]:
    """The defaults of an object's fields. Spelled out, since CEL rules judge a default before the ones inside are filled in."""
    properties: dict[str, Schema] = schema.get("properties", {})
    return {name: child["default"] for name, child in properties.items() if "default" in child}


def _kept(node: Schema) -> Schema:
    return {word: node[word] for word in _KEPT if word in node}


def _without(node: Schema, word: str) -> Schema:
    return {key: value for key, value in node.items() if key != word}


def _without_null_default(node: Schema) -> Schema:
    return _without(node, "default") if node.get("default", ...) is None else node


def render_crd() -> str:
    """The CRD as the YAML of `crds/`."""
    import yaml  # here alone: the operator itself never writes YAML

    class WithoutAliases(yaml.SafeDumper):
        """Writes each value where it stands: YAML anchors make a reader jump."""

        def ignore_aliases(self, _data: object) -> bool:
            return True

    header = "# Generated from operator/specserver/api by `make generate`. Do not edit.\n"
    return header + str(yaml.dump(build_crd(), Dumper=WithoutAliases, sort_keys=False, width=120, allow_unicode=True))


if __name__ == "__main__":
    print(render_crd(), end="")
