"""Process 1 of the engine's container:  python -m specserver.plugin.launcher SGLANG-ARGUMENTS…

SGLang must not be process 1 itself: when it fails at start-up it ends its own process tree with SIGKILL, which the
kernel does not deliver to process 1, and the container hangs for ever. This process starts SGLang as its child, passes
SIGTERM and SIGINT on, reaps what its descendants leave behind, and ends as the child ended (128 + signal number where a
signal ended it).

It works the same as any other process: not being process 1 only means that init reaps.

Where SPECSERVER_SWEEP_FILE names a file that is not there yet, a second child measures the engine's step costs into it once
the engine is up (sweep.py). Whatever becomes of that one, the engine's end is the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT)
SERVER = (sys.executable, "-m", "specserver.plugin.serve")
SWEEP = (sys.executable, "-m", "specserver.plugin.sweep")
ENV_SWEEP_FILE = "SPECSERVER_SWEEP_FILE"
DEFAULT_PORT = "30000"


def main(arguments: list[str]) -> int:
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            _send(child.pid, number)

    # 1. Before the child: process 1 has no default reaction to these signals.
    for each in FORWARDED:
        signal.signal(each, forward)
    # 2. The child, and what arrived while it was being made.
    child = subprocess.Popen([*SERVER, *arguments])
    for number in early:
        _send(child.pid, number)
    # 3. The sweep, where one is wanted.
    sweep = start_sweep(arguments, os.environ.get(ENV_SWEEP_FILE, ""))
    # 4. Reap whoever ends, until it is the child.
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            if sweep is not None:
                _send(sweep.pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def start_sweep(arguments: Sequence[str], file: str) -> subprocess.Popen[bytes] | None:
    if not file or Path(file).exists():
        return None
    ports = [arguments[i + 1] for i, argument in enumerate(arguments[:-1]) if argument == "--port"]
    url = f"http://127.0.0.1:{ports[-1] if ports else DEFAULT_PORT}"
    return subprocess.Popen([*SWEEP, "--wait", "--url", url, "--out", file])


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended; the main loop is about to notice


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
