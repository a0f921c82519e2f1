"""The launcher with a script in SGLang's place. As process 1: tests/engine/test_launcher.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specserver.plugin import launcher

REPOSITORY = Path(__file__).resolve().parents[3]


SWEEP = """
import sys, time
from specserver.plugin.sweep import build_parser
options = build_parser().parse_args(sys.argv[1:])
assert options.wait
options.out.write_text(options.url)
"""
LONG_SWEEP = f"{SWEEP}time.sleep(600)"
"""They take what a sweep takes. The real one, beside a real engine: tests/engine/test_sweep.py."""


def start(script: str, **variables: str) -> subprocess.Popen[str]:
    code = f"import sys\nfrom specserver.plugin import launcher\nlauncher.SERVER = (sys.executable, '-c', {script!r})\n"
    code += f"launcher.SWEEP = (sys.executable, '-c', {LONG_SWEEP!r})\nsys.exit(launcher.main(['--some-argument']))"
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY / "operator"), **variables}
    return subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import sys; sys.exit(sys.argv[1:] != ['--some-argument'])", 0),
        ("import sys; sys.exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ],
    ids=["ends well", "ends with 3", "is killed"],
)
def test_ends_as_the_server_ends(script: str, code: int) -> None:
    assert start(script).wait(timeout=30) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_passes_signals_on(number: signal.Signals) -> None:
    script = (
        f"import signal, sys, time\nsignal.signal({number.value}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    process = start(script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(timeout=30) == 42


def test_a_server_without_handlers_dies_of_the_signal() -> None:
    """As SGLang does while it loads."""
    process = start("import time\nprint('ready', flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "port"), [(["--port", "1", "--port", "8000"], "8000"), (["--port"], "30000"), ([], "30000")]
)
def test_a_sweep_is_started_for_a_file_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], port: str
) -> None:
    file = tmp_path / "profile.json"
    monkeypatch.setattr(launcher, "SWEEP", (sys.executable, "-c", SWEEP))
    sweep = launcher.start_sweep(arguments, str(file))
    assert sweep is not None
    assert sweep.wait(timeout=30) == 0
    assert file.read_text() == f"http://127.0.0.1:{port}"
    assert launcher.start_sweep(arguments, str(file)) is None, "there is a profile already"
    assert launcher.start_sweep(arguments, "") is None


@pytest.mark.timeout(60)
def test_a_sweep_does_not_outlive_the_server(tmp_path: Path) -> None:
    """It would go on for ten minutes, and hold the pipe open."""
    file = tmp_path / "profile.json"
    process = start(
        f"import pathlib, time\nwhile not pathlib.Path({str(file)!r}).exists(): time.sleep(0.05)", SPECSERVER_SWEEP_FILE=str(file)
    )
    assert process.stdout is not None
    assert process.stdout.read() == ""
    assert process.wait(timeout=30) == 0
