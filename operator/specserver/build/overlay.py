"""The user's pod template over ours: a strategic merge, as `kubectl patch` does it.

Which lists are merged by which key comes from the Kubernetes API's own schema (`x-kubernetes-patch-merge-key`; a test compares
the table with it). No Python library does this merge. Three deliberate differences from `kubectl patch`:

- New list items go after ours, not before: the engine stays the first container, and variables keep their order.
- An environment variable is replaced whole, and of a volume only the kind that the overlay names is kept. A field-by-field
  merge would give a variable two sources or a volume two kinds, and the API server would refuse every pod.
- `$patch: delete` takes a field away as `null` does, instead of leaving it empty: a `null` in the resource is lost under
  `kubectl apply` without `--server-side`, and an empty probe is none that the API server takes.

What the rest of the operator relies on can't be changed: see `_check_owned`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specserver.api import labels
from specserver.api.rules import OWNED_ENVIRONMENT
from specserver.api.v1alpha1 import PodTemplateOverlay
from specserver.build.metadata import BuildInvalid

MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "evictionResponders": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists of a pod template that merge item by item, and the field that tells items apart. Every other list is replaced."""

_PATCH = "$patch"
_ROOT = "spec.template"


class OverlayInvalid(BuildInvalid):
    """The overlay can't be merged, or changes what the operator relies on."""


def apply_overlay(built: Mapping[str, Any], overlay: PodTemplateOverlay | None) -> dict[str, Any]:
    """The built pod template with the overlay merged over it. OverlayInvalid names the field and the fix."""
    if overlay is None:
        return dict(built)
    merged = dict(built)
    if overlay.metadata:
        for name in overlay.metadata:
            if name not in ("labels", "annotations"):
                raise OverlayInvalid(f"{_ROOT}.metadata.{name}", "remove it; only labels and annotations can be added")
        merged["metadata"] = _merge_maps(built["metadata"], overlay.metadata, f"{_ROOT}.metadata")
    if overlay.spec:
        merged["spec"] = _merge_maps(built["spec"], overlay.spec, f"{_ROOT}.spec")
    _check_owned(built, merged)
    return merged


# ---- strategic merge --------------------------------------------------------------------------------------------------


def _merge_maps(original: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Field by field; `$patch: replace` drops what was there first."""
    directive = patch.get(_PATCH, "merge")
    if directive not in ("merge", "replace"):
        raise OverlayInvalid(f"{path}.{_PATCH}", f"must be replace or merge here, not {directive!r}")
    merged = {} if directive == "replace" else dict(original)
    for name, value in patch.items():
        if name == _PATCH:
            continue
        if name.startswith("$"):
            raise OverlayInvalid(f"{path}.{name}", f"is not a directive that is known here; remove it or use {_PATCH}")
        if value is None or _is_deletion(value):
            merged.pop(name, None)
        else:
            merged[name] = _merge_values(name, merged.get(name), value, f"{path}.{name}")
    return merged


def _is_deletion(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get(_PATCH) == "delete"


def _merge_values(name: str, original: Any, value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        if original is not None and not isinstance(original, Mapping):
            raise OverlayInvalid(path, f"is {_kind(original)} in a pod template, not a map")
        return _merge_maps(original or {}, value, path)
    if isinstance(original, Mapping):
        raise OverlayInvalid(path, f"is a map in a pod template, not {_kind(value)}")
    if name in MERGE_KEYS:
        if not isinstance(value, list):
            raise OverlayInvalid(path, f"is a list in a pod template, not {_kind(value)}")
        return _merge_items(name, original or [], value, path)
    return value


def _merge_items(name: str, original: Sequence[Any], patch: Sequence[Any], path: str) -> list[Any]:
    """Items with the same key are merged in place, new ones appended, those marked `$patch: delete` taken out.

    An item that is only `$patch: replace` drops all the items that were there.
    """
    key = MERGE_KEYS[name]
    if {_PATCH: "replace"} in patch:
        original, patch = [], [item for item in patch if item != {_PATCH: "replace"}]
    merged = {item[key]: item for item in original}
    for index, item in enumerate(patch):
        if not isinstance(item, Mapping) or item.get(key) is None:
            raise OverlayInvalid(f"{path}[{index}]", f"needs `{key}`, by which {name} are told apart")
        identity = item[key]
        if _is_deletion(item):
            merged.pop(identity, None)
        else:
            kept = _kept_of(name, merged.get(identity, {}), item)
            merged[identity] = _merge_maps(kept, item, f"{path}[{identity}]")
    return list(merged.values())


def _kept_of(name: str, original: Mapping[str, Any], item: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of an item may stay below the overlay's: nothing of a variable, the overlay's kind of a volume."""
    if name == "env":
        return {}
    if name == "volumes":
        return {field: value for field, value in original.items() if field in item}
    return original


def _kind(value: Any) -> str:
    return {dict: "a map", list: "a list", str: "a string", bool: "a boolean"}.get(type(value), "a number")


# ---- what is ours -----------------------------------------------------------------------------------------------------


def _check_owned(built: Mapping[str, Any], merged: Mapping[str, Any]) -> None:
    """Refuse a template in which something is gone or different that other parts of the operator stand on."""
    for name, value in built["metadata"]["labels"].items():
        if merged["metadata"].get("labels", {}).get(name) != value:
            raise OverlayInvalid(f"{_ROOT}.metadata.labels[{name}]", "is the operator's own label: remove it from the overlay")
    spec = f"{_ROOT}.spec"
    if merged["spec"].get("enableServiceLinks") is not False:
        raise OverlayInvalid(
            f"{spec}.enableServiceLinks",
            "must stay false: a Service named like SGLang's variables would reach into the engine; remove it",
        )
    mounted = _item(built["spec"], "volumes", labels.POLICY_VOLUME)
    if _item(merged["spec"], "volumes", labels.POLICY_VOLUME) != mounted:
        raise OverlayInvalid(f"{spec}.volumes[{labels.POLICY_VOLUME}]", "holds the engine's policy: use another name")
    ours = _item(built["spec"], "containers", labels.ENGINE_CONTAINER)
    engine = _item(merged["spec"], "containers", labels.ENGINE_CONTAINER)
    path = f"{spec}.containers[{labels.ENGINE_CONTAINER}]"
    if engine is None or ours is None:
        raise OverlayInvalid(path, "is the engine itself and can't be taken out")
    for name, field in (("image", "engine.image"), ("args", "engine.args")):
        if engine.get(name) != ours[name]:
            raise OverlayInvalid(f"{path}.{name}", f"use spec.{field} instead")
    for name, value in (("env", variable) for variable in OWNED_ENVIRONMENT):
        if _item(engine, name, value) != _item(ours, name, value):
            raise OverlayInvalid(f"{path}.env[{value}]", "is set by the operator: remove it from the overlay")
    port = ours["ports"][0]
    if _item(engine, "ports", port["containerPort"]) != port:
        raise OverlayInvalid(f"{path}.ports[{port['containerPort']}]", "is the Service's target: use spec.engine.port")
    if _item(engine, "volumeMounts", labels.POLICY_DIRECTORY) != _item(ours, "volumeMounts", labels.POLICY_DIRECTORY):
        raise OverlayInvalid(f"{path}.volumeMounts[{labels.POLICY_DIRECTORY}]", "holds the engine's policy: mount elsewhere")


def _item(parent: Mapping[str, Any], name: str, identity: Any) -> Any:
    """The item of a merged list with this key, or None."""
    return next((item for item in parent.get(name, []) if item.get(MERGE_KEYS[name]) == identity), None)
