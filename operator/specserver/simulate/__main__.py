"""`python -m specserver.simulate`: one arm on one kind of traffic, and what came of it, as JSON on standard output.

    python -m specserver.simulate --clients 70 --arm measured --seconds 60
    python -m specserver.simulate --square 2,200,5 --arm threshold --costs fa3-stock-zero
    python -m specserver.simulate --azure azure_llm_2023_code.csv --stretch 2 --arm measured --explain
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specserver.simulate import arms, traffic
from specserver.simulate.controllers import Product
from specserver.simulate.costs import TABLES
from specserver.simulate.engine import Engine, Noise, Outcome, simulate

ACCEPTANCE = {"good": traffic.GOOD, "low": traffic.LOW, "none": traffic.NONE, "perfect": traffic.PERFECT}


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    costs = TABLES[options.costs]
    acceptance = traffic.steady(ACCEPTANCE[options.acceptance])
    source = _build_source(options, acceptance)
    controller = arms.build(options.arm, costs, acceptance)
    noise = Noise(clock=options.clock_noise, outliers=options.outliers)
    outcome = simulate(Engine(costs), source, controller, options.seconds, seed=options.seed, noise=noise)
    report = describe(outcome)
    if options.explain and isinstance(controller, Product):
        report["explain"] = controller.decider.explain()
    json.dump(report, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def describe(outcome: Outcome) -> dict[str, object]:
    """What came of a run; JSON values alone."""
    spent: dict[int, float] = {}
    for by_steps in outcome.steps_by_bin:
        for steps, seconds in by_steps.items():
            spent[steps] = spent.get(steps, 0.0) + seconds
    latencies = sorted(outcome.latencies)
    return {
        "tokensPerSecond": round(outcome.tokens / outcome.seconds, 1),
        "switches": len(outcome.switch_times),
        "secondsBySteps": {str(steps): round(seconds, 2) for steps, seconds in sorted(spent.items())},
        "prefillSeconds": round(outcome.prefill_seconds, 2),
        "finished": outcome.finished,
        "latencyP50Seconds": round(latencies[len(latencies) // 2], 3) if latencies else None,
        "retractions": outcome.retractions,
    }


def _build_source(options: argparse.Namespace, acceptance: traffic.Profile) -> traffic.Source:
    if options.azure:
        return traffic.Source(acceptance, arrivals=traffic.read_azure(options.azure, options.seconds, options.stretch))
    if options.mooncake:
        return traffic.Source(acceptance, arrivals=traffic.read_mooncake(options.mooncake, options.seconds, options.stretch))
    if options.square:
        low, high, period = options.square.split(",")
        return traffic.Source(acceptance, traffic.square(int(low), int(high), float(period)))
    if options.sawtooth:
        low, high, period = options.sawtooth.split(",")
        return traffic.Source(acceptance, traffic.sawtooth(int(low), int(high), float(period)))
    return traffic.Source(acceptance, traffic.constant(options.clients))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m specserver.simulate", description="Try a policy on a simulated engine.")
    parser.add_argument("--arm", choices=arms.NAMES, default="measured")
    parser.add_argument("--costs", choices=sorted(TABLES), default="fa3")
    parser.add_argument("--acceptance", choices=sorted(ACCEPTANCE), default="good")
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clock-noise", type=float, default=0.0, help="relative jitter of measured times, one sigma")
    parser.add_argument("--outliers", type=float, default=0.0, help="share of measured times that are ten times too long")
    parser.add_argument("--explain", action="store_true", help="the decider's own account at the end")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--clients", type=int, default=32, help="closed loop: so many requests at any time")
    load.add_argument("--square", metavar="LOW,HIGH,PERIOD", help="closed loop that jumps")
    load.add_argument("--sawtooth", metavar="LOW,HIGH,PERIOD", help="closed loop that climbs and drops")
    load.add_argument("--azure", type=Path, metavar="CSV", help="Azure LLM inference trace")
    load.add_argument("--mooncake", type=Path, metavar="CSV", help="Mooncake trace: timestamp_ms,input_length,output_length")
    parser.add_argument("--stretch", type=float, default=1.0, help="a trace's time by this factor: above 1 is slower")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
