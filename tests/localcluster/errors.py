"""The one error of this package: its message says what failed and what to do about it."""

from __future__ import annotations


class ClusterError(RuntimeError):
    """Something about the local cluster failed; the message is for a person."""
