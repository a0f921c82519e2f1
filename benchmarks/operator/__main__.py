"""python -m benchmarks.operator OUTDIR: the whole run on this machine, raw figures and summary into OUTDIR.

It needs what the tests need (etcd and a kube-apiserver, built once, and Go for the baseline) and pins itself and all that
it starts to two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from benchmarks.operator.api import ScaleApi
from benchmarks.operator.fleet import Fleet, Size
from benchmarks.operator.phases import KEPT_KINDS, Figures, Run
from benchmarks.operator.summary import build_summary, build_table
from specserver.settings import Settings
from tests.apiserver.operator_process import OperatorProcess, install_rights
from tests.localcluster import start_apiserver
from tests.localcluster.binaries import Module, ensure_module
from tests.localcluster.processes import stop_children

BASELINE = Module("baseline-go", {"controller": "./controller", "engines": "./engines"})
CORES = 2
SETTLE_SECONDS = 40.0
"""Two looks at each server: the second one is the first that knows rates."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator", description="The operator at scale.")
    parser.add_argument("directory", type=Path, metavar="OUTDIR", help="for raw.json, summary.json, table.md and logs")
    parser.add_argument("--servers", type=int, default=Size.servers, help="SpeculativeServers (default %(default)s)")
    parser.add_argument("--pods", type=int, default=Size.pods, help="pods of each (default %(default)s)")
    parser.add_argument("--big", type=int, default=Size.big, help="pods of the server for the push (default %(default)s)")
    parser.add_argument("--changes", type=int, default=100, help="single changes (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="pushes (default %(default)s)")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds of doing nothing (default %(default)s)")
    parser.add_argument("--workers", type=int, default=Settings.workers, help="reconciles at once, of both (default %(default)s)")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    options.directory.mkdir(parents=True, exist_ok=True)
    programs = ensure_module(BASELINE, Path(__file__).parent)
    summary = asyncio.run(measure(options, programs))
    print(build_table(summary))
    return 0 if all(one["met"] is not False for one in summary) else 1


async def measure(options: argparse.Namespace, programs: Path) -> list[dict[str, Any]]:
    size = Size(options.servers, options.pods, options.big)
    output: Path = options.directory
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    raw: dict[str, Any] = {"size": vars(size), "machine": describe_machine(), "load_average_before": os.getloadavg()}

    async def step(name: str, work: Awaitable[Figures]) -> None:
        say(name)
        raw[name] = await work
        (output / "raw.json").write_text(json.dumps(raw, indent=1))

    with tempfile.TemporaryDirectory(prefix="specserver-scale-") as directory, start_apiserver(Path(directory)) as cluster:
        rights = install_rights(cluster, Path(directory))
        environment = {"SPECSERVER_WORKERS": str(options.workers)}
        operator = OperatorProcess(rights, output / "operator.log", environment=environment)
        async with ScaleApi(cluster.kubeconfig) as api:
            fleet = Fleet(api, cluster, size, output, programs / "engines")
            run = Run(
                api, fleet, operator, programs / "controller", cluster.kubeconfig, output, options.workers, say
            )
            say(f"{size.all_servers} servers")
            await fleet.create_servers()
            # 1. From nothing, one after the other.
            await step("baseline_deployments", run.baseline_from_nothing("Deployment", change=options.changes // 2))
            await step("baseline_all_objects", run.baseline_from_nothing(*KEPT_KINDS))
            async with run.stopped_afterwards():
                await step("first_sync", run.operator_from_nothing())
            # 2. The pods.
            say(f"{size.all_pods} pods")
            await fleet.play_pods()
            engines = await fleet.start_engines()
            try:
                # 3. With everything there.
                async with run.stopped_afterwards():
                    await step("cold_sync", run.cold_sync())
                    await asyncio.sleep(SETTLE_SECONDS)
                    await step("idle", run.idle(options.idle))
                    await step("changes", run.changes(options.changes))
                    await step("pushes", run.pushes(options.rounds))
            finally:
                stop_children([engines])
    raw["load_average_after"] = os.getloadavg()
    raw["faults"] = operator.faults()
    raw["seconds"] = time.monotonic() - began
    summary = build_summary(raw, size)
    (output / "raw.json").write_text(json.dumps(raw, indent=1))
    (output / "summary.json").write_text(json.dumps(summary, indent=1))
    (output / "table.md").write_text(build_table(summary))
    say("done")
    return summary


def describe_machine() -> dict[str, Any]:
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {"cpu": models[0] if models else platform.machine(), "cores_used": CORES, "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main())
