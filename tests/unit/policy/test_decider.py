"""Force, mode, bounds and the strategies of fixed numbers, by table; time is an argument."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.policy.decider import Decider
from specserver.policy.decision import Reason
from specserver.policy.document import Policy
from tests.unit.policy.support import MEASURED, TABLE, THRESHOLD, load, profile, rounds_of


def speculating(policy: Policy = THRESHOLD) -> Decider:
    """A decider that chose the largest step count at time 0."""
    decider = Decider(policy)
    assert decider.decide(load(0), 0.0).steps == policy.max_steps
    return decider


def plain(policy: Policy = THRESHOLD) -> Decider:
    decider = Decider(policy)
    assert decider.decide(load(9), 0.0).steps == 0
    return decider


@pytest.mark.parametrize(
    ("start", "running", "now", "steps", "reason"),
    [
        (Decider, 0, 0.0, 3, Reason.INITIAL),
        (Decider, 8, 0.0, 3, Reason.INITIAL),
        (Decider, 9, 0.0, 0, Reason.INITIAL),
        (speculating, 8, 5.0, 3, Reason.INITIAL),
        (speculating, 9, 5.0, 0, Reason.ABOVE_DISABLE),
        (speculating, 9, 0.5, 3, Reason.INITIAL),
        (speculating, 9, 1.0, 0, Reason.ABOVE_DISABLE),
        (plain, 4, 5.0, 0, Reason.INITIAL),
        (plain, 3, 5.0, 3, Reason.BELOW_ENABLE),
        (plain, 3, 0.5, 0, Reason.INITIAL),
        (plain, 3, -100.0, 3, Reason.BELOW_ENABLE),
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
def test_threshold(start: object, running: int, now: float, steps: int, reason: Reason) -> None:
    decider = start(THRESHOLD)  # type: ignore[operator]
    decision = decider.decide(load(running), now)
    assert (decision.steps, decision.decided_steps, decision.reason) == (steps, steps, reason)
    assert decision.changed_at == (now if reason is not Reason.INITIAL else 0.0)


@pytest.mark.parametrize(
    ("mode", "start", "running", "steps", "decided", "reason"),
    [
        ("Always", plain, 100, 3, 3, Reason.MODE),
        ("Never", speculating, 0, 0, 0, Reason.MODE),
        ("Always", Decider, 100, 3, 3, Reason.MODE),
        ("Observe", speculating, 100, 3, 0, Reason.ABOVE_DISABLE),
        ("Observe", plain, 100, 3, 0, Reason.MODE),
        ("Observe", Decider, 100, 3, 0, Reason.INITIAL),
    ],
    ids=["always", "never", "always from the start", "observe decides", "observe withholds", "observe from the start"],
)
def test_modes(mode: str, start: object, running: int, steps: int, decided: int, reason: Reason) -> None:
    decider = start(THRESHOLD)  # type: ignore[operator]
    decider.set_policy(replace(THRESHOLD, mode=mode))
    decision = decider.decide(load(running), 5.0)
    assert (decision.steps, decision.decided_steps, decision.reason) == (steps, decided, reason)


def test_a_mode_needs_no_dwell() -> None:
    decider = speculating()
    decider.set_policy(replace(THRESHOLD, mode="Never"))
    assert decider.decide(load(0), 0.001).steps == 0


def test_auto_goes_on_from_where_a_mode_left() -> None:
    decider = speculating()
    decider.set_policy(replace(THRESHOLD, mode="Never"))
    never = decider.decide(load(6), 10.0)
    decider.set_policy(THRESHOLD)
    assert decider.decide(load(3), 10.5).steps == 0, "the change of mode counts for the dwell"
    assert decider.decide(load(6), 12.0) == never, "between the thresholds a server stays what it is"
    assert decider.decide(load(3), 12.5).steps == 3


def test_observe_becomes_auto_with_the_rule_s_present_opinion() -> None:
    decider = speculating()
    decider.set_policy(replace(THRESHOLD, mode="Observe"))
    observed = decider.decide(load(9), 5.0)
    assert (observed.steps, observed.decided_steps) == (3, 0)
    decider.set_policy(THRESHOLD)
    decision = decider.decide(load(9), 5.1)
    assert (decision.steps, decision.reason) == (0, Reason.MODE)


def test_another_ladder_needs_no_dwell() -> None:
    decider = speculating()
    decider.set_policy(replace(THRESHOLD, steps=(0, 1)))
    decision = decider.decide(load(0), 0.001)
    assert (decision.steps, decision.reason) == (1, Reason.LADDER)


def test_plain_stays_plain_on_another_ladder() -> None:
    decider = plain()
    before = decider.decide(load(6), 2.0)
    decider.set_policy(replace(THRESHOLD, steps=(0, 1)))
    assert decider.decide(load(6), 5.0) == before


def test_the_queue_does_not_matter_to_thresholds() -> None:
    assert speculating().decide(load(5, queued=1000), 5.0).steps == 3


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0.001, 2.0)), min_size=1, max_size=60))
def test_no_two_changes_within_the_dwell(course: list[tuple[int, float]]) -> None:
    decider, now, previous, changes = Decider(THRESHOLD), 0.0, None, []
    for running, passed in course:
        now += passed
        decision = decider.decide(load(running), now)
        if previous is not None and decision.steps != previous.steps:
            changes.append(now)
            assert running > 8 if decision.steps == 0 else running < 4
        previous = decision
    assert all(later - earlier >= THRESHOLD.min_dwell_seconds for earlier, later in pairwise(changes))


@pytest.mark.parametrize(
    ("running", "steps"), [(0, 3), (1, 3), (7, 3), (8, 2), (31, 2), (32, 1), (63, 1), (64, 0), (5000, 0)]
)
def test_table(running: int, steps: int) -> None:
    assert Decider(TABLE).decide(load(running), 0.0).steps == steps


def test_a_table_dwells() -> None:
    decider = Decider(replace(TABLE, min_dwell_seconds=1.0))
    assert [decider.decide(load(running), now).steps for running, now in ((1, 0.0), (100, 0.5), (100, 1.0))] == [3, 3, 0]


@pytest.mark.parametrize("policy", [TABLE, MEASURED, THRESHOLD], ids=lambda policy: policy.strategy)
def test_bounds_are_hard_around_every_strategy(policy: Policy) -> None:
    """A profile says, and the table too, that one request or thirty should be served with drafts."""
    bounded = replace(policy, disable_above=20, enable_below=10, min_dwell_seconds=0.0, table=((1, 3),), steps=(0, 1, 2, 3))
    decider, now = Decider(bounded, profile()), 0.0

    def settle(running: int) -> int:
        nonlocal now
        steps = decider.decide(load(running), now).steps
        for _ in range(300):
            decider.record(rounds_of(steps, running, 3), now)
            now += 0.01
            steps = decider.decide(load(running), now).steps
        return steps

    assert settle(5) == 3
    assert decider.decide(load(21), now).steps == 0
    assert settle(15) == 0, "between the bounds it stays plain"
    assert settle(9) == 3


def test_force_wins_until_its_time() -> None:
    decider = speculating()
    decider.force(1, until=10.0)
    forced = decider.decide(load(100), 5.0)
    assert (forced.steps, forced.decided_steps, forced.reason) == (1, 0, Reason.FORCED)
    assert decider.explain()["forced"] == {"steps": 1, "until": 10.0}
    after = decider.decide(load(100), 10.0)
    assert (after.steps, after.reason) == (0, Reason.FORCED)
    assert decider.explain()["forced"] is None


@pytest.mark.parametrize("mode", ["Always", "Never", "Observe"])
def test_force_wins_over_the_mode_and_can_be_cleared(mode: str) -> None:
    decider = Decider(replace(THRESHOLD, mode=mode))
    before = decider.decide(load(1), 0.0).steps
    decider.force(1, until=1e9)
    assert decider.decide(load(1), 1.0).steps == 1
    decider.clear_force()
    assert decider.decide(load(1), 2.0).steps == before


def test_what_is_measured_survives_another_policy_and_becomes_a_profile() -> None:
    decider = Decider(MEASURED)
    for turn in range(50):
        decider.decide(load(4), turn * 0.01)
        decider.record(rounds_of(0, 4, 0), turn * 0.01)
    decider.set_policy(replace(MEASURED, revision=2))
    exported = decider.export_profile({"gpu": "some"})
    assert exported.key == {"gpu": "some"}
    ((running, cost),) = exported.step_seconds[0]
    assert (running, cost) == (4, pytest.approx(rounds_of(0, 4, 0).seconds))


@pytest.mark.parametrize("policy", [TABLE, MEASURED, THRESHOLD], ids=lambda policy: policy.strategy)
def test_explain_is_json(policy: Policy) -> None:
    decider = Decider(policy, profile())
    assert json.loads(json.dumps(decider.explain(), allow_nan=False))
    decider.decide(load(3), 0.0)
    decider.record(rounds_of(3, 3, 2), 0.1)
    decider.decide(load(3), 0.2)
    assert json.loads(json.dumps(decider.explain(), allow_nan=False))["strategy"] == policy.strategy
