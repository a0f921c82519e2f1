"""What the GPU benchmarks say is computed from records: windows, intervals, waves, targets. And the library that they trim."""

from __future__ import annotations

import json
import random
import statistics
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest

from benchmarks.engine.drive import ladder_of
from benchmarks.engine.report import ENOUGH_PREFILLS, FIXED, Rates, ratio_over_passes, targets_of
from benchmarks.gpu import attention, digest
from benchmarks.gpu.probe import ControlFile, ControlReader
from benchmarks.gpu.rounds import FIELDS, Kind, RoundWriter, read_rounds
from benchmarks.gpu.summary import target


def records(*rows: tuple[float, Kind, int, int, int]) -> Any:
    """(time, kind, batch, steps, tokens)"""
    return numpy.array([(time, 0.0, tokens, batch, kind, steps) for time, kind, batch, steps, tokens in rows], dtype=FIELDS)


Row = tuple[float, Kind, int, int, int]


def steady(steps: int, batch: int, count: int, seconds: float, tokens: int, start: float = 0.0) -> list[Row]:
    rows: list[Row] = []
    for number in range(count):
        at = start + number * seconds
        rows.append((at, Kind.DECODE_LAUNCH, batch, steps, 0))
        rows.append((at + seconds / 2, Kind.DECODE_RESULT, batch, steps, tokens))
    return rows


def test_a_rate_is_taken_from_result_to_result_and_not_over_the_window() -> None:
    rows = steady(steps=1, batch=4, count=10, seconds=0.03, tokens=6)
    found = digest.digest_window(records(*rows), -0.01, 0.31, 4, (0.5,))
    assert found["tokensPerSecond"] == pytest.approx(6 / 0.03)
    assert found["expectedPerSecond"] == pytest.approx(4 * 1.5 / 0.03)
    assert found["rounds"] == {"1": 9}


def test_prefill_time_and_tokens_count_in_a_rate() -> None:
    rows = [
        *steady(0, 2, 3, 0.01, 2), (0.03, Kind.PREFILL_LAUNCH, 1, 0, 0), (0.09, Kind.PREFILL_RESULT, 1, 0, 1),
        *steady(0, 2, 3, 0.01, 2, start=0.1),
    ]  # fmt: skip
    found = digest.digest_window(records(*rows), -1, 1, 2, ())
    assert found["tokensPerSecond"] == pytest.approx((5 * 2 + 1) / 0.12, rel=1e-3)
    assert (found["prefillSeconds"], found["prefilledRequests"]) == (pytest.approx(0.065), 1)
    assert (found["decodeSeconds"], found["decodeTokens"]) == (pytest.approx(0.055), 10)


def test_an_interval_counts_only_between_equal_neighbours_at_exactly_this_concurrency() -> None:
    rows = [
        *steady(0, 4, 3, 0.010, 4), (0.030, Kind.PREFILL_LAUNCH, 1, 0, 0), *steady(0, 4, 2, 0.020, 4, start=0.031),
        *steady(3, 4, 2, 0.040, 4, start=0.071), *steady(0, 3, 5, 0.5, 3, start=0.2),
    ]  # fmt: skip
    found = digest.digest_intervals(records(*rows), 4)
    assert {steps: each["count"] for steps, each in found.items()} == {"0": 3, "3": 1}
    assert found["0"]["p50"] == pytest.approx(10.0)
    assert found["3"]["p50"] == pytest.approx(40.0)


def test_switches_are_changes_between_decode_rounds() -> None:
    rows = [*steady(3, 2, 4, 0.01, 2), *steady(0, 2, 4, 0.01, 2, start=0.04), *steady(3, 2, 4, 0.01, 2, start=0.08)]
    assert digest.digest_window(records(*rows), -1, 1, 2, (0.5, 0.2, 0.1))["switches"] == 2


