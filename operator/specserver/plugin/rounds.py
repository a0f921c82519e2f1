"""What a decode round cost, told from when results arrive.

Under overlap scheduling the scheduler starts round i on the GPU, and only then takes in the result of round i - 1:

    turn     1         2         3         4
    starts   round 1   round 2   round 3   round 4
    result             of 1      of 2      of 3

A result is taken in when the GPU has copied it out, and the GPU works on round i from the end of round i - 1. So the time
from the result of i - 1 to the result of i is what round i took, and belongs to the steps that round i ran with. The
time between two starts, which SGLang's own counters take, is what round i - 1 took: at a switch it would be credited to
the wrong steps. Without overlap each turn starts a round and takes in its result, and the same difference is the whole
turn. In both cases what the host alone adds to a round (preparing, sending tokens out) is in it where the GPU had to
wait for it, and only there.

A difference counts only where nothing else can have happened between the two results:

- the second round is the very next batch after the first, so no prefill and no idle batch was between them;
- no scheduler turn passed without a result, so the engine was not paused;
- both ran the same steps at the same batch size: a switch has costs of its own, and so has a batch that is rebuilt
  because requests joined, finished or were retracted;
- neither has a request with a grammar, which makes the host wait for each result before the next round starts.

CUDA events would tell the GPU's part to the microsecond, but reading them needs a synchronisation, and a round that the
host holds up is as slow for the user as one that the GPU does.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_ROUND_SECONDS = 10.0
"""What seems to have taken longer is a clock that jumped, or a machine that stood still."""


@dataclass(frozen=True)
class Result:
    """A decode round's result as it is taken in.

    iteration  running number of its batch, over batches of every kind
    running    requests in its batch, those that have ended since among them: they were computed all the same
    grammar    whether one of them is bound to a grammar
    """

    iteration: int
    steps: int
    running: int
    grammar: bool
    at: float


class RoundTimer:
    """Told of every scheduler turn and of every result, in order."""

    def __init__(self) -> None:
        self._last: Result | None = None
        self._turns_since_last = 0

    def turn(self) -> None:
        self._turns_since_last += 1

    def measure(self, result: Result) -> float | None:
        """Seconds that this round took, or None where they can't be told."""
        last, turns = self._last, self._turns_since_last
        self._last, self._turns_since_last = result, 0
        if last is None or result.iteration != last.iteration + 1 or turns > 1:
            return None
        if (result.steps, result.running) != (last.steps, last.running) or result.grammar or last.grammar:
            return None
        seconds = result.at - last.at
        return seconds if 0 < seconds < LONGEST_ROUND_SECONDS else None
