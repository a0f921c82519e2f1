"""Pods as `cluster/observe.py` would have seen them."""

from __future__ import annotations

from typing import Any

from specserver.core.observed import ContainerFailure, Pod, Workload

NOW = 10_000.0
WORKLOAD = Workload(
    uid="w", generation=2, observed_generation=2, spec_replicas=2, replicas=2, ready_replicas=2, updated_replicas=2,
    available_replicas=2, current_template_hash="h", progress_deadline_exceeded=False,
)  # fmt: skip
"""Of two pods, all of them new and ready."""


def build_pod(name: str = "m-0", **different: Any) -> Pod:
    """A ready pod that serves, on 127.0.0.1."""
    values: dict[str, Any] = {
        "name": name, "uid": f"uid-{name}", "ip": "127.0.0.1", "created_at": 0.0, "template_hash": "h", "phase": "Running",
        "ready": True, "scheduled": True, "unschedulable_message": "", "terminating": False, "started": True,
        "serving": True, "draining_since": None, "drained_idle_since": None, "deletion_cost": None, "failure": None,
    }  # fmt: skip
    return Pod(**{**values, **different})


def build_starting_pod(name: str, **different: Any) -> Pod:
    return build_pod(name, **{"ready": False, "started": False, "created_at": NOW - 10, **different})


def build_failure(
    reason: str = "Error", message: str = "", exit_code: int | None = 1, restarts: int = 1, **more: Any
) -> ContainerFailure:
    return ContainerFailure(reason, message, exit_code, restarts, **{"at": NOW - 10, **more})
