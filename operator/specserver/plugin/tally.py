"""What a rank counted of its decode rounds. The same on every rank of a group, but for times, which are each rank's own.

Sums and counters alone: whoever reads them twice has the rate between. Nothing here is an estimate that decides anything;
those are the rule's.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

ACCEPTANCE_WINDOW_ROUNDS = 256


@dataclass
class StepTime:
    """Rounds of one step count whose cost could be told, and that cost."""

    rounds: int = 0
    seconds: float = 0.0


@dataclass
class Position:
    """One position of the draft chain: drafts whose predecessors were all right, and those of them that were right too."""

    reached: int = 0
    accepted: int = 0


@dataclass
class Tally:
    rounds: Counter[int] = field(default_factory=Counter)
    step_time: dict[int, StepTime] = field(default_factory=dict)
    positions: list[Position] = field(default_factory=list)
    """By position in the chain, from 0."""
    digest: int = 0
    """Of every round's steps and batch size, in order: equal on two ranks that ran the same."""
    _window: deque[tuple[int, int]] = field(default_factory=deque)
    _window_tokens: int = 0
    _window_rows: int = 0

    def add(self, steps: int, running: int, seconds: float | None, correct_drafts: Sequence[int]) -> list[int]:
        """`correct_drafts` as in `policy.decision.Round`. Returns how many requests have 0, 1, 2, … of their drafts right, or
        more: the first is all of them, and there is one for each position of the chain after it."""
        self.rounds[steps] += 1
        self.digest = zlib.crc32(b"%d,%d;" % (steps, running), self.digest)
        if seconds is not None:
            time = self.step_time.setdefault(steps, StepTime())
            time.rounds += 1
            time.seconds += seconds
        survivors = _count_survivors(steps, correct_drafts)
        if steps > 0 and correct_drafts:
            self._add_positions(survivors)
            self._add_to_window(sum(survivors), len(correct_drafts))
        return survivors

    @property
    def accept_length(self) -> float | None:
        """Tokens that a request gained per round with drafts, over the newest such rounds."""
        return self._window_tokens / self._window_rows if self._window_rows else None

    def _add_positions(self, survivors: Sequence[int]) -> None:
        while len(self.positions) < len(survivors) - 1:
            self.positions.append(Position())
        for position, (reached, accepted) in zip(self.positions, itertools.pairwise(survivors), strict=False):
            position.reached += reached
            position.accepted += accepted

    def _add_to_window(self, tokens: int, rows: int) -> None:
        """Keeps the sums over the window beside it: they are wanted each round."""
        self._window.append((tokens, rows))
        if len(self._window) > ACCEPTANCE_WINDOW_ROUNDS:
            old_tokens, old_rows = self._window.popleft()
            tokens, rows = tokens - old_tokens, rows - old_rows
        self._window_tokens += tokens
        self._window_rows += rows


def _count_survivors(steps: int, correct_drafts: Sequence[int]) -> list[int]:
    """In one pass over the requests, of which there are hundreds, and one over the chain."""
    survivors = [0] * (steps + 1)
    for correct in correct_drafts:
        survivors[correct] += 1
    for position in range(steps, 0, -1):
        survivors[position - 1] += survivors[position]
    return survivors