def test_a_waves_tokens_belong_to_the_phase_that_their_result_came_in() -> None:
    rows = [*steady(3, 2, 10, 0.1, 4), *steady(0, 200, 10, 0.1, 200, start=1.0)]
    phases = [{"level": 2, "from": 0.0, "to": 1.0}, {"level": 200, "from": 1.0, "to": 2.0}]
    found = digest.digest_phases(records(*rows), phases, (0.5, 0.25, 0.125), 0.5)
    assert [phase["tokens"] for phase in found["phases"]] == [pytest.approx(10 * 2 * 1.875), pytest.approx(10 * 200)]
    assert found["switches"] == 1


def test_rounds_written_by_an_engine_are_read_while_it_writes(tmp_path: Path) -> None:
    writer = RoundWriter(tmp_path / "rounds.bin")
    writer.add(1.5, 0.25, 7, 250, Kind.DECODE_RESULT, 3)
    first = read_rounds(tmp_path / "rounds.bin")
    writer.add(2.5, 0.25, 8, 250, Kind.DECODE_RESULT, 0)
    assert [tuple(row) for row in first] == [(1.5, 0.25, 7, 250, 1, 3)]
    assert read_rounds(tmp_path / "rounds.bin")["steps"].tolist() == [3, 0]


def test_controls_reach_the_engine_at_its_next_look(tmp_path: Path) -> None:
    control = ControlFile(tmp_path)
    reader = ControlReader(tmp_path)
    assert reader.read().survival == ()
    control.set(survival=(0.7, 0.5), scribbles=1)
    assert (reader.read().survival, reader.read().scribbles) == ((0.7, 0.5), 1)


# ---- targets -------------------------------------------------------------------------------------------------------------------


def cell(
    arm: str, rate: float, profile: str = "healthy", order: str = "rising", switches: int = 0, number: int = 1
) -> dict[str, Any]:
    return {
        "server": "ours", "arm": arm, "concurrency": 10, "profile": profile, "order": order, "expectedPerSecond": rate,
        "seconds": 2.0, "switches": switches, "decodeSeconds": 1.0, "decodeTokens": rate, "prefillSeconds": 0.0,
        "prefilledRequests": 0, "pass": number,
    }  # fmt: skip


def test_ours_is_held_against_the_best_fixed_step_count() -> None:
    fixed = [cell("plain", 100, "any"), cell("fixed-1", 150), cell("fixed-2", 170), cell("static-3", 160)]
    rates = Rates([*fixed, cell("measured", 165)], 1_000_000)
    assert rates.best_fixed(10, "healthy") == ("fixed-2", pytest.approx(170, rel=1e-4))
    assert rates.ratio(10, "healthy") == pytest.approx(165 / 170, rel=1e-4)
    assert rates.ratio_to_plain(10, "healthy") == pytest.approx(1.65, rel=1e-4)


def test_a_window_with_more_prefills_than_its_share_is_no_slower() -> None:
    few = {**cell("fixed-1", 100), "prefillSeconds": 0.1, "prefilledRequests": 1}
    many = {**cell("fixed-2", 100), "prefillSeconds": 0.9, "prefilledRequests": 9}
    rates = Rates([few, many], 101)
    assert rates.rate("fixed-1", 10, "healthy") == rates.rate("fixed-2", 10, "healthy") == pytest.approx(101 / (1.0 + 0.1))


def test_the_best_fixed_arm_is_chosen_by_the_other_pass_and_compared_in_this_one() -> None:
    fixed = {"fixed-1": {1: 120.0, 2: 80.0}, "fixed-2": {1: 110.0, 2: 100.0}}
    # Pass 2 chooses fixed-2 for pass 1, pass 1 chooses fixed-1 for pass 2.
    expected = statistics.geometric_mean([99 / 110, 100 / 80])
    assert ratio_over_passes({1: 99.0, 2: 100.0}, fixed) == pytest.approx(expected)


def test_a_pass_alone_is_compared_with_its_best() -> None:
    assert ratio_over_passes({1: 99.0}, {"fixed-1": {1: 120.0}, "fixed-2": {1: 110.0, 2: 200.0}}) == pytest.approx(99 / 120)


