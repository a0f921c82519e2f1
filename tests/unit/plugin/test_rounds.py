"""When a round's cost is known, on the order in which an overlapping scheduler and a plain one take results in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from specserver.plugin.rounds import Result, RoundTimer


@dataclass(frozen=True)
class Batch:
    """What the scheduler starts in one turn, and how long the GPU works on it."""

    seconds: float
    steps: int = 3
    running: int = 4
    grammar: bool = False
    decode: bool = True


PREFILL = Batch(0.5, decode=False)
IDLE = None


def run(turns: Sequence[Batch | None], *, overlap: bool) -> list[float | None]:
    """Costs of the decode batches, each as measured when its result is taken in. None in `turns`: nothing to start."""
    timer, measured = RoundTimer(), []
    gpu_free_at, iteration, now = 0.0, 0, 0.0
    waiting: list[tuple[int, Batch, float]] = []

    def take_in() -> None:
        nonlocal now
        number, batch, done_at = waiting.pop(0)
        now = max(now, done_at)
        if batch.decode:
            measured.append(timer.measure(Result(number, batch.steps, batch.running, batch.grammar, now)))

    for batch in [*turns, IDLE]:
        timer.turn()
        waited = bool(waiting)
        if batch is not None:
            iteration += 1
            gpu_free_at = max(gpu_free_at, now) + batch.seconds
            waiting.append((iteration, batch, gpu_free_at))
        if waiting and (waited or not overlap):
            take_in()
        if batch is None:
            now += 1.0
    return [None if seconds is None else round(seconds, 6) for seconds in measured]


@pytest.mark.parametrize("overlap", [True, False])
def test_steady_rounds_cost_what_the_gpu_takes(overlap: bool) -> None:
    assert run([Batch(0.010), Batch(0.011), Batch(0.012)], overlap=overlap) == [None, 0.011, 0.012]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_switch_leaves_out_the_first_round_and_credits_the_next_to_its_own_steps(overlap: bool) -> None:
    turns = [Batch(0.03), Batch(0.03), Batch(0.01, steps=0), Batch(0.01, steps=0), Batch(0.03), Batch(0.03)]
    assert run(turns, overlap=overlap) == [None, 0.03, None, 0.01, None, 0.03]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    "between",
    [PREFILL, IDLE, Batch(0.01, running=5), Batch(0.01, grammar=True)],
    ids=["prefill", "nothing to run", "another batch size", "grammar"],
)
def test_what_lies_between_is_no_step_cost(between: Batch | None, overlap: bool) -> None:
    before, after = [Batch(0.01), Batch(0.01)], [Batch(0.01), Batch(0.01)]
    measured = run([*before, between, *after], overlap=overlap)
    own = [] if between is None or not between.decode else [None]
    assert measured == [None, 0.01, *own, None, 0.01]


def result(iteration: int, at: float) -> Result:
    return Result(iteration, steps=3, running=4, grammar=False, at=at)


def measure_twice(first: float, second: float) -> float | None:
    timer = RoundTimer()
    timer.measure(result(1, first))
    timer.turn()
    return timer.measure(result(2, second))


@pytest.mark.parametrize(("first", "second"), [(5.0, 5.0), (5.0, 4.0), (5.0, 1e9), (5.0, math.nan), (-math.inf, 5.0)])
def test_a_clock_that_stands_or_jumps_measures_nothing(first: float, second: float) -> None:
    assert measure_twice(first, second) is None


def test_a_pause_between_two_batches_is_no_step_cost() -> None:
    """A paused engine turns without starting anything; the numbers of its batches show no gap."""
    timer = RoundTimer()
    timer.measure(result(1, 1.0))
    for _ in range(3):
        timer.turn()
    assert timer.measure(result(2, 9.0)) is None


def test_turns_that_take_in_no_requests_are_not_told() -> None:
    """With a receive interval, SGLang pulls requests in only some turns."""
    timer = RoundTimer()
    timer.measure(result(1, 1.0))
    assert timer.measure(result(2, 1.5)) == 0.5
