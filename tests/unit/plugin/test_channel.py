"""What a rank answers to the HTTP process, and what it does with its own messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specserver.plugin import channel
from specserver.plugin.state import Rank
from tests.unit.plugin.fakes import Clock, FakeEngine, document, make_rank, policy


@pytest.fixture
def rank() -> Rank:
    rank = make_rank(monotonic=Clock())
    rank.set_policy(policy(revision=5))
    return rank


@pytest.mark.parametrize("revision", [5, 6])
def test_takes_an_equal_or_newer_revision(rank: Rank, revision: int) -> None:
    answer = channel.answer(rank, channel.POLICY, document(revision=revision, disableAbove=20))
    assert answer == {"rank": "tp0", "revision": revision}
    assert rank.policy is not None
    assert rank.policy.disable_above == 20


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (document(revision=4), 409, "revision"),
        (document(revision=6, steps=[0, 4]), 422, "steps"),
        (document(revision=6, mode="x"), 422, "mode"),
        ({}, 422, "revision"),
    ],
    ids=["older", "not captured", "invalid", "empty"],
)
def test_refuses_and_keeps_what_it_had(rank: Rank, body: dict[str, Any], status: int, field: str) -> None:
    before = rank.policy
    answer = channel.answer(rank, channel.POLICY, body)
    assert (answer["status"], answer["field"]) == (status, field)
    assert rank.policy == before


def test_a_conflict_names_the_revision_in_force(rank: Rank) -> None:
    assert channel.answer(rank, channel.POLICY, document(revision=4))["current"] == 5


def test_an_unarmed_rank_says_why() -> None:
    rank = make_rank(unarmed_reason="speculation is off")
    answer = channel.answer(rank, channel.POLICY, document())
    assert (answer["status"], answer["field"], answer["error"]) == (503, "armed", "not armed: speculation is off")


def forced(**changes: object) -> dict[str, Any]:
    return {"steps": 2, "ttlSeconds": 60, **changes}


def test_forces_and_takes_it_back(rank: Rank) -> None:
    assert channel.answer(rank, channel.FORCE, forced()) == {"rank": "tp0", "steps": 2, "ttlSeconds": 60.0}
    assert rank.report()["forced"]["steps"] == 2
    assert channel.answer(rank, channel.UNFORCE, {}) == {"rank": "tp0"}
    assert rank.report()["forced"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"steps": 2}, "ttlSeconds"),
        ({"ttlSeconds": 60}, "steps"),
        (forced(steps=4), "steps"),
        (forced(steps=-1), "steps"),
        (forced(steps=True), "steps"),
        (forced(steps=1.0), "steps"),
        (forced(ttlSeconds=0), "ttlSeconds"),
        (forced(ttlSeconds=float("nan")), "ttlSeconds"),
        (forced(ttlSeconds=float("inf")), "ttlSeconds"),
        (forced(ttlSeconds=90_000), "ttlSeconds"),
        (forced(ttlSeconds="60"), "ttlSeconds"),
        (forced(reason="why not"), "reason"),
        (forced(costOnly=1), "costOnly"),
    ],
    ids=str,
)
def test_a_wrong_force_is_refused_by_field(rank: Rank, body: dict[str, Any], field: str) -> None:
    answer = channel.answer(rank, channel.FORCE, body)
    assert (answer["status"], answer["field"], rank.report()["forced"]) == (422, field, None)


def test_without_a_policy_there_is_nothing_to_return_to() -> None:
    answer = channel.answer(make_rank(), channel.FORCE, forced())
    assert (answer["status"], answer["field"]) == (409, "policy")


def test_an_unarmed_rank_can_t_be_forced() -> None:
    answer = channel.answer(make_rank(unarmed_reason="speculation is off"), channel.FORCE, forced())
    assert (answer["status"], answer["field"]) == (503, "armed")


def test_the_deciding_rank_exports_what_it_measured(rank: Rank) -> None:
    rank.profile_key = {"model": "m"}
    answer = channel.answer(rank, channel.PROFILE, {})
    assert answer["profile"]["key"] == {"model": "m"}
    assert channel.answer(make_rank(deciding=False), channel.PROFILE, {})["profile"] is None


def test_state_is_the_report(rank: Rank) -> None:
    assert channel.answer(rank, channel.STATE, {}) == rank.report()


def test_answers_even_when_it_fails(monkeypatch: pytest.MonkeyPatch, rank: Rank) -> None:
    def broken() -> dict[str, Any]:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(rank, "report", broken)
    answer = channel.answer(rank, channel.STATE, {})
    assert (answer["status"], answer["error"]) == (500, "ZeroDivisionError: oops")
    assert rank.errors["state"] == 1


def test_leaves_the_dumper_s_messages_alone(rank: Rank) -> None:
    request = SimpleNamespace(method="configure", body={})
    assert channel.handle_request(None, rank, request) is False


def test_follows_an_order_without_an_answer() -> None:
    engine = FakeEngine()
    rank = make_rank(engine)
    rank.set_policy(policy())
    body = {"steps": 0, "decidedSteps": 0, "reason": "AboveDisable"}
    assert channel.handle_request(None, rank, SimpleNamespace(method=channel.ORDER, body=body)) is True
    assert engine.activations == [0]
