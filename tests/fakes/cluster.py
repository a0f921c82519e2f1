"""An API server in memory, for tests of what is asked of one: objects by kind and name, requests in a list, errors on demand.

It merges and applies as plainly as can be; what Kubernetes really does with an apply is shown on a real one (tests/apiserver).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from specserver.cluster.client import Body
from specserver.cluster.errors import Conflict, NotFound

Request = tuple[str, str, str]
"""Verb, kind, name."""


class MemoryCluster:
    """Implements `cluster.client.Cluster`."""

    def __init__(self, *objects: Body) -> None:
        self.objects: dict[tuple[str, str], Body] = {(one["kind"], one["metadata"]["name"]): one for one in objects}
        self.requests: list[Request] = []
        self._versions = 0
        self.on_request: Callable[[Request], None] = lambda _request: None
        """Called before each request; what it raises is the answer."""

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.requests if request[0] not in ("get", "list", "dry run")]

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        self._note("get", kind, name)
        return copy.deepcopy(self._find(kind, name))

    async def list_all(self, kind: str, namespace: str, *, label_selector: str = "") -> list[Body]:
        self._note("list", kind, "")
        wanted = dict(part.split("=") for part in label_selector.split(",") if part)
        return [
            copy.deepcopy(body)
            for (found, _), body in self.objects.items()
            if found == kind and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]

    async def create(self, body: Body) -> Body:
        kind, name = body["kind"], body["metadata"]["name"]
        self._note("create", kind, name)
        if (kind, name) in self.objects:
            raise Conflict(f"{kind} {name} already exists", status=409)
        return self._store(kind, name, body)

    async def apply(self, body: Body, *, field_manager: str, dry_run: bool = False) -> Body:
        kind, name = body["kind"], body["metadata"]["name"]
        if dry_run:
            self._note("dry run", kind, name)
            return _merge(copy.deepcopy(self.objects.get((kind, name), {})), body)
        self._note("apply", kind, name)
        stored = self._store(kind, name, _merge(self.objects.get((kind, name), {}), body))
        managed = [entry for entry in stored["metadata"].get("managedFields", []) if entry["manager"] != field_manager]
        fields = {"manager": field_manager, "operation": "Apply", "fieldsV1": {"f:spec": sorted(body.get("spec", {}))}}
        stored["metadata"]["managedFields"] = [*managed, fields]
        self.objects[kind, name]["metadata"]["managedFields"] = [*managed, fields]
        return stored

    async def patch(self, kind: str, namespace: str, name: str, body: Body, *, field_manager: str) -> Body:
        self._note("patch", kind, name)
        live = self._find(kind, name)
        version = live["metadata"].get("resourceVersion")
        if body.get("metadata", {}).get("resourceVersion", version) != version:
            raise Conflict(f"{kind} {name} has been modified", status=409)
        return self._store(kind, name, _merge(live, body))

    async def patch_status(self, kind: str, namespace: str, name: str, body: Body, *, field_manager: str) -> Body:
        self._note("patch_status", kind, name)
        return self._store(kind, name, _merge(self._find(kind, name), body))

    def _note(self, verb: str, kind: str, name: str) -> None:
        request = (verb, kind, name)
        self.requests.append(request)
        self.on_request(request)

    def _find(self, kind: str, name: str) -> Body:
        try:
            return self.objects[kind, name]
        except KeyError:
            raise NotFound(f"{kind} {name} not found", status=404) from None

    def _store(self, kind: str, name: str, body: Body) -> Body:
        stored = copy.deepcopy(body)
        stored["metadata"].setdefault("uid", f"uid-{kind}-{name}")
        stored["metadata"].setdefault("generation", 1)
        self._versions += 1
        stored["metadata"]["resourceVersion"] = str(self._versions)
        self.objects[kind, name] = stored
        return copy.deepcopy(stored)


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Body:
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = _merge(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged
