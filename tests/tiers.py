"""`make test`: every tier, in the order in which a fault is cheapest to find, with all set-up included.

    python -m tests.tiers                       all
    TIERS=unit,apiserver python -m tests.tiers  some, and it says which were left out

A tier that lacks a tool installs it or fails and names the fix; none is ever skipped.

Tests that fail run once more, one at a time and against servers started anew. Both outcomes are printed, and the table says FLAKY
where only the first one was bad: hundreds of tests with real clocks on a machine of two cores would else make each whole run a
lottery, and what they show, a regression, fails twice. FLAKY is a fault to mend, of the test or of the product.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.environment import ensure_environment
from tests.localcluster.binaries import ensure_binaries
from tests.localcluster.images import RECIPES, build_image, find_builder
from tests.localcluster.packages import PROMETHEUS, Tool, ensure_packages
from tests.versions.sources import ensure_sources

ROOT = Path(__file__).resolve().parent.parent
_VENV = Path(sys.executable).parent
_PACKAGES = threading.Lock()
"""Held while Debian packages are installed: apt refuses a second one beside it."""


def _prepare_nothing() -> None: ...


def _prepare_apiserver() -> None:
    with _PACKAGES:
        ensure_packages((Tool("openssl", "openssl"), *PROMETHEUS))
    ensure_binaries(("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"))


def _prepare_node() -> None:
    with _PACKAGES:
        ensure_packages()
    builder = find_builder()
    for name in ("operator", "sglang-cpu", "prometheus"):
        build_image(RECIPES[name], builder)


@dataclass(frozen=True)
class Tier:
    """commands: each run from the repository's root; a failing one fails the tier, and the next ones still run. What fails of
    tests runs a second time."""

    name: str
    proves: str
    commands: tuple[tuple[str, ...], ...]
    prepare: Callable[[], object] = _prepare_nothing


def _pytest(*arguments: str, workers: str = "0") -> tuple[str, ...]:
    return (str(_VENV / "python"), "-m", "pytest", "-q", "-n", workers, *arguments)


TIERS = (
    Tier(
        "lint",
        "style, types, import contracts",
        (
            (str(_VENV / "ruff"), "check", "--quiet", "."),
            (str(_VENV / "mypy"),),
            (str(_VENV / "lint-imports"), "--no-logo"),
        ),
    ),
    Tier("unit", "decisions by table, built objects byte for byte", (_pytest("tests/unit", "tests/golden", workers="2"),)),
    Tier("chart", "schema, templates, rights", (_pytest("tests/chart", workers="2"),)),
    Tier(
        "apiserver",
        "admission, ownership, status and scaling on a real API server",
        (_pytest("tests/apiserver", "--dist", "loadfile", workers="2"),),
        _prepare_apiserver,
    ),
    Tier("versions", "every supported SGLang release", (_pytest("tests/versions", workers="2"),), ensure_sources),
    Tier("engine", "the plugin in a real SGLang on CPU", (_pytest("tests/engine"),), ensure_environment),
    Tier("node", "real pods on a real kubelet: the whole story", (_pytest("tests/node"),), _prepare_node),
)


def main(arguments: list[str]) -> int:
    """Runs the tiers and prints a table. Exit status 1 where one failed, of tests: twice."""
    named = arguments or [name.strip() for name in os.environ.get("TIERS", "").split(",") if name.strip()]
    unknown = sorted(set(named) - {tier.name for tier in TIERS})
    if unknown:
        print(f"TIERS: no tier {', '.join(unknown)}; there are {', '.join(tier.name for tier in TIERS)}", file=sys.stderr)
        return 2
    rows, failed = [], False
    chosen = [tier for tier in TIERS if not named or tier.name in named]
    prepared: dict[str, Future[object]] = {}
    for tier in TIERS:
        if tier not in chosen:
            rows.append((tier.name, "left out", "", tier.proves))
            continue
        if tier.prepare is not _prepare_nothing and not prepared:
            prepared = _prepare(chosen)
        print(f"\n=== {tier.name}: {tier.proves}", flush=True)
        began = time.monotonic()
        result = _run(tier, prepared.get(tier.name))
        failed |= result not in ("passed", "FLAKY")
        rows.append((tier.name, result, f"{time.monotonic() - began:.0f} s", tier.proves))
    print("\n=== tiers")
    for name, result, seconds, proves in rows:
        print(f"{name:10} {result:10} {seconds:>7}  {proves}")
    return int(failed)


def _prepare(tiers: Sequence[Tier]) -> dict[str, Future[object]]:
    """What the tiers need, side by side, since one waits for the network where another computes; and all of it before the first
    of them runs: tests beside a compiler would measure the compiler."""
    print("\n=== what the tiers need: built or fetched where it is not there yet", flush=True)
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        prepared = {tier.name: pool.submit(tier.prepare) for tier in tiers}
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    return prepared


def _run(tier: Tier, prepared: Future[object] | None) -> str:
    if prepared is not None and (error := prepared.exception()):  # it fails this tier, and the others still run
        print(f"{tier.name}: {error}", file=sys.stderr, flush=True)
        return "not ready"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "operator"), str(ROOT)))}

    def run(command: tuple[str, ...]) -> int:
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode

    failed = [(command, code) for command in tier.commands if (code := run(command))]
    if not failed:
        return "passed"
    if any("pytest" not in command or code != pytest.ExitCode.TESTS_FAILED for command, code in failed):
        return "FAILED"
    print(f"\n=== {tier.name}: what failed, once more", flush=True)
    again = [run((*command, "-n", "0", "--last-failed", "--last-failed-no-failures=none")) for command, _ in failed]
    return "FAILED" if any(again) else "FLAKY"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
