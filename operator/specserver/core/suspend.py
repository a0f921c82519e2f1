"""All replicas at once, each when it has finished its requests: `spec.suspend` gives the GPUs back and keeps the resource.

One by one, as a scale-down goes, would keep the last of many for the sum of all drains, and requests would go to ever fewer.
So every pod leaves the Service at the same moment, and `replicas` becomes 0 when each is idle or has had its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from specserver.core.drain import (
    POLL_SECONDS,
    SETTLE_SECONDS,
    Action,
    DrainPlan,
    MarkDraining,
    ReleaseReplica,
    watch_drain,
)
from specserver.core.observed import Load, LoadUnknown, Pod


def plan_suspension(
    *, pods: Sequence[Pod], load: Load | LoadUnknown, current_replicas: int, drain_timeout_seconds: float, now: float
) -> DrainPlan:
    """The next step from `current_replicas` to none."""
    if current_replicas == 0:
        return DrainPlan()
    live = [pod for pod in pods if pod.lives]
    # 1. All out of the Service. A mark of before, for whatever reason, counts from when it was made.
    marks = tuple(MarkDraining(pod, now) for pod in live if pod.draining_since is None and pod.started)
    if marks:
        return DrainPlan(marks, SETTLE_SECONDS, "draining all pods: the server is suspended")
    # 2. Those that still have requests.
    actions: list[Action] = []
    waits: list[float] = []
    for pod in live:
        if pod.draining_since is None:
            continue
        step = watch_drain(pod, load, drain_timeout_seconds, now)
        actions += step.actions
        if not step.done:
            waits.append(step.requeue_after_seconds or POLL_SECONDS)
    if waits:
        return DrainPlan(tuple(actions), min(waits), "draining all pods: the server is suspended")
    # 3. None has.
    return DrainPlan((*actions, ReleaseReplica(0, "spec.suspend is true")), POLL_SECONDS, "all pods end: the server is suspended")
