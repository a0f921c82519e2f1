"""The sweep's order, its end, and what it leaves behind, on an engine that remembers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specserver.plugin.sweep import ROUNDS, TOKENS, Cell, plan_cells, sweep, write_profile
from tests.unit.plugin.fakes import Clock


class FakeEngine:
    """A second for each cell."""

    def __init__(self, *, max_running: int = 8, fails_at: int | None = None) -> None:
        self.clock = Clock()
        self.calls: list[Any] = []
        self._max_running, self._fails_at = max_running, fails_at

    def read_ladder(self) -> tuple[int, ...]:
        return (0, 3)

    def read_max_running(self) -> int:
        return self._max_running

    def force(self, steps: int, seconds: float) -> None:
        self.calls.append(("force", steps))

    def unforce(self) -> None:
        self.calls.append("unforce")

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        self.clock.now += 1
        if self._fails_at == len(prompts):
            raise OSError("connection lost")
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts), "the prefix cache would have a part in it"
        assert all(token in TOKENS for prompt in prompts for token in prompt)
        self.calls.append((len(prompts), tokens))

    def read_profile(self) -> dict[str, Any]:
        return {"stepSeconds": {}}


@pytest.mark.parametrize(
    ("max_running", "sizes"),
    [(1, [1]), (3, [1, 2, 3]), (48, [1, 2, 4, 8, 16, 32, 48]), (1000, [1, 2, 4, 8, 16, 32, 64, 128, 256])],
)
def test_cells_are_every_step_count_at_sizes_up_to_the_limit(max_running: int, sizes: list[int]) -> None:
    assert plan_cells((3, 0), max_running) == [Cell(size, steps) for size in sizes for steps in (0, 3)]


def test_each_cell_is_run_under_its_forced_steps() -> None:
    engine = FakeEngine(max_running=2)
    sweep(engine, clock=engine.clock)
    plain, drafts = ROUNDS, ROUNDS + ROUNDS * 3 // 2
    assert engine.calls == [
        ("force", 0), (1, plain), ("force", 3), (1, drafts), ("force", 0), (2, plain), ("force", 3), (2, drafts), "unforce",
    ]  # fmt: skip


def test_no_cell_is_begun_when_the_time_is_up() -> None:
    engine = FakeEngine()
    sweep(engine, seconds=2.5, clock=engine.clock)
    assert [call[0] for call in engine.calls if call[0] != "force"] == [1, 1, 2, "u"]


def test_a_failure_leaves_no_forced_steps_behind() -> None:
    engine = FakeEngine(fails_at=2)
    with pytest.raises(OSError, match="connection lost"):
        sweep(engine, clock=engine.clock)
    assert engine.calls[-1] == "unforce"


def test_the_file_appears_whole_in_a_directory_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "profiles" / "engine.json"
    write_profile(file, {"version": 1})
    assert json.loads(file.read_text()) == {"version": 1}
    assert [path.name for path in file.parent.iterdir()] == ["engine.json"]
