"""One benchmark run: a deadline, servers, measuring windows, and a result that is on disk after each of them.

A run on a lent machine can end at any moment. What was measured is therefore saved at once, a server that fails costs only
its own arms, and what no longer fits before the deadline is left out by name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import tarfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import digest
from benchmarks.gpu.load import Client, Shape
from benchmarks.gpu.rounds import Kind, read_rounds
from benchmarks.gpu.servers import ADMIN_KEY, REPOSITORY, Fleet, Machine, Running, cpu_machine, fake_machine, gpu_machine

RAMP_SECONDS = 10.0
TAIL_BYTES = 2_000_000


class Session:
    def __init__(self, name: str, out: Path, deadline_seconds: float, machine: Machine) -> None:
        self.began = time.monotonic()
        self.end = self.began + deadline_seconds
        self.machine = machine
        self._out, self._path = out, out / "raw.json"
        out.mkdir(parents=True, exist_ok=True)
        self.scratch = Path(os.environ.get("BENCHMARK_SCRATCH", "/tmp/benchmark")) / name
        shutil.rmtree(self.scratch, ignore_errors=True)  # an earlier run's, on the same machine
        self.fleet = Fleet(machine, self.scratch, self.say)
        self.raw: dict[str, Any] = {
            "benchmark": name, "machine": describe_machine(machine), "cells": [], "leftOut": [], "problems": [],
        }  # fmt: skip

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """The whole run. However it ends, no server outlives it and what was measured is kept."""
        try:
            asyncio.run(work)
        except Exception as failure:
            self.problem(self.raw["benchmark"], failure)
            raise
        finally:
            self.fleet.stop_all()
            self.save()
            self.keep_logs()
            self.keep_rounds()

    # ---- clock, words, disk --------------------------------------------------------------------------------------------------

    def left(self) -> float:
        return self.end - time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f}] {text}", flush=True)

    def save(self) -> None:
        self.raw["servers"] = self.fleet.facts
        self.raw["seconds"] = round(time.monotonic() - self.began, 1)
        text = json.dumps(self.raw, indent=1).replace(f"{REPOSITORY}/", "")  # figures name no folder of the machine
        self._path.with_suffix(".new").write_text(text + "\n")
        self._path.with_suffix(".new").replace(self._path)

    def problem(self, where: str, error: BaseException) -> None:
        self.raw["problems"].append(f"{where}: {type(error).__name__}: {str(error)[:500]}")
        self.say(f"PROBLEM {self.raw['problems'][-1]}")

    def leave_out(self, what: str) -> None:
        self.raw["leftOut"].append(what)
        self.say(f"left out, {self.left():.0f} s left: {what}")

    async def stage(self, name: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        """One part of the run. It begins only if it still fits, and what goes wrong in it ends only itself.

        A server that has died or hangs is taken out, so that it costs its next parts no time.
        """
        if self.left() < seconds:
            self.leave_out(name)
            return
        try:
            await asyncio.wait_for(work(), 3 * seconds + 20)
        except Exception as error:  # noqa: BLE001 — the next part is worth as much
            self.problem(name, error)
            self.fleet.drop_dead()
        self.save()

    def keep_logs(self) -> None:
        """The end of each engine's log, and what the probe noted."""
        with tarfile.open(self._out / "logs.tar.xz", "w:xz") as archive:
            for log in sorted(self.scratch.glob("*/engine.log")):
                text = log.read_bytes()[-TAIL_BYTES:]
                (log.parent / "engine.tail").write_bytes(text)
                archive.add(log.parent / "engine.tail", f"{log.parent.name}.log")
            for notes in sorted(self.scratch.glob("*/notes.jsonl")):
                notes.with_name("notes.head").write_bytes(notes.read_bytes()[:TAIL_BYTES])
                archive.add(notes.with_name("notes.head"), f"{notes.parent.name}.notes.jsonl")

    def keep_rounds(self) -> None:
        """Every round of every server (rounds.py), for looking closer."""
        with tarfile.open(self._out / "rounds.tar.gz", "w:gz", compresslevel=5) as archive:
            for path in sorted(self.scratch.glob("*/rounds.bin")):
                kept = path.with_name("rounds.kept")
                kept.write_bytes(read_rounds(path).tobytes())
                archive.add(kept, f"{path.parent.name}.bin")

    # ---- measuring -----------------------------------------------------------------------------------------------------------

    def client(self, running: Running, seed: int = 1) -> Client:
        return Client(running.url, self.machine.vocabulary, {"authorization": f"Bearer {ADMIN_KEY}"}, seed=seed)

    async def warm_up(self, running: Running, concurrencies: Sequence[int], shape: Shape) -> None:
        """Every batch size once, so that kernels are compiled and caches filled before a window counts."""
        async with self.client(running, seed=99) as client:
            for concurrency in concurrencies:
                await asyncio.gather(*(client.generate(client.prompt(shape.prompt), shape.output) for _ in range(concurrency)))

    async def ramp(self, running: Running, concurrency: int, began: float) -> None:
        """Waits until the engine decodes that many requests of the load that began then (another may have been as large)."""
        deadline = time.monotonic() + min(RAMP_SECONDS, self.left())
        while time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            newest = running.rounds()[-40:]
            decoded = newest[(newest["kind"] == Kind.DECODE_RESULT) & (newest["time"] >= began)]
            if len(decoded) and int(decoded["batch"].max()) >= concurrency:
                return

    async def window(
        self, running: Running, seconds: float, concurrency: int, survival: Sequence[float], **labels: Any
    ) -> dict[str, Any]:
        """Measures for so long, whatever load is on; the result is a cell of the raw data."""
        began = time.monotonic()
        await asyncio.sleep(seconds)
        cell = {
            "server": running.name, "concurrency": concurrency, "survival": list(survival), **labels,
            **digest.digest_window(running.rounds(), began, time.monotonic(), concurrency, survival),
        }  # fmt: skip
        self.raw["cells"].append(cell)
        self.say(line_of(cell))
        return cell

    def note_errors(self, running: Running, client: Client) -> None:
        if client.errors:
            self.raw["problems"].append(f"{running.name}: {len(client.errors)} requests failed, first {client.errors[0]}")
            self.say(f"PROBLEM {self.raw['problems'][-1]}")
        if not running.is_alive():
            raise RuntimeError(f"{running.name} ended\n{running.log_tail()}")


