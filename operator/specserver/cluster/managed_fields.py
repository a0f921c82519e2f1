"""Whether a live object is already what an apply would make of it, told from the object itself.

`managedFields` names each field that a field manager's apply owns. An apply would change nothing where it owns exactly the
fields that we want, and each has the value that we want; defaults are nobody's, and stay out of the comparison. An amount
that the API server spells otherwise (`1000m`, `1`) looks like a difference: then one apply is made that changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_IDENTITY = ("apiVersion", "kind")
_NAME = ("name", "namespace")


def is_in_place(desired: Mapping[str, Any], live: Mapping[str, Any], field_manager: str) -> bool:
    """Whether applying `desired` as this field manager would leave `live` as it is. False where it can't be told."""
    owned = [
        entry.get("fieldsV1")
        for entry in live["metadata"].get("managedFields", [])
        if entry.get("manager") == field_manager and entry.get("operation") == "Apply" and not entry.get("subresource")
    ]
    wanted = {key: value for key, value in desired.items() if key not in _IDENTITY}
    metadata = {key: value for key, value in desired["metadata"].items() if key not in _NAME}
    wanted = {**wanted, "metadata": metadata} if metadata else {key: wanted[key] for key in wanted if key != "metadata"}
    return len(owned) == 1 and _same(wanted, live, owned[0])


def _same(wanted: Any, live: Any, fields: Any) -> bool:
    if not isinstance(fields, Mapping):
        return False
    inner = {path: below for path, below in fields.items() if path != "."}
    if not inner:  # the value as a whole
        return bool(wanted == live)
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        names = {path.removeprefix("f:"): below for path, below in inner.items() if path.startswith("f:")}
        return len(names) == len(inner) and names.keys() == wanted.keys() and all(
            name in live and _same(wanted[name], live[name], below) for name, below in names.items()
        )
    if isinstance(wanted, list) and isinstance(live, list):
        return len(wanted) == len(inner) and all(_same_item(wanted, live, path, below) for path, below in inner.items())
    return False


def _same_item(wanted: list[Any], live: list[Any], path: str, fields: Any) -> bool:
    """An item of a list that is known by its keys (`k:{"name":"engine"}`) or by its value (`v:"x"`)."""
    kind, _, text = path.partition(":")
    if kind == "v":
        value = json.loads(text)
        return value in wanted and value in live
    if kind != "k":
        return False
    keys = json.loads(text).items()
    # A key may have a default, which we don't spell out.
    ours = [item for item in wanted if isinstance(item, Mapping) and all(item.get(key, value) == value for key, value in keys)]
    theirs = [item for item in live if isinstance(item, Mapping) and all(item.get(key) == value for key, value in keys)]
    return len(ours) == len(theirs) == 1 and _same(ours[0], theirs[0], fields)
