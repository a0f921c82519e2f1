"""What a rule sees, what it says, and how the mode bends that.

A strategy decides as if the mode were Auto; `decide` then applies the mode. Observe therefore runs the very same rule
and only withholds its answer, and a change from Observe to Auto starts with the rule's present opinion.

Time is an argument, in seconds on a clock that does not run backwards. Where it jumps back anyway, a dwell ends early,
never late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specserver.policy import threshold
from specserver.policy.document import Policy


class Reason(StrEnum):
    """Why a step count changed: one word a cause, a label of the switch counter.

    The first six come from the policy itself, the next four from what was measured, the others force plain decode.
    """

    INITIAL = "Initial"
    MODE = "Mode"
    LADDER = "Ladder"
    ABOVE_DISABLE = "AboveDisable"
    BELOW_ENABLE = "BelowEnable"
    FORCED = "Forced"
    TABLE = "Table"
    UP = "Up"
    DOWN = "Down"
    PROBE = "Probe"
    PROBE_OVER = "ProbeOver"
    LOW_ACCEPTANCE = "LowAcceptance"
    KV_PRESSURE = "KvPressure"
    RETRACTION = "Retraction"
    WATCHDOG = "Watchdog"
    BELOW_PREDICTION = "BelowPrediction"


@dataclass(frozen=True)
class Observation:
    """The engine's load at the start of a scheduler turn.

    running      requests being decoded
    queued       requests waiting for a place
    kv_tokens    KV tokens that the running requests hold; 0 where unknown
    kv_usage     part of the KV pool in use, 0 to 1
    retractions  requests put back into the queue for want of KV since the last observation
    max_running  most requests that the engine decodes at once; 0 where unknown
    """

    running: int
    queued: int
    kv_tokens: int = 0
    kv_usage: float = 0.0
    retractions: int = 0
    max_running: int = 0


@dataclass(frozen=True)
class Round:
    """A decode round whose result is in, under the steps that it ran with, which may not be the present ones.

    steps           its draft chain
    running         requests in its batch
    kv_tokens       KV tokens of those requests; 0 where unknown
    seconds         what the round cost; None where that can't be told: a prefill, grammar, a pause, a switch or another
                    batch size lay between this result and the one before
    correct_drafts  drafts accepted, one entry for each request that is still alive and whose draft state is warm
    """

    steps: int
    running: int
    kv_tokens: int
    seconds: float | None
    correct_drafts: Sequence[int]


@dataclass(frozen=True)
class Decision:
    """What to run, and since when.

    steps          what to run
    decided_steps  what the rule asks for; differs from `steps` in mode Observe alone
    reason         cause of the last change of either
    changed_at     time of the last change of `decided_steps`
    """

    steps: int
    decided_steps: int
    reason: Reason
    changed_at: float


def decide(policy: Policy, previous: Decision | None, observation: Observation, now: float) -> Decision:
    """The decision that follows `previous` (None at the start); equal to it where nothing changes."""
    decided, reason = _decide_as_auto(policy, previous, observation, now)
    steps = policy.max_steps if policy.mode == "Observe" else decided
    if previous is None:
        return Decision(steps, decided, reason, now)
    if decided != previous.decided_steps:
        return Decision(steps, decided, reason, now)
    if steps != previous.steps:
        return Decision(steps, decided, Reason.MODE, previous.changed_at)
    return previous


def _decide_as_auto(
    policy: Policy, previous: Decision | None, observation: Observation, now: float
) -> tuple[int, Reason]:
    """Decided steps, and the reason if they are a change."""
    # 1. The user's word needs no dwell; when the mode changes back, the rule goes on from there.
    if policy.mode in ("Always", "Never"):
        return (policy.max_steps if policy.mode == "Always" else 0), Reason.MODE
    if previous is None:
        return threshold.first_steps(policy, observation.running), Reason.INITIAL
    # 2. Another ladder has another top.
    if previous.decided_steps not in (0, policy.max_steps):
        return policy.max_steps, Reason.LADDER
    # 3. The rule, unless its last change is too fresh.
    if 0 <= now - previous.changed_at < policy.min_dwell_seconds:
        return previous.decided_steps, previous.reason
    steps = threshold.next_steps(policy, previous.decided_steps, observation.running)
    return steps, Reason.BELOW_ENABLE if steps else Reason.ABOVE_DISABLE