def line_of(cell: dict[str, Any]) -> str:
    intervals = " ".join(f"k{k}:{each['p50']:.3f}ms/{each['count']}" for k, each in (cell.get("intervalMs") or {}).items())
    return (
        f"{cell['server']:8} {cell.get('arm', ''):12} {cell.get('profile', ''):9} C={cell['concurrency']:3} "
        f"running {cell['requests']} tok/s {cell['tokensPerSecond']} ({cell.get('expectedPerSecond')}) "
        f"rounds {cell.get('rounds')} switches {cell.get('switches')} {intervals}"
    )


def describe_machine(machine: Machine) -> dict[str, Any]:
    """What the figures depend on, as far as the machine says it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "none"
    versions = "from importlib.metadata import version; print(version('torch'), version('sglang'))"
    told = subprocess.run(
        [machine.python, "-c", versions], capture_output=True, text=True, check=False, env={**os.environ, **machine.variables}
    ).stdout.split()
    return {
        "kind": machine.name, "gpu": gpu, "cores": os.cpu_count(),
        "python": platform.python_version(), "torch": told[0] if told else "", "sglang": told[1] if len(told) > 1 else "",
        "engineArguments": list(machine.arguments),
    }  # fmt: skip


def parse_arguments(name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("deadline", type=float, help="seconds after which nothing new is begun")
    parser.add_argument("--part", default="all", help="which part of the benchmark")
    parser.add_argument("--only", help="servers or backends to start, with commas; all if left out")
    parser.add_argument("--rehearse", type=Path, metavar="MODELS", help="on a CPU, with the tiny models in this folder")
    parser.add_argument("--fake", action="store_true", help="without SGLang: the plan in real time against stand-ins")
    return parser.parse_args()


def choose_machine(options: argparse.Namespace, max_running: int, kv_tokens: int) -> Machine:
    if options.rehearse:
        return cpu_machine(options.rehearse)
    return (fake_machine if options.fake else gpu_machine)(max_running, kv_tokens)
