"""The whole story on real pods, by the demo's own steps, so that the demo can't break unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.record import Record
from demo.report import write_report
from demo.story import run_story
from tests.localcluster import LocalCluster, node_down, node_up


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    name = "story"
    try:
        yield node_up(name)
    finally:
        node_down(name)


@pytest.fixture(scope="module")
def record(cluster: LocalCluster) -> Record:
    assert cluster.registry is not None
    return run_story(cluster, cluster.registry)


@pytest.mark.timeout(2400)  # the first run on a machine builds the images
def test_engines_flip_and_replicas_follow_the_load_without_a_failed_request(record: Record) -> None:
    replicas = list(dict.fromkeys(sample.status.get("replicas") for sample in record.samples[1:]))
    steps = list(dict.fromkeys(sample.status["speculation"].get("steps") for sample in record.samples if sample.status))
    assert record.traffic[-1]["failed"] == 0
    assert record.traffic[-1]["completed"] > 100
    assert {2, 3} <= set(replicas)
    assert {"0", "3"} <= set(steps)


def test_patched_bounds_reach_running_engines_within_seconds(record: Record) -> None:
    note = next(text for _, text in record.notes if text.startswith("new bounds in force after"))
    assert float(note.removeprefix("new bounds in force after ").split(" ")[0]) < 4.0, "2 s to the engines, 2 s to the next look"


def test_the_report_is_written(record: Record, tmp_path: Path) -> None:
    picture, table = write_report(record, tmp_path)
    assert picture.stat().st_size > 50_000
    assert "| busy | 24 |" in table.read_text()
