"""Condition types and reasons of a SpeculativeServer.

Shapes follow https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ConditionType(StrEnum):
    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    SCHEDULED = "Scheduled"
    METRICS_AVAILABLE = "MetricsAvailable"
    SPECULATION_ACTIVE = "SpeculationActive"
    POLICY_APPLIED = "PolicyApplied"
    ARGUMENTS_CHECKED = "ArgumentsChecked"
    ABLE_TO_SCALE = "AbleToScale"
    SCALING_ACTIVE = "ScalingActive"
    SCALING_LIMITED = "ScalingLimited"


class Status(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """CamelCase, one word per cause; a message beside it says which pod and what to do."""

    # Ready
    ALL_REPLICAS_READY = "AllReplicasReady"
    ROLLING_OUT = "RollingOut"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_ERROR = "ImagePullError"
    MODEL_LOADING = "ModelLoading"
    LOAD_DEADLINE_EXCEEDED = "LoadDeadlineExceeded"
    OUT_OF_MEMORY = "OutOfMemory"
    CRASH_LOOP = "CrashLoop"
    ENGINE_ARGUMENTS_REFUSED = "EngineArgumentsRefused"
    SECRET_MISSING = "SecretMissing"
    INVALID_SPEC = "InvalidSpec"
    OBJECT_REFUSED = "ObjectRefused"
    SCALED_TO_ZERO = "ScaledToZero"
    SUSPENDED = "Suspended"
    DRAFT_MISMATCH = "DraftMismatch"
    NODE_LOST = "NodeLost"
    NODE_REFUSED = "NodeRefused"
    EVICTED = "Evicted"
    STUCK_TERMINATING = "StuckTerminating"
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    ENGINE_STALLED = "EngineStalled"
    # Ready and Scheduled: the API server makes no pod
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_SECURITY_REFUSED = "PodSecurityRefused"
    POD_CREATION_REFUSED = "PodCreationRefused"
    # Scheduled
    ALL_PODS_SCHEDULED = "AllPodsScheduled"
    SCHEDULING = "Scheduling"
    NO_PODS = "NoPods"
    INSUFFICIENT_GPU = "InsufficientGPU"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    TAINT_MISMATCH = "TaintMismatch"
    NODE_SELECTOR_MISMATCH = "NodeSelectorMismatch"
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    # Available
    MINIMUM_REPLICAS_AVAILABLE = "MinimumReplicasAvailable"
    MINIMUM_REPLICAS_UNAVAILABLE = "MinimumReplicasUnavailable"
    # Progressing
    NEW_REVISION = "NewRevision"
    SCALING = "Scaling"
    DRAINING = "Draining"
    ROLLOUT_COMPLETE = "RolloutComplete"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    ROLLOUT_PAUSED = "RolloutPaused"
    ROLLOUT_DEFERRED = "RolloutDeferred"
    ROLLOUT_STOPPED = "RolloutStopped"
    # MetricsAvailable
    METRICS_FOUND = "MetricsFound"
    METRICS_FALLBACK = "MetricsFallback"
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    PROMETHEUS_ERROR = "PrometheusError"
    SCRAPE_ERROR = "ScrapeError"
    NO_READY_REPLICAS = "NoReadyReplicas"
    # SpeculationActive
    SPECULATING = "Speculating"
    ABOVE_CROSSOVER = "AboveCrossover"
    MIXED_REPLICAS = "MixedReplicas"
    DISABLED_BY_SPEC = "DisabledBySpec"
    OBSERVING = "Observing"
    STATE_UNKNOWN = "StateUnknown"
    # PolicyApplied
    ALL_REPLICAS = "AllReplicas"
    PARTIALLY_APPLIED = "PartiallyApplied"
    ENGINE_REJECTED = "EngineRejected"
    ENGINE_UNARMED = "EngineUnarmed"
    ENGINE_UNREACHABLE = "EngineUnreachable"
    # ArgumentsChecked, beside EngineArgumentsRefused
    ARGUMENTS_FIT = "ArgumentsFit"
    RELEASE_UNKNOWN = "ReleaseUnknown"
    # AbleToScale, ScalingActive, ScalingLimited: as in the HPA (pkg/controller/podautoscaler/horizontal.go)
    READY_FOR_NEW_SCALE = "ReadyForNewScale"
    SUCCEEDED_RESCALE = "SucceededRescale"
    SCALE_DOWN_STABILIZED = "ScaleDownStabilized"
    SCALE_UP_STABILIZED = "ScaleUpStabilized"
    VALID_METRIC_FOUND = "ValidMetricFound"
    FAILED_GET_METRICS = "FailedGetMetrics"
    SCALING_PAUSED = "ScalingPaused"
    DESIRED_WITHIN_RANGE = "DesiredWithinRange"
    TOO_FEW_REPLICAS = "TooFewReplicas"
    TOO_MANY_REPLICAS = "TooManyReplicas"
    SCALE_UP_LIMIT = "ScaleUpLimit"
    SCALE_DOWN_LIMIT = "ScaleDownLimit"


@dataclass(frozen=True)
class Condition:
    """What is true now, without times: those depend on what was true before."""

    type: ConditionType
    status: Status
    reason: Reason
    message: str = ""


def merge_conditions(
    conditions: Iterable[Condition], previous: Sequence[Mapping[str, Any]], *, generation: int, now: str
) -> list[dict[str, Any]]:
    """The status list: `lastTransitionTime` moves only where the status value does (API conventions)."""
    old = {condition["type"]: condition for condition in previous}
    merged = []
    for condition in conditions:
        before = old.get(condition.type.value)
        same = before is not None and before.get("status") == condition.status.value
        merged.append(
            {
                "type": condition.type.value,
                "status": condition.status.value,
                "reason": condition.reason.value,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": before["lastTransitionTime"] if same and before else now,
            }
        )
    return merged