def test_an_arm_that_lacks_a_pass_is_not_compared() -> None:
    assert ratio_over_passes({1: 99.0, 2: 99.0}, {"fixed-1": {1: 120.0}, "fixed-2": {1: 110.0, 2: 110.0}}) == pytest.approx(0.9)
    assert ratio_over_passes({1: 99.0, 2: 99.0}, {"fixed-1": {1: 120.0}}) is None
    assert ratio_over_passes({}, {"fixed-1": {1: 120.0}}) is None


def test_noise_alone_is_no_loss() -> None:
    """Equal arms, each window off by chance: their best is above ours, and the one that another pass chose is not."""
    chance = random.Random(1)
    arms = (*FIXED, "measured", "measured")
    by_best, by_passes = [], []
    for _ in range(400):
        cells = [cell(arm, 100 * chance.gauss(1, 0.14), number=number) for number in (1, 2) for arm in arms]
        rates = Rates(cells, 1_000_000)
        by_best.append(rates.ratio_to_highest(10, "healthy") or 0.0)
        by_passes.append(rates.ratio(10, "healthy") or 0.0)
    assert statistics.geometric_mean(by_best) == pytest.approx(0.9, abs=0.02)
    assert statistics.geometric_mean(by_passes) == pytest.approx(1.0, abs=0.02)


def test_a_host_that_is_slower_in_one_pass_changes_no_ratio() -> None:
    arms = {"plain": 80.0, "fixed-1": 100.0, "fixed-2": 90.0, "static-3": 70.0, "measured": 98.0}
    cells = [cell(arm, rate * speed, number=number) for number, speed in ((1, 1.0), (2, 0.6)) for arm, rate in arms.items()]
    rates = Rates([*cells, cell("fixed-0", 81), cell("fixed-0", 49, number=2)], 1_000_000)
    assert rates.ratio(10, "healthy") == pytest.approx(0.98)
    assert rates.ratio_to_plain(10, "healthy") == pytest.approx(98 / 80, rel=1e-4)
    assert rates.ratio_to_own(10, "healthy") == pytest.approx(0.98)


def test_prefills_are_of_the_pass_where_each_server_has_enough_of_them() -> None:
    def pass_of(number: int, seconds: float, plain_prefills: int) -> list[dict[str, Any]]:
        common = {"prefillSeconds": seconds * ENOUGH_PREFILLS, "prefilledRequests": ENOUGH_PREFILLS}
        plain = {"server": "plain", "prefillSeconds": seconds * plain_prefills, "prefilledRequests": plain_prefills}
        return [{**cell("measured", 100, number=number), **common}, {**cell("plain", 100, number=number), **plain}]

    many = Rates([*pass_of(1, 0.1, ENOUGH_PREFILLS), *pass_of(2, 0.3, ENOUGH_PREFILLS)], 101)
    assert many.rates_by_pass("measured", 10, "healthy") == {1: pytest.approx(101 / 1.1), 2: pytest.approx(101 / 1.3)}
    few = Rates([*pass_of(1, 0.1, ENOUGH_PREFILLS), *pass_of(2, 0.3, ENOUGH_PREFILLS - 1)], 101)
    assert few.rates_by_pass("measured", 10, "healthy") == {1: pytest.approx(101 / 1.1), 2: pytest.approx(101 / 1.2)}


def test_through_a_change_one_fixed_count_of_the_same_load_is_chosen_before_and_compared_after() -> None:
    ours = [cell("changing", rate, profile, f"change {half}") for half, (rate, profile) in enumerate(
        ((100, "healthy"), (60, "poor"), (100, "healthy"))
    )]  # fmt: skip
    fixed = [
        cell(arm, rate * speed, profile, "change fixed", number=number)
        for number, speed in ((1, 1.0), (2, 0.9))
        for arm, profile, rate in (("fixed-3", "healthy", 110), ("fixed-3", "poor", 40), ("fixed-1", "healthy", 90),
                                   ("fixed-1", "poor", 70), ("fixed-2", "healthy", 900))
    ]  # fmt: skip
    expected = statistics.geometric_mean([260 / 260, 260 / (0.9 * 260)])
    assert Rates([*ours, *fixed], 1_000_000).ratio_through_change(10) == pytest.approx(expected, rel=1e-4)


