"""EAGLE3 on the half predictable models: a broken policy file at the start, both of SGLang's keys, drafts that are accepted."""

from __future__ import annotations

from tests.engine import scenarios
from tests.engine.conftest import PROMPTS, TOKENS, Speculating
from tests.engine.server import ADMIN_KEY, API_KEY


def test_broken_policy_file_does_not_stop_the_engine(eagle3_halves: Speculating) -> None:
    state = eagle3_halves.server.state()
    assert (state["armed"], state["revision"], state["policy"]) == (True, None, None)
    assert "policy.json: steps: must be a list" in state["reason"]
    assert eagle3_halves.server.call("GET", "/specserver/v1/policy", key=ADMIN_KEY).body == {"revision": None, "policy": None}


def test_without_a_policy_the_engine_serves_stock(eagle3_halves: Speculating) -> None:
    server = eagle3_halves.server
    outputs = server.generate_all(PROMPTS, TOKENS, concurrency=8)
    assert eagle3_halves.wrong(outputs) == []
    assert server.state()["switches"] == 0, "what SGLang does by itself is not counted as ours"
    assert sum(scenarios.rounds_of(server).values()) > 0


def test_routes_need_the_admin_key_and_not_the_other(eagle3_halves: Speculating) -> None:
    server = eagle3_halves.server
    assert server.call("GET", "/specserver/v1/state", key=API_KEY).status == 401
    assert server.call("GET", "/v1/models", key=ADMIN_KEY).status == 401, "SGLang's own routes are untouched"
    assert server.put_policy().status == 200
    assert server.state()["reason"] == ""


def test_outputs_while_load_switches(eagle3_halves: Speculating) -> None:
    scenarios.check_outputs_while_load_switches(eagle3_halves)


def test_outputs_while_policy_switches(eagle3_halves: Speculating) -> None:
    scenarios.check_outputs_while_policy_switches(eagle3_halves)


def test_accept_length_follows_the_traffic_and_ignores_plain_rounds(eagle3_halves: Speculating) -> None:
    server = eagle3_halves.server
    server.set_policy(mode="Always")
    server.generate_all(PROMPTS[0::2], TOKENS, concurrency=1)
    predictable = server.state()["acceptLength"]
    assert predictable > 2
    server.set_policy(mode="Never")
    server.generate_all(PROMPTS[:2], TOKENS, concurrency=1)
    assert server.state()["acceptLength"] == predictable
    server.set_policy(mode="Always")
    server.generate_all(PROMPTS[1:13:2], TOKENS, concurrency=1)
    assert server.state()["acceptLength"] < 1.2
