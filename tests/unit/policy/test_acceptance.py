"""Survival by position: who counts for what, how fast it follows, what is hoped for."""

from __future__ import annotations

import random

import pytest

from specserver.policy.acceptance import Acceptance


def draw(rng: random.Random, rates: tuple[float, ...], rows: int) -> list[int]:
    """Accepted drafts of so many rows, where position j is right with rate j if all before it were."""
    accepted = []
    for _ in range(rows):
        count = 0
        while count < len(rates) and rng.random() < rates[count]:
            count += 1
        accepted.append(count)
    return accepted


def feed(acceptance: Acceptance, rates: tuple[float, ...], rounds: int, *, rows: int = 8, start: float = 0.0) -> None:
    rng = random.Random(7)
    for number in range(rounds):
        acceptance.record(len(rates), draw(rng, rates, rows), start + 0.01 * number)


def test_survival_is_the_product_of_what_rows_that_got_there_did() -> None:
    acceptance = Acceptance(3)
    feed(acceptance, (0.8, 0.5, 0.25), 2000)
    assert acceptance.survival() == pytest.approx([1.0, 0.8, 0.4, 0.1], abs=0.04)
    assert acceptance.trials(1) > acceptance.trials(3) > 0


def test_a_short_round_says_nothing_of_later_positions() -> None:
    acceptance = Acceptance(3)
    feed(acceptance, (0.8, 0.5, 0.5), 1000)
    second, third = acceptance.rate(2), acceptance.rate(3)
    feed(acceptance, (0.2,), 1000, start=10.0)
    assert (acceptance.rate(2), acceptance.rate(3)) == (second, third)
    assert acceptance.rate(1) == pytest.approx(0.2, abs=0.04)
    assert acceptance.survival()[2] == pytest.approx(acceptance.rate(1) * second), "but fewer get there"


def test_nothing_was_tried_yet() -> None:
    acceptance = Acceptance(2)
    assert (acceptance.trials(1), acceptance.survival()) == (0.0, pytest.approx([1.0, 0.6, 0.36]))
    acceptance.record(2, [], 0.0)
    acceptance.record(0, [0, 0], 0.0)
    assert acceptance.trials(1) == 0.0


def test_a_collapse_is_followed_within_two_hundred_rows() -> None:
    """Without the short window half of what was learnt before would still count after 2,000."""
    acceptance = Acceptance(1)
    feed(acceptance, (0.8,), 5000, rows=1)
    feed(acceptance, (0.05,), 200, rows=1, start=50.0)
    assert acceptance.rate(1) < 0.3
    assert acceptance.changes >= 1


def test_steady_traffic_changes_nothing_abruptly() -> None:
    acceptance = Acceptance(1)
    feed(acceptance, (0.6,), 20_000, rows=4)
    assert acceptance.changes <= 2


def test_what_was_not_tried_for_long_is_uncertain_and_hoped_for() -> None:
    acceptance = Acceptance(1)
    feed(acceptance, (0.2,), 2000)
    rate, sigma, best = acceptance.read(1, 20.0)
    later = [acceptance.read(1, 20.0 + age) for age in (15.0, 60.0, 600.0)]
    assert rate == later[0][0]
    assert sigma < later[0][1] < later[1][1]
    assert best < 0.3 < later[0][2] < later[1][2] < later[2][2] <= 0.97


def test_old_knowledge_yields_to_new_trials() -> None:
    acceptance = Acceptance(1)
    feed(acceptance, (0.2,), 2000)
    fresh = acceptance.trials(1)
    acceptance.record(1, [1] * 8, 20.0 + 300.0)
    assert acceptance.trials(1) < fresh / 10


def test_a_probe_is_compared_with_what_was_known_and_not_mixed_into_it() -> None:
    acceptance = Acceptance(1)
    feed(acceptance, (0.05,), 2000)
    acceptance.start_probe()
    for number in range(8):
        acceptance.record(1, [1], 20.0 + 0.01 * number, probing=True)
    assert acceptance.rate(1) > 0.5
