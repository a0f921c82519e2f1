"""SpeculationActive, PolicyApplied and `status.speculation`: what the engines report, never what was asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from specserver.api.conditions import Condition, ConditionType, Reason, Status
from specserver.api.v1alpha1 import Mode
from specserver.core.noise import settle
from specserver.core.observed import EngineState, EngineUnreachable, Pod, PushRejected, PushResult
from specserver.core.times import rfc3339

SPECULATION_OFF = "speculation is off"
"""How the plugin's reason starts on an engine that was started without a draft."""

_ACCEPT_LENGTH_SLACK = 0.1

MISFIT_ACCEPT_LENGTH = 1.05
"""A draft of which nothing is accepted brings 1 token a round, the one that plain decode brings."""
MISFIT_ROUNDS = 100
"""Rounds with a draft after which that is no accident."""

Engines = Mapping[str, EngineState | EngineUnreachable]


def has_policy(engine: EngineState | EngineUnreachable | None, document: Mapping[str, Any], mode: Mode) -> bool:
    """Whether every rank of the engine reports the policy; in mode Never also an engine that has no draft to hold back."""
    if not isinstance(engine, EngineState) or not engine.ranks:
        return False
    if mode is Mode.NEVER and all(not rank.armed and rank.reason.startswith(SPECULATION_OFF) for rank in engine.ranks):
        return True
    return all(rank.armed and rank.policy == document for rank in engine.ranks)


def plan_policy_applied(
    engines: Engines, pushes: Mapping[str, PushResult], pods: tuple[Pod, ...], *, document: Mapping[str, Any], mode: Mode
) -> Condition:
    """The condition PolicyApplied. One pod that refuses makes it False and is named."""
    revision = document["revision"]
    started = [pod.name for pod in pods if pod.started and not pod.terminating]
    if not started:
        return Condition(
            ConditionType.POLICY_APPLIED, Status.UNKNOWN, Reason.NO_READY_REPLICAS, "no engine has started: nothing to apply to"
        )
    lacking = [name for name in started if not has_policy(engines.get(name), document, mode)]
    if not lacking:
        return Condition(
            ConditionType.POLICY_APPLIED,
            Status.TRUE,
            Reason.ALL_REPLICAS,
            f"revision {revision} is in force in {len(started)} replicas",
        )
    reason, why = _why_lacking(lacking[0], engines, pushes, revision)
    if reason is Reason.ENGINE_UNREACHABLE and len(lacking) < len(started):
        reason = Reason.PARTIALLY_APPLIED
    return Condition(
        ConditionType.POLICY_APPLIED,
        Status.FALSE,
        reason,
        f"revision {revision} is in force in {len(started) - len(lacking)} of {len(started)} replicas; pod {lacking[0]}: {why}",
    )


def _why_lacking(pod: str, engines: Engines, pushes: Mapping[str, PushResult], revision: int) -> tuple[Reason, str]:
    push, engine = pushes.get(pod), engines.get(pod)
    if isinstance(engine, EngineUnreachable) and engine.reason is not Reason.ENGINE_UNREACHABLE:
        return engine.reason, engine.message
    if isinstance(engine, EngineState):
        unarmed = next((rank for rank in engine.ranks if not rank.armed), None)
        if unarmed is not None:
            return Reason.ENGINE_UNARMED, f"the plugin is not armed: {unarmed.reason}"
    if isinstance(push, PushRejected) and push.status == 200:
        return Reason.PARTIALLY_APPLIED, push.message
    if isinstance(push, PushRejected):
        field = f" ({push.field})" if push.field else ""
        return Reason.ENGINE_REJECTED, f"refused with HTTP {push.status}{field}: {push.message}"
    if isinstance(push, EngineUnreachable):
        return Reason.ENGINE_UNREACHABLE, push.message
    if isinstance(engine, EngineUnreachable):
        return Reason.ENGINE_UNREACHABLE, engine.message
    if isinstance(engine, EngineState):
        ranks = ", ".join(f"{rank.rank} has {rank.revision}" for rank in engine.ranks if rank.revision != revision)
        return Reason.PARTIALLY_APPLIED, f"not every rank has it yet: {ranks}"
    return Reason.ENGINE_UNREACHABLE, "not asked yet"


