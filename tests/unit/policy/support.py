"""Policies, loads and rounds for tests of the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specserver.policy.decision import Observation, Round
from specserver.policy.document import Policy
from specserver.policy.profile import Profile

THRESHOLD = Policy(
    revision=1, mode="Auto", strategy="Threshold", steps=(0, 1, 3), disable_above=8, enable_below=4, min_dwell_seconds=1.0
)
MEASURED = Policy(
    revision=1, mode="Auto", strategy="Measured", steps=(0, 1, 2, 3),
    disable_above=1000, enable_below=999, min_dwell_seconds=0.25,
)  # fmt: skip
TABLE = replace(MEASURED, strategy="Table", table=((1, 3), (8, 2), (32, 1), (64, 0)), min_dwell_seconds=0.0)


def load(running: int, queued: int = 0, **more: Any) -> Observation:
    return Observation(running, queued, **more)


def seconds(steps: int, running: int) -> float:
    """Costs of an engine whose rounds are a line in the tokens: 1.8 times as long for 3 steps at 100 requests as for none."""
    return 1e-3 * (5.0 + 0.02 * running * (steps + 1) + 0.3 * steps)


def profile(steps: tuple[int, ...] = (0, 1, 2, 3)) -> Profile:
    return Profile(
        key={}, step_seconds={k: tuple((b, seconds(k, b)) for b in (1, 8, 32, 64, 128, 256)) for k in steps}
    )


def rounds_of(steps: int, running: int, accepted: int, took: float | None = -1.0) -> Round:
    """A round in which each request had `accepted` drafts right, at the engine's cost unless it is given."""
    cost = seconds(steps, running) if took is not None and took < 0 else took
    return Round(steps, running, 0, cost, [min(accepted, steps)] * running if steps else [])
