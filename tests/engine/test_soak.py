"""Step counts forced at random, hang-ups, retractions, reused prefixes: right outputs, nothing left behind. Then a kill."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine import conversations
from tests.engine.conftest import PROMPTS, TOKENS, PlainRun, Speculating, StartServer, policy_json
from tests.engine.server import Config, Server, wait_until
from tests.engine.soak import check_nothing_leaked

SMALL_POOL = ("--max-total-tokens", "1100", "--schedule-conservativeness", "0.1")
RETRACT = {"SGLANG_TEST_RETRACT": "true", "SGLANG_TEST_RETRACT_INTERVAL": "60"}
"""SGLang's own switch: every so many batches it retracts, whether KV is short or not."""


@pytest.fixture(scope="module")
def config(models: Path) -> Config:
    return Config(models / "random", "EAGLE3", policy=policy_json(), arguments=SMALL_POOL, variables=RETRACT)


@pytest.fixture(scope="module")
def soaked(make_server: StartServer, config: Config, plain_random: PlainRun) -> Iterator[Speculating]:
    with make_server(config) as server:
        yield Speculating(server, plain_random)


@pytest.mark.timeout(conversations.SECONDS + 600)
def test_conversations_stay_right_whatever_happens(soaked: Speculating) -> None:
    server = soaked.server
    counted = conversations.soak(server, soaked.plain.conversations)
    state = server.state()
    print(f"{dict(counted)}, rounds {state['rounds']}, {state['switches']} switches, {state['retractions']} retractions")
    assert counted["wrong"] == 0
    assert min(counted["right"], counted["aborted"], counted["forced"], state["retractions"], state["switches"]) > 0
    assert (state["armed"], state["hookErrors"]) == (True, 0)
    assert server.metrics()["specserver_retractions_total"] == state["retractions"]
    check_nothing_leaked(server)


def test_a_killed_server_leaves_nothing_and_starts_again_as_before(
    soaked: Speculating, config: Config, make_server: StartServer
) -> None:
    """Last, since the server is gone after it. The new one has no key at all, so it can't be asked and goes by its file."""
    killed = soaked.server
    os.kill(process_of(killed, "specserver.plugin.serve"), signal.SIGKILL)
    assert killed.process.wait(timeout=60) == 128 + signal.SIGKILL
    wait_until(lambda: not killed.processes(), 30, lambda: f"left behind: {killed.processes()}")
    with make_server(replace(config, admin_key="")) as server:
        metrics = server.metrics()
        assert (metrics["specserver_armed"], metrics["specserver_policy_revision"]) == (1, 1)
        assert soaked.wrong(server.generate_all(PROMPTS, TOKENS, concurrency=8)) == []
        for method, path in (("GET", "state"), ("POST", "force"), ("PUT", "policy")):
            reply = server.call(method, f"/specserver/v1/{path}", key="anything")
            assert (reply.status, "SPECSERVER_ADMIN_KEY" in reply.body["error"]) == (403, True)


def process_of(server: Server, module: str) -> int:
    def runs(process: int) -> bool:
        return f"\0{module}\0".encode() in Path(f"/proc/{process}/cmdline").read_bytes()

    (process,) = filter(runs, server.processes())
    return process
