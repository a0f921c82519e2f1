"""The simulated engine: what it does with requests, and what it tells a controller."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specserver.policy.decision import Observation, Round
from specserver.simulate import costs, traffic
from specserver.simulate.__main__ import main
from specserver.simulate.controllers import Fixed, Oracle, StockLike
from specserver.simulate.costs import FA3, PLAIN, StepCosts
from specserver.simulate.engine import Engine, Noise, Outcome, simulate

QUIET = Noise(rounds=0.0)


@dataclass
class Recorder:
    """Goes through `course`, one step count a turn, over and over."""

    course: tuple[int, ...] = (0,)
    observations: list[Observation] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    times: list[tuple[float, str]] = field(default_factory=list)

    def choose(self, observation: Observation, now: float, clock: float) -> int:
        self.observations.append(observation)
        self.times.append((now, "turn"))
        return self.course[(len(self.observations) - 1) % len(self.course)]

    def record(self, result: Round, clock: float) -> None:
        self.rounds.append(result)
        self.times.append((clock, "result"))


def source(clients: traffic.Clients, survival: traffic.Survival = traffic.GOOD, **more: object) -> traffic.Source:
    return traffic.Source(traffic.steady(survival), clients, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "running"), [(0, 1), (1, 70), (2, 128), (3, 250)])
def test_costs_at_measured_points_are_the_measurement(steps: int, running: int) -> None:
    expected = FA3.milliseconds[steps][costs.BATCHES.index(running)] / 1e3
    assert FA3.seconds(steps, running, 256.0 * running) == pytest.approx(expected)


@pytest.mark.parametrize("table", costs.TABLES.values(), ids=lambda table: table.name)
def test_costs_rise_with_batch_and_steps_and_context(table: StepCosts) -> None:
    for steps in (0, 1, 2, 3):
        by_batch = [table.seconds(steps, running, 256 * running) for running in range(1, 400)]
        assert by_batch == sorted(by_batch)
    assert table.seconds(3, 64, 64 * 8000) > table.seconds(3, 64, 64 * 256) > table.seconds(1, 64, 64 * 256)


def test_plain_decode_is_as_fast_as_its_rounds() -> None:
    outcome = simulate(Engine(PLAIN), source(traffic.constant(32), output_tokens=(300, 300)), Fixed(0), 20.0, noise=QUIET)
    assert outcome.decode_seconds + outcome.prefill_seconds == pytest.approx(20.0, abs=0.1)
    assert outcome.tokens == pytest.approx(32 * outcome.decode_seconds / 0.00537, rel=0.03)


def test_speculation_gains_what_survival_and_costs_say() -> None:
    tokens = {
        steps: simulate(
            Engine(FA3), source(traffic.constant(10), spread=0.0), Fixed(steps), 30.0, noise=QUIET
        ).tokens
        for steps in (0, 3)
    }
    expected = (1 + 0.69 + 0.46 + 0.32) / FA3.seconds(3, 10, 2560) * FA3.seconds(0, 10, 2560)
    assert tokens[3] / tokens[0] == pytest.approx(expected, rel=0.06), "prefill takes its share of both"


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    def run(seed: int) -> Outcome:
        return simulate(Engine(FA3), source(traffic.sawtooth(1, 40, 2.0)), Fixed(2), 5.0, seed=seed)

    assert run(1) == run(1)
    assert run(1).tokens_by_bin != run(2).tokens_by_bin


def test_results_come_a_batch_late_under_their_own_steps() -> None:
    recorder = Recorder(course=(3, 1))
    simulate(Engine(FA3), source(traffic.constant(1), output_tokens=(10_000, 10_000)), recorder, 1.0, noise=QUIET)
    turns_before_first_result = [kind for _, kind in recorder.times].index("result")
    assert turns_before_first_result == 3, "the prefill's, the first round's, and the second round's, which hides the result"
    assert {result.steps for result in recorder.rounds[:2]} == {1, 3}
    assert all(max(result.correct_drafts, default=0) <= result.steps for result in recorder.rounds)


def test_only_undisturbed_rounds_are_timed() -> None:
    steady, switching = Recorder(course=(2,)), Recorder(course=(2, 1))
    for recorder in (steady, switching):
        simulate(Engine(FA3), source(traffic.constant(4), output_tokens=(500, 500)), recorder, 2.0, noise=QUIET)
    timed = [result for result in steady.rounds if result.seconds is not None]
    assert len(timed) > len(steady.rounds) // 2
    assert steady.rounds[0].seconds is None, "prefill was before it"
    assert all(
        result.seconds == pytest.approx(FA3.seconds(2, 4, result.kv_tokens)) for result in timed if result.running == 4
    )
    assert all(result.seconds is None for result in switching.rounds)


def test_rows_of_requests_that_are_done_count_for_the_batch_and_not_for_acceptance() -> None:
    recorder = Recorder(course=(3,))
    simulate(Engine(FA3), source(traffic.constant(8), output_tokens=(5, 9)), recorder, 1.0, noise=QUIET)
    assert any(len(result.correct_drafts) < result.running for result in recorder.rounds)


def test_clients_that_leave_abort_their_requests() -> None:
    recorder = Recorder(course=(0,))
    simulate(Engine(FA3), source(traffic.square(2, 60, 2.0)), recorder, 4.0, noise=QUIET)
    running = [observation.running for observation in recorder.observations]
    assert {2, 60} <= set(running)
    assert max(running) == 60


def test_kv_that_runs_out_retracts_the_newest_and_says_so() -> None:
    recorder = Recorder(course=(0,))
    small = Engine(FA3, pool_tokens=4000)
    outcome = simulate(small, source(traffic.constant(16), output_tokens=(200, 300)), recorder, 10.0, noise=QUIET)
    assert outcome.retractions > 0
    assert sum(observation.retractions for observation in recorder.observations) in (
        outcome.retractions, outcome.retractions - 1,
    )  # fmt: skip
    assert max(observation.kv_usage for observation in recorder.observations) > 0.9
    assert outcome.finished > 0


def test_no_more_run_than_there_are_places() -> None:
    recorder = Recorder(course=(0,))
    simulate(Engine(FA3, max_running=8), source(traffic.constant(20)), recorder, 2.0, noise=QUIET)
    assert max(observation.running for observation in recorder.observations) == 8
    assert max(observation.queued for observation in recorder.observations) >= 12


def test_an_open_loop_is_served_in_order_and_ends() -> None:
    arrivals = tuple((0.5 * number, 100, 20) for number in range(6))
    outcome = simulate(Engine(FA3), traffic.Source(traffic.steady(traffic.GOOD), arrivals=arrivals), Fixed(1), 60.0)
    assert outcome.finished == 6
    assert outcome.tokens == 6 * 20
    assert max(outcome.latencies) < 0.5


def test_noise_is_of_the_clock_and_outliers_are_ten_times_too_long() -> None:
    quiet, noisy = Recorder(course=(1,)), Recorder(course=(1,))
    load = source(traffic.constant(1), output_tokens=(10_000, 10_000))
    simulate(Engine(FA3), load, quiet, 3.0, noise=QUIET)
    simulate(Engine(FA3), load, noisy, 3.0, noise=Noise(clock=0.2, outliers=0.1, rounds=0.0))
    assert len(quiet.rounds) == len(noisy.rounds), "what is measured changes nothing in what happens"
    seconds = sorted(result.seconds for result in noisy.rounds if result.seconds is not None)
    assert seconds[-1] > 8 * seconds[len(seconds) // 2]


def test_a_drawn_survival_is_one_and_keeps_its_mean() -> None:
    rng_source = source(traffic.constant(1), spread=0.5)
    drawn = [rng_source.make(number, 1, 0.0).survival for number in range(2000)]
    assert all(1.0 >= s[0] >= s[1] >= s[2] >= 0.0 for s in drawn)
    assert sum(s[0] for s in drawn) / len(drawn) == pytest.approx(0.69, abs=0.03)


def test_the_oracle_takes_the_best_and_the_imitation_of_stock_flips_at_its_sizes() -> None:
    oracle = Oracle(FA3, traffic.steady(traffic.GOOD), (0, 1, 2, 3))
    assert [oracle.choose(Observation(b, 0, 256 * b), 0.0, 0.0) for b in (1, 70, 128)] == [3, 2, 1]
    stock = StockLike()
    assert [stock.choose(Observation(b, 0), 0.0, 0.0) for b in (1, 10, 40, 64)] == [3, 3, 1, 0]


def test_traces_are_read_from_their_start_and_stretched(tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.9799600,34,12\n"
    )
    assert traffic.read_azure(azure, stretch=2.0) == ((0.0, 4808, 10), (pytest.approx(4.0), 34, 12))
    mooncake = tmp_path / "mooncake.csv"
    mooncake.write_text("timestamp_ms,input_length,output_length\n1000,6758,500\n4000,2,0\n9000,1,1\n")
    assert traffic.read_mooncake(mooncake, limit_seconds=5.0) == ((0.0, 6758, 500), (3.0, 2, 1))


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--clients", "4", "--seconds", "2", "--arm", "measured-profile", "--explain"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tokensPerSecond"] > 0
    assert report["explain"]["strategy"] == "Measured"
    assert main(["--square", "1,8,1", "--seconds", "1", "--arm", "static-2"]) == 0
    assert json.loads(capsys.readouterr().out)["secondsBySteps"].keys() == {"2"}


def test_seeds_of_requests_do_not_depend_on_who_asks() -> None:
    here, there = source(traffic.constant(1)), source(traffic.constant(200))
    random.seed(5)
    assert [here.make(n, 3, 0.0) for n in range(5)] == [there.make(n, 3, 0.0) for n in range(5)]
