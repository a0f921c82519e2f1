"""One rank: orders, switches, counters, what it lets go of, and ranks that must stay together."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from specserver.plugin.obstacles import Cause
from specserver.plugin.state import MAX_ERRORS_A_HOOK, MAX_REMEMBERED_DECISIONS, Rank
from specserver.plugin.tally import ACCEPTANCE_WINDOW_ROUNDS
from specserver.policy.decider import Decider
from specserver.policy.decision import Decision, Observation, Reason, Round
from specserver.policy.profile import Profile
from tests.unit.plugin.fakes import Clock, FakeEngine, FakeMetrics, make_rank, policy, record, turn


def test_without_a_policy_it_leaves_the_engine_alone() -> None:
    engine = FakeEngine(running=100)
    rank = make_rank(engine)
    turn(rank)
    assert (rank.in_control, engine.activations) == (False, [])
    assert rank.report()["reason"] == "no policy yet"


def test_switches_by_load_and_counts_why() -> None:
    engine, metrics = FakeEngine(running=9), FakeMetrics()
    rank = make_rank(engine, metrics)
    rank.set_policy(policy())
    turn(rank)
    engine.running = 0
    turn(rank)
    assert engine.activations == [0, 3]
    assert metrics.values("switch") == [Reason.INITIAL, Reason.BELOW_ENABLE]
    assert metrics.values("steps") == [3, 0], "each turn shows what the one before led to"
    assert rank.report()["switches"] == 2


def test_says_an_order_once() -> None:
    rank = make_rank()
    rank.set_policy(policy())
    rank.observe()
    order = rank.next_order()
    assert order == {"steps": 3, "decidedSteps": 3, "reason": "Initial"}
    rank.follow(order)
    assert rank.next_order() is None


def test_says_an_order_again_until_it_is_followed() -> None:
    engine = FakeEngine(running=9, error=RuntimeError("no"))
    rank = make_rank(engine)
    rank.set_policy(policy())
    rank.observe()
    order = rank.next_order()
    assert order is not None
    with pytest.raises(RuntimeError):
        rank.follow(order)
    assert rank.next_order() == order


def test_a_new_policy_counts_from_the_next_turn_even_when_idle() -> None:
    engine = FakeEngine()
    rank = make_rank(engine)
    rank.set_policy(policy())
    turn(rank)
    rank.set_policy(policy(revision=2, mode="Never"))
    turn(rank)
    assert (engine.current, rank.report()["revision"]) == (0, 2)


def test_observe_reports_the_rule_s_steps_beside_its_own() -> None:
    engine = FakeEngine(running=9)
    rank = make_rank(engine)
    rank.set_policy(policy(mode="Observe"))
    turn(rank)
    report = rank.report()
    assert (report["steps"], report["decidedSteps"], engine.activations) == (3, 0, [])


def test_steps_that_the_engine_changed_by_itself_are_shown() -> None:
    engine, metrics = FakeEngine(), FakeMetrics()
    rank = make_rank(engine, metrics, unarmed_reason="SGLang 9 is not supported")
    for steps in (3, 1, 1):
        engine.current = steps
        turn(rank)
    assert metrics.values("steps") == [3, 1]


def test_load_is_written_only_where_it_changed() -> None:
    engine, metrics = FakeEngine(), FakeMetrics()
    rank = make_rank(engine, metrics)
    assert metrics.values("load") == [], "before the first turn it is not known"
    for running in (0, 2, 2, 0, 0):
        engine.running = running
        turn(rank)
    assert metrics.values("load") == [Observation(0, 0), Observation(2, 0), Observation(0, 0)]


def test_the_report_s_load_is_of_the_moment() -> None:
    """Also where a hook does not fit and the turns are not seen."""
    engine = FakeEngine(running=3, queued=1)
    report = make_rank(engine, unarmed_reason="a.b is missing").report()
    assert (report["running"], report["queued"]) == (3, 1)


def test_a_round_counts_under_its_own_steps() -> None:
    metrics = FakeMetrics()
    rank = make_rank(FakeEngine(current=0), metrics)
    record(rank, 4, [2, 3])
    record(rank, 1, [0, 0])
    assert rank.report()["rounds"] == {"0": 1, "3": 1}
    assert metrics.values("round") == [3, 0]


def test_accept_length_is_the_newest_rounds_with_drafts() -> None:
    rank = make_rank()
    assert rank.tally.accept_length is None
    record(rank, 1, [0])
    assert rank.tally.accept_length is None, "plain rounds say nothing"
    record(rank, 4, [])
    assert rank.tally.accept_length is None, "nor do rounds whose requests are all gone"
    record(rank, 4, [3, 0])
    assert rank.tally.accept_length == 2.5
    for _ in range(ACCEPTANCE_WINDOW_ROUNDS):
        record(rank, 2, [1])
    assert rank.tally.accept_length == 2.0


def test_switches_of_the_last_hour() -> None:
    wall, engine = Clock(10_000.0), FakeEngine()
    rank = make_rank(engine, wall=wall)
    for revision, (mode, at) in enumerate([("Never", 10_000.0), ("Always", 12_000.0), ("Never", 13_500.0)], start=1):
        wall.now = at
        rank.set_policy(policy(revision=revision, mode=mode))
        turn(rank)
    wall.now = 13_700.0
    report = rank.report()
    assert (report["switches"], report["switchesLastHour"], report["lastSwitchAt"]) == (3, 2, 13_500.0)


@pytest.mark.parametrize("strategy", ["Threshold", "Measured"])
def test_report_is_json(strategy: str) -> None:
    engine = FakeEngine(running=1)
    rank = make_rank(engine, monotonic=Clock(), wall=Clock())
    rank.set_policy(policy(strategy=strategy))
    for iteration in range(30):
        turn(rank)
        record(rank, engine.current + 1, [0], iteration=iteration)
    report = rank.report()
    assert json.loads(json.dumps(report, allow_nan=False)) == report


# ---- the rule that measures ---------------------------------------------------------------------------------------------


def test_the_rule_is_told_of_rounds_and_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(Decider, "record", lambda self, result, now: told.append((result, now)))
    monkeypatch.setattr(Decider, "decide", lambda self, load, now: told.append(load) or Decision(2, 2, Reason.UP, now))
    clock, engine = Clock(5.0), FakeEngine(running=2, kv_tokens=70)
    rank = make_rank(engine, monotonic=clock)
    rank.set_policy(policy())
    rank.note_retractions(1)
    turn(rank)
    assert (told, engine.activations) == ([Observation(2, 0, kv_tokens=70, retractions=1)], [2])
    told.clear()
    for iteration, clock.now in ((1, 6.0), (2, 6.5)):
        record(rank, 4, [3, 1], iteration=iteration)
    assert told == [(Round(3, 2, 70, None, [3, 1]), 6.0), (Round(3, 2, 70, 0.5, [3, 1]), 6.5)]


def test_estimates_outlive_a_policy_and_start_from_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    make = Decider.__init__
    monkeypatch.setattr(Decider, "__init__", lambda self, *given: made.append(given) or make(self, *given))
    rank = make_rank()
    rank.profile = Profile({}, {3: ((1, 0.01),)})
    rank.set_policy(policy())
    rank.set_policy(policy(revision=2))
    assert made == [(policy(), rank.profile)]


def test_decisions_are_kept_with_what_led_to_them() -> None:
    clock, wall, engine = Clock(), Clock(50.0), FakeEngine(running=9, queued=2)
    rank = make_rank(engine, wall=wall, monotonic=clock)
    rank.set_policy(policy())
    for engine.running in (9, 9, 0, 9, 0):
        wall.now += 1
        turn(rank)
    decisions = rank.report()["decisions"]
    assert [(one["at"], one["from"], one["steps"], one["reason"]) for one in decisions] == [
        (51.0, 3, 0, "Initial"),
        (53.0, 0, 3, "BelowEnable"),
        (54.0, 3, 0, "AboveDisable"),
        (55.0, 0, 3, "BelowEnable"),
    ]
    assert (decisions[0]["inputs"]["running"], decisions[0]["inputs"]["queued"]) == (9, 2)
    for i in range(3 * MAX_REMEMBERED_DECISIONS):
        engine.running = 9 * (i % 2)
        turn(rank)
    assert len(rank.report()["decisions"]) == MAX_REMEMBERED_DECISIONS


def test_goodput_is_shown_once_a_second() -> None:
    clock, metrics, engine = Clock(), FakeMetrics(), FakeEngine(running=2)
    rank = make_rank(engine, metrics, monotonic=clock)
    rank.set_policy(policy(strategy="Measured"))
    for iteration in range(40):
        clock.now += 0.1
        turn(rank)
        record(rank, engine.current + 1, [engine.current] * 2, iteration=iteration)
    shown = metrics.values("goodput")
    assert len(shown) == 4
    assert shown[-1][1] > 0


def test_a_refused_order_is_one_decision() -> None:
    rank = make_rank(FakeEngine(running=9, error=RuntimeError("no")))
    rank.set_policy(policy())
    for _ in range(3):
        rank.observe()
        assert rank.next_order() is not None
    assert len(rank.report()["decisions"]) == 1


# ---- force ---------------------------------------------------------------------------------------------------------------


def test_forced_steps_hold_until_their_time_is_over() -> None:
    clock, engine = Clock(), FakeEngine(running=9)
    rank = make_rank(engine, monotonic=clock)
    rank.set_policy(policy())
    rank.force(2, 10.0)
    turn(rank)
    assert (engine.current, rank.report()["forced"]) == (2, {"steps": 2, "secondsLeft": 10.0})
    clock.now += 10.5
    turn(rank)
    assert (engine.current, rank.report()["forced"]) == (0, None)


def test_drafts_of_made_up_requests_are_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Sequence[int]] = []
    monkeypatch.setattr(Decider, "record", lambda self, result, now: told.append(result.correct_drafts))
    clock = Clock()
    rank = make_rank(monotonic=clock)
    rank.set_policy(policy())
    rank.force(3, 10.0, cost_only=True)
    record(rank, 4, [1, 2])
    clock.now += 11
    record(rank, 4, [1, 2])
    assert told == [(), [1, 2]]
    assert rank.tally.rounds == {3: 2}


def test_force_can_be_taken_back() -> None:
    engine = FakeEngine(running=9)
    rank = make_rank(engine)
    rank.set_policy(policy())
    rank.force(2, 10.0)
    turn(rank)
    rank.clear_force()
    turn(rank)
    assert (engine.current, rank.report()["forced"]) == (0, None)


# ---- trouble ------------------------------------------------------------------------------------------------------------


def fail(rank: Rank, times: int, hook: str = "turn") -> None:
    for _ in range(times):
        rank.note_error(hook, ValueError("broken"))


def test_lets_go_after_several_errors_of_one_hook() -> None:
    metrics = FakeMetrics()
    rank = make_rank(metrics=metrics)
    rank.set_policy(policy())
    fail(rank, MAX_ERRORS_A_HOOK - 1)
    fail(rank, MAX_ERRORS_A_HOOK - 1, hook="result")
    assert rank.in_control, "each hook has its own count"
    fail(rank, 1)
    assert (rank.armed, rank.in_control, rank.next_order()) == (False, False, None)
    assert rank.reason == "hook turn failed 5 times, at last with ValueError: broken"
    assert metrics.values("armed") == [True, False]
    assert rank.report()["hookErrors"] == 2 * MAX_ERRORS_A_HOOK - 1


def test_what_it_lets_go_of_goes_on_as_it_started() -> None:
    engine = FakeEngine(running=9)
    rank = make_rank(engine)
    rank.set_policy(policy())
    turn(rank)
    assert engine.current == 0
    fail(rank, MAX_ERRORS_A_HOOK)
    assert engine.current == 3


def test_lets_go_even_of_an_engine_that_refuses_every_step_count() -> None:
    rank = make_rank(FakeEngine(current=0, error=RuntimeError("no")))
    rank.set_policy(policy())
    fail(rank, MAX_ERRORS_A_HOOK)
    assert (rank.armed, rank.obstacle.cause if rank.obstacle else None) == (False, Cause.HOOK_ERRORS)


@pytest.mark.parametrize("steps", [7, -1, math.nan], ids=str)
def test_steps_that_the_engine_lacks_are_never_ordered(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    monkeypatch.setattr(Decider, "decide", lambda self, load, now: Decision(steps, steps, Reason.UP, now))
    engine = FakeEngine()
    rank = make_rank(engine)
    rank.set_policy(policy())
    rank.observe()
    with pytest.raises(ValueError, match="does not have"):
        rank.next_order()
    assert engine.activations == []


@pytest.mark.parametrize("jump", [-1e9, 1e9, math.inf, math.nan], ids=str)
def test_a_clock_that_jumps_changes_nothing_but_times(jump: float) -> None:
    clock, engine = Clock(), FakeEngine(running=2)
    rank = make_rank(engine, monotonic=clock)
    rank.set_policy(policy(strategy="Measured"))
    for iteration in range(1, 40):
        clock.now = jump if iteration == 20 else 1000.0 + iteration
        turn(rank)
        record(rank, engine.current + 1, [0, 0], iteration=iteration)
    assert (rank.armed, sum(rank.tally.rounds.values())) == (True, 39)
    assert all(0 < time.seconds <= time.rounds for time in rank.tally.step_time.values())


def test_an_order_on_its_way_is_not_followed_after_letting_go() -> None:
    engine = FakeEngine(running=9)
    rank = make_rank(engine)
    rank.set_policy(policy())
    rank.observe()
    order = rank.next_order()
    assert order is not None
    fail(rank, MAX_ERRORS_A_HOOK)
    rank.follow(order)
    assert engine.activations == []


# ---- several ranks ------------------------------------------------------------------------------------------------------


def make_group() -> tuple[Rank, Rank, FakeEngine, FakeEngine]:
    first, second = FakeEngine(running=9), FakeEngine(running=9)
    deciding = make_rank(first, alone=False)
    other = make_rank(second, alone=False, deciding=False)
    for rank in (deciding, other):
        rank.set_policy(policy())
        rank.observe()
    return deciding, other, first, second


def test_only_one_rank_decides_and_all_follow() -> None:
    deciding, other, first, second = make_group()
    assert other.next_order() is None
    order = deciding.next_order()
    assert order is not None
    for rank in (deciding, other):
        rank.follow(order)
    assert first.activations == second.activations == [0]


def test_a_group_lets_go_together() -> None:
    """Also where the load can't be read any more, which comes before every other order."""
    deciding, other, first, _ = make_group()
    fail(deciding, MAX_ERRORS_A_HOOK)
    assert deciding.in_control, "alone it would run other steps than the rest"
    first.broken = True
    order = deciding.take_turn()
    assert order is not None
    assert set(order) == {"disarm"}
    for rank in (deciding, other):
        rank.follow(order)
    assert (deciding.in_control, other.in_control) == (False, False)
    assert deciding.reason == other.reason


def test_a_rank_that_does_not_decide_never_lets_go_by_itself() -> None:
    _, other, *_ = make_group()
    fail(other, 2 * MAX_ERRORS_A_HOOK)
    assert other.in_control
