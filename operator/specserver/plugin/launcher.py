"""Process 1 of the engine's container:  python -m specserver.plugin.launcher SGLANG-ARGUMENTS…

SGLang must not be process 1 itself: when it fails at start-up it ends its own process tree with SIGKILL, which the
kernel does not deliver to process 1, and the container hangs for ever. This process starts SGLang as its child, passes
SIGTERM and SIGINT on, reaps what its descendants leave behind, and ends as the child ended (128 + signal number where a
signal ended it).

It works the same as any other process: not being process 1 only means that init reaps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT)
SERVER = (sys.executable, "-m", "specserver.plugin.serve")


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
    # 3. Reap whoever ends, until it is the child.
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended; the main loop is about to notice


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
