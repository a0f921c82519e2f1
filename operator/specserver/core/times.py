"""Times as Kubernetes writes them: RFC 3339, UTC, whole seconds (metav1.Time)."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(epoch_seconds: float) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch_seconds(text: str) -> float:
    """Seconds since the epoch. ValueError where `text` is no RFC 3339 time."""
    return datetime.fromisoformat(text).timestamp()
