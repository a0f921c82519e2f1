"""Writing status: as a merge patch of what differs, and not at all where nothing does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserver.api import labels
from specserver.api.conditions import Condition, ConditionType, Reason, Status, merge_conditions
from specserver.cluster.client import Body, Cluster
from specserver.core.times import rfc3339


async def write_status(
    cluster: Cluster, body: Body, status: Mapping[str, Any], *, not_kept: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Makes `status` the status of the resource `body`, and returns what of it the API server did not keep: fields that its
    definition lacks. Where that is all that differs (`not_kept`, of the last time), nothing is written."""
    difference = merge_patch(body.get("status") or {}, status)
    if not difference or difference == not_kept:
        return difference
    metadata = body["metadata"]
    written = await cluster.patch_status(
        labels.KIND, metadata["namespace"], metadata["name"], {"status": difference}, field_manager=labels.MANAGER_STATUS
    )
    return merge_patch(written.get("status") or {}, status)


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch (RFC 7386) that turns `before` into `after`; empty where they are equal."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[key] = inner
        elif value != old:
            patch[key] = value
    return patch


def invalid_status(body: Body, message: str, operator_version: str, now: float) -> dict[str, Any]:
    """Status of a resource that the operator can't read: what was there, with Ready=False. Its pods are left alone."""
    previous: Mapping[str, Any] = body.get("status") or {}
    generation = body["metadata"].get("generation", 1)
    ready = Condition(ConditionType.READY, Status.FALSE, Reason.INVALID_SPEC, message)
    merged = merge_conditions([ready], previous.get("conditions", []), generation=generation, now=rfc3339(now))
    others = [condition for condition in previous.get("conditions", []) if condition["type"] != ConditionType.READY]
    return {**previous, "observedGeneration": generation, "operatorVersion": operator_version, "conditions": merged + others}
