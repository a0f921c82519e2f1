"""PolicyApplied, SpeculationActive and `status.speculation`: from what engines say, never from what was asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specserver.api.conditions import Reason
from specserver.api.v1alpha1 import Mode
from specserver.core.engine_report import (
    build_speculation_status,
    has_policy,
    plan_policy_applied,
    plan_speculation_active,
)
from specserver.core.observed import EngineState, EngineUnreachable, Pushed, PushRejected, PushResult, RankState
from tests.fakes.pods import build_pod

DOCUMENT = {
    "revision": 7, "mode": "Auto", "strategy": "Threshold", "steps": [0, 1, 3], "disableAbove": 8, "enableBelow": 4,
    "minDwellSeconds": 0.25,
}  # fmt: skip
OLD = {**DOCUMENT, "revision": 6, "disableAbove": 9}
RANK = RankState(
    rank="tp0", armed=True, reason="", revision=7, policy=DOCUMENT, steps=3, decided_steps=3, running=0, queued=0,
    accept_length=2.5, rounds={3: 9}, switches=1, switches_last_hour=1, last_switch_at=1_000_000_000.0, hook_errors=0,
)  # fmt: skip


def engine(pod: str, *ranks: dict[str, Any]) -> EngineState:
    """An engine with one rank for each set of differences; one as it should be where there are none."""
    states = tuple(replace(RANK, rank=f"tp{index}", **different) for index, different in enumerate(ranks or ({},)))
    return EngineState(pod, "0.1.0", "0.5.23", states)


BEHIND = {"revision": 6, "policy": OLD}
OFF = {"armed": False, "reason": "speculation is off", "revision": None, "policy": None, "steps": 0}
UNARMED = {"armed": False, "reason": "topk 4 is not supported", "revision": None, "policy": None}


@pytest.mark.parametrize(
    ("state", "mode", "has"),
    [
        pytest.param(engine("a"), Mode.AUTO, True, id="has it"),
        pytest.param(engine("a", BEHIND), Mode.AUTO, False, id="older"),
        pytest.param(engine("a", {"policy": {**DOCUMENT, "disableAbove": 9}}), Mode.AUTO, False, id="same revision, other bound"),
        pytest.param(engine("a", {}, BEHIND), Mode.AUTO, False, id="one rank behind"),
        pytest.param(engine("a", UNARMED), Mode.AUTO, False, id="not armed"),
        pytest.param(engine("a", OFF), Mode.AUTO, False, id="no draft, though one is wanted"),
        pytest.param(engine("a", OFF), Mode.NEVER, True, id="no draft, as wanted"),
        pytest.param(engine("a", UNARMED), Mode.NEVER, False, id="draft that nobody holds back"),
        pytest.param(engine("a", OFF, UNARMED), Mode.NEVER, False, id="draft that one rank does not hold back"),
        pytest.param(EngineState("a", "1", "1", ()), Mode.AUTO, False, id="no ranks"),
        pytest.param(EngineUnreachable("a", "no"), Mode.AUTO, False, id="unreachable"),
        pytest.param(None, Mode.AUTO, False, id="not asked"),
    ],
)
def test_who_has_the_policy(state: EngineState | EngineUnreachable | None, mode: Mode, has: bool) -> None:
    assert has_policy(state, DOCUMENT, mode) is has


APPLIED = [
    pytest.param(
        {"a": engine("a"), "b": engine("b")}, {}, ("True", "AllReplicas", "revision 7 is in force in 2 replicas"), id="all",
    ),
    pytest.param(
        {"a": engine("a"), "b": engine("b", BEHIND)}, {"b": PushRejected("b", 422, "steps", "not captured")},
        ("False", "EngineRejected", "in force in 1 of 2 replicas; pod b: refused with HTTP 422 (steps): not captured"),
        id="refused",
    ),
    pytest.param(
        {"a": engine("a"), "b": engine("b", UNARMED)}, {"b": PushRejected("b", 503, "armed", "old news")},
        ("False", "EngineUnarmed", "pod b: the plugin is not armed: topk 4 is not supported"), id="not armed",
    ),
    pytest.param(
        {"a": engine("a"), "b": engine("b", {}, BEHIND)}, {"b": PushRejected("b", 200, "ranks", "tp1 has 6")},
        ("False", "PartiallyApplied", "pod b: tp1 has 6"), id="pushed, and a rank is behind",
    ),
    pytest.param(
        {"a": engine("a"), "b": engine("b", {}, BEHIND)}, {},
        ("False", "PartiallyApplied", "pod b: not every rank has it yet: tp1 has 6"), id="a rank is behind",
    ),
    pytest.param(
        {"a": engine("a"), "b": EngineUnreachable("b", "no connection")}, {},
        ("False", "PartiallyApplied", "pod b: no connection"), id="one unreachable",
    ),
    pytest.param(
        {"a": EngineUnreachable("a", "no connection"), "b": EngineUnreachable("b", "no")},
        {"a": EngineUnreachable("a", "PUT: no connection")},
        ("False", "EngineUnreachable", "0 of 2 replicas; pod a: PUT: no connection"), id="all unreachable",
    ),
    pytest.param(
        {"a": engine("a"), "b": EngineUnreachable("b", "no key", Reason.SECRET_MISSING)},
        {"b": PushRejected("b", 422, "steps", "old news")},
        ("False", "SecretMissing", "pod b: no key"), id="the key is missing",
    ),
    pytest.param({"a": engine("a")}, {}, ("False", "PartiallyApplied", "pod b: not asked yet"), id="one not asked yet"),
    pytest.param(
        {"a": engine("a", BEHIND), "b": engine("b", BEHIND)}, {"a": Pushed("a", 7)},
        ("False", "PartiallyApplied", "0 of 2 replicas; pod a"), id="pushed, and not read back",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("engines", "pushes", "wanted"), APPLIED)
def test_policy_applied(
    engines: dict[str, EngineState | EngineUnreachable], pushes: dict[str, PushResult], wanted: tuple[str, str, str]
) -> None:
    pods = (build_pod("a"), build_pod("b"), build_pod("c", started=False), build_pod("d", terminating=True))
    condition = plan_policy_applied(engines, pushes, pods, document=DOCUMENT, mode=Mode.AUTO)
    assert (condition.status, condition.reason) == wanted[:2]
    assert wanted[2] in condition.message


def test_nothing_to_apply_to() -> None:
    condition = plan_policy_applied({}, {}, (build_pod("a", started=False),), document=DOCUMENT, mode=Mode.AUTO)
    assert (condition.status, condition.reason) == ("Unknown", "NoReadyReplicas")


PLAIN = {"steps": 0, "decided_steps": 0}
OBSERVED = {"steps": 3, "decided_steps": 0}

ACTIVE = [
    pytest.param(Mode.AUTO, (engine("a"), engine("b")), ("True", "Speculating"), id="all speculate"),
    pytest.param(Mode.AUTO, (engine("a"), engine("b", PLAIN)), ("True", "MixedReplicas"), id="some"),
    pytest.param(Mode.AUTO, (engine("a", PLAIN), engine("b", PLAIN)), ("False", "AboveCrossover"), id="none"),
    pytest.param(Mode.ALWAYS, (engine("a"),), ("True", "Speculating"), id="always"),
    pytest.param(Mode.NEVER, (engine("a", OFF),), ("False", "DisabledBySpec"), id="never"),
    pytest.param(Mode.OBSERVE, (engine("a", OBSERVED), engine("b")), ("True", "Observing"), id="observe"),
    pytest.param(Mode.AUTO, (EngineUnreachable("a", "no"),), ("Unknown", "StateUnknown"), id="nobody answers"),
    pytest.param(Mode.AUTO, (), ("Unknown", "StateUnknown"), id="nobody there"),
    pytest.param(Mode.AUTO, (EngineUnreachable("a", "no"), engine("b")), ("True", "Speculating"), id="those that answer count"),
]


@pytest.mark.parametrize(("mode", "engines", "wanted"), ACTIVE)
def test_speculation_active(mode: Mode, engines: tuple[EngineState | EngineUnreachable, ...], wanted: tuple[str, str]) -> None:
    condition = plan_speculation_active({one.pod: one for one in engines}, mode)
    assert (condition.status, condition.reason) == wanted
    if mode is Mode.OBSERVE:
        assert "1 of 2 replicas would decode plainly" in condition.message


def report(*engines: EngineState | EngineUnreachable, previous: dict[str, Any] | None = None) -> dict[str, Any]:
    return build_speculation_status(
        {one.pod: one for one in engines}, document=DOCUMENT, mode=Mode.AUTO, previous=previous or {}
    )


def test_what_engines_report() -> None:
    busy = {**PLAIN, "accept_length": 3.1, "last_switch_at": 1_000_000_060.0, "switches_last_hour": 4}
    assert report(engine("a"), engine("b", busy, {**busy, "switches_last_hour": 3})) == {
        "desiredRevision": 7, "replicasApplied": 2, "replicasSpeculating": 1, "replicasPlain": 1, "steps": "0,3",
        "switchesLastHour": 5, "acceptLength": "2.9", "lastSwitchTime": "2001-09-09T01:47:40Z",
        "bounds": {"disableAbove": 8, "enableBelow": 4},
    }  # fmt: skip


def test_what_nobody_reports_is_absent() -> None:
    assert report(EngineUnreachable("a", "no")) == {
        "desiredRevision": 7, "replicasApplied": 0, "replicasSpeculating": 0, "replicasPlain": 0,
    }  # fmt: skip
    before = {"acceptLength": "2.5"}
    assert "acceptLength" not in report(EngineUnreachable("a", "no"), previous=before), "what was known once is not known now"
    fresh = report(engine("a", {"accept_length": None, "last_switch_at": None}), previous=before)
    assert not {"acceptLength", "lastSwitchTime"} & fresh.keys()


def test_bounds_are_told_where_all_agree() -> None:
    assert "bounds" not in report(engine("a"), engine("b", BEHIND))
    assert "bounds" not in report(engine("a"), engine("b", UNARMED))
    assert report(engine("a", BEHIND))["bounds"]["disableAbove"] == 9, "what is in force, not what is wanted"


def test_acceptance_stands_still_while_it_trembles() -> None:
    assert report(engine("a", {"accept_length": 2.58}), previous={"acceptLength": "2.5"})["acceptLength"] == "2.5"
    assert report(engine("a", {"accept_length": 2.7}), previous={"acceptLength": "2.5"})["acceptLength"] == "2.7"
