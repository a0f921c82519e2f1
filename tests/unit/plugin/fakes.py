"""An engine, a clock and a metrics sink that remember."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specserver.plugin.obstacles import Cause, Obstacle
from specserver.plugin.state import Rank
from specserver.policy.decision import Observation, Reason
from specserver.policy.document import Policy, parse_policy

LADDER = (0, 1, 2, 3)


@dataclass
class FakeEngine:
    running: int = 0
    queued: int = 0
    kv_tokens: int = 0
    current: int = 3
    activations: list[int] = field(default_factory=list)
    error: Exception | None = None
    broken: bool = False
    """The load can't be read."""

    def steps(self) -> int:
        return self.current

    def activate(self, steps: int) -> None:
        if self.error is not None:
            raise self.error
        self.activations.append(steps)
        self.current = steps

    def steps_of_round(self, verified_tokens: int) -> int:
        return verified_tokens - 1

    def load(self) -> Observation:
        if self.broken:
            raise AttributeError("no running batch")
        return Observation(running=self.running, queued=self.queued, kv_tokens=self.kv_tokens)

    def report(self) -> dict[str, Any]:
        return {}


@dataclass
class FakeMetrics:
    """Calls in order, as (name, value)."""

    calls: list[tuple[str, Any]] = field(default_factory=list)

    def set_armed(self, obstacle: Obstacle | None) -> None:
        self.calls.append(("armed", obstacle is None))

    def set_steps(self, steps: int) -> None:
        self.calls.append(("steps", steps))

    def set_load(self, load: Observation) -> None:
        self.calls.append(("load", load))

    def set_accept_length(self, tokens: float | None) -> None:
        self.calls.append(("accept_length", tokens))

    def set_policy_revision(self, revision: int) -> None:
        self.calls.append(("revision", revision))

    def set_goodput(self, predicted: float | None, realised: float | None) -> None:
        self.calls.append(("goodput", (predicted, realised)))

    def count_round(self, steps: int, seconds: float | None, survivors: Sequence[int]) -> None:
        self.calls.append(("round", steps))

    def count_retractions(self, requests: int) -> None:
        self.calls.append(("retractions", requests))

    def count_zero_round(self, outcome: str) -> None:
        self.calls.append(("zero_round", outcome))

    def count_switch(self, reason: Reason) -> None:
        self.calls.append(("switch", reason))

    def count_hook_error(self, hook: str) -> None:
        self.calls.append(("hook_error", hook))

    def values(self, name: str) -> list[Any]:
        return [value for called, value in self.calls if called == name]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def document(**changes: object) -> dict[str, Any]:
    base = {
        "revision": 1, "mode": "Auto", "strategy": "Threshold", "steps": [0, 1, 2, 3], "disableAbove": 8, "enableBelow": 4,
        "minDwellSeconds": 0,
    }  # fmt: skip
    return {**base, **changes}


def policy(**changes: object) -> Policy:
    return parse_policy(document(**changes))


def make_rank(
    engine: FakeEngine | None = None, metrics: FakeMetrics | None = None, unarmed_reason: str = "", **arguments: Any
) -> Rank:
    """A rank without a policy, on a ladder of 0 to 3; armed, where no reason is given."""
    obstacle = Obstacle(Cause.SPECULATION_OFF, unarmed_reason) if unarmed_reason else None
    arguments = {"ladder": LADDER, "obstacle": obstacle, **arguments}
    return Rank("tp0", engine or FakeEngine(), metrics or FakeMetrics(), **arguments)


def record(
    rank: Rank, verified_tokens: int, correct: Sequence[int], *, iteration: int = 1, running: int = 0, grammar: bool = False
) -> None:
    """A round of as many requests as there are in `correct`, where `running` is not given."""
    running = running or len(correct)
    rank.record_round(verified_tokens, correct, iteration=iteration, running=running, grammar=grammar)


def turn(rank: Rank) -> None:
    """One scheduler turn of a rank that is alone: what it orders, it follows."""
    order = rank.take_turn()
    if order is not None:
        rank.follow(order)
