"""Step cost: what is measured, what is predicted from it, and what noise must not do."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from specserver.policy.cost import Cost, band
from specserver.policy.profile import Profile
from tests.unit.policy.support import profile, seconds


def measure(cost: Cost, steps: int, running: int, samples: int = 20, kv_tokens: int = 0, took: float | None = None) -> None:
    for number in range(samples):
        cost.record(steps, running, kv_tokens, took if took is not None else seconds(steps, running), 0.01 * number)


def predict(cost: Cost, steps: int, running: float, kv_tokens: float = 0.0, now: float = 0.0) -> float:
    return cost.predict(steps, running, kv_tokens, now)[0]


def test_bands_rise_with_the_batch() -> None:
    bands = [band(running) for running in range(1, 2000)]
    assert bands == sorted(bands)
    assert bands[:9] == list(range(9))
    assert band(16) == 12


def test_nothing_is_known_at_first_and_something_after_a_few_rounds() -> None:
    cost = Cost()
    assert not cost.known
    measure(cost, 0, 16, samples=5)
    assert cost.known
    assert predict(cost, 0, 16) == pytest.approx(seconds(0, 16))


def test_between_measured_batches_it_interpolates() -> None:
    cost = Cost()
    measure(cost, 1, 32)
    measure(cost, 1, 128)
    assert predict(cost, 1, 64) == pytest.approx(seconds(1, 64), rel=0.02)


@pytest.mark.parametrize(("steps", "running"), [(1, 100), (2, 100), (3, 200), (0, 250), (3, 4)])
def test_what_was_never_run_is_predicted_from_the_rest(steps: int, running: int) -> None:
    cost = Cost()
    for k, b in ((0, 4), (0, 64), (3, 4), (3, 64)):
        measure(cost, k, b)
    predicted, sigma = cost.predict(steps, running, 0.0, 0.0)
    assert predicted == pytest.approx(seconds(steps, running), rel=0.25)
    measured_sigma = cost.predict(0, 4, 0.0, 0.0)[1]
    assert sigma > 3 * measured_sigma or (steps, running) == (3, 4)


def test_a_profile_is_believed_at_once_and_corrected_by_rounds() -> None:
    cost = Cost(profile())
    assert cost.known
    assert predict(cost, 3, 100) == pytest.approx(seconds(3, 100), rel=0.02)
    measure(cost, 3, 64, samples=600, took=1.3 * seconds(3, 64))
    assert predict(cost, 3, 64) == pytest.approx(1.3 * seconds(3, 64), rel=0.02)
    assert predict(cost, 0, 64) == pytest.approx(seconds(0, 64), rel=0.02)


def test_costs_do_not_fall_when_the_batch_grows() -> None:
    cost, rng = Cost(), random.Random(3)
    for running in (1, 2, 4, 8, 16, 24, 32, 48, 64):
        for number in range(10):
            cost.record(0, running, 0, 0.005 * (1 + rng.gauss(0, 0.2)), 0.01 * number)
    predictions = [predict(cost, 0, running) for running in range(1, 80)]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(predictions))


@pytest.mark.parametrize("jitter", [0.1, 0.3])
def test_noise_averages_out_and_outliers_are_dropped(jitter: float) -> None:
    cost, rng = Cost(), random.Random(5)
    for number in range(600):
        true = seconds(1, 32)
        noisy = 10 * true if rng.random() < 0.1 else true * max(0.05, 1 + rng.gauss(0, jitter))
        cost.record(1, 32, 0, noisy, 0.01 * number)
    assert predict(cost, 1, 32) == pytest.approx(seconds(1, 32), rel=0.06)
    assert cost.dropped > 30


def test_a_slow_first_round_spoils_nothing() -> None:
    """A kernel that is compiled on first use can take a minute."""
    cost = Cost()
    cost.record(1, 32, 0, 80.0, 0.0)
    measure(cost, 1, 32, samples=4)
    assert predict(cost, 1, 32) == pytest.approx(seconds(1, 32))


def test_a_cost_that_really_changed_is_taken_on() -> None:
    cost = Cost()
    measure(cost, 1, 32, samples=300)
    measure(cost, 1, 32, samples=30, took=3 * seconds(1, 32))
    assert predict(cost, 1, 32) == pytest.approx(3 * seconds(1, 32), rel=0.01)


def test_context_is_learnt_apart_from_the_batch() -> None:
    cost, rng, per_token = Cost(), random.Random(11), 3e-8
    for number in range(2000):
        tokens = rng.randint(2_000, 60_000)
        for steps in (0, 3):
            cost.record(steps, 16, tokens, seconds(steps, 16) + per_token * tokens, 0.01 * number)
    assert cost.seconds_per_kv_token(0) == pytest.approx(per_token, rel=0.1)
    assert predict(cost, 3, 16, 500_000) == pytest.approx(seconds(3, 16) + per_token * 500_000, rel=0.1)


def test_a_slope_from_a_profile_serves_long_contexts_from_the_start() -> None:
    given = Profile(key={}, step_seconds={0: ((16, 0.006),)}, kv_tokens_per_request=250.0, seconds_per_kv_token=4e-8)
    assert predict(Cost(given), 0, 16, 4_000 + 100_000) == pytest.approx(0.006 + 0.004)


@pytest.mark.parametrize("took", [math.nan, math.inf, -1.0, 0.0])
def test_what_is_no_duration_is_ignored(took: float) -> None:
    cost = Cost()
    measure(cost, 0, 4)
    measure(cost, 0, 4, took=took)
    assert predict(cost, 0, 4) == pytest.approx(seconds(0, 4))


def test_old_figures_grow_uncertain() -> None:
    cost = Cost()
    measure(cost, 0, 4)
    fresh = cost.predict(0, 4, 0.0, 0.2)[1]
    measure(cost, 1, 4)
    assert cost.predict(0, 4, 0.0, 180.0)[1] > fresh + 0.02
