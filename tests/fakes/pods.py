"""Pods as `cluster/observe.py` would have seen them."""

from __future__ import annotations

from typing import Any

from specserver.core.observed import Pod


def build_pod(name: str = "m-0", **different: Any) -> Pod:
    """A ready pod that serves, on 127.0.0.1."""
    values: dict[str, Any] = {
        "name": name, "uid": f"uid-{name}", "ip": "127.0.0.1", "created_at": 0.0, "template_hash": "h", "phase": "Running",
        "ready": True, "scheduled": True, "unschedulable_message": "", "terminating": False, "started": True,
        "serving": True, "draining_since": None, "drained_idle_since": None, "deletion_cost": None, "failure": None,
    }  # fmt: skip
    return Pod(**{**values, **different})
