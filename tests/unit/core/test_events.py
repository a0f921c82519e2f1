"""Events: one when a cause appears, none while it stays."""

from __future__ import annotations

import pytest

from specserver.core.drain import ClearIdle, MarkDraining, NoteIdle, ReleaseReplica, ReturnToService
from specserver.core.events import plan_drain_events, plan_events, plan_rescale_events
from tests.fakes.pods import build_pod

Told = tuple[str, str]


def condition(kind: str, status: str, reason: str, message: str = "m") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


READY = condition("Ready", "True", "AllReplicasReady")
ROLLS, DRAINS = (condition("Progressing", "True", reason) for reason in ("NewRevision", "Draining"))
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
        pytest.param([], [ROLLS], [("Normal", "NewRevision")], id="a rollout begins"),
        pytest.param([ROLLS], [DRAINS], [], id="a rollout's next pod"),
        pytest.param([DRAINS], [ROLLS], [], id="and its successor"),
        pytest.param(
            [condition("MetricsAvailable", "Unknown", "NoReadyReplicas")],
            [condition("MetricsAvailable", "True", "MetricsFound"), condition("PolicyApplied", "True", "AllReplicas")], [],
            id="as it should be from the first moment",
        ),
        pytest.param(
            [condition("MetricsAvailable", "False", "ScrapeError")], [condition("MetricsAvailable", "True", "MetricsFound")],
            [("Normal", "MetricsFound")], id="the end of trouble",
        ),
        pytest.param(
            [condition("MetricsAvailable", "True", "MetricsFound")], [condition("MetricsAvailable", "True", "MetricsFallback")],
            [("Warning", "MetricsFallback")], id="trouble that is got round",
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


def test_a_drain_is_told_when_it_begins_and_when_it_is_given_up() -> None:
    pod, marked = build_pod("a"), build_pod("b", draining_since=1.0)
    actions = [
        MarkDraining(pod, 1.0), MarkDraining(pod, 1.0, "rollout"), MarkDraining(marked, 2.0), NoteIdle(marked, 1.0),
        ClearIdle(marked), ReleaseReplica(1, "why"), ReturnToService(marked),
    ]  # fmt: skip
    told = [(event.reason, event.message.rpartition(", ")[2]) for event in plan_drain_events(actions)]
    assert told == [
        ("DrainStarted", "before it is removed"), ("DrainStarted", "before it is replaced"),
        ("DrainCancelled", "pod b takes requests again"),
    ]  # fmt: skip


def test_a_change_of_the_replicas_is_told_until_the_history_has_it() -> None:
    up, down = ({"time": "T", "from": a, "to": b, "reason": "why"} for a, b in ((2, 3), (3, 2)))
    told = plan_rescale_events((up, down), [])
    assert [(event.reason, event.message) for event in told] == [
        ("ScaledUp", "from 2 to 3 replicas: why"), ("ScaledDown", "from 3 to 2 replicas: why"),
    ]  # fmt: skip
    assert [event.reason for event in plan_rescale_events((up, down), [up])] == ["ScaledDown"]
    assert len({event.about for event in told}) == 2
