"""Strategy Measured, decision by decision: an engine whose costs are a line, played turn by turn."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from specserver.policy.decider import Decider
from specserver.policy.decision import Decision, Reason
from specserver.policy.document import Policy, Probe
from tests.unit.policy.support import MEASURED, load, profile, rounds_of, seconds

NO_PROBES = Probe(max_duty=0.0)
SOME = [3, 0, 3, 1, 0, 3, 2, 0, 1, 3, 0, 2, 3, 1, 0, 3, 2, 0, 3, 1]
"""Accepted drafts, row after row: survival .7, .5, .35. With them 3 steps pay at few requests, and none at 900."""
STEADY = replace(MEASURED, probe=NO_PROBES)


class Play:
    """A decider with the profile of `support.seconds`, in front of an engine that does what it says."""

    def __init__(self, policy: Policy = STEADY, *, with_profile: bool = True) -> None:
        self.decider = Decider(policy, profile() if with_profile else None)
        self.now = 100.0
        self.decision: Decision | None = None
        self.history: list[Decision] = []
        self._drafts = itertools.cycle(SOME)

    def decide(self, running: int, queued: int = 0, **more: Any) -> Decision:
        self.decision = self.decider.decide(load(running, queued, **more), self.now)
        self.history.append(self.decision)
        return self.decision

    def turns(self, count: int, running: int, accepted: int | None = None, **more: Any) -> Decision:
        """So many turns: a decision, its round, its result. `accepted` drafts in each row, or as in SOME."""
        for _ in range(count):
            steps = self.decide(running, **more).steps
            self.now += seconds(steps, running)
            result = rounds_of(steps, running, accepted or 0)
            if accepted is None and steps:
                result = replace(result, correct_drafts=[min(next(self._drafts), steps) for _ in range(running)])
            self.decider.record(result, self.now)
        return self.decide(running, **more)

    @property
    def changes(self) -> list[int]:
        """Step counts that it went over to, in order."""
        return [
            later.steps for earlier, later in itertools.pairwise(self.history) if earlier.steps != later.steps
        ]

    @property
    def reasons(self) -> list[Reason]:
        """Of all changes, in order."""
        changes = [self.history[0].reason]
        for earlier, later in itertools.pairwise(self.history):
            if earlier.steps != later.steps:
                changes.append(later.reason)
        return changes


def test_without_any_knowledge_it_decodes_plainly() -> None:
    play = Play(with_profile=False)
    assert play.decide(4).steps == 0
    assert play.turns(200, 4, 3).steps == 0, "and without probes it never learns better"


def test_with_a_profile_it_starts_with_the_best_guess() -> None:
    assert Play().decide(1).steps == 3
    assert Play().decide(900).steps == 0


def test_it_takes_what_pays_most() -> None:
    play = Play()
    assert play.turns(400, 4, 3).steps == 3
    assert play.turns(400, 4, 0).steps == 0
    assert Reason.LOW_ACCEPTANCE in play.reasons or Reason.DOWN in play.reasons


def test_up_goes_one_rung_at_a_time_and_down_any() -> None:
    play = Play()
    play.turns(300, 4)
    play.history = play.history[-1:]
    play.turns(40, 900)
    assert play.changes == [0]
    play.turns(600, 4)
    assert play.changes == [0, 1, 2, 3]


def test_the_queue_is_looked_at_before_it_runs() -> None:
    play = Play()
    play.turns(400, 2)
    decision = play.decide(2, queued=900)
    assert (decision.steps, decision.reason) == (0, Reason.DOWN), "at once: a queue is a fact"


@pytest.mark.parametrize(
    "limit",
    [{"max_running": 4}, {"kv_usage": 0.8, "kv_tokens": 100_000}],
    ids=["the engine has no more places", "KV has no more room"],
)
def test_but_only_as_far_as_it_can_run(limit: dict[str, Any]) -> None:
    play = Play()
    play.turns(400, 4)
    assert play.turns(40, 4, queued=900, **limit).steps == 3


def two_rungs(play: Play, turns: int, running: int, queued: int = 0) -> list[int]:
    """Steps of so many turns in which of forty rows 27 have their first draft right and 9 the second too."""
    rows = [2] * 9 + [1] * 18 + [0] * 13
    pattern = itertools.cycle([rows[17 * number % 40] for number in range(40)])
    seen = []
    for _ in range(turns):
        steps = play.decide(running, queued).steps
        seen.append(steps)
        play.now += seconds(steps, running)
        drafts = [min(next(pattern), steps) for _ in range(running)] if steps else []
        play.decider.record(replace(rounds_of(steps, running, 0), correct_drafts=drafts), play.now)
    return seen


def test_a_small_gain_is_left_alone_at_first_and_taken_in_the_long_run() -> None:
    """At 14 requests 2 steps give 3.2 % more than 1, and at 60 they give less."""
    play = Play(replace(STEADY, steps=(0, 1, 2)))
    two_rungs(play, 400, 14)
    while two_rungs(play, 1, 60) != [1]:
        assert play.now < 120.0
    assert set(two_rungs(play, 200, 14)) == {1}, "for a second and more"
    assert two_rungs(play, 3000, 14)[-1] == 2


def test_a_small_loss_must_last_before_fewer_steps_are_taken() -> None:
    play = Play(replace(STEADY, steps=(0, 1, 2)))
    two_rungs(play, 3000, 14)
    assert two_rungs(play, 3, 14, queued=60) == [2, 2, 2]
    two_rungs(play, 10, 14)
    assert two_rungs(play, 20, 14, queued=60)[-1] == 1


def test_too_short_a_gain_a_round_is_none() -> None:
    play = Play(replace(STEADY, min_accept_length=1.6))
    play.turns(200, 2, 3)
    for _ in range(600):
        steps = play.decide(2).steps
        play.now += seconds(steps, 2)
        play.decider.record(replace(rounds_of(steps, 2, 0), correct_drafts=[min(1, steps), 0] if steps else []), play.now)
    assert play.decide(2).steps == 0, "1.5 tokens a round are faster here, but not wanted"
    assert play.reasons[-1] is Reason.LOW_ACCEPTANCE


# ---- plain decode for a while ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"kv_usage": 0.95, "kv_tokens": 500}, Reason.KV_PRESSURE),
        ({"kv_usage": 0.95, "kv_tokens": 0}, Reason.KV_PRESSURE),
        ({"retractions": 1}, Reason.RETRACTION),
    ],
    ids=["kv is about to run out", "kv is nearly full, and its size unknown", "a request was retracted"],
)
def test_trouble_means_plain_decode_at_once_and_for_a_while(trouble: dict[str, Any], reason: Reason) -> None:
    play = Play()
    play.turns(300, 4, 3)
    decision = play.decide(4, **trouble)
    assert (decision.steps, decision.reason) == (0, reason)
    assert play.turns(20, 4, 3).steps == 0
    assert play.turns(600, 4, 3).steps == 3


def test_a_large_pool_that_is_nearly_full_is_no_trouble() -> None:
    play = Play()
    play.turns(300, 4, 3)
    assert play.decide(4, kv_usage=0.95, kv_tokens=800_000).steps == 3


def test_results_that_stay_away() -> None:
    play = Play()
    play.turns(300, 4, 3)
    for _ in range(40):
        play.now += 0.1
        assert play.decide(4).steps == 3
    for _ in range(20):
        play.now += 0.1
        decision = play.decide(4)
    assert (decision.steps, decision.reason) == (0, Reason.WATCHDOG)


def test_a_scheduler_that_stood_still_is_no_trouble() -> None:
    play = Play()
    play.turns(300, 4, 3)
    play.now += 60.0
    assert play.decide(4).steps == 3


def test_an_idle_engine_is_no_trouble() -> None:
    play = Play()
    play.turns(300, 4, 3)
    for _ in range(100):
        play.now += 1.0
        assert play.decide(0).steps == 3


def test_a_cost_that_really_rose_is_followed_even_against_a_profile() -> None:
    play = Play()
    play.turns(300, 4, 3)
    for _ in range(200):
        steps = play.decide(4).steps
        play.now += 5 * seconds(steps, 4)
        play.decider.record(rounds_of(steps, 4, 3, (5 if steps else 1) * seconds(steps, 4)), play.now)
    assert play.decide(4).steps == 0


def test_goodput_below_plain_decode_s_means_plain_decode_for_longer_each_time() -> None:
    """Every second round takes twenty times as long: as outliers they are kept out of the estimates, and yet they count."""
    play = Play(replace(STEADY, steps=(0, 1)))
    play.turns(300, 4)
    holds: list[float] = []
    plain_since: float | None = None
    for number in range(6000):
        decision = play.decide(4)
        if decision.steps == 0 and plain_since is None:
            plain_since = play.now
            assert decision.reason is Reason.BELOW_PREDICTION
        elif decision.steps and plain_since is not None:
            holds.append(play.now - plain_since)
            plain_since = None
        slow = 20 if decision.steps and number % 2 else 1
        play.now += seconds(decision.steps, 4)
        result = rounds_of(decision.steps, 4, 0, slow * seconds(decision.steps, 4))
        play.decider.record(replace(result, correct_drafts=[1, 1, 1, 0] if decision.steps else []), play.now)
    assert len(holds) >= 2
    assert holds[1] > 1.5 * holds[0]


@pytest.mark.parametrize("by_table", [False, True])
def test_goodput_below_plain_decode_s_counts_only_under_the_rule_s_own_steps(by_table: bool) -> None:
    """Where 2 steps are forced, or a table's, and bad: that says nothing of the 3 that the rule would run."""
    play = Play()
    assert play.turns(400, 4).steps == 3
    if by_table:
        play.decider.set_policy(replace(STEADY, strategy="Table", table=((0, 2),)))
    else:
        play.decider.force(2, math.inf)
    for number in range(400):
        play.decide(4)
        slow = 20 if number % 3 else 1
        play.now += slow * seconds(2, 4)
        play.decider.record(replace(rounds_of(2, 4, 0, slow * seconds(2, 4)), correct_drafts=[2, 1, 2, 1]), play.now)
    play.decider.set_policy(STEADY)
    play.decider.clear_force()
    assert play.decide(4).steps != 0
    assert Reason.BELOW_PREDICTION not in play.reasons
    assert 0 not in [decision.decided_steps for decision in play.history]


