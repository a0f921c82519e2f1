"""The summary of a run at scale: each goal with its figure, missed ones among them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks.operator.fleet import Size
from benchmarks.operator.measure import percentile
from benchmarks.operator.summary import build_summary, build_table

SYNC = {"seconds": 20.0, "cpu_seconds": 10.0, "resident_peak_bytes": 100e6, "resident_bytes": 90e6, "reconciles": 1001}
RAW: dict[str, Any] = {
    "first_sync": {**SYNC, "objects": 5005, "requests": {"APPLY services": 1001}},
    "cold_sync": {**SYNC, "requests": {"GET services": 2002}},
    "idle": {**SYNC, "requests": {"GET services": 2002, "PUT leases": 3, "POST endpoints": 1, "GET /openapi/v3": 1}},
    "changes": {**SYNC, "change_seconds": [0.1] * 99 + [0.5]},
    "pushes": {"push_seconds": [0.2] * 100},
    "baseline_deployments": {"seconds": 4.0, "objects": 1001, "change_seconds": [0.01], "resident_peak_bytes": 50e6},
    "baseline_all_objects": {"seconds": 10.0, "objects": 5005},
}


def summarise(**changed: Any) -> dict[str, dict[str, Any]]:
    raw = copy.deepcopy(RAW)
    for phase, figures in changed.items():
        raw[phase] |= figures
    return {line["name"]: line for line in build_summary(raw, Size())}


def test_all_goals_are_met_and_each_line_has_all_that_a_reader_needs() -> None:
    lines = summarise()
    assert all(set(line) == {"name", "value", "unit", "goal", "met"} for line in lines.values())
    goals = {name for name, line in lines.items() if line["goal"] is not None}
    assert goals == {
        "cold_sync", "change_p99", "resident_memory_peak", "push_p99", "idle_writes", "ours_to_baseline_objects",
        "ours_to_baseline_same_objects",
    }  # fmt: skip
    assert all(lines[name]["met"] for name in goals)
    assert lines["ours_to_baseline_objects"]["value"] == pytest.approx(1.0)
    assert lines["ours_to_baseline_same_objects"]["value"] == pytest.approx(0.5)
    assert lines["ours_to_baseline_servers"]["value"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("missed", "changed"),
    [
        ("cold_sync", {"cold_sync": {"seconds": 30.1}}),
        ("change_p99", {"changes": {"change_seconds": [0.1] * 98 + [1.1] * 2}}),
        ("resident_memory_peak", {"idle": {"resident_peak_bytes": 251e6}}),
        ("push_p99", {"pushes": {"push_seconds": [0.1, 1.1]}}),
        ("idle_writes", {"idle": {"requests": {"PATCH speculativeservers/status": 1}}}),
        ("ours_to_baseline_objects", {"baseline_deployments": {"seconds": 1.9}}),
        ("ours_to_baseline_same_objects", {"baseline_all_objects": {"seconds": 9.0}}),
    ],
)
def test_a_missed_goal_stands_in_the_summary(missed: str, changed: dict[str, Any]) -> None:
    lines = summarise(**changed)
    assert [name for name, line in lines.items() if line["met"] is False] == [missed]
    assert "**missed**" in build_table(list(lines.values()))


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([3.0], 0.5) == 3.0
