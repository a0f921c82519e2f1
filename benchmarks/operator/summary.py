"""Raw figures to the summary: each goal with what was measured, met or missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.operator.fleet import Size
from benchmarks.operator.measure import percentile

MEGABYTE = 1_000_000
_READS = ("GET", "LIST", "WATCH")
_NOT_OF_SERVERS = ("leases", "endpoints")
"""The operator's own Lease is renewed, and the API server writes of itself."""


def build_summary(raw: Mapping[str, Any], size: Size) -> list[dict[str, Any]]:
    """{name, value, unit, goal, met} a line; goal and met are null where the figure only explains."""
    lines: list[dict[str, Any]] = []

    def add(name: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None) -> None:
        goal = met = None
        if at_most is not None:
            goal, met = f"<= {at_most:g}", value <= at_most
        if at_least is not None:
            goal, met = f">= {at_least:g}", value >= at_least
        lines.append({"name": name, "value": float(f"{value:.4g}"), "unit": unit, "goal": goal, "met": met})

    # 1. The operator in front of everything.
    cold, idle, changes = raw["cold_sync"], raw["idle"], raw["changes"]
    add("cold_sync", cold["seconds"], "s", at_most=30)
    add("cold_sync_cpu", cold["cpu_seconds"], "s")
    add("change_p50", percentile(changes["change_seconds"], 0.5), "s")
    add("change_p99", percentile(changes["change_seconds"], 0.99), "s", at_most=1)
    peak = max(raw[phase]["resident_peak_bytes"] for phase in ("first_sync", "cold_sync", "idle", "changes"))
    add("resident_memory_peak", peak / MEGABYTE, "MB", at_most=250)
    add("resident_memory_idle", idle["resident_bytes"] / MEGABYTE, "MB")
    add("push_p50", percentile(raw["pushes"]["push_seconds"], 0.5), "s")
    add("push_p99", percentile(raw["pushes"]["push_seconds"], 0.99), "s", at_most=1)
    # 2. What it costs others.
    writes = [(*name.split(maxsplit=1), count) for name, count in idle["requests"].items()]
    told = sum(count for verb, resource, count in writes if verb not in _READS and resource not in _NOT_OF_SERVERS)
    add("idle_writes", told, "requests", at_most=0)
    add("idle_cpu", idle["cpu_seconds"] / idle["seconds"], "cores")
    add("idle_api_calls_per_reconcile", sum(idle["requests"].values()) / max(1, idle["reconciles"]), "requests")
    add("cold_sync_api_calls_per_reconcile", sum(cold["requests"].values()) / max(1, cold["reconciles"]), "requests")
    add("cold_sync_reconciles_per_server", cold["reconciles"] / size.all_servers, "reconciles")
    # 3. Beside the baseline: objects a second, from nothing.
    ours, its, same = (_rate(raw[phase]) for phase in ("first_sync", "baseline_deployments", "baseline_all_objects"))
    add("first_sync_objects", ours, "objects/s")
    add("baseline_objects_deployments_only", its, "objects/s")
    add("baseline_objects_all_kinds", same, "objects/s")
    add("ours_to_baseline_objects", ours / its, "ratio", at_least=0.5)
    add("ours_to_baseline_same_objects", ours / same, "ratio", at_least=0.5)
    add("ours_to_baseline_servers", raw["baseline_deployments"]["seconds"] / raw["first_sync"]["seconds"], "ratio")
    baseline = raw["baseline_deployments"]
    add("baseline_change_p99", percentile(baseline["change_seconds"], 0.99), "s")
    add("baseline_resident_memory_peak", baseline["resident_peak_bytes"] / MEGABYTE, "MB")
    return lines


def build_table(summary: list[dict[str, Any]]) -> str:
    """The summary as Markdown."""
    marks = {True: "met", False: "**missed**", None: ""}
    rows = [f"| {one['name']} | {one['value']:g} {one['unit']} | {one['goal'] or ''} | {marks[one['met']]} |" for one in summary]
    return "\n".join(["| figure | measured | goal | |", "|---|---|---|---|", *rows]) + "\n"


def _rate(figures: Mapping[str, Any]) -> float:
    return float(figures["objects"] / figures["seconds"])
