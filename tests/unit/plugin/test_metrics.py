"""What stands on /metrics, from two scheduler processes through prometheus_client's multi-process files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from specserver.plugin.metrics import FILES, RESERVED_BYTES, NoMetrics, make_metrics, reserve_files

REPOSITORY = Path(__file__).resolve().parents[3]

SCHEDULER = """
import sys
from specserver.plugin.metrics import PrometheusMetrics
from specserver.plugin.obstacles import Cause, Obstacle
from specserver.policy.decision import Observation, Reason
armed, running, revision = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
metrics = PrometheusMetrics()
metrics.set_armed(None if armed else Obstacle(Cause.TWO_BATCH_OVERLAP, "a sentence"))
metrics.set_load(Observation(running=running, queued=2))
metrics.set_policy_revision(revision)
metrics.set_steps(3)
metrics.set_accept_length(None)
metrics.set_accept_length(2.5)
metrics.set_goodput(None, None)
metrics.set_goodput(100.0, 90.0)
metrics.count_round(2, 0.007, [3, 2, 1])
metrics.count_round(2, None, [0, 0, 0])
metrics.count_zero_round("bridge")
metrics.count_switch(Reason.ABOVE_DISABLE)
metrics.count_retractions(3)
metrics.count_hook_error("turn")
"""


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def run_scheduler(directory: Path, script: str, *arguments: str) -> None:
    variables = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory), "PYTHONPATH": str(REPOSITORY / "operator")}
    subprocess.run([sys.executable, "-c", script, *arguments], env=variables, check=True)


def scrape(directory: Path) -> Samples:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
    families = registry.collect()
    return {(sample.name, tuple(sample.labels.items())): sample.value for family in families for sample in family.samples}


def test_what_is_not_known_yet_is_absent(tmp_path: Path) -> None:
    script = "from specserver.plugin.metrics import PrometheusMetrics; m = PrometheusMetrics()"
    script += "; m.set_armed(None); m.set_steps(0); m.set_accept_length(None); m.set_goodput(None, None)"
    run_scheduler(tmp_path, script)
    names = {name for name, _ in scrape(tmp_path)}
    assert names == {"specserver_armed", "specserver_steps", "specserver_retractions_total"}


def test_metrics_of_two_schedulers(tmp_path: Path) -> None:
    for arguments in (("1", "5", "9"), ("0", "7", "8")):
        run_scheduler(tmp_path, SCHEDULER, *arguments)
    expected = {
        ("specserver_armed", ()): 0,
        ("specserver_unarmed", (("cause", "TwoBatchOverlap"),)): 1,
        ("specserver_running_requests", ()): 12,
        ("specserver_queued_requests", ()): 4,
        ("specserver_policy_revision", ()): 8,
        ("specserver_steps", ()): 3,
        ("specserver_accept_length", ()): 2.5,
        ("specserver_goodput", (("kind", "predicted"),)): 200,
        ("specserver_goodput", (("kind", "realised"),)): 180,
        ("specserver_rounds_total", (("steps", "2"),)): 4,
        ("specserver_drafts_reached_total", (("position", "1"),)): 6,
        ("specserver_drafts_accepted_total", (("position", "1"),)): 4,
        ("specserver_drafts_reached_total", (("position", "2"),)): 4,
        ("specserver_drafts_accepted_total", (("position", "2"),)): 2,
        ("specserver_zero_rounds_total", (("outcome", "bridge"),)): 2,
        ("specserver_switches_total", (("reason", "AboveDisable"),)): 2,
        ("specserver_retractions_total", ()): 6,
        ("specserver_hook_errors_total", (("hook", "turn"),)): 2,
    }
    found = scrape(tmp_path)
    times = {key: found.pop(key) for key in list(found) if key[0].startswith("specserver_step_seconds")}
    assert found == expected
    steps = ("steps", "2")
    assert times[("specserver_step_seconds_count", (steps,))] == 2, "a round whose cost is not known is no sample"
    assert times[("specserver_step_seconds_sum", (steps,))] == pytest.approx(0.014)
    below = {dict(labels)["le"]: value for (name, labels), value in times.items() if name.endswith("bucket")}
    assert (below["0.006"], below["0.008"]) == (0, 2)


def test_files_have_their_blocks_before_values_come(tmp_path: Path) -> None:
    """What is in one already stays. The engine's tests show what happens without, on a disk that is full."""
    (tmp_path / "counter_7.db").write_bytes(b"values")
    reserve_files(str(tmp_path), 7)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == sorted(f"{name}_7.db" for name in FILES)
    assert {file.stat().st_size for file in files} == {RESERVED_BYTES}
    assert all(file.stat().st_blocks * 512 >= RESERVED_BYTES for file in files)
    assert (tmp_path / "counter_7.db").read_bytes().startswith(b"values\0")


def test_nothing_is_written_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By an engine that was started without --enable-metrics, and by all ranks but the first."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert isinstance(make_metrics(write=False), NoMetrics)
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_place_there_are_no_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert isinstance(make_metrics(write=True), NoMetrics)
    assert list(tmp_path.iterdir()) == [], "an empty file breaks every scrape"


def test_every_file_that_is_written_was_reserved(tmp_path: Path) -> None:
    run_scheduler(tmp_path, SCHEDULER, "0", "1", "1")
    written = {file.name.rpartition("_")[0] for file in tmp_path.iterdir()}
    assert written == set(FILES)
