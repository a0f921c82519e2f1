"""Policies to engines: each started pod is asked, told where it lacks the policy, and asked again. Pods don't wait for
each other, and one that refuses is told again with a back-off of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specserver.api.v1alpha1 import Mode
from specserver.core.engine_report import has_policy
from specserver.core.observed import EngineState, EngineUnreachable, Pod, Pushed, PushResult
from specserver.engines.client import EngineClient

_FIRST_BACK_OFF_SECONDS = 2.0
_LONGEST_BACK_OFF_SECONDS = 60.0


@dataclass(frozen=True)
class Applied:
    """By pod name: what engines report after the push, and the newest push of those that needed one."""

    engines: dict[str, EngineState | EngineUnreachable]
    pushes: dict[str, PushResult]
    pushed_now: tuple[str, ...]


@dataclass(frozen=True)
class _Attempt:
    document: Mapping[str, Any]
    result: PushResult
    failures: int
    next_at: float


class PolicyPusher:
    """Remembers, for each pod, the last push that failed."""

    def __init__(self, client: EngineClient, *, on_push: Callable[[str], None] = lambda _result: None) -> None:
        self._client = client
        self._on_push = on_push
        self._attempts: dict[str, _Attempt] = {}

    async def apply_policy(
        self, pods: tuple[Pod, ...], document: Mapping[str, Any], mode: Mode, *, port: int, admin_key: str, now: float
    ) -> Applied:
        """Brings the policy to every started pod that lacks it."""
        started = [pod for pod in pods if pod.started and not pod.terminating and pod.ip]
        engines = await asyncio.gather(
            *(self._apply_to(pod, document, mode, port=port, admin_key=admin_key, now=now) for pod in started)
        )
        present = {pod.uid: pod.name for pod in started}
        attempts = {name: self._attempts[uid] for uid, name in present.items() if uid in self._attempts}
        return Applied(
            engines={pod.name: engine for pod, (engine, _) in zip(started, engines, strict=True)},
            pushes={name: attempt.result for name, attempt in attempts.items()},
            pushed_now=tuple(pod.name for pod, (_, pushed) in zip(started, engines, strict=True) if pushed),
        )

    def forget(self, pods: tuple[Pod, ...]) -> None:
        for pod in pods:
            self._attempts.pop(pod.uid, None)

    async def _apply_to(
        self, pod: Pod, document: Mapping[str, Any], mode: Mode, *, port: int, admin_key: str, now: float
    ) -> tuple[EngineState | EngineUnreachable, bool]:
        """The engine's state at the end, and whether it took a push just now."""
        state = await self._client.read_state(pod, port=port, admin_key=admin_key)
        if has_policy(state, document, mode):
            self._attempts.pop(pod.uid, None)
            return state, False
        earlier = self._attempts.get(pod.uid)
        if earlier is not None and earlier.document == document and now < earlier.next_at:
            return state, False
        if isinstance(state, EngineState) and not all(rank.armed for rank in state.ranks):
            return state, False  # it would refuse, and its state says why already
        result = await self._client.push_policy(pod, port=port, admin_key=admin_key, document=document)
        self._on_push(type(result).__name__)
        failures = earlier.failures + 1 if earlier is not None and earlier.document == document else 1
        back_off = min(_FIRST_BACK_OFF_SECONDS * 2 ** (failures - 1), _LONGEST_BACK_OFF_SECONDS)
        self._attempts[pod.uid] = _Attempt(document, result, failures, now + back_off)
        state = await self._client.read_state(pod, port=port, admin_key=admin_key)
        return state, isinstance(result, Pushed)
