"""Every scheduler round of an engine, written by the probe inside it and read by the benchmark outside.

One fixed-size record when a batch is launched and one when its result is taken in. All rates, intervals, switches and time
lines are computed from these afterwards, so that a measuring window can begin and end at any moment, in the middle of requests.

The file is mapped by both sides: a count, then records. Standard library alone on the engine's side.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path
from typing import Any

CAPACITY = 1_500_000
_COUNT = struct.Struct("<Q")
_RECORD = struct.Struct("<dfIHBb")
FIELDS = [("time", "<f8"), ("host", "<f4"), ("tokens", "<u4"), ("batch", "<u2"), ("kind", "u1"), ("steps", "i1")]
"""The record as numpy sees it.

time    seconds on the machine's monotonic clock, when the batch was launched or its result was done
host    seconds that the scheduler spent in launching it, or in its result
tokens  output tokens that the result added; 0 at a launch
batch   requests in the batch
steps   step count that the round ran with; 0 also where the engine does not speculate
"""


class Kind(IntEnum):
    DECODE_LAUNCH = 0
    DECODE_RESULT = 1
    PREFILL_LAUNCH = 2
    PREFILL_RESULT = 3


class RoundWriter:
    def __init__(self, path: Path) -> None:
        size = _COUNT.size + CAPACITY * _RECORD.size
        with path.open("wb") as file:
            file.truncate(size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._count = 0

    def add(self, time: float, host: float, tokens: int, batch: int, kind: Kind, steps: int) -> None:
        if self._count < CAPACITY:
            _RECORD.pack_into(self._map, _COUNT.size + self._count * _RECORD.size, time, host, tokens, batch, kind, steps)
            self._count += 1
            _COUNT.pack_into(self._map, 0, self._count)  # after the record: a reader never sees half of one


def read_rounds(path: Path) -> Any:
    """All records so far, as a numpy array of its own; none before the engine's first round."""
    import numpy

    if not path.exists():
        return numpy.zeros(0, dtype=FIELDS)
    with path.open("rb") as file:
        (count,) = _COUNT.unpack(file.read(_COUNT.size))
        return numpy.frombuffer(file.read(count * _RECORD.size), dtype=FIELDS).copy()
