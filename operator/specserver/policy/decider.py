"""The decider: estimates and the last decision of one engine. Pure of I/O and of clocks, but it remembers.

One deciding rank has one. What it is told and asked happens on the scheduler's thread, a few microseconds each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specserver.policy.decision import Decision, Observation, Reason, Round, decide
from specserver.policy.document import Policy
from specserver.policy.profile import Profile


class Decider:
    def __init__(self, policy: Policy, profile: Profile | None = None) -> None:
        self.policy, self.profile = policy, profile
        self._decision: Decision | None = None
        self._forced: tuple[int, float] | None = None

    def set_policy(self, policy: Policy) -> None:
        """Puts a policy in force. Estimates stay."""
        self.policy = policy

    def force(self, steps: int, until: float) -> None:
        """Runs `steps` whatever the rule says, up to the time `until`."""
        self._forced = (steps, until)

    def clear_force(self) -> None:
        self._forced = None

    def record(self, result: Round, now: float) -> None:
        """Takes in a round's result."""

    def decide(self, observation: Observation, now: float) -> Decision:
        """What to run from this turn on; equal to the last answer where nothing changes."""
        decision = decide(self.policy, self._decision, observation, now)
        if self._forced is not None and now >= self._forced[1]:
            self._forced = None
        if self._forced is not None and decision.steps != self._forced[0]:
            decision = replace(decision, steps=self._forced[0], reason=Reason.FORCED)
        self._decision = decision
        return decision

    def explain(self) -> dict[str, Any]:
        """Why: JSON values alone."""
        return {"strategy": self.policy.strategy, "forced": None if self._forced is None else self._forced[0]}
