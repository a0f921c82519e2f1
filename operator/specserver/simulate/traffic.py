"""Requests: how long they are, when they come, how well they can be drafted.

Closed loops have C(t) clients: each sends its next request when the last is done, and one that leaves aborts. Open loops
replay arrival times. The n-th request is the same whoever chooses the steps, so that arms differ by their choices alone.
"""

from __future__ import annotations

import csv
import datetime
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Survival = tuple[float, ...]
"""s_1, s_2, …: chance that so many drafts are accepted."""

GOOD: Survival = (0.69, 0.46, 0.32, 0.23, 0.18)
"""A published EAGLE profile on chat."""
LOW: Survival = (0.45, 0.20, 0.09, 0.04, 0.02)
NONE: Survival = (0.05, 0.002, 0.0, 0.0, 0.0)
PERFECT: Survival = (0.9, 0.81, 0.72, 0.65, 0.58)

Profile = Callable[[float], Survival]
"""Mean survival at a time."""
Clients = Callable[[float], int]


@dataclass
class Request:
    prompt_tokens: int
    output_tokens: int
    survival: Survival
    arrived_at: float
    produced: int = 0
    running: bool = False
    gone: bool = False

    @property
    def kv_tokens(self) -> int:
        return self.prompt_tokens + self.produced


def constant(value: int) -> Clients:
    return lambda now: value


def square(low: int, high: int, period_seconds: float) -> Clients:
    """Half a period low, half a period high."""
    return lambda now: low if now % period_seconds < period_seconds / 2 else high


def ramp(low: int, high: int, seconds: float) -> Clients:
    """From low to high, and there it stays."""
    return lambda now: round(low + (high - low) * min(now / seconds, 1.0))


def sawtooth(low: int, high: int, period_seconds: float) -> Clients:
    return lambda now: round(low + (high - low) * ((now % period_seconds) / period_seconds))


def steady(survival: Survival) -> Profile:
    return lambda now: survival


def changing(before: Survival, after: Survival, begin: float, end: float = math.inf) -> Profile:
    """`before`, but `after` from `begin` to `end`."""
    return lambda now: after if begin <= now < end else before


@dataclass
class Source:
    """What makes requests.

    clients       closed loop; None where `arrivals` is given
    arrivals      open loop: (time, prompt tokens, output tokens), rising
    spread        how much requests differ in how well they can be drafted: sigma of the log of s_1's odds
    """

    acceptance: Profile
    clients: Clients | None = None
    arrivals: tuple[tuple[float, int, int], ...] = ()
    prompt_tokens: tuple[int, int] = (96, 160)
    output_tokens: tuple[int, int] = (128, 384)
    spread: float = 0.5

    def make(self, number: int, seed: int, now: float, prompt: int | None = None, output: int | None = None) -> Request:
        """The request of this number; lengths are drawn unless they are given."""
        rng = random.Random(seed * 1_000_003 + number)
        drawn_prompt, drawn_output = rng.randint(*self.prompt_tokens), rng.randint(*self.output_tokens)
        return Request(prompt or drawn_prompt, output or drawn_output, self._draw_survival(rng, now), now)

    def _draw_survival(self, rng: random.Random, now: float) -> Survival:
        """The mean's, with each conditional chance moved by the same draw in log odds."""
        mean, moved, chance = self.acceptance(now), [], 1.0
        shift = rng.gauss(0.0, self.spread) if self.spread else 0.0
        for before, after in itertools.pairwise((1.0, *mean)):
            rate = min(max(after / before if before > 0 else 0.0, 1e-6), 1.0 - 1e-6)
            chance *= 1.0 / (1.0 + (1.0 - rate) / rate * math.exp(-shift))
            moved.append(chance)
        return tuple(moved)


def read_azure(path: Path, limit_seconds: float = math.inf, stretch: float = 1.0) -> tuple[tuple[float, int, int], ...]:
    """Azure LLM inference trace: TIMESTAMP, ContextTokens, GeneratedTokens. `stretch` above 1 makes it slower."""

    def rows() -> Iterator[tuple[float, int, int]]:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26] + "+00:00")
                yield at.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"])

    return _cut(rows(), limit_seconds, stretch)


def read_mooncake(path: Path, limit_seconds: float = math.inf, stretch: float = 1.0) -> tuple[tuple[float, int, int], ...]:
    """Mooncake trace: timestamp_ms, input_length, output_length."""

    def rows() -> Iterator[tuple[float, int, int]]:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                yield int(row["timestamp_ms"]) / 1000.0, int(row["input_length"]), int(row["output_length"])

    return _cut(rows(), limit_seconds, stretch)


def _cut(rows: Iterator[tuple[float, int, int]], limit: float, stretch: float) -> tuple[tuple[float, int, int], ...]:
    kept, start = [], None
    for at, prompt, output in sorted(rows):
        start = at if start is None else start
        when = (at - start) * stretch
        if when >= limit:
            break
        kept.append((when, max(prompt, 1), max(output, 1)))
    return tuple(kept)
