"""The rule on simulated traffic: how near it comes to the best, how calm it is, and what harm it does while it learns.

Costs are those measured on one H200 (FA3), zero steps at plain decode's cost and 1 %. Arms that choose otherwise are played the
very same requests. The whole grid, with longer runs and real traces, is `python -m benchmarks.simulate`.
"""

from __future__ import annotations

import functools

import pytest

from specserver.policy.decider import Decider
from specserver.simulate import arms, traffic
from specserver.simulate.controllers import Product
from specserver.simulate.costs import FA3, PLAIN, TABLES
from specserver.simulate.engine import Engine, Noise, Outcome, simulate

LEARNING_SECONDS, RUN_SECONDS = 25.0, 45.0
TRUE_CLOCK = Noise()
SURVIVAL = {"good": traffic.GOOD, "low": traffic.LOW}


@functools.cache
def constant(arm: str, clients: int, survival: str, seconds: float, noise: Noise = TRUE_CLOCK) -> tuple[Outcome, float]:
    """A run at a constant load, and the seconds that went into probes."""
    acceptance = traffic.steady(SURVIVAL[survival])
    controller = arms.build(arm, FA3, acceptance)
    outcome = simulate(Engine(FA3), traffic.Source(acceptance, traffic.constant(clients)), controller, seconds, noise=noise)
    probes = controller.decider.explain()["probeSeconds"] if isinstance(controller, Product) else 0.0
    return outcome, probes


def rate(outcome: Outcome, begin: float, end: float) -> float:
    return outcome.tokens_between(begin, end) / (end - begin)


@functools.cache
def static_rates(clients: int, survival: str) -> tuple[float, ...]:
    """Tokens a second of 0, 1, 2 and 3 steps always, once all requests are in."""
    return tuple(rate(constant(f"static-{steps}", clients, survival, 20.0)[0], 5.0, 20.0) for steps in arms.LADDER)


LOADS = [(1, "good"), (10, "good"), (70, "good"), (128, "low"), (250, "good")]


@pytest.mark.parametrize(("clients", "survival"), LOADS)
def test_without_a_profile_it_learns_what_is_best(clients: int, survival: str) -> None:
    outcome, _ = constant("measured", clients, survival, RUN_SECONDS)
    best, plain = max(static_rates(clients, survival)), static_rates(clients, survival)[0]
    assert rate(outcome, LEARNING_SECONDS, RUN_SECONDS) >= 0.97 * best
    assert rate(outcome, 5.0, RUN_SECONDS) >= 0.98 * plain


@pytest.mark.parametrize(("clients", "survival"), [(10, "good"), (128, "low")])
def test_within_a_minute_it_is_as_good_as_with_a_perfect_profile(clients: int, survival: str) -> None:
    without, with_profile = (constant(arm, clients, survival, RUN_SECONDS)[0] for arm in ("measured", "measured-profile"))
    assert rate(without, LEARNING_SECONDS, RUN_SECONDS) >= 0.95 * rate(with_profile, LEARNING_SECONDS, RUN_SECONDS)


@pytest.mark.parametrize(("clients", "survival"), LOADS)
def test_while_it_learns_it_is_never_far_below_plain_decode(clients: int, survival: str) -> None:
    """In windows of five seconds, beside the same requests decoded plainly: finishing in other places makes windows differ."""
    outcome, _ = constant("measured", clients, survival, RUN_SECONDS)
    plain, _ = constant("static-0", clients, survival, 20.0)
    for begin in (0.0, 5.0, 10.0, 15.0):
        assert rate(outcome, begin, begin + 5.0) >= 0.9 * rate(plain, begin, begin + 5.0)


@pytest.mark.parametrize(("clients", "survival"), LOADS)
def test_at_constant_load_it_is_calm(clients: int, survival: str) -> None:
    """Once it has learnt, at most one change in ten seconds, those of probes counted."""
    outcome, _ = constant("measured", clients, survival, RUN_SECONDS)
    assert sum(at >= LEARNING_SECONDS for at in outcome.switch_times) <= 2 + 1


def test_probes_keep_to_one_percent() -> None:
    """Beyond the second that each start is given; where drafts never pay and it must keep asking."""
    _, probes = constant("measured", 128, "low", RUN_SECONDS)
    assert 0.0 < probes <= 1.0 + 0.01 * RUN_SECONDS


@pytest.mark.parametrize("jitter", [0.1, 0.3])
@pytest.mark.parametrize("clients", [4, 70])
def test_noisy_clocks(clients: int, jitter: float) -> None:
    outcome, _ = constant("measured", clients, "good", 40.0, Noise(clock=jitter, outliers=0.05))
    assert rate(outcome, 20.0, 40.0) >= 0.93 * max(static_rates(clients, "good"))
    assert sum(at >= 20.0 for at in outcome.switch_times) <= 8


