"""The rule Threshold under each mode, by table; time is an argument."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.policy.decision import Decision, Observation, Reason, decide
from specserver.policy.document import Policy

POLICY = Policy(
    revision=1, mode="Auto", strategy="Threshold", steps=(0, 1, 3), disable_above=8, enable_below=4, min_dwell_seconds=1.0
)
SPECULATING = Decision(steps=3, decided_steps=3, reason=Reason.INITIAL, changed_at=0.0)
PLAIN = Decision(steps=0, decided_steps=0, reason=Reason.ABOVE_DISABLE, changed_at=0.0)


def load(running: int, queued: int = 0) -> Observation:
    return Observation(running=running, queued=queued)


@pytest.mark.parametrize(
    ("previous", "running", "now", "steps", "reason"),
    [
        (None, 0, 0.0, 3, Reason.INITIAL),
        (None, 8, 0.0, 3, Reason.INITIAL),
        (None, 9, 0.0, 0, Reason.INITIAL),
        (SPECULATING, 8, 5.0, 3, Reason.INITIAL),
        (SPECULATING, 9, 5.0, 0, Reason.ABOVE_DISABLE),
        (SPECULATING, 9, 0.5, 3, Reason.INITIAL),
        (SPECULATING, 9, 1.0, 0, Reason.ABOVE_DISABLE),
        (PLAIN, 4, 5.0, 0, Reason.ABOVE_DISABLE),
        (PLAIN, 3, 5.0, 3, Reason.BELOW_ENABLE),
        (PLAIN, 3, 0.5, 0, Reason.ABOVE_DISABLE),
        (PLAIN, 3, -100.0, 3, Reason.BELOW_ENABLE),
    ],
    ids=[
        "starts speculating",
        "starts speculating between the thresholds",
        "starts plain on a busy server",
        "at the upper threshold nothing changes",
        "above it goes plain",
        "not within the dwell",
        "at the end of the dwell",
        "at the lower threshold nothing changes",
        "below it speculates",
        "not within the dwell either",
        "a clock that jumped back ends the dwell",
    ],
)
def test_auto(previous: Decision | None, running: int, now: float, steps: int, reason: Reason) -> None:
    decision = decide(POLICY, previous, load(running), now)
    assert (decision.steps, decision.decided_steps, decision.reason) == (steps, steps, reason)
    changed = previous is None or steps != previous.decided_steps
    assert decision.changed_at == (now if changed else 0.0)


@pytest.mark.parametrize(
    ("mode", "previous", "running", "steps", "decided", "reason"),
    [
        ("Always", PLAIN, 100, 3, 3, Reason.MODE),
        ("Never", SPECULATING, 0, 0, 0, Reason.MODE),
        ("Always", None, 100, 3, 3, Reason.MODE),
        ("Observe", SPECULATING, 100, 3, 0, Reason.ABOVE_DISABLE),
        ("Observe", PLAIN, 100, 3, 0, Reason.MODE),
        ("Observe", None, 100, 3, 0, Reason.INITIAL),
    ],
    ids=["always", "never", "always from the start", "observe decides", "observe withholds", "observe from the start"],
)
def test_modes(mode: str, previous: Decision | None, running: int, steps: int, decided: int, reason: Reason) -> None:
    decision = decide(replace(POLICY, mode=mode), previous, load(running), 5.0)
    assert (decision.steps, decision.decided_steps, decision.reason) == (steps, decided, reason)


def test_a_mode_needs_no_dwell() -> None:
    assert decide(replace(POLICY, mode="Never"), SPECULATING, load(0), 0.001).steps == 0


def test_auto_goes_on_from_where_a_mode_left() -> None:
    never = decide(replace(POLICY, mode="Never"), SPECULATING, load(6), 10.0)
    assert decide(POLICY, never, load(6), 12.0) == never, "between the thresholds a server stays what it is"
    assert decide(POLICY, never, load(3), 10.5).steps == 0, "the change of mode counts for the dwell"
    assert decide(POLICY, never, load(3), 11.0).steps == 3


def test_observe_becomes_auto_with_the_rule_s_present_opinion() -> None:
    observed = decide(replace(POLICY, mode="Observe"), SPECULATING, load(9), 5.0)
    assert (observed.steps, observed.decided_steps) == (3, 0)
    decision = decide(POLICY, observed, load(9), 5.1)
    assert (decision.steps, decision.reason) == (0, Reason.MODE)


def test_another_ladder_needs_no_dwell() -> None:
    decision = decide(replace(POLICY, steps=(0, 1)), SPECULATING, load(0), 0.001)
    assert (decision.steps, decision.reason) == (1, Reason.LADDER)


def test_plain_stays_plain_on_another_ladder() -> None:
    assert decide(replace(POLICY, steps=(0, 1)), PLAIN, load(6), 5.0) == PLAIN


def test_the_queue_does_not_matter() -> None:
    assert decide(POLICY, SPECULATING, load(5, queued=1000), 5.0) == SPECULATING


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0.001, 2.0)), min_size=1, max_size=60))
def test_no_two_changes_within_the_dwell(course: list[tuple[int, float]]) -> None:
    now, previous, changes = 0.0, None, []
    for running, passed in course:
        now += passed
        decision = decide(POLICY, previous, load(running), now)
        if previous is not None and decision.steps != previous.steps:
            changes.append(now)
            assert running > 8 if decision.steps == 0 else running < 4
        previous = decision
    assert all(later - earlier >= POLICY.min_dwell_seconds for earlier, later in pairwise(changes))
