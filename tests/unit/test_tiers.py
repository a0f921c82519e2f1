"""A second attempt tells what fails for good from what failed once, and hides neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import ROOT, TIERS, Tier, _run

FLAKY = """
from pathlib import Path

def test_sound():
    with Path(__file__).with_name("runs").open("a") as runs:
        runs.write("sound ")

def test_flaky():
    seen = Path(__file__).with_name("seen")
    again = seen.exists()
    seen.touch()
    assert again

def test_broken():
    assert {sound}
"""


def run(directory: Path, text: str) -> str:
    (directory / "test_it.py").write_text(text)
    command = (sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(directory), str(directory))
    return _run(Tier("one", "what it proves", (command,)), None)


def test_what_passes_when_it_runs_alone_is_flaky_and_the_rest_does_not_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, FLAKY.format(sound=True)) == "FLAKY"
    assert (tmp_path / "runs").read_text() == "sound "
    printed = capfd.readouterr().out
    assert "test_it.py::test_flaky" in printed
    assert "one: what failed, once more" in printed


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    assert run(tmp_path, FLAKY.format(sound=False)) == "FAILED"


def test_what_is_no_test_has_one_attempt(tmp_path: Path) -> None:
    script = "import pathlib, sys; path = pathlib.Path(sys.argv[1]); path.write_text('x' + path.read_text()); sys.exit(1)"
    (tmp_path / "runs").touch()
    assert _run(Tier("one", "what it proves", ((sys.executable, "-c", script, str(tmp_path / "runs")),)), None) == "FAILED"
    assert (tmp_path / "runs").read_text() == "x"


def test_no_file_of_tests_is_left_out() -> None:
    """pytest leaves out directories of some names by default, and then says nothing."""
    paths = [argument for tier in TIERS for command in tier.commands for argument in command if argument.startswith("tests/")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-q", "-n", "0", *paths]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {line.partition(":")[0] for line in collected.splitlines() if line.startswith("tests/")}
    assert files == {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}


def test_tests_that_cannot_run_have_one_attempt(tmp_path: Path) -> None:
    assert run(tmp_path, "import nothing_of_that_name") == "FAILED"
