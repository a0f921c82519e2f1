"""Events: one when a cause appears, none while it stays."""

from __future__ import annotations

import pytest

from specserver.core.events import plan_events

Told = tuple[str, str]


def condition(kind: str, status: str, reason: str, message: str = "m") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


READY = condition("Ready", "True", "AllReplicasReady")
CRASH = condition("Ready", "False", "CrashLoop")


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        pytest.param([], [READY], [("Normal", "AllReplicasReady")], id="first"),
        pytest.param([READY], [READY], [], id="the same"),
        pytest.param([CRASH], [{**CRASH, "message": "3 restarts"}], [], id="the same with other figures"),
        pytest.param([READY], [CRASH], [("Warning", "CrashLoop")], id="trouble"),
        pytest.param([CRASH], [condition("Ready", "False", "OutOfMemory")], [("Warning", "OutOfMemory")], id="other trouble"),
        pytest.param([READY], [condition("Ready", "False", "ModelLoading")], [("Normal", "ModelLoading")], id="no trouble"),
        pytest.param(
            [], [condition("SpeculationActive", "False", "AboveCrossover")], [("Normal", "AboveCrossover")],
            id="the product at work",
        ),
        pytest.param([], [condition("PolicyApplied", "Unknown", "NoReadyReplicas")], [], id="unknown is no news"),
        pytest.param([READY], [condition("Available", "False", "MinimumReplicasUnavailable")], [], id="Available follows Ready"),
        pytest.param(
            [READY], [CRASH, condition("MetricsAvailable", "False", "ScrapeError")],
            [("Warning", "CrashLoop"), ("Warning", "ScrapeError")], id="two",
        ),
    ],
)  # fmt: skip
def test_events(before: list[dict[str, str]], now: list[dict[str, str]], told: list[Told]) -> None:
    assert [(event.kind, event.reason) for event in plan_events(before, now)] == told
    assert all(event.message for event in plan_events(before, now))
