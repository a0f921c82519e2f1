"""What a decode round costs: T(k, b, L), seconds for k steps, b running requests and L KV tokens.

Measured, cell by cell: one cell for each step count and band of batch sizes. A cell starts with the median of its first
samples, then follows slowly; a sample far from it is dropped, unless so many come in a row that the cost itself must have
changed. What a KV token adds is fitted over all cells of a kind at once (reading a long context costs plain rounds and
speculating ones alike), so that a cell measured with short requests serves long ones.

What was never measured is predicted from what was. Verifying k drafts for b requests is a forward of n = b · (k + 1)
tokens, and its cost is close to a line in n, so T ≈ a + c·n + (start + step·k where k > 0) is fitted over all cells, with
a guess where data are few; near a measured cell of the same step count that cell's own figure leads. Costs don't fall when
the batch grows: cells that say so by chance are averaged (pool adjacent violators).

A plain table over (k, b) alone was rejected: it must try every pair once before it knows anything, and on a server whose
load moves it never has.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from specserver.policy.profile import Profile

FIRST_SAMPLES = 5
SLOWEST_RATE = 1.0 / 200.0
OUTLIER_DEVIATIONS = 4.0
"""Mean absolute deviations from the mean at which a sample is dropped: about three sigmas."""
LEAST_DEVIATION = 0.01
DROPS_TO_START_ANEW = 12
PROFILE_WEIGHT = 64.0
"""Rounds that a profile's figure stands for in its own cell. Where it contradicts another cell's rounds it is dropped."""
KNOWN, PER_OCTAVE, PER_DOUBLED_COST, UNSEEN, MOST_UNCERTAIN = 0.005, 0.02, 0.15, 0.15, 0.3
"""Relative uncertainty (one sigma) of a figure: measured; away from what was measured, by distance in batch size, and beyond
the last measured one by how much the cost is predicted to change; of a step count never run; of anything."""
PER_MINUTE, MOST_BY_AGE = 0.01, 0.05
FIRST_FIT, LAST_FIT, CURVE_EVERY = 128, 4096, 16
"""Records between two fits of the line, doubling from the first to the last, and between two looks at a step count's cells."""
MANY_TOKENS = 1.0 / 200.0
"""First guess: this much of a small round's cost for each further token (200 tokens double it)."""
START_SHARE, STEP_SHARE = 0.06, 0.05
"""First guess: what speculating at all, and each step, adds to a small round."""
KV_DECAY = 0.9998
KV_PRIOR_TOKENS = 20_000.0


def band(running: int) -> int:
    """Index of the band of batch sizes: each size up to 8 is one, then four to a doubling."""
    return running - 1 if running <= 8 else 8 + int(4.0 * math.log2(running / 8.0))


@dataclass
class _Cell:
    seconds: float
    running: float
    kv_tokens: float
    deviation: float
    weight: float
    seen_at: float
    samples: list[float]
    """The first ones, or the last dropped ones."""
    measured: int = 1
    """Rounds that were taken in; 0 where a profile alone speaks."""


@dataclass
class _Curve:
    """A step count's cells as they are read: seconds at 0 KV tokens, rising with `running`.

    gaps     uncertainty that the distance to the cell before brings in
    records  how many had come in when this was made
    """

    running: list[float]
    seconds: list[float]
    uncertainty: list[float]
    gaps: list[float]
    per_kv_token: float
    records: int


