"""What is counted of rounds: by position, over a window, and a digest that tells two ranks apart."""

from __future__ import annotations

import pytest

from specserver.plugin.tally import ACCEPTANCE_WINDOW_ROUNDS, Position, StepTime, Tally


def test_a_position_is_reached_where_all_before_it_were_right() -> None:
    tally = Tally()
    assert tally.add(3, 4, None, [3, 2, 0, 0]) == [4, 2, 2, 1]
    assert tally.positions == [Position(4, 2), Position(2, 2), Position(2, 1)]
    tally.add(1, 4, None, [1, 1, 1, 0])
    assert tally.positions == [Position(8, 5), Position(2, 2), Position(2, 1)], "a short chain says nothing of later positions"


def test_plain_rounds_say_nothing_of_drafts() -> None:
    tally = Tally()
    tally.add(0, 2, 0.01, [0, 0])
    assert (tally.positions, tally.accept_length, tally.rounds) == ([], None, {0: 1})


def test_times_are_kept_by_steps_where_they_are_known() -> None:
    tally = Tally()
    for steps, seconds in ((3, 0.5), (3, 0.25), (0, 0.125), (3, None)):
        tally.add(steps, 1, seconds, [])
    assert tally.step_time == {3: StepTime(2, 0.75), 0: StepTime(1, 0.125)}


def test_accept_length_forgets_old_rounds() -> None:
    tally = Tally()
    tally.add(3, 2, None, [3, 0])
    assert tally.accept_length == 2.5
    for _ in range(ACCEPTANCE_WINDOW_ROUNDS):
        tally.add(1, 1, None, [1])
    assert tally.accept_length == 2.0


@pytest.mark.parametrize(
    ("other", "alike"),
    [([(3, 2), (0, 2)], True), ([(0, 2), (3, 2)], False), ([(3, 2), (0, 1)], False), ([(3, 2)], False)],
    ids=["the same", "another order", "another batch size", "a round less"],
)
def test_digest_tells_ranks_apart(other: list[tuple[int, int]], alike: bool) -> None:
    first, second = Tally(), Tally()
    for tally, rounds, seconds in ((first, [(3, 2), (0, 2)], 0.5), (second, other, 0.25)):
        for steps, running in rounds:
            tally.add(steps, running, seconds, [])
    assert (first.digest == second.digest) is alike