@pytest.mark.parametrize("took", [math.nan, math.inf, -math.inf, 0.0, -5.0, None], ids=repr)
def test_what_is_no_duration_changes_nothing(took: float | None) -> None:
    play = Play()
    play.turns(300, 4, 3)
    for _ in range(300):
        play.decide(4)
        play.now += 0.006
        play.decider.record(rounds_of(3, 4, 3, took if took is None or not took < 0 else -5.0), play.now)
    assert play.decide(4).steps == 3


@pytest.mark.parametrize("jump", [-1e9, -5.0, 1e9, math.nan, math.inf], ids=repr)
def test_a_clock_that_jumps_harms_nothing(jump: float) -> None:
    play = Play(replace(MEASURED, probe=NO_PROBES))
    play.turns(300, 4, 3)
    before = play.now
    play.now = before + jump
    play.decide(4)
    play.now = before + jump if math.isfinite(jump) else before
    assert play.turns(900, 4).steps == 3
    assert play.turns(40, 900).steps == 0


@pytest.mark.parametrize("no_time", [math.nan, math.inf], ids=repr)
def test_what_is_no_time_shortens_no_wait(no_time: float) -> None:
    """A failed probe waits, by the clock. One moment that is none must not end all waits, nor lengthen them."""
    calm, shaken = (Play(MEASURED, with_profile=False) for _ in range(2))
    for play in (calm, shaken):
        play.turns(50, 4, 0)
    shaken.now, before = no_time, shaken.now
    shaken.decide(4)
    shaken.now = before
    for play in (calm, shaken):
        play.turns(1500, 4, 0)
    assert calm.decider.explain()["waits"]
    assert shaken.decider.explain()["waits"] == calm.decider.explain()["waits"]


