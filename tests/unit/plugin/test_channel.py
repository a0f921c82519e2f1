"""What a rank answers to the HTTP process, and what it does with its own messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specserver.plugin import channel
from specserver.plugin.state import Rank
from tests.unit.plugin.fakes import FakeEngine, document, make_rank, policy


@pytest.fixture
def rank() -> Rank:
    rank = make_rank()
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
