"""The launcher with a script in SGLang's place. As process 1: tests/engine/test_launcher.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def start(script: str) -> subprocess.Popen[str]:
    code = f"import sys\nfrom specserver.plugin import launcher\nlauncher.SERVER = (sys.executable, '-c', {script!r})\n"
    code += "sys.exit(launcher.main(['--some-argument']))"
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY / "operator")}
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