# ---- probes ---------------------------------------------------------------------------------------------------------------


def test_without_a_profile_it_learns_by_probing() -> None:
    play = Play(MEASURED, with_profile=False)
    assert play.turns(1500, 4, 3).steps == 3
    assert Reason.PROBE in play.reasons


@pytest.mark.parametrize("running", [4, 8, 200], ids=["few rows", "enough rows", "hopeless at once"])
def test_a_probe_that_fails_goes_back_and_waits_twice_as_long_each_time(running: int) -> None:
    play = Play(MEASURED, with_profile=False)
    waits: list[float] = []
    while len(waits) < 5:
        before = play.history[-1].steps if play.history else 0
        if play.turns(1, running, 0).steps < before:
            waits += [wait["seconds"] for wait in play.decider.explain()["waits"] if waits[-1:] != [wait["seconds"]]]
        assert play.now < 1000.0
    assert waits == [2.0, 4.0, 8.0, 16.0, 20.0]
    assert {Reason.PROBE, Reason.PROBE_OVER} <= set(play.reasons)


@pytest.mark.parametrize("duty", [0.01, 0.003])
def test_probes_keep_to_their_budget(duty: float) -> None:
    play = Play(replace(MEASURED, probe=Probe(max_duty=duty, min_interval_seconds=0.1, max_interval_seconds=0.1)))
    begin = play.now
    for _ in range(25_000):
        play.turns(1, 8, 0)
    explained = play.decider.explain()
    assert explained["probes"] > 0
    assert explained["probeSeconds"] <= 1.0 + duty * (play.now - begin) + 0.5


def test_no_probes_where_they_are_turned_off_or_not_in_its_hands() -> None:
    off = Play(replace(MEASURED, probe=NO_PROBES), with_profile=False)
    observing = Play(replace(MEASURED, mode="Observe"), with_profile=False)
    for play in (off, observing):
        play.turns(2000, 150, 0)
        assert play.decider.explain()["probes"] == 0


def test_what_is_known_is_not_probed() -> None:
    play = Play(MEASURED)
    play.turns(3000, 4, 3)
    assert play.decide(4).steps == 3
    assert len(play.changes) <= 4


def test_everything_said_is_on_the_ladder() -> None:
    play = Play(replace(MEASURED, steps=(0, 2, 5)), with_profile=False)
    for running in (1, 40, 300, 2, 100):
        play.turns(400, running, 2)
    assert {decision.steps for decision in play.history} <= {0, 2, 5}


def test_another_ladder_takes_the_next_lower_rung() -> None:
    play = Play()
    play.turns(300, 4, 3)
    play.decider.set_policy(replace(STEADY, steps=(0, 2)))
    decision = play.decide(4)
    assert (decision.steps, decision.reason) == (2, Reason.LADDER)
