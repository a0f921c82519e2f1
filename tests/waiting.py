"""Waiting for a condition, with a deadline and a sentence for when it passes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.05


async def eventually(
    check: Callable[[], T] | Callable[[], Awaitable[T]], what: str | Callable[[], str], *, within_seconds: float = 20.0
) -> T:
    """The first value of `check` that is true. AssertionError with `what` where there is none in time."""
    deadline = time.monotonic() + within_seconds
    while True:
        value = check()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value  # type: ignore[return-value]
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds:g} s: {what if isinstance(what, str) else what()}")
        await asyncio.sleep(POLL_SECONDS)


async def always(check: Callable[[], Awaitable[bool]], what: str, *, for_seconds: float) -> None:
    """`check` stays true for that long."""
    deadline = time.monotonic() + for_seconds
    while time.monotonic() < deadline:
        assert await check(), what
        await asyncio.sleep(POLL_SECONDS)