def test_fixed_arms_run_upwards_in_one_pass_and_downwards_in_the_next() -> None:
    assert [ladder_of(number) for number in (1, 2, 3)] == [(0, 1, 2, 3), (3, 2, 1, 0), (0, 1, 2, 3)]


def test_a_target_that_was_not_measured_is_missed() -> None:
    targets = targets_of(Rates([], 256), [])
    assert len(targets) == 14
    assert {each.met for each in targets} == {False}


@pytest.mark.parametrize(
    ("value", "comparison", "met"), [(0.97, "≥", True), (0.9699, "≥", False), (1.01, "≤", True), (1.02, "≤", False)]
)
def test_a_goal_is_met_at_its_bound(value: float, comparison: Any, met: bool) -> None:
    bound = 0.97 if comparison == "≥" else 1.01
    assert target("x", value, "ratio", comparison, bound).met is met


def test_switches_are_told_for_ten_seconds_of_our_rule_alone() -> None:
    ours = [cell("measured", 1, order="steady", switches=1), cell("measured", 1, order="steady", switches=0)]
    rates = Rates([*ours, cell("measured", 1, switches=9), cell("fixed-1", 1, switches=9)], 256)
    assert rates.switches_in_ten_seconds() == pytest.approx(2.5)


# ---- the trimmed library ----------------------------------------------------------------------------------------------------


WANTED = b"FlashAttnFwdCombine" + b"\x11" * 45
UNWANTED = b"some other kernel" + b"\x22" * 47


def code_object(architecture: int, payload: bytes) -> bytes:
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, 2, 0x101, 64, len(payload))
    struct.pack_into("<I", header, attention._ARCHITECTURE_AT, architecture)
    return bytes(header) + payload


def library(*entries: bytes) -> bytes:
    """The least of an ELF file: a header, one fat binary, section names, section headers."""
    body = b"".join(entries)
    fatbin = struct.pack("<IHHQ", attention._FATBIN_MAGIC, 1, 16, len(body)) + body
    names = b"\0.nv_fatbin\0.shstrtab\0"
    fatbin_at = 64
    names_at = fatbin_at + len(fatbin)
    table_at = names_at + len(names)
    header = bytearray(64)
    struct.pack_into("<Q", header, 0x28, table_at)
    struct.pack_into("<HHH", header, 0x3A, 64, 3, 2)

    def section(name: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQ", name, 1, 0, 0, offset, size) + bytes(24)

    sections = section(0, 0, 0) + section(1, fatbin_at, len(fatbin)) + section(12, names_at, len(names))
    return bytes(header) + fatbin + names + sections


def test_only_wanted_code_for_this_gpu_stays(tmp_path: Path) -> None:
    source, trimmed = tmp_path / "library.so", tmp_path / "trimmed.so"
    entries = [code_object(90, WANTED), code_object(90, UNWANTED), code_object(80, WANTED)]
    source.write_bytes(library(*entries))
    assert attention.trim_attention(source, trimmed) == len(WANTED)
    before, after = source.read_bytes(), trimmed.read_bytes()
    assert len(after) == len(before)
    assert after.count(WANTED) == 1
    assert UNWANTED not in after
    relabelled = [struct.unpack_from("<I", after, 64 + 16 + number * 128 + attention._ARCHITECTURE_AT)[0] for number in range(3)]
    assert relabelled == [90, attention.NOWHERE, attention.NOWHERE]


def test_a_library_with_other_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_bytes(library(code_object(90, UNWANTED)))
    with pytest.raises(ValueError, match="no kernel that the benchmarks need"):
        attention.trim_attention(tmp_path / "library.so", tmp_path / "trimmed.so")


def test_models_are_what_the_plugin_can_arm_for() -> None:
    models = Path(attention.__file__).parent / "models"
    target_config, draft = (json.loads((models / name / "config.json").read_text()) for name in ("target", "eagle3"))
    assert (target_config["hidden_size"], target_config["head_dim"]) == (draft["hidden_size"], draft["head_dim"])
    assert draft["num_hidden_layers"] == 1
