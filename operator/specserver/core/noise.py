"""Figures of status that stand still while the load only trembles: each write of status is an event for all who watch."""

from __future__ import annotations

from typing import TypeVar

Figure = TypeVar("Figure", int, float)


def settle(now: Figure, before: Figure | None, *, slack: Figure, share: float = 0.0) -> Figure:
    """`before` while `now` is no further from it than `slack`, or than this share of it.

    0 is always told: that a server has become idle is news.
    """
    if before is None or (now == 0 and before != 0):
        return now
    # A little more than the slack: 0.3 - 0.2 is greater than 0.1 in binary.
    return before if abs(now - before) <= max(slack, share * abs(before)) + 1e-9 else now