def find_misfit(engines: Engines, pods: Iterable[str]) -> str:
    """One of these pods whose draft proposes what the model never says, measured on real requests; empty where there is none."""
    for pod in pods:
        engine = engines.get(pod)
        if not isinstance(engine, EngineState):
            continue
        rounds = sum(count for rank in engine.ranks for steps, count in rank.rounds.items() if steps > 0)
        lengths = [rank.accept_length for rank in engine.ranks if rank.accept_length is not None]
        if lengths and max(lengths) <= MISFIT_ACCEPT_LENGTH and rounds >= MISFIT_ROUNDS:
            return pod
    return ""


def describe_misfit(pod: str) -> str:
    return (
        f"pod {pod}: the model accepts next to nothing of what the draft proposes, on real requests. Check that"
        " speculation.draftModel and algorithm belong to model.uri"
    )


def plan_speculation_active(engines: Engines, mode: Mode) -> Condition:
    """The condition SpeculationActive, from the step counts that engines report for their present round."""

    def active(status: Status, reason: Reason, message: str) -> Condition:
        return Condition(ConditionType.SPECULATION_ACTIVE, status, reason, message)

    if mode is Mode.NEVER:
        return active(Status.FALSE, Reason.DISABLED_BY_SPEC, "speculation.mode is Never")
    states = [engine for engine in engines.values() if isinstance(engine, EngineState) and engine.ranks]
    if not states:
        return active(Status.UNKNOWN, Reason.STATE_UNKNOWN, "no engine has reported its steps")
    misfit = find_misfit(engines, sorted(engines))
    if misfit:
        return active(Status.FALSE, Reason.DRAFT_MISMATCH, describe_misfit(misfit))
    speculating = [state.pod for state in states if _steps(state) > 0]
    if mode is Mode.OBSERVE:
        plain = [state.pod for state in states if max(rank.decided_steps for rank in state.ranks) == 0]
        return active(
            Status.TRUE if speculating else Status.FALSE,
            Reason.OBSERVING,
            f"nothing is applied; in mode Auto {len(plain)} of {len(states)} replicas would decode plainly now",
        )
    if len(speculating) == len(states):
        return active(Status.TRUE, Reason.SPECULATING, f"{len(states)} replicas speculate")
    if not speculating:
        return active(Status.FALSE, Reason.ABOVE_CROSSOVER, f"{len(states)} replicas decode plainly, as their policy asks now")
    return active(Status.TRUE, Reason.MIXED_REPLICAS, f"{len(speculating)} of {len(states)} replicas speculate")


def _steps(state: EngineState) -> int:
    return max(rank.steps for rank in state.ranks)


def build_speculation_status(
    engines: Engines, *, document: Mapping[str, Any], mode: Mode, previous: Mapping[str, Any]
) -> dict[str, Any]:
    """`status.speculation`. Counts are of replicas whose engine answered."""
    states = [engine for engine in engines.values() if isinstance(engine, EngineState) and engine.ranks]
    ranks = [rank for state in states for rank in state.ranks]
    lengths = [rank.accept_length for rank in ranks if rank.accept_length is not None]
    switch_times = [rank.last_switch_at for rank in ranks if rank.last_switch_at is not None]
    status: dict[str, Any] = {
        "desiredRevision": document["revision"],
        "replicasApplied": sum(has_policy(state, document, mode) for state in states),
        "replicasSpeculating": sum(_steps(state) > 0 for state in states),
        "replicasPlain": sum(_steps(state) == 0 for state in states),
    }
    if states:
        status["steps"] = ",".join(str(steps) for steps in sorted({_steps(state) for state in states}))
        # Ranks of one replica switch together, so a replica counts once.
        status["switchesLastHour"] = sum(max(rank.switches_last_hour for rank in state.ranks) for state in states)
    if lengths:
        before = previous.get("acceptLength")
        length = settle(sum(lengths) / len(lengths), None if before is None else float(before), slack=_ACCEPT_LENGTH_SLACK)
        status["acceptLength"] = f"{length:.1f}"
    if switch_times:
        status["lastSwitchTime"] = rfc3339(max(switch_times))
    bounds = {
        (rank.policy.get("disableAbove"), rank.policy.get("enableBelow")) if rank.policy else (None, None) for rank in ranks
    }
    if len(bounds) == 1 and None not in (only := next(iter(bounds))):
        status["bounds"] = {"disableAbove": only[0], "enableBelow": only[1]}
    return status
