"""A second attempt tells what fails for good from what failed once, and hides neither."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.tiers import Tier, _run

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


def run(directory: Path, text: str, *, real: bool = True) -> str:
    (directory / "test_it.py").write_text(text)
    command = (sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(directory), str(directory))
    return _run(Tier("one", "what it proves", (command,), real=real), None)


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


def test_a_tier_without_clocks_of_others_has_one_attempt(tmp_path: Path) -> None:
    assert run(tmp_path, FLAKY.format(sound=True), real=False) == "FAILED"
    assert (tmp_path / "runs").read_text() == "sound "


def test_tests_that_cannot_run_have_one_attempt(tmp_path: Path) -> None:
    assert run(tmp_path, "import nothing_of_that_name") == "FAILED"
