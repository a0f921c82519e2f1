"""Which Events a change of the conditions is worth: one when a cause appears, none while it stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specserver.api.conditions import ConditionType, Reason, Status


@dataclass(frozen=True)
class Event:
    """kind: Normal or Warning; reason and message as Kubernetes shows them."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


_TOLD = (
    ConditionType.READY, ConditionType.PROGRESSING, ConditionType.METRICS_AVAILABLE, ConditionType.SPECULATION_ACTIVE,
    ConditionType.POLICY_APPLIED,
)  # fmt: skip
"""Conditions whose changes are Events. Available follows Ready; scaling has Events of its own, with numbers."""

_CALM = frozenset(
    {
        Reason.ROLLING_OUT, Reason.MODEL_LOADING, Reason.SCALED_TO_ZERO, Reason.ABOVE_CROSSOVER, Reason.DISABLED_BY_SPEC,
        Reason.OBSERVING,
    }
)  # fmt: skip
"""Reasons of a False condition that are no trouble."""


def plan_events(previous: Sequence[Mapping[str, Any]], conditions: Sequence[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Events for conditions whose status or reason is another than before. `Unknown` is no news."""
    before = {condition["type"]: (condition.get("status"), condition.get("reason")) for condition in previous}
    events = []
    for condition in conditions:
        now = (condition["status"], condition["reason"])
        if condition["type"] not in _TOLD or now == before.get(condition["type"]) or condition["status"] == Status.UNKNOWN:
            continue
        trouble = condition["status"] == Status.FALSE and condition["reason"] not in _CALM
        events.append(Event("Warning" if trouble else "Normal", condition["reason"], condition["message"]))
    return tuple(events)