def play(arm: str, acceptance: traffic.Profile, clients: traffic.Clients, seconds: float, costs: str = "fa3") -> Outcome:
    table = TABLES[costs]
    source = traffic.Source(acceptance, clients, prompt_tokens=(8, 16))
    return simulate(Engine(table), source, arms.build(arm, table, acceptance), seconds)


SHAPES = {
    "square of 1 s": (traffic.square(2, 200, 1.0), 12.0),
    "square of 5 s": (traffic.square(2, 200, 5.0), 25.0),
    "square of 20 s": (traffic.square(2, 200, 20.0), 40.0),
    "sawtooth of 10 s": (traffic.sawtooth(1, 250, 10.0), 30.0),
    "ramp": (traffic.ramp(1, 250, 25.0), 30.0),
}


@pytest.mark.parametrize(("clients", "seconds"), SHAPES.values(), ids=SHAPES)
def test_moving_loads(clients: traffic.Clients, seconds: float) -> None:
    good = traffic.steady(traffic.GOOD)
    oracle = play("oracle", good, clients, seconds)
    assert play("measured", good, clients, seconds).tokens >= 0.95 * oracle.tokens
    assert play("measured-profile", good, clients, seconds).tokens >= 0.97 * oracle.tokens


@pytest.mark.parametrize("clients", [4, 32, 100])
def test_acceptance_that_collapses_and_returns(clients: int) -> None:
    """From 10 s to 25 s nothing is accepted. Down within a second or so; back within the longest wait between probes."""
    acceptance = traffic.changing(traffic.GOOD, traffic.NONE, 10.0, 25.0)
    ours, oracle = (play(arm, acceptance, traffic.constant(clients), 60.0) for arm in ("measured", "oracle"))
    always = play("static-3", acceptance, traffic.constant(clients), 60.0)
    collapsed, returned = (12.0, 25.0), (47.0, 60.0)
    assert ours.tokens_between(*collapsed) >= 0.97 * oracle.tokens_between(*collapsed)
    assert ours.tokens_between(*collapsed) > always.tokens_between(*collapsed)
    assert ours.tokens_between(*returned) >= 0.95 * oracle.tokens_between(*returned)


@pytest.mark.parametrize("clients", [10, 70])
def test_better_drafts_are_noticed_though_more_steps_have_just_failed(clients: int) -> None:
    """Up to 20 s three steps are a little worse than two, and probes that said so have made the rule wait."""
    poor = (0.45, 0.20, 0.07, 0.03, 0.01)
    acceptance = traffic.changing(poor, traffic.GOOD, 20.0)
    ours, oracle = (play(arm, acceptance, traffic.constant(clients), 40.0) for arm in ("measured", "oracle"))
    assert ours.tokens_between(25.0, 40.0) >= 0.985 * oracle.tokens_between(25.0, 40.0)


@pytest.mark.parametrize("clients", [100, 250])
def test_zero_steps_that_are_dear_are_not_taken_for_plain_decode(clients: int) -> None:
    """Where zero steps run through a slow kernel, a rule that knows only the batch size loses what it wants to save."""
    good, busy = traffic.steady(traffic.GOOD), traffic.constant(clients)
    ours, by_batch, oracle = (
        play(arm, good, busy, 30.0, "triton-stock-zero").tokens_between(10.0, 30.0) for arm in ("measured", "threshold", "oracle")
    )
    assert ours >= 0.95 * oracle
    assert ours > 1.5 * by_batch


def test_long_contexts_favour_speculation_and_the_rule_sees_it() -> None:
    """100 requests of 6,000 tokens: reading them takes longer than verifying drafts, so 3 steps pay where 2 would with short
    ones. The costs it was given were measured with short ones."""
    good = traffic.steady(traffic.GOOD)
    source = traffic.Source(good, traffic.constant(100), prompt_tokens=(6000, 6000), output_tokens=(400, 600))
    rates = {}
    for arm in ("static-0", "static-1", "static-2", "static-3", "measured-profile"):
        outcome = simulate(Engine(FA3), source, arms.build(arm, FA3, good), 60.0)
        rates[arm] = outcome.tokens_between(20.0, 60.0) / outcome.decode_seconds
    assert rates["measured-profile"] >= 0.97 * max(rates.values())


def test_an_engine_without_speculation_loses_nothing_to_one_whose_drafts_never_pay() -> None:
    none = traffic.steady(traffic.NONE)
    source = traffic.Source(none, traffic.constant(32))
    plain = simulate(Engine(PLAIN), source, arms.build("static-0", PLAIN, none), 40.0)
    decider = Decider(arms.MEASURED)
    ours = simulate(Engine(FA3), source, Product(decider), 40.0)
    assert ours.tokens >= 0.98 * plain.tokens
