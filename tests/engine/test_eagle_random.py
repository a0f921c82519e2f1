"""EAGLE on the attention-heavy models with two HTTP processes, and what happens when our own code raises: it serves on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specserver.plugin.state import MAX_ERRORS_A_HOOK
from tests.engine import scenarios
from tests.engine.conftest import PROMPTS, TOKENS, Speculating
from tests.engine.scenarios import TOP, rounds_of
from tests.engine.server import wait_until


def test_outputs_while_load_switches(eagle_random: Speculating) -> None:
    scenarios.check_outputs_while_load_switches(eagle_random)


def test_outputs_while_policy_switches(eagle_random: Speculating) -> None:
    scenarios.check_outputs_while_policy_switches(eagle_random)


def test_every_http_process_has_the_routes_and_the_metrics(eagle_random: Speculating) -> None:
    """Each call is a connection of its own, which any of them may take."""
    server = eagle_random.server
    for _ in range(40):
        server.set_policy(mode="Always")
        assert server.call("GET", "/specserver/v1/state", key="wrong").status == 401
    assert server.metrics()["specserver_policy_revision"] == server.state()["revision"]
    assert len([line for line in server.log().splitlines() if "Start multi-tokenizer worker process" in line]) == 2


@pytest.mark.parametrize(("fault", "hook"), [("rule", "turn"), ("result", "result")])
def test_a_few_errors_are_counted_and_the_plugin_stays(
    eagle_random: Speculating, faults_file: Path, fault: str, hook: str
) -> None:
    server = eagle_random.server
    server.set_policy(mode="Auto")
    before = server.state()["hookErrors"]
    faults_file.write_text(json.dumps({fault: MAX_ERRORS_A_HOOK - 1}))
    outputs = server.generate_all(PROMPTS, TOKENS, concurrency=12)
    assert eagle_random.wrong(outputs) == []
    state = server.state()
    assert (state["hookErrors"] - before, state["armed"]) == (MAX_ERRORS_A_HOOK - 1, True)
    assert server.metrics()[f'specserver_hook_errors_total{{hook="{hook}"}}'] == MAX_ERRORS_A_HOOK - 1


def test_after_one_more_error_the_engine_goes_on_stock(eagle_random: Speculating, faults_file: Path) -> None:
    """One is enough after the test above; alone it takes all of them."""
    server = eagle_random.server
    faults_file.write_text(json.dumps({"rule": MAX_ERRORS_A_HOOK}))
    wait_until(lambda: not server.state()["armed"], 5, "the plugin lets go")
    outputs = server.generate_all(PROMPTS, TOKENS, concurrency=12)
    assert eagle_random.wrong(outputs) == []
    state = server.state()
    assert "hook turn failed 5 times" in state["reason"]
    assert "InjectedFault" in state["reason"]
    assert server.metrics()["specserver_armed"] == 0
    reply = server.put_policy(mode="Never")
    assert (reply.status, reply.body["field"]) == (503, "armed")
    assert rounds_of(server)[TOP] > 0
