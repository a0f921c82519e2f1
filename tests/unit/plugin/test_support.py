"""What counts as an SGLang that the hooks fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserver.plugin.support import Target, find_target_problems, find_version_problem

SOURCE = """
class Scheduler:
    def run(self, batch, *, now=None):
        pass

    async def stop(self, *signals, **options):
        pass

def launch(arguments, port=1):
    pass
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("def hello(name): pass")
    (tmp_path / "engine" / "scheduler.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (Target("engine.scheduler", "Scheduler.run", ("self", "batch", "*", "now")), None),
        (Target("engine.scheduler", "Scheduler.stop", ("self", "*signals", "**options")), None),
        (Target("engine.scheduler", "launch", ("arguments", "port")), None),
        (Target("engine", "hello", ("name",)), None),
        (
            Target("engine.scheduler", "Scheduler.run", ("self", "batch", "now")),
            "engine.scheduler.Scheduler.run takes (self, batch, *, now), not (self, batch, now)",
        ),
        (Target("engine.scheduler", "Scheduler.walk", ("self",)), "engine.scheduler.Scheduler.walk is missing"),
        (Target("engine.scheduler", "Planner.run", ("self",)), "engine.scheduler.Planner.run is missing"),
        (Target("engine.moved", "launch", ()), "engine.moved.launch is missing"),
    ],
    ids=["method", "stars", "function", "package", "parameters", "no method", "no class", "no module"],
)
def test_targets(sources: Path, target: Target, problem: str | None) -> None:
    assert find_target_problems([target], sources, "1.0") == ([problem] if problem else [])


def test_a_version_may_have_other_parameters(sources: Path) -> None:
    target = Target("engine.scheduler", "launch", ("arguments",), variants=(("0.9", ("arguments", "port")),))
    assert find_target_problems([target], sources, "0.9") == []
    problem = "engine.scheduler.launch takes (arguments, port), not (arguments)"
    assert find_target_problems([target], sources, "1.0") == [problem]


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("0.5.17", True),
        ("0.5.20", True),
        ("0.5.22", True),
        ("0.5.23", True),
        ("0.5.24", False),
        ("0.5.18", False),
        ("0.5.23.post1", False),
        ("0.5.2", False),
        ("unknown", False),
    ],
)
def test_versions(version: str, fits: bool) -> None:
    problem = find_version_problem(version)
    assert problem is None if fits else f"SGLang {version} is not supported" in str(problem)
