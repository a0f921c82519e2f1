"""Which Events a change of the conditions is worth: one when a cause appears, none while it stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specserver.api.conditions import ConditionType, Reason, Status
from specserver.core.drain import Action, MarkDraining, ReturnToService


@dataclass(frozen=True)
class Event:
    """kind: Normal or Warning; reason and message as Kubernetes shows them."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: str = ""
    """What tells this Event from another of its reason at the same state of the resource: a pod, a change."""


@dataclass(frozen=True)
class Drift:
    """An object of a server that was as it should be, was found otherwise, and was put right.

    `by` is who had written it last; empty where it was deleted.
    """

    kind: str
    name: str
    by: str


_TOLD = (
    ConditionType.READY, ConditionType.PROGRESSING, ConditionType.METRICS_AVAILABLE, ConditionType.SPECULATION_ACTIVE,
    ConditionType.POLICY_APPLIED,
)  # fmt: skip
"""Conditions whose changes are Events. Available follows Ready; scaling has Events of its own, with numbers."""

_ONLY_TROUBLE = (ConditionType.METRICS_AVAILABLE, ConditionType.POLICY_APPLIED)
"""Conditions that are as they should be from the first moment: news are their trouble, and its end."""

_CALM = frozenset(
    {
        Reason.ROLLING_OUT, Reason.MODEL_LOADING, Reason.SCALED_TO_ZERO, Reason.ABOVE_CROSSOVER, Reason.DISABLED_BY_SPEC,
        Reason.OBSERVING, Reason.SUSPENDED,
    }
)  # fmt: skip
"""Reasons of a False condition that are no trouble."""


_NEXT_POD = (("True", Reason.NEW_REVISION), ("True", Reason.DRAINING))
"""A rollout comes by here once for each pod. That a pod is drained has an Event of its own, with the pod."""


def plan_events(previous: Sequence[Mapping[str, Any]], conditions: Sequence[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Events for conditions whose status or reason is another than before. `Unknown` is no news."""
    before = {condition["type"]: (condition.get("status"), condition.get("reason")) for condition in previous}
    events = []
    for condition in conditions:
        now, earlier = (condition["status"], condition["reason"]), before.get(condition["type"])
        if condition["type"] not in _TOLD or now == earlier or condition["status"] == Status.UNKNOWN:
            continue
        if condition["reason"] == Reason.DRAINING or (now, earlier) == _NEXT_POD:
            continue
        trouble = condition["status"] == Status.FALSE and condition["reason"] not in _CALM
        trouble |= condition["reason"] == Reason.METRICS_FALLBACK
        if not trouble and condition["type"] in _ONLY_TROUBLE and (earlier is None or earlier[0] == Status.UNKNOWN):
            continue
        kind: Literal["Normal", "Warning"] = "Warning" if trouble else "Normal"
        events.append(Event(kind, condition["reason"], condition["message"], condition["type"]))
    return tuple(events)


def plan_drain_events(actions: Sequence[Action]) -> tuple[Event, ...]:
    """Events for marks on pods. They are written before the marks: who dies in between tells it once more, under the same
    name, and who told it afterwards might never."""
    events = []
    for action in actions:
        if isinstance(action, MarkDraining) and action.pod.draining_since is None:
            why = "before it is replaced" if action.purpose else "before it is removed"
            message = f"pod {action.pod.name} takes no new requests and finishes those that it has, {why}"
            events.append(Event("Normal", "DrainStarted", message, action.pod.uid))
        elif isinstance(action, ReturnToService):
            events.append(Event("Normal", "DrainCancelled", f"pod {action.pod.name} takes requests again", action.pod.uid))
    return tuple(events)


def plan_drift_events(drifts: Sequence[Drift]) -> tuple[Event, ...]:
    """Events for what somebody else undid, so that of two who fight over a field both are named."""
    events = []
    for drift in drifts:
        what = f"{drift.kind} {drift.name}"
        undone = f"{what} was changed, last by {drift.by}" if drift.by else f"{what} was deleted"
        events.append(Event("Warning", "DriftRepaired", f"{undone}; it is as it should be again", f"{what} {drift.by}"))
    return tuple(events)


def plan_rescale_events(rescales: Sequence[Mapping[str, Any]], told: Sequence[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Events for changes of the replicas, as they stand on the Deployment, that the history lacks."""
    events = []
    for one in rescales:
        if one not in told:
            message = f"from {one['from']} to {one['to']} replicas: {one['reason']}"
            verb = "ScaledUp" if one["to"] > one["from"] else "ScaledDown"
            events.append(Event("Normal", verb, message, f"{one['time']} {one['from']} {one['to']}"))
    return tuple(events)
