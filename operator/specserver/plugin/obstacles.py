"""Why an engine is not controlled: one word a cause, for metrics and alerts, and a sentence that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """A label of `specserver_unarmed`, so there are only these."""

    VERSION = "Version"
    FUNCTION = "Function"
    SPECULATION_OFF = "SpeculationOff"
    ALGORITHM = "Algorithm"
    DATA_PARALLEL_ATTENTION = "DataParallelAttention"
    PIPELINE = "Pipeline"
    DISAGGREGATION = "Disaggregation"
    MULTIPLEXING = "Multiplexing"
    TWO_BATCH_OVERLAP = "TwoBatchOverlap"
    MULTI_LAYER_DRAFT = "MultiLayerDraft"
    LADDER = "Ladder"
    HOOK_ERRORS = "HookErrors"


@dataclass(frozen=True)
class Obstacle:
    cause: Cause
    message: str
