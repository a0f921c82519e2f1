"""The zero-step benchmark's verdicts: which proposals are compared, what counts as a return, what a target is held against."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

drive = importlib.import_module("benchmarks.zero-step.drive")
report = importlib.import_module("benchmarks.zero-step.report")

STARTS = {("first", "0"): 10, ("second", "0"): 30}


def run(drafted: dict[tuple[str, str, int], list[int]]) -> dict[str, Any]:
    return {"outputs": [[1, 2]], "starts": STARTS, "drafted": drafted}


def always(last: int = 25) -> dict[str, Any]:
    first = {("first", "0", length): [5, length, length, length] for length in range(10, last)}
    return run(first | {("second", "0", 30): [7, 1, 2, 3]})


def test_a_round_behind_a_gap_is_a_return_and_a_requests_start_is_none() -> None:
    found = run({key: value for key, value in always()["drafted"].items() if key[2] in (10, 11, 20, 21, 30)})
    compared = drive.compare_notes(always(), found)
    assert (compared["first"]["rounds"], compared["first"]["after"], compared["first"]["afterAllEqual"]) == (4, 1, 1)
    assert (compared["second"]["rounds"], compared["second"]["after"]) == (1, 0)


def test_rounds_that_differ_are_told_by_how_much() -> None:
    found = run({("first", "0", 20): [5, 20, 0, 0], ("first", "0", 21): [5, 0, 0, 0], ("second", "0", 30): [7, 9, 9, 9]})
    compared = drive.compare_notes(always(), found)
    assert (compared["first"]["rounds"], compared["first"]["firstEqual"], compared["first"]["allEqual"]) == (2, 1, 0)
    assert compared["second"]["allEqual"] == 0


def test_rounds_after_another_token_are_not_compared() -> None:
    found = run({("first", "0", 20): [6, 1, 1, 1]})
    assert drive.compare_notes(always(), found)["first"]["rounds"] == 0


# ---- report ----------------------------------------------------------------------------------------------------------------


def cell(arm: str, order: str, milliseconds: float, rate: float, backend: str = "fa3") -> dict[str, Any]:
    return {
        "backend": backend, "concurrency": 10, "arm": arm, "order": order, "tokensPerSecond": rate,
        "intervalMs": {"0": {"p50": milliseconds, "count": 255}},
    }  # fmt: skip


CELLS = [
    cell("plain", "forward", 5.0, 2000.0), cell("plain", "reverse", 5.2, 1960.0),
    cell("ready", "forward", 5.1, 1970.0), cell("ready", "reverse", 5.1, 1950.0),
]  # fmt: skip


def raw(**changes: Any) -> dict[str, Any]:
    lists: dict[str, Any] = {name: [] for name in report.LISTS}
    return {**lists, "cells": CELLS, "plan": {"concurrencies": [10]}, "reports": {}, **changes}


def value_of(name: str, raw_data: dict[str, Any]) -> float | None:
    targets = report.targets_of(raw_data, report.Cells(raw_data["cells"]))
    value: float | None = next(each.value for each in targets if name in each.name)
    return value


def test_one_stalled_run_of_several_decides_nothing() -> None:
    stalled = raw(cells=[*CELLS, cell("ready", "forward", 5.1, 300.0), cell("ready", "reverse", 5.1, 1960.0)])
    assert value_of("FlashAttention-3: total tokens", stalled) == pytest.approx(1955 / 1980, abs=1e-4)


def test_what_was_measured_again_replaces() -> None:
    again = raw(cells=[cell("plain", "forward", 5.0, 2000.0), cell("ready", "forward", 5.0, 1990.0)])
    assert value_of("FlashAttention-3: total tokens", report.merged([raw(), again])) == pytest.approx(0.995)


def test_the_graphs_are_those_of_the_server_that_was_alone() -> None:
    def part(gigabytes: float, seconds: float, acceptance: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
        graphs = {"zero": {"graphs": {"gigabytes": gigabytes, "seconds": seconds}}}
        return raw(reports={"ours-fa3": {"atStart": graphs}}, acceptance=acceptance, **changes)

    turn = {"acceptedDrafts": 1.0, "rounds": 1}
    counted = {"server": "trained-fa3", "arm": "always", "first": turn, "second": turn}
    older, newer, alone = part(0.7, 3.5, []), part(25.0, 1.7, []), part(0.24, 2.7, [counted], cells=[])
    parts = report.merged([older, newer, alone])
    assert value_of("extra graph memory", parts) == pytest.approx(0.24)
    assert value_of("extra start-up time", parts) == pytest.approx(2.7)


def test_both_orders_count_in_a_ratio() -> None:
    assert value_of("FlashAttention-3: zero-step iteration with the draft kept ready", raw()) == pytest.approx(5.1 / 5.1)
    assert value_of("FlashAttention-3: total tokens", raw()) == pytest.approx(1960 / 1980, abs=1e-4)


def test_a_concurrency_that_is_missing_misses_the_target() -> None:
    incomplete = raw(plan={"concurrencies": [10, 250]})
    assert value_of("FlashAttention-3: total tokens", incomplete) is None
    assert value_of("Triton: total tokens", raw()) is None


def test_proposals_of_the_control_do_not_count() -> None:
    turn = {"rounds": 100, "allEqual": 95, "after": 20, "afterAllEqual": 19}
    result = {"server": "ours-fa3", "arm": "ready", "first": turn, "second": {**turn, "allEqual": 97}}
    control = {**result, "arm": "control", "first": {**turn, "allEqual": 0}}
    found = raw(proposals=[result, control])
    assert value_of("as if never left, first turn", found) == pytest.approx(0.95)
    assert value_of("as if never left, second turn", found) == pytest.approx(0.97)


def test_acceptance_is_held_against_always_speculating() -> None:
    arms = {"always": 2.0, "ready": 1.98, "control": 0.4}
    acceptance = [
        {"server": name, "arm": arm, **{turn: {"acceptedDrafts": drafts, "rounds": 10} for turn in ("first", "second")}}
        for arm, drafts in arms.items()
        for name in ("trained-fa3", "trained-triton")
    ]
    acceptance.append({**acceptance[0], "server": "trained-flashinfer", "first": {"acceptedDrafts": 9.0, "rounds": 10}})
    assert value_of("after a zero phase ÷ always, first turn", raw(acceptance=acceptance)) == pytest.approx(0.99)


def test_how_far_outputs_are_alike() -> None:
    outputs, reference = [[1, 2, 3, 4], [1, 2, 9, 4]], [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert (drive.equal(outputs, reference), drive.alike(outputs, reference)) == ("1/2", 0.75)


def test_a_later_release_is_shown_with_what_was_run_of_it() -> None:
    arms = {"0 steps": {"equalPlain": "12/12", "alike": 1.0, "equalStock": "12/12"}}
    lora = {"csgmv": {"stock": {"equalPlain": "12/12", "alike": 1.0}, "ours-csgmv": arms, "without-in_place-csgmv": arms}}
    empty = {"cells": [], "variants": {}, "acceptance": [], "reports": {}, "leftOut": ["lora C=128"]}
    text = report.later_markdown({**empty, "machine": {"sglang": "0.5.20"}, "lora": lora})
    assert text.startswith("\n## SGLang 0.5.20, with LoRA\n")
    assert "| ours | csgmv | 0 steps | 12/12 | 1.0 | 12/12 |" in text
    assert "| ours, its own buffers not put in place (must fail) | csgmv | 0 steps |" in text
    assert "Left out for time: lora C=128." in text
    assert "Speed" not in text
