"""Progress for a person at the terminal: one line a step, on standard error, because standard output carries results."""

from __future__ import annotations

import sys
import time

_began = time.monotonic()


def say(message: str) -> None:
    print(f"[{time.monotonic() - _began:6.1f} s] {message}", file=sys.stderr, flush=True)
