"""An engine that does not speculate: it says so, and the routes need the admin key whatever else is set."""

from __future__ import annotations

from tests.engine.conftest import PlainRun


def test_state_says_that_speculation_is_off(plain_random: PlainRun) -> None:
    assert plain_random.state.status == 200
    body = plain_random.state.body
    rank = body["ranks"][0]
    assert (body["engineVersion"], rank["armed"], rank["reason"]) == ("0.5.23", False, "speculation is off")
    assert (rank["steps"], rank["rounds"], rank["revision"]) == (0, {}, None)


def test_policy_is_refused_with_the_reason(plain_random: PlainRun) -> None:
    assert plain_random.put.status == 503
    assert plain_random.put.body == {"error": "not armed: speculation is off", "field": "armed"}


def test_metrics_say_unarmed(plain_random: PlainRun) -> None:
    assert plain_random.metrics["specserver_armed"] == 0


def test_without_an_admin_key_every_route_says_what_is_missing(plain_halves: PlainRun) -> None:
    for reply in (plain_halves.state, plain_halves.policy, plain_halves.put):
        assert reply.status == 403
        assert "SPECSERVER_ADMIN_KEY" in reply.body["error"]
