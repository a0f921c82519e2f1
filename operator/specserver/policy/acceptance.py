"""How many drafts are accepted: survival s_j, the chance that the draft at position j and all before it are right.

Kept as the chance p_j that position j is right where all before it were: s_j = p_1 · … · p_j. Only rows that reached
position j count for p_j, so a round of one step says nothing about position 2 and leaves it alone, and yet moves s_2
through p_1. (SGLang's own adaptive mode averages accepted drafts per step count instead; accepted drafts never exceed the
steps, so that average can't say what one more step would bring.)

Two speeds. The estimate proper forgets half in HALF_LIFE_ROWS trials: steady, but after a change of traffic it would take
2,000 rounds of a lone request to follow. So a short window runs beside it, and where the two disagree beyond chance the
window becomes the estimate.

What has not been tried for a while may have moved: its uncertainty grows with its age, and an old estimate yields to new
trials accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

HALF_LIFE_ROWS = 2000.0
WINDOW_ROWS = 64
FIRST_GUESS, FIRST_GUESS_ROWS = 0.6, 2.0
OVERDISPERSION = 2.0
"""Rows of one request resemble each other, so chance spreads an average wider than independent trials would."""
CHANGE_SIGMAS = 4.0
PROBE_CHANGE_SIGMAS = 3.0
DRIFT_PER_SECOND, MOST_DRIFT = 0.1 / 60.0, 0.25
"""How far p_j may have moved (one sigma) for each second without a trial, and at most."""
STALE_SECONDS = 1.0
HOPE_SIGMAS = 1.5
BEST_RATE = 0.97
HOPE_HALF_LIFE_SECONDS = 15.0
"""Traffic changes whole: without a trial for so long, half the way from p_j to BEST_RATE is thought possible."""


class Acceptance:
    """Estimates for positions 1 to `positions`."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        size = positions + 1
        self._hits = [FIRST_GUESS * FIRST_GUESS_ROWS] * size
        self._trials = [FIRST_GUESS_ROWS] * size
        self._window_hits = [0] * size
        self._window_trials = [0] * size
        self._last_trial_at: list[float | None] = [None] * size
        self.changes = 0
        """How often the window became the estimate."""

    def start_probe(self) -> None:
        """What comes next is to be compared with what was known before, not mixed with it."""
        for position in range(1, self.positions + 1):
            self._window_hits[position] = self._window_trials[position] = 0

    def record(self, steps: int, correct_drafts: Sequence[int], now: float, *, probing: bool = False) -> None:
        """Takes in one round: for each row the number of drafts that were right, 0 to `steps`."""
        reached = len(correct_drafts)
        for position in range(1, min(steps, self.positions) + 1):
            hits = reached - correct_drafts.count(position - 1)
            if hits < 0 or reached <= 0:
                return
            self._add(position, reached, hits, now, probing=probing)
            reached = hits

    def _add(self, position: int, trials: int, hits: int, now: float, *, probing: bool) -> None:
        # 1. An old estimate weighs only as much as its uncertainty allows.
        last = self._last_trial_at[position]
        if last is not None and now - last > STALE_SECONDS:
            drift = min(DRIFT_PER_SECOND * (now - last), MOST_DRIFT)
            rate = self.rate(position)
            most = OVERDISPERSION * max(rate * (1.0 - rate), 0.05) / (drift * drift)
            if most < self._trials[position]:
                self._scale(position, max(most, FIRST_GUESS_ROWS) / self._trials[position])
        self._last_trial_at[position] = now
        # 2. The window, and whether it says something else.
        window_trials = self._window_trials[position] + trials
        window_hits = self._window_hits[position] + hits
        if window_trials >= (8 if probing else WINDOW_ROWS):
            rate = self.rate(position)
            chance = math.sqrt(OVERDISPERSION * window_trials * rate * (1.0 - rate) + 1.0)
            sigmas = (PROBE_CHANGE_SIGMAS if probing else CHANGE_SIGMAS) * chance
            if abs(window_hits - window_trials * rate) > sigmas and self._trials[position] > FIRST_GUESS_ROWS:
                self._hits[position] = window_hits + FIRST_GUESS * FIRST_GUESS_ROWS
                self._trials[position] = window_trials + FIRST_GUESS_ROWS
                self._window_hits[position] = self._window_trials[position] = 0
                self.changes += 1
                return
        if window_trials >= WINDOW_ROWS and not probing:
            window_trials = window_hits = 0
        self._window_trials[position], self._window_hits[position] = window_trials, window_hits
        # 3. The estimate.
        self._scale(position, 0.5 ** (trials / HALF_LIFE_ROWS))
        self._hits[position] += hits
        self._trials[position] += trials

    def _scale(self, position: int, factor: float) -> None:
        self._hits[position] *= factor
        self._trials[position] *= factor

    def rate(self, position: int) -> float:
        """p_j."""
        return self._hits[position] / self._trials[position]

    def read(self, position: int, now: float) -> tuple[float, float, float]:
        """p_j, its uncertainty (one sigma), and what it may be at best: by chance, and by a change since the last trial."""
        trials, last = self._trials[position], self._last_trial_at[position]
        rate = self._hits[position] / trials
        age = 0.0 if last is None else max(0.0, now - last)
        drift = min(DRIFT_PER_SECOND * age, MOST_DRIFT)
        sigma = math.sqrt(OVERDISPERSION * max(rate * (1.0 - rate), 0.01) / trials + drift * drift)
        best = min(rate + HOPE_SIGMAS * sigma, BEST_RATE)
        if age > STALE_SECONDS:
            best = BEST_RATE - (BEST_RATE - best) * 0.5 ** (age / HOPE_HALF_LIFE_SECONDS)
        return rate, sigma, best

    def trials(self, position: int) -> float:
        """Rows behind p_j, older ones counting less; the first guess is not among them."""
        return self._trials[position] if self._last_trial_at[position] is not None else 0.0

    def survival(self) -> list[float]:
        """s_0 = 1, s_1, … s_positions."""
        survival, chance = [1.0], 1.0
        for position in range(1, self.positions + 1):
            chance *= self._hits[position] / self._trials[position]
            survival.append(chance)
        return survival
