"""python -m benchmarks.decision OUTDIR: microseconds of one decision and of taking in one round, ladder of five.

The load moves in each turn, so that every decision evaluates all rungs anew: the dearest case. Calls are timed in blocks of
BLOCK by the CPU time of this thread, so that other work on the machine counts as little as it can; figures are the median over
all blocks, and the 99th percentile beside it. One call of `record` in a few thousand fits the cost line anew and takes some
hundred microseconds; it is in its figures.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import sys
import time
from pathlib import Path
from typing import Any

from specserver.policy.decider import Decider
from specserver.policy.decision import Observation, Round
from specserver.policy.document import Policy

LADDER = (0, 1, 2, 3, 5)
BLOCK = 50
POLICY = Policy(
    revision=1, mode="Auto", strategy="Measured", steps=LADDER, disable_above=256, enable_below=192, min_dwell_seconds=0.25
)
GOAL_MICROSECONDS = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decision", description="Microseconds per decision.")
    parser.add_argument("directory", type=Path, metavar="OUTDIR", help="for raw.json and summary.json")
    parser.add_argument("--rounds", type=int, default=40_000, help="decode rounds to play (default %(default)s)")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    raw = {"python": platform.python_version(), "machine": platform.machine(), "block": BLOCK, **measure(options.rounds)}
    summary = build_summary(raw)
    (options.directory / "raw.json").write_text(json.dumps(raw) + "\n")
    (options.directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for line in summary:
        print(f"{line['name']}: {line['value']} {line['unit']}" + (f" (goal {line['goal']})" if line["goal"] else ""))
    return 0 if all(line["met"] is not False for line in summary) else 1


def measure(rounds: int) -> dict[str, Any]:
    """Seconds of each block: of decisions, and of taking in rounds of 1 to 190 rows."""
    rng, decider = random.Random(1), Decider(POLICY)
    decisions: list[float] = []
    records: list[float] = []
    now, steps = 0.0, 0
    for block in range(rounds // BLOCK):
        running = max(1, int(96 + 95 * math.sin(block / 20)))
        observations = [
            Observation(running + turn % 5, turn % 3, 256 * running + 400 * turn, 0.3, 0, 256) for turn in range(BLOCK)
        ]
        begin = time.thread_time_ns()
        for turn, observation in enumerate(observations):
            steps = decider.decide(observation, now + 0.008 * turn).steps
        decisions.append((time.thread_time_ns() - begin) / 1e9)
        results = []
        for observation in observations:
            seconds = 1e-3 * (4.7 + 0.025 * observation.running * (steps + 1) + 0.3 * steps) * (1 + rng.gauss(0, 0.02))
            drafts = [min(steps, int(rng.expovariate(0.8))) for _ in range(observation.running)] if steps else []
            results.append(Round(steps, observation.running, observation.kv_tokens, seconds, drafts))
        begin = time.thread_time_ns()
        for turn, result in enumerate(results):
            decider.record(result, now + 0.008 * turn)
        records.append((time.thread_time_ns() - begin) / 1e9)
        now += 0.008 * BLOCK
    return {"decideSeconds": decisions, "recordSeconds": records}


def build_summary(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """{name, value, unit, goal, met} a line; goal and met are null where the figure only explains."""
    lines = []
    for name, key in (("decide", "decideSeconds"), ("record", "recordSeconds")):
        blocks = sorted(raw[key])
        for suffix, share in (("p50", 0.5), ("p99", 0.99)):
            value = round(1e6 * blocks[min(int(share * len(blocks)), len(blocks) - 1)] / raw["block"], 2)
            goal = GOAL_MICROSECONDS if (name, suffix) == ("decide", "p50") else None
            lines.append(
                {
                    "name": f"{name}_{suffix}",
                    "value": value,
                    "unit": "µs",
                    "goal": f"<= {goal:g}" if goal else None,
                    "met": value <= goal if goal else None,
                }
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