class Cost:
    """Estimates of one engine, for any step count."""

    def __init__(self, profile: Profile | None = None) -> None:
        self._cells: dict[int, dict[int, _Cell]] = {}
        self._curves: dict[int, _Curve] = {}
        self._line: tuple[float, float, float, float, float] | None = None
        self._records = 0
        self._fitted_at, self._fit_every = 0, FIRST_FIT
        per_token = None if profile is None else profile.seconds_per_kv_token
        self._kv_guess = per_token or 0.0
        self._kv_sums = [[0.0, 0.0], [0.0, 0.0]]
        """For plain rounds, and for speculating ones: sum of squares of tokens, sum of products with seconds."""
        self.dropped = 0
        for steps, points in ({} if profile is None else profile.step_seconds).items():
            for running, seconds in points:
                kv_tokens = (profile.kv_tokens_per_request if profile else 0.0) * running
                self._cells.setdefault(steps, {})[band(running)] = _Cell(
                    seconds, float(running), kv_tokens, 0.03 * seconds, PROFILE_WEIGHT, 0.0, [], 0
                )
        self._fit()

    # ---- taking in ------------------------------------------------------------------------------------------------------

    def record(self, steps: int, running: int, kv_tokens: int, seconds: float, now: float) -> None:
        """One measured round. What can't be a duration is ignored."""
        if not (math.isfinite(seconds) and seconds > 0.0) or running < 1 or kv_tokens < 0:
            return
        self._records += 1
        cells = self._cells.setdefault(steps, {})
        index = band(running)
        cell = cells.get(index)
        if cell is None:
            cells[index] = _Cell(seconds, running, kv_tokens, 0.1 * seconds, 1.0, now, [seconds])
            return
        # 1. The first samples: their median, so that one slow start spoils nothing.
        if cell.weight < FIRST_SAMPLES:
            cell.samples.append(seconds)
            share = 1.0 / (cell.weight + 1.0)
            cell.running += share * (running - cell.running)
            cell.kv_tokens += share * (kv_tokens - cell.kv_tokens)
            cell.weight += 1.0
            cell.seen_at = now
            self._restart(cell, cell.samples)
            if cell.weight == FIRST_SAMPLES:
                cell.samples = []
                self._curves.pop(steps, None)
                if self._line is None or self._records - self._fitted_at > 16:
                    self._fit()
            return
        # 2. What this batch should have taken by the cell; far from that it is dropped, but not for ever.
        more_running, more_tokens = running - cell.running, kv_tokens - cell.kv_tokens
        slope = self._slope(steps)
        expected = cell.seconds + slope * more_running + self.seconds_per_kv_token(steps) * more_tokens
        error = seconds - expected
        if abs(error) > OUTLIER_DEVIATIONS * max(cell.deviation, LEAST_DEVIATION * cell.seconds):
            self.dropped += 1
            cell.samples.append(seconds - (expected - cell.seconds))
            if len(cell.samples) >= DROPS_TO_START_ANEW:
                cell.weight, cell.seen_at = float(DROPS_TO_START_ANEW), now
                self._restart(cell, cell.samples)
                cell.samples = []
                self._curves.pop(steps, None)
            return
        if cell.samples:
            cell.samples.pop()
        # 3. What a KV token costs.
        sums = self._kv_sums[1 if steps else 0]
        sums[0] = sums[0] * KV_DECAY + more_tokens * more_tokens
        sums[1] = sums[1] * KV_DECAY + more_tokens * (seconds - cell.seconds - slope * more_running)
        # 4. The cell.
        cell.weight += 1.0
        cell.measured += 1
        share = max(1.0 / cell.weight, SLOWEST_RATE)
        cell.seconds += share * (seconds - cell.seconds)
        cell.running += share * more_running
        cell.kv_tokens += share * more_tokens
        cell.deviation += share * (abs(error) - cell.deviation)
        cell.seen_at = now
        if self._records - self._fitted_at >= self._fit_every:
            self._fit_every = min(2 * self._fit_every, LAST_FIT)
            self._fit()

    @staticmethod
    def _restart(cell: _Cell, samples: list[float]) -> None:
        ordered = sorted(samples)
        cell.seconds = ordered[len(ordered) // 2]
        spread = sorted(abs(sample - cell.seconds) for sample in ordered)
        cell.deviation = max(1.2 * spread[len(spread) // 2], 2.0 * LEAST_DEVIATION * cell.seconds)

    # ---- reading --------------------------------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Something was measured."""
        return self._line is not None

    def is_measured(self, steps: int, running: int) -> bool:
        cell = self._cells.get(steps, {}).get(band(running))
        return cell is not None and cell.weight >= FIRST_SAMPLES

    def seconds_per_kv_token(self, steps: int) -> float:
        squares, products = self._kv_sums[1 if steps else 0]
        prior = KV_PRIOR_TOKENS * KV_PRIOR_TOKENS
        return max(0.0, (products + prior * self._kv_guess) / (squares + prior))

    def predict(self, steps: int, running: float, kv_tokens: float, now: float) -> tuple[float, float]:
        """Seconds, and their relative uncertainty (one sigma). Needs `known`."""
        curve = self._curves.get(steps)
        if curve is None or self._records - curve.records >= CURVE_EVERY:
            curve = self._curves[steps] = self._build_curve(steps, now)
        xs, ys = curve.running, curve.seconds
        place = bisect_left(xs, running)
        if 0 < place < len(xs):
            left = xs[place - 1]
            part = (running - left) / (xs[place] - left)
            base = ys[place - 1] + part * (ys[place] - ys[place - 1])
            uncertainty = curve.uncertainty[place if part >= 0.5 else place - 1] + min(part, 1.0 - part) * curve.gaps[place]
            return base + curve.per_kv_token * kv_tokens, uncertainty
        if not xs:
            return self._on_line(steps, running) + curve.per_kv_token * kv_tokens, UNSEEN
        near = 0 if place == 0 else -1
        at_near, here = self._on_line(steps, xs[near]), self._on_line(steps, running)
        base = ys[near] + (here - at_near) * min(max(ys[near] / at_near, 0.5), 2.0)
        uncertainty = curve.uncertainty[near]
        uncertainty += PER_OCTAVE * abs(math.log2(running / xs[near])) + PER_DOUBLED_COST * abs(math.log2(here / at_near))
        return max(base, 0.3 * ys[near]) + curve.per_kv_token * kv_tokens, min(uncertainty, MOST_UNCERTAIN)

    def _build_curve(self, steps: int, now: float) -> _Curve:
        cells = self._cells.get(steps, {})
        per_token = self.seconds_per_kv_token(steps)
        blocks: list[list[float]] = []  # running·w, seconds·w, w, uncertainty, measured: neighbours that fall are merged
        for index in sorted(cells):
            cell = cells[index]
            if cell.weight < FIRST_SAMPLES:
                continue
            weight = min(cell.weight, 200.0)
            base = max(cell.seconds - per_token * cell.kv_tokens, 0.1 * cell.seconds)
            noise = cell.deviation / (cell.seconds * math.sqrt(weight))
            age = min(PER_MINUTE * max(0.0, now - cell.seen_at) / 60.0, MOST_BY_AGE)
            block = [cell.running * weight, base * weight, weight, KNOWN + noise + age, min(cell.measured, 1)]
            while blocks and blocks[-1][1] * block[2] > block[1] * blocks[-1][2] and blocks[-1][4] <= block[4]:
                last = blocks.pop()
                if last[4] == block[4]:
                    block = [last[0] + block[0], last[1] + block[1], last[2] + block[2], max(last[3], block[3]), last[4]]
            if not blocks or blocks[-1][1] * block[2] <= block[1] * blocks[-1][2]:
                blocks.append(block)
        running = [block[0] / block[2] for block in blocks]
        return _Curve(
            running,
            [block[1] / block[2] for block in blocks],
            [block[3] for block in blocks],
            [0.0, *(PER_OCTAVE * math.log2(right / left) for left, right in itertools.pairwise(running))],
            per_token,
            self._records,
        )

    # ---- the line -------------------------------------------------------------------------------------------------------

    def _slope(self, steps: int) -> float:
        if self._line is None:
            return 0.0
        _, per_token, _, _, plain = self._line
        return per_token * (steps + 1) if steps else per_token + plain

    def _on_line(self, steps: int, running: float) -> float:
        assert self._line is not None
        fixed, per_token, start, step, plain = self._line
        if steps == 0:
            return max(fixed + (per_token + plain) * running, 1e-6)
        return max(fixed + per_token * running * (steps + 1) + start + step * steps, 1e-6)

    def _fit(self) -> None:
        """Ridge regression over the cells: fixed, per token, start, per step, and a slope of plain rounds' own."""
        self._fitted_at = self._records
        rows = [
            (steps, cell.running, max(cell.seconds - self.seconds_per_kv_token(steps) * cell.kv_tokens, 0.1 * cell.seconds))
            for steps, cells in self._cells.items()
            for cell in cells.values()
            if cell.weight >= FIRST_SAMPLES
        ]
        if not rows:
            return
        # 1. A guess from the scale alone, and how far to trust it.
        small = min(seconds / (1.0 + MANY_TOKENS * running * (steps + 1)) for steps, running, seconds in rows)
        guess = (small, small * MANY_TOKENS, small * START_SHARE, small * STEP_SHARE, 0.0)
        trust = (small, 0.7 * small * MANY_TOKENS, 0.1 * small, 0.05 * small, 0.3 * small * MANY_TOKENS)
        # 2. The normal equations of the difference to it, in units of the trust. Written out: this runs beside the engine.
        fixed, per_token, start, step, _ = guess
        fixed_trust, token_trust, start_trust, step_trust, plain_trust = trust
        matrix = [[1.0 if i == j else 0.0 for j in range(5)] for i in range(5)]
        right = [0.0] * 5
        pairs: tuple[tuple[int, float], ...]
        for steps, running, seconds in rows:
            weight = 1.0 / (0.03 * seconds)
            tokens = running * (steps + 1)
            f0, f1 = fixed_trust * weight, token_trust * tokens * weight
            if steps:
                error = (seconds - fixed - per_token * tokens - start - step * steps) * weight
                pairs = ((0, f0), (1, f1), (2, start_trust * weight), (3, step_trust * steps * weight))
            else:
                error = (seconds - fixed - per_token * tokens) * weight
                pairs = ((0, f0), (1, f1), (4, plain_trust * running * weight))
            for i, left in pairs:
                right[i] += left * error
                row = matrix[i]
                for j, other in pairs:
                    row[j] += left * other
        # 3. Solved; a cost that falls with tokens or steps is no cost.
        solution = _solve(matrix, right)
        fixed, per_token, start, step, plain = (g + s * t for g, s, t in zip(guess, solution, trust, strict=True))
        per_token, step = max(per_token, 0.0), max(step, 0.0)
        self._line = (fixed, per_token, start, step, max(plain, -per_token))

    # ---- keeping --------------------------------------------------------------------------------------------------------

    def measured(self) -> Iterable[tuple[int, float, float, float]]:
        """Steps, running, seconds, KV tokens of each measured cell, in order."""
        for steps in sorted(self._cells):
            for index in sorted(self._cells[steps]):
                cell = self._cells[steps][index]
                if cell.weight >= FIRST_SAMPLES:
                    yield steps, cell.running, cell.seconds, cell.kv_tokens


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination; the ridge keeps the diagonal away from 0."""
    size = len(right)
    for column in range(size):
        pivot = matrix[column][column]
        for row in range(column + 1, size):
            factor = matrix[row][column] / pivot
            if factor:
                for j in range(column, size):
                    matrix[row][j] -= factor * matrix[column][j]
                right[row] -= factor * right[column]
    solution = [0.0] * size
    for row in range(size - 1, -1, -1):
        total = right[row] - sum(matrix[row][j] * solution[j] for j in range(row + 1, size))
        solution[row] = total / matrix[row][row]
    return solution
