"""Guards: the wrapped function runs once whatever a hook does, and what it raises itself passes through."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specserver.plugin import channel, hooks
from specserver.plugin.hooks import Guard, SchedulerHooks
from specserver.plugin.state import Rank
from specserver.plugin.support import Target
from tests.unit.plugin.fakes import FakeEngine, make_rank, policy


class Original:
    """Counts its calls; raises where told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error = error

    def __call__(self, *args: Any) -> str:
        self.calls.append(args)
        if self.error is not None:
            raise self.error
        return "result"


def broken(*args: Any) -> Any:
    raise ValueError("hook")


KINDS = ("before", "after", "instead")


def guarded(kind: str, hook: Callable[..., Any], errors: list[tuple[str, str]]) -> Callable[..., Any]:
    guard = Guard(lambda name, error: errors.append((name, str(error))))
    wrapped: Callable[..., Any] = getattr(guard, kind)("name", hook)
    return wrapped


@pytest.mark.parametrize("kind", KINDS)
def test_a_raising_hook_is_as_if_it_were_not_there(kind: str) -> None:
    errors: list[tuple[str, str]] = []
    original = Original()
    assert guarded(kind, broken, errors)(original, 1, 2) == "result"
    assert (original.calls, errors) == ([(1, 2)], [("name", "hook")])


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_engine_raises_passes_through_once(kind: str) -> None:
    errors: list[tuple[str, str]] = []
    original = Original(KeyError("engine"))
    with pytest.raises(KeyError):
        guarded(kind, lambda *args: False, errors)(original, 1)
    assert (len(original.calls), errors) == (1, [])


@pytest.mark.parametrize("handled", [True, False])
def test_instead(handled: bool) -> None:
    original = Original()
    result = guarded("instead", lambda *args: handled, [])(original, 1)
    assert (result, len(original.calls)) == ((None, 0) if handled else ("result", 1))


def test_after_sees_the_result_first() -> None:
    seen: list[Any] = []
    guarded("after", lambda *args: seen.extend(args), [])(Original(), 7)
    assert seen == ["result", 7]


# ---- what is wrapped ------------------------------------------------------------------------------------------------------


def registered(problems: list[str]) -> set[Target]:
    found: list[Target] = []
    SchedulerHooks(problems).register(lambda target, hook: found.append(target))
    return set(found)


def test_wraps_everything_that_fits() -> None:
    assert registered([]) == set(hooks.SCHEDULER_TARGETS) - {hooks.ACTIVATE}


def test_wraps_nothing_but_the_reporting_where_something_does_not_fit() -> None:
    assert registered([f"{hooks.RESULT.path} is missing"]) == {hooks.ARM, hooks.MESSAGE}
    assert registered([f"{hooks.MESSAGE.path} takes (self), not (self, recv_req)"]) == {hooks.ARM}


# ---- hooks ------------------------------------------------------------------------------------------------------------------


def test_before_arming_nothing_is_touched() -> None:
    scheduler_hooks = SchedulerHooks([])
    requests: list[Any] = []
    scheduler_hooks.turn(requests, None)
    assert requests == []
    assert not scheduler_hooks.keep_still()
    assert not scheduler_hooks.message(None, SimpleNamespace(method="specserver.state", body={}))


@pytest.mark.parametrize(
    ("reason", "said"), [("", "armed on rank tp0: ladder (0, 1, 2, 3)"), ("no draft", "not armed on rank tp0: no draft")]
)
def test_arming_or_not_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str, said: str
) -> None:
    monkeypatch.setattr(hooks.arming, "arm", lambda scheduler, problems: make_rank(unarmed_reason=reason))
    with caplog.at_level(logging.INFO):
        SchedulerHooks([]).arm(None)
    assert said in caplog.text


def test_sglang_s_own_choice_is_kept_away_only_while_in_control() -> None:
    scheduler_hooks = SchedulerHooks([], rank=make_rank())
    assert not scheduler_hooks.keep_still(), "no policy yet"
    assert scheduler_hooks.rank is not None
    scheduler_hooks.rank.set_policy(policy())
    assert scheduler_hooks.keep_still()


def test_an_order_goes_before_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "make_order_request", lambda order: ("order", order["steps"]))
    rank = make_rank(FakeEngine(running=9))
    rank.set_policy(policy())
    requests: list[Any] = ["request"]
    SchedulerHooks([], rank=rank).turn(requests, None)
    assert requests == [("order", 0), "request"]


def test_a_rank_that_receives_by_broadcast_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank(FakeEngine(running=9), deciding=False, alone=False)
    rank.set_policy(policy())
    SchedulerHooks([], rank=rank).turn(None, None)
    assert rank.load is not None
    assert rank.load.running == 9


def request(*, retracted: bool = False, finished: bool = False, grammar: object = None) -> SimpleNamespace:
    return SimpleNamespace(is_retracted=retracted, finished=lambda: finished, grammar=grammar)


def take_in(rank: Rank, *requests: SimpleNamespace, correct: list[int], iteration: int = 1) -> None:
    result = SimpleNamespace(num_correct_drafts_per_req_cpu=correct, speculative_num_draft_tokens=4)
    batch = SimpleNamespace(reqs=list(requests), forward_iter=iteration)
    SchedulerHooks([], rank=rank).result(None, None, result, batch)


def test_a_result_counts_under_its_own_steps_without_the_dead() -> None:
    rank = make_rank(FakeEngine(current=0))
    take_in(rank, request(), request(finished=True), request(retracted=True), correct=[3, 0, 1])
    assert (rank.tally.rounds, rank.tally.accept_length) == ({3: 1}, 4.0)


def test_drafts_from_a_stale_proposal_say_nothing() -> None:
    rank = make_rank()
    result = SimpleNamespace(num_correct_drafts_per_req_cpu=[0], speculative_num_draft_tokens=4, specserver_cold=True)
    SchedulerHooks([], rank=rank).result(None, None, result, SimpleNamespace(reqs=[request()], forward_iter=1))
    assert (rank.tally.rounds, rank.tally.accept_length) == ({3: 1}, None)


@pytest.mark.parametrize(("grammar", "timed"), [(None, 1), ("json", 0)])
def test_a_result_s_cost_is_known_where_nothing_lay_between(grammar: object, timed: int) -> None:
    rank = make_rank(monotonic=iter(range(100)).__next__)
    for iteration in (7, 8):
        rank.observe()
        take_in(rank, request(), request(finished=True, grammar=grammar), correct=[3, 0], iteration=iteration)
    assert sum(each.rounds for each in rank.tally.step_time.values()) == timed


def test_retractions_are_seen_in_the_next_turn_and_counted() -> None:
    rank = make_rank()
    scheduler_hooks = SchedulerHooks([], rank=rank)
    scheduler_hooks.retract(([object(), object()], 0.5, []), None)
    scheduler_hooks.turn([], None)
    assert rank.load is not None
    assert (rank.load.retractions, rank.report()["retractions"]) == (2, 2)
    scheduler_hooks.turn([], None)
    assert rank.load.retractions == 0
