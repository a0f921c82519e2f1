"""What a rule sees, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a step count changed: one word a cause, a label of the switch counter.

    The first seven come from the policy and from force, the next four from what was measured; the others ask for plain decode.
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
    decided_steps  what the rule asks for; differs from `steps` in mode Observe, and where steps are forced
    reason         cause of the last change of either
    changed_at     time of the last change of `decided_steps`
    """

    steps: int
    decided_steps: int
    reason: Reason
    changed_at: float
