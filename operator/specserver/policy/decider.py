"""The decider: what to run from this turn on. Pure of I/O and of clocks, but it remembers: estimates, and its last word.

One deciding rank has one; it is told and asked on the scheduler's thread, a few microseconds each time. From the outside
in, what wins: a forced step count; the mode; the bounds; the strategy.

A strategy decides as if the mode were Auto; the mode is applied to its answer. Observe therefore runs the very same rule and
only withholds its answer, and a change from Observe to Auto starts with the rule's present opinion.

Time is an argument, in seconds on a clock that does not run backwards. Where it jumps back anyway, a dwell ends early,
never late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specserver.policy import threshold
from specserver.policy.decision import Decision, Observation, Reason, Round
from specserver.policy.document import Policy
from specserver.policy.measured import Measured
from specserver.policy.profile import Profile


class Decider:
    def __init__(self, policy: Policy, profile: Profile | None = None) -> None:
        self.policy = policy
        self._measured = Measured(profile)
        self._decision: Decision | None = None
        self._forced: tuple[int, float] | None = None
        self._above = False
        """The load went over the upper bound, and not yet under the lower one."""

    def set_policy(self, policy: Policy) -> None:
        """Puts a policy in force. Estimates stay."""
        self.policy = policy

    def force(self, steps: int, until: float) -> None:
        """Runs `steps` whatever mode, bounds and rule say, up to the time `until`."""
        self._forced = (steps, until)

    def clear_force(self) -> None:
        self._forced = None

    def record(self, result: Round, now: float) -> None:
        """Takes in a round's result."""
        self._measured.record(result, now)

    def decide(self, observation: Observation, now: float) -> Decision:
        """What to run from this turn on; equal to the last answer where nothing changes."""
        previous = self._decision
        if self._forced is not None and now >= self._forced[1]:
            self._forced = None
        decided, reason = self._decide_as_auto(previous, observation, now)
        # The mode, and what is forced, bend the rule's word.
        if self._forced is not None:
            steps, bent = self._forced[0], Reason.FORCED
        elif self.policy.mode == "Observe":
            steps, bent = self.policy.max_steps, Reason.MODE
        else:
            steps, bent = decided, Reason.FORCED if previous is not None and previous.reason is Reason.FORCED else Reason.MODE
        if previous is None or decided != previous.decided_steps:
            self._decision = Decision(steps, decided, reason if self._forced is None else bent, now)
        elif steps != previous.steps:
            self._decision = Decision(steps, decided, bent, previous.changed_at)
        return self._decision if self._decision is not None else Decision(steps, decided, reason, now)

    def _decide_as_auto(self, previous: Decision | None, observation: Observation, now: float) -> tuple[int, Reason]:
        """Decided steps, and the reason if they are a change."""
        policy = self.policy
        # 1. The user's word needs no dwell; when the mode changes back, the rule goes on from there.
        if policy.mode in ("Always", "Never"):
            return (policy.max_steps if policy.mode == "Always" else 0), Reason.MODE
        # 2. Another ladder lacks the present rung.
        steps = None if previous is None else previous.decided_steps
        dwelling = previous is not None and 0 <= now - previous.changed_at < policy.min_dwell_seconds
        if policy.strategy == "Threshold":
            return self._decide_by_threshold(steps, observation, dwelling=dwelling)
        if steps is not None and steps not in policy.steps:
            return max(rung for rung in policy.steps if rung < steps or rung == 0), Reason.LADDER
        # 3. The bounds, hard around the two others.
        if observation.running > policy.disable_above:
            self._above = True
        elif observation.running < policy.enable_below:
            self._above = False
        if self._above:
            return 0, Reason.ABOVE_DISABLE
        if policy.strategy == "Table":
            by_table = threshold.steps_by_table(policy, observation.running)
            return (steps, Reason.TABLE) if dwelling and steps is not None else (by_table, Reason.TABLE)
        controlling = policy.mode == "Auto" and self._forced is None
        return self._measured.next_steps(policy, steps, observation, now, controlling=controlling)

    def _decide_by_threshold(self, steps: int | None, observation: Observation, *, dwelling: bool) -> tuple[int, Reason]:
        policy = self.policy
        if steps is None:
            return threshold.first_steps(policy, observation.running), Reason.INITIAL
        if steps not in (0, policy.max_steps):
            return policy.max_steps, Reason.LADDER
        if not dwelling:
            steps = threshold.next_steps(policy, steps, observation.running)
        return steps, Reason.BELOW_ENABLE if steps else Reason.ABOVE_DISABLE

    def export_profile(self, key: Mapping[str, str]) -> Profile:
        """What was measured, as a profile that another engine of the same key can start from."""
        points: dict[int, list[tuple[int, float]]] = {}
        requests = tokens = 0.0
        for steps, running, seconds, kv_tokens in self._measured.cost.measured():
            row, size = points.setdefault(steps, []), max(1, round(running))
            if not row or row[-1][0] < size:
                row.append((size, seconds))
            requests, tokens = requests + running, tokens + kv_tokens
        return Profile(
            key=dict(key),
            step_seconds={steps: tuple(row) for steps, row in points.items()},
            kv_tokens_per_request=tokens / requests if requests else 0.0,
            seconds_per_kv_token=self._measured.cost.seconds_per_kv_token(0),
        )

    def explain(self) -> dict[str, Any]:
        """Why: estimates, margins, waits. JSON values alone."""
        forced = self._forced
        return {
            "strategy": self.policy.strategy,
            "forced": None if forced is None else {"steps": forced[0], "until": forced[1] if math.isfinite(forced[1]) else None},
            "aboveBounds": self._above,
            **self._measured.explain(),
        }
