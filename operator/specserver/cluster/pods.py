"""The marks of a drain on pods. One patch a mark, so that a crash leaves none of them half made."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from specserver.api import labels
from specserver.cluster.client import Cluster
from specserver.cluster.errors import NotFound
from specserver.core.drain import LOWEST_DELETION_COST, Action, ClearIdle, MarkDraining, NoteIdle, ReleaseReplica, ReturnToService
from specserver.core.times import rfc3339


async def apply_drain_marks(cluster: Cluster, namespace: str, actions: Sequence[Action]) -> None:
    """Writes the marks, in order. A pod that is gone needs none."""
    for action in actions:
        if isinstance(action, ReleaseReplica):
            continue  # a change of the Deployment, not of a pod
        with contextlib.suppress(NotFound):
            await cluster.patch(
                "Pod", namespace, action.pod.name, {"metadata": _marks(action)}, field_manager=labels.MANAGER_DRAIN
            )


def _marks(action: MarkDraining | NoteIdle | ClearIdle | ReturnToService) -> dict[str, Any]:
    match action:
        case MarkDraining(since=since, purpose=purpose):
            return {
                "labels": {labels.SERVING: None},
                "annotations": {
                    labels.DRAINING_SINCE: rfc3339(since),
                    labels.DRAINING_FOR: purpose or None,
                    labels.POD_DELETION_COST: str(LOWEST_DELETION_COST),
                },
            }
        case NoteIdle(at=at):
            return {"annotations": {labels.DRAINED_IDLE_SINCE: rfc3339(at)}}
        case ClearIdle():
            return {"annotations": {labels.DRAINED_IDLE_SINCE: None}}
        case ReturnToService():
            return {
                "labels": {labels.SERVING: labels.SERVING_VALUE},
                "annotations": {
                    labels.DRAINING_SINCE: None,
                    labels.DRAINING_FOR: None,
                    labels.DRAINED_IDLE_SINCE: None,
                    labels.POD_DELETION_COST: None,
                },
            }
