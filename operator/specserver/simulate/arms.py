"""The arms of a comparison, by name."""

from __future__ import annotations

from dataclasses import replace

from specserver.policy.decider import Decider
from specserver.policy.document import Policy
from specserver.policy.profile import Profile
from specserver.simulate import costs as tables
from specserver.simulate import traffic
from specserver.simulate.controllers import Controller, Fixed, Oracle, Product, StockLike
from specserver.simulate.costs import StepCosts

LADDER = (0, 1, 2, 3)
MEASURED = Policy(
    revision=1, mode="Auto", strategy="Measured", steps=LADDER, disable_above=256, enable_below=192, min_dwell_seconds=0.25
)
THRESHOLD = replace(MEASURED, strategy="Threshold", disable_above=64, enable_below=48)
NAMES = ("static-0", "static-1", "static-2", "static-3", "threshold", "stock-like", "measured", "measured-profile", "oracle")

_PROFILE_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


def build(name: str, costs: StepCosts, acceptance: traffic.Profile) -> Controller:
    """A fresh controller of that name. `measured` starts knowing nothing, `measured-profile` with perfect costs."""
    if name.startswith("static-"):
        return Fixed(int(name.removeprefix("static-")))
    if name == "oracle":
        return Oracle(costs, acceptance, LADDER)
    if name == "stock-like":
        return StockLike()
    if name == "threshold":
        return Product(Decider(THRESHOLD))
    return Product(Decider(MEASURED, perfect_profile(costs) if name == "measured-profile" else None))


def perfect_profile(costs: StepCosts) -> Profile:
    """What a sweep without any error would have measured."""
    return Profile(
        key={},
        step_seconds={
            steps: tuple((b, costs.seconds(steps, b, tables.KV_TOKENS_PER_REQUEST * b)) for b in _PROFILE_BATCHES)
            for steps in costs.milliseconds
        },
        kv_tokens_per_request=tables.KV_TOKENS_PER_REQUEST,
        seconds_per_kv_token=tables.SECONDS_PER_KV_TOKEN,
    )
