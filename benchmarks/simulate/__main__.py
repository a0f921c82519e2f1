"""python -m benchmarks.simulate OUTDIR: the rule on simulated traffic, beside fixed step counts, an oracle and other rules.

Writes raw.json (all runs), summary.json ({name, value, unit, goal, met} a line) and table.md. Costs are those measured on one
H200 (see specserver/simulate/costs.py) and acceptance is drawn from published survival: a model, not a measurement. It is
deterministic: the same code gives the same figures. The exit status is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from benchmarks.simulate.grid import build_cases, run_case
from benchmarks.simulate.summary import build_summary, build_table
from specserver.simulate.costs import TABLES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description="The rule on simulated traffic.")
    parser.add_argument("directory", type=Path, metavar="OUTDIR", help="for raw.json, summary.json and table.md")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    # 1. All runs, the long ones first.
    cases = sorted(build_cases(tuple(TABLES)), key=lambda case: -case.seconds * min(case.size, 300))
    begin = time.monotonic()
    runs = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for number, run in enumerate(pool.imap_unordered(run_case, cases), start=1):
            runs.append(run)
            if number % 50 == 0:
                print(f"{number} of {len(cases)} runs, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    runs.sort(key=lambda run: tuple(str(run[key]) for key in ("kind", "costs", "survival", "size", "jitter", "arm")))
    # 2. What is kept.
    summary = build_summary(runs)
    (options.directory / "raw.json").write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n")
    (options.directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (options.directory / "table.md").write_text(build_table(runs))
    # 3. What is said.
    for line in summary:
        if line["goal"]:
            print(f"{'met   ' if line['met'] else 'MISSED'} {line['name']}: {line['value']} (goal {line['goal']})")
    return 0 if all(line["met"] is not False for line in summary) else 1


if __name__ == "__main__":
    sys.exit(main())
