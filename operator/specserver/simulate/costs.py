"""True step costs of the simulated engine, from tables measured on one H200 (Llama-3.1-8B shape, EAGLE-3 draft of one layer,
SGLang 0.5.17, 128 tokens in and 256 out, CUDA graphs up to 256).

Between measured batch sizes a cost is linear in the batch; beyond the last it goes on as it went. A KV token beyond those of
the measurement adds SECONDS_PER_KV_TOKEN: the time to read its keys and values at 4.8 TB/s.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

BATCHES = (1, 4, 10, 32, 70, 128, 250)
PLAIN_MS = (4.76, 4.86, 4.98, 5.37, 6.18, 7.26, 10.75)
SPECULATING_MS = {
    1: (5.32, 5.40, 5.55, 6.11, 7.41, 10.17, 17.06),
    2: (5.65, 5.70, 5.96, 6.67, 8.88, 13.40, 24.07),
    3: (5.87, 5.98, 6.33, 7.10, 10.91, 16.33, 29.70),
}
KV_TOKENS_PER_REQUEST = 256.0
SECONDS_PER_KV_TOKEN = 131_072 / 4.8e12
PREFILL_SECONDS_PER_TOKEN = 25e-6
PREFILL_SECONDS_PER_TOKEN_WITH_DRAFT = 26e-6
PREFILL_SECONDS = 0.004
"""Of a prefill batch, whatever its size."""
SWITCH_SECONDS = 0.0004
"""Host time of stock SGLang's change of step count."""


@dataclass(frozen=True)
class StepCosts:
    """name, and for each step count the milliseconds at `BATCHES`."""

    name: str
    milliseconds: Mapping[int, tuple[float, ...]]

    def seconds(self, steps: int, running: int, kv_tokens: float) -> float:
        row = self.milliseconds[steps]
        place = min(max(bisect_left(BATCHES, running), 1), len(BATCHES) - 1)
        low, high = BATCHES[place - 1], BATCHES[place]
        slope = (row[place] - row[place - 1]) / (high - low)
        base = row[place - 1] + slope * (running - low)
        return base * 1e-3 + SECONDS_PER_KV_TOKEN * (kv_tokens - KV_TOKENS_PER_REQUEST * running)


def _scaled(row: tuple[float, ...], factor: float) -> tuple[float, ...]:
    return tuple(value * factor for value in row)


_STOCK_ZERO_MS = (5.28, 5.38, 5.44, 5.86, 6.71, 7.81, 11.42)
"""FA3: one-token verify and draft extend, 1.11 to 1.062 of plain decode."""
_TRITON_STOCK_ZERO_MS = (7.06, 7.49, 8.35, 11.12, 17.54, 27.90, 49.70)
"""Triton: measured at 1, 32 and 128 (1.48, 2.07 and 3.84 of plain decode); lines between and beyond."""

PLAIN = StepCosts("plain", {0: PLAIN_MS})
"""A server that was started without speculation."""
FA3 = StepCosts("fa3", {0: _scaled(PLAIN_MS, 1.01), **SPECULATING_MS})
"""Zero steps as a real decode graph: plain decode and 1 %."""
FA3_STOCK_ZERO = StepCosts("fa3-stock-zero", {0: _STOCK_ZERO_MS, **SPECULATING_MS})
TRITON_STOCK_ZERO = StepCosts(
    "triton-stock-zero",
    {
        0: _TRITON_STOCK_ZERO_MS,
        **{
            steps: tuple(t + s - z for t, s, z in zip(_TRITON_STOCK_ZERO_MS, row, _STOCK_ZERO_MS, strict=True))
            for steps, row in SPECULATING_MS.items()
        },
    },
)
"""Zero steps through Triton's serial verify kernel. Steps 1 to 3 were not measured on Triton: they are taken to cost as much
more than its zero steps as they do on FA3, which flatters them."""

TABLES = {costs.name: costs for costs in (FA3, FA3_STOCK_ZERO, TRITON_STOCK_ZERO)}
