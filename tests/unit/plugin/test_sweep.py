"""The sweep: which batch sizes, in which order, and what ends it; on an engine that is made up."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specserver.plugin import sweep
from specserver.plugin.sweep import SweepFailed, plan_levels


@pytest.mark.parametrize(
    ("most", "levels"),
    [(1, [1]), (4, [1, 4]), (16, [1, 4, 16]), (48, [1, 4, 16, 48]), (256, [1, 4, 16, 64, 256])],
    ids=lambda value: str(value),
)
def test_levels(most: int, levels: list[int]) -> None:
    assert plan_levels(most) == levels


class FakeEngine:
    """Runs ten rounds between two looks at it."""

    def __init__(self, *, armed: bool = True, stuck_at: int | None = None, room: int = 8) -> None:
        self.armed, self.stuck_at, self.room = armed, stuck_at, room
        self.leaving = 0
        """Looks at which requests of the level before still run."""
        self.running, self.steps = 0, 3
        self.rounds: dict[int, int] = {}
        self.measured: list[tuple[int, int]] = []
        self.forced: list[int | None] = []

    def state(self) -> dict[str, Any]:
        if self.leaving:
            self.leaving -= 1
        elif self.running and self.steps != self.stuck_at:
            self.rounds[self.steps] = self.rounds.get(self.steps, 0) + 10
            self.measured.append((self.running, self.steps))
        return {
            "armed": self.armed,
            "reason": "" if self.armed else "speculation is off",
            "revision": 1,
            "maxRunning": 8,
            "ladder": [0, 3],
            "running": self.running + (1 if self.leaving else 0),
            "steps": self.steps,
            "stepTime": {str(steps): {"rounds": rounds} for steps, rounds in self.rounds.items()},
        }

    def force(self, steps: int) -> None:
        self.steps = steps
        self.forced.append(steps)

    def unforce(self) -> None:
        self.forced.append(None)

    def profile(self) -> dict[str, Any]:
        return {"stepSeconds": {"0": [[1, 0.01]]} if self.measured else {}}

    @contextlib.contextmanager
    def decoding(self, requests: int) -> Iterator[None]:
        self.running, self.leaving = min(requests, self.room), 3
        yield
        self.running = 0


def test_every_step_count_at_every_level_and_the_engine_is_left_to_itself() -> None:
    engine = FakeEngine()
    assert sweep.sweep(engine) == {"stepSeconds": {"0": [[1, 0.01]]}}
    assert set(engine.measured) == {(8, 0), (8, 3), (4, 0), (4, 3), (1, 0), (1, 3)}
    assert [running for running, _ in dict.fromkeys(engine.measured)] == [8, 8, 4, 4, 1, 1]
    assert engine.forced[-1] is None


def test_a_step_count_without_rounds_does_not_hold_it_up() -> None:
    engine = FakeEngine(stuck_at=0)
    sweep.sweep(engine, seconds=2.0)
    assert set(engine.measured) == {(8, 3), (4, 3), (1, 3)}


def test_where_the_kv_pool_is_full_it_measures_with_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SETTLE_SECONDS", 0.1)
    engine = FakeEngine(room=5)
    sweep.sweep(engine, seconds=5.0)
    assert set(engine.measured) == {(5, 0), (5, 3), (4, 0), (4, 3), (1, 0), (1, 3)}


def test_an_engine_that_runs_nothing_is_left_in_time() -> None:
    engine = FakeEngine(room=0)
    began = time.monotonic()
    with pytest.raises(SweepFailed, match="nothing was measured"):
        sweep.sweep(engine, seconds=0.3)
    assert time.monotonic() - began < 30
    assert (engine.measured, engine.forced[-1]) == ([], None)


def test_more_that_run_than_at_first_are_measured_too() -> None:
    """Prompts were still being read when their number was taken."""
    engine = FakeEngine()
    engine.running = 7
    sweep._measure(engine, 3, 8, 0, time.monotonic() + 30)
    assert set(engine.measured) == {(7, 0)}
    sweep._measure(engine, 3, 6, 3, time.monotonic() + 0.1)
    assert engine.rounds[3] > 2 * sweep.ROUNDS, "seven of six: others run, so it went on until its time was over"


def test_the_engine_is_left_to_itself_whatever_happens() -> None:
    class Broken(FakeEngine):
        def force(self, steps: int) -> None:
            raise SweepFailed("POST /specserver/v1/force: 401")

    engine = Broken()
    with pytest.raises(SweepFailed, match="401"):
        sweep.sweep(engine)
    assert engine.forced == [None]


def test_an_engine_that_is_not_controlled_is_not_measured() -> None:
    with pytest.raises(SweepFailed, match="not in control: speculation is off"):
        sweep.sweep(FakeEngine(armed=False))


def test_the_file_is_whole_or_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep, "HttpEngine", lambda url, admin_key, api_key: FakeEngine())
    out = tmp_path / "profile.json"
    assert sweep.main(["--url", "http://127.0.0.1:1", "--out", str(out)]) == 0
    assert (json.loads(out.read_text()), list(tmp_path.iterdir())) == ({"stepSeconds": {"0": [[1, 0.01]]}}, [out])
    monkeypatch.setattr(sweep, "HttpEngine", lambda url, admin_key, api_key: FakeEngine(armed=False))
    out.unlink()
    assert sweep.main(["--url", "http://127.0.0.1:1", "--out", str(out)]) == 1
    assert (list(tmp_path.iterdir()), "not in control" in capsys.readouterr().err) == ([], True)


def test_an_engine_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert sweep.main(["--url", "http://127.0.0.1:1", "--out", str(tmp_path / "profile.json")]) == 1
    assert "is the engine up?" in capsys.readouterr().err
