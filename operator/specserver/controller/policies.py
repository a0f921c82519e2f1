"""Policies to engines: each started pod is asked, told where it lacks the policy, and asked again. Pods don't wait for
each other, and one that refuses is told again with a back-off of its own.

Nor does a pass wait for a pod that hangs: after PATIENCE_SECONDS it goes on with what is known of that pod, and the next pass
takes up the answer. Otherwise one hung engine would keep the next change of the policy from all others for as long as its
time limits last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specserver.api.v1alpha1 import Mode
from specserver.core.engine_report import has_policy
from specserver.core.observed import EngineState, EngineUnreachable, Pod, Pushed, PushResult
from specserver.engines.client import EngineClient

PATIENCE_SECONDS = 1.0
_FIRST_BACK_OFF_SECONDS = 2.0
_LONGEST_BACK_OFF_SECONDS = 60.0


@dataclass(frozen=True)
class Applied:
    """By pod name: what engines report after the push, and the newest push of those that needed one.

    pushed_now  pods that took the policy since the last look
    waiting     whether a pod's answer is still to come
    """

    engines: dict[str, EngineState | EngineUnreachable]
    pushes: dict[str, PushResult]
    pushed_now: tuple[str, ...]
    waiting: bool = False


@dataclass(frozen=True)
class _Attempt:
    document: Mapping[str, Any]
    result: PushResult
    failures: int
    next_at: float


_Answer = tuple[EngineState | EngineUnreachable, bool]
"""An engine's state, and whether it took a push."""


class PolicyPusher:
    """Remembers of each pod its last answer, the exchange that is under way, and the last push that failed."""

    def __init__(self, client: EngineClient, *, on_push: Callable[[str], None] = lambda _result: None) -> None:
        self._client = client
        self._on_push = on_push
        self._attempts: dict[str, _Attempt] = {}
        self._known: dict[str, EngineState | EngineUnreachable] = {}
        self._exchanges: dict[str, asyncio.Task[_Answer]] = {}

    async def apply_policy(
        self, pods: tuple[Pod, ...], document: Mapping[str, Any], mode: Mode, *, port: int, admin_key: str, now: float
    ) -> Applied:
        """Brings the policy to every started pod that lacks it."""
        # 1. Ask all of them at once.
        started = [pod for pod in pods if pod.started and not pod.terminating and pod.ip]
        for pod in started:
            if pod.uid not in self._exchanges:
                exchange = self._apply_to(pod, document, mode, port=port, admin_key=admin_key, now=now)
                self._exchanges[pod.uid] = asyncio.create_task(exchange)
        if started:
            await asyncio.wait([self._exchanges[pod.uid] for pod in started], timeout=PATIENCE_SECONDS)
        # 2. Take up the answers that are there.
        pushed_now = []
        for pod in started:
            if self._exchanges[pod.uid].done():
                self._known[pod.uid], pushed = self._exchanges.pop(pod.uid).result()
                if pushed:
                    pushed_now.append(pod.name)
        silent = {pod.uid: EngineUnreachable(pod.name, f"no answer within {PATIENCE_SECONDS:g} s") for pod in started}
        return Applied(
            engines={pod.name: self._known.get(pod.uid, silent[pod.uid]) for pod in started},
            pushes={pod.name: self._attempts[pod.uid].result for pod in started if pod.uid in self._attempts},
            pushed_now=tuple(pushed_now),
            waiting=any(pod.uid in self._exchanges for pod in started),
        )

    def forget(self, uids: Iterable[str]) -> None:
        """Drops what is remembered of pods that are gone."""
        for uid in uids:
            self._attempts.pop(uid, None)
            self._known.pop(uid, None)
            if (exchange := self._exchanges.pop(uid, None)) is not None:
                exchange.cancel()

    async def _apply_to(
        self, pod: Pod, document: Mapping[str, Any], mode: Mode, *, port: int, admin_key: str, now: float
    ) -> _Answer:
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
        back_off = min(_FIRST_BACK_OFF_SECONDS * 2 ** min(failures - 1, 10), _LONGEST_BACK_OFF_SECONDS)
        self._attempts[pod.uid] = _Attempt(document, result, failures, now + back_off)
        state = await self._client.read_state(pod, port=port, admin_key=admin_key)
        return state, isinstance(result, Pushed)
