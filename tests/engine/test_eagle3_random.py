"""EAGLE3 on the attention-heavy models: control, modes, metrics, and outputs under all of it. Only an admin key is set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specserver.core.observed import PodLoad
from specserver.load.exposition import parse_exposition
from specserver.load.metric_names import ENGINE_NAMES
from specserver.load.replica import Looks, observe_replica
from specserver.plugin import sweep
from tests.engine import scenarios
from tests.engine.conftest import PROMPTS, TOKENS, Speculating
from tests.engine.scenarios import TOP, count_rounds
from tests.engine.server import ADMIN_KEY, LADDER, Server, policy_document, wait_until
from tests.fakes.pods import build_pod

POLICY = "/specserver/v1/policy"
STATE = "/specserver/v1/state"
FORCE = "/specserver/v1/force"


@pytest.fixture(scope="module")
def server(eagle3_random: Speculating) -> Server:
    return eagle3_random.server


def test_starts_with_the_policy_of_the_file(server: Server) -> None:
    state = server.state()
    assert (state["armed"], state["reason"], state["rank"]) == (True, "", "tp0")
    assert (state["revision"], state["policy"]) == (1, policy_document())
    assert f"armed on rank tp0: ladder {LADDER}" in server.log()


def test_outputs_while_load_switches(eagle3_random: Speculating) -> None:
    before = eagle3_random.server.metrics()
    scenarios.check_outputs_while_load_switches(eagle3_random)
    after = eagle3_random.server.metrics()
    for reason in ("AboveDisable", "BelowEnable"):
        name = f'specserver_switches_total{{reason="{reason}"}}'
        assert after.get(name, 0) > before.get(name, 0), name


def test_outputs_while_policy_switches(eagle3_random: Speculating) -> None:
    scenarios.check_outputs_while_policy_switches(eagle3_random)


@pytest.mark.parametrize(("mode", "steps"), [("Always", TOP), ("Never", 0)])
def test_mode_fixes_the_step_count_whatever_the_load(eagle3_random: Speculating, mode: str, steps: int) -> None:
    server = eagle3_random.server
    server.set_policy(mode=mode)
    assert server.state()["steps"] == steps  # also while nobody asks for anything
    cross_bridge(server)
    with count_rounds(server) as rounds:
        quiet = server.generate_all(PROMPTS[:2], TOKENS, concurrency=1)
        busy = server.generate_all(PROMPTS[2:], TOKENS, concurrency=12)
    assert eagle3_random.wrong(quiet + busy) == []
    assert {k for k, count in rounds.items() if count} == {steps}


def test_observe_says_what_it_would_do_and_does_not(eagle3_random: Speculating) -> None:
    server = eagle3_random.server
    server.set_policy(mode="Observe")
    cross_bridge(server)
    with count_rounds(server) as rounds, server.background_load(PROMPTS[:12], TOKENS) as outputs:
        wait_until(lambda: server.state()["decidedSteps"] == 0, 10, "the rule would stop speculating")
        assert server.state()["steps"] == TOP
    wait_until(lambda: server.state()["decidedSteps"] == TOP, 10, "the rule would speculate again")
    assert eagle3_random.wrong(outputs, of=slice(12)) == []
    assert {k for k, count in rounds.items() if count} == {TOP}


def test_forced_steps_hold_whatever_the_policy_until_they_are_taken_back(eagle3_random: Speculating) -> None:
    server = eagle3_random.server
    server.set_policy(mode="Never")
    reply = server.call("POST", FORCE, {"steps": 2, "ttlSeconds": 600}, key=ADMIN_KEY)
    assert (reply.status, reply.body) == (200, {"steps": 2, "ttlSeconds": 600.0, "ranks": [{"rank": "tp0"}]})
    cross_bridge(server)
    with count_rounds(server) as rounds:
        assert eagle3_random.wrong(server.generate_all(PROMPTS, TOKENS, concurrency=8)) == []
    state = server.state()
    assert ({k for k, count in rounds.items() if count}, state["steps"], state["forced"]["steps"]) == ({2}, 2, 2)
    assert (state["decisions"][-1]["steps"], state["decisions"][-1]["reason"]) == (2, "Forced")
    assert server.call("DELETE", FORCE, key=ADMIN_KEY).status == 200
    state = server.state()
    assert (state["steps"], state["forced"]) == (0, None)


def test_forced_steps_end_by_themselves(server: Server) -> None:
    server.set_policy(mode="Never")
    assert server.call("POST", FORCE, {"steps": 1, "ttlSeconds": 0.5}, key=ADMIN_KEY).status == 200
    wait_until(lambda: server.state()["steps"] == 0, 30, "the forced steps' time is over")


@pytest.mark.parametrize(
    ("body", "field"), [({"steps": 9, "ttlSeconds": 1}, "steps"), ({"steps": 1}, "ttlSeconds"), (b"{", "")], ids=str
)
def test_a_wrong_force_is_refused_by_field(server: Server, body: object, field: str) -> None:
    reply = server.call("POST", FORCE, body, key=ADMIN_KEY)
    assert (reply.status, reply.body["field"], server.state()["forced"]) == (422, field, None)


def test_step_costs_are_measured_and_can_be_fetched(server: Server) -> None:
    server.set_policy(mode="Always")
    server.generate_all(PROMPTS[:4], TOKENS, concurrency=1)
    state, profile = server.state(), server.call("GET", "/specserver/v1/profile", key=ADMIN_KEY)
    time = state["stepTime"][str(TOP)]
    assert time["rounds"] > 100
    assert profile.status == 200
    assert profile.body["key"] == state["profile"]["key"]
    assert (profile.body["key"]["gpu"], profile.body["key"]["engineVersion"]) == ("cpu", "0.5.23")
    (running, seconds), *_ = profile.body["stepSeconds"][str(TOP)]
    assert (running, seconds > 0) == (1, True)


def test_a_sweep_measures_costs_and_leaves_the_engine_to_its_policy(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.set_policy(mode="Never")
    before = server.state()["estimates"]["acceptanceTrials"]
    monkeypatch.setenv("SPECSERVER_ADMIN_KEY", ADMIN_KEY)
    out = tmp_path / "profile.json"
    assert sweep.main(["--url", f"http://127.0.0.1:{server.port}", "--out", str(out), "--seconds", "10"]) == 0
    wait_until(lambda: server.state()["running"] == 0, 60, "the sweep's requests were given up")
    state, profile = server.state(), json.loads(out.read_text())
    assert (state["forced"], state["steps"], state["hookErrors"]) == (None, 0, 0)
    assert profile["key"] == state["profile"]["key"]
    assert set(profile["stepSeconds"]) >= {"0", str(TOP)}
    assert state["estimates"]["acceptanceTrials"] <= before, "drafts of made-up requests are no evidence"


def test_another_ladder_takes_effect_at_once(server: Server) -> None:
    server.set_policy(mode="Auto", steps=[0, 2])
    assert server.state()["steps"] == 2
    server.set_policy(mode="Auto")
    assert server.state()["steps"] == TOP


@pytest.mark.parametrize(
    "key", [None, "wrong", ADMIN_KEY[:-1], ADMIN_KEY + "x", "\xfc\xdf"], ids=["none", "wrong", "short", "long", "latin-1"]
)
@pytest.mark.parametrize(("method", "path"), [("GET", POLICY), ("PUT", POLICY), ("GET", STATE)])
def test_wrong_key_is_refused(server: Server, method: str, path: str, key: str | None) -> None:
    revision = server.state()["revision"]
    reply = server.call(method, path, policy_document(revision=10**6) if method == "PUT" else None, key=key)
    assert reply.status == 401
    assert "admin key" in reply.body["error"]
    assert server.state()["revision"] == revision


def test_put_is_read_back_from_every_rank(server: Server) -> None:
    revision = server.state()["revision"] + 1
    document = policy_document(revision=revision, disableAbove=9, enableBelow=5)
    reply = server.call("PUT", POLICY, document, key=ADMIN_KEY)
    assert (reply.status, reply.body) == (200, {"revision": revision, "ranks": [{"rank": "tp0", "revision": revision}]})
    assert server.call("GET", POLICY, key=ADMIN_KEY).body == {"revision": revision, "policy": document}
    assert server.call("PUT", POLICY, document, key=ADMIN_KEY).status == 200, "the same revision again is no conflict"
    assert server.metrics()["specserver_policy_revision"] == revision


def test_older_revision_conflicts(server: Server) -> None:
    server.set_policy()
    current = server.state()["revision"]
    reply = server.put_policy(revision=current - 1)
    assert reply.status == 409
    assert (reply.body["field"], reply.body["current"]) == ("revision", current)
    assert server.state()["revision"] == current


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", ""),
        (b"[]", ""),
        (policy_document(revision=10**6, steps=[0, 1, 5]), "steps"),
        (policy_document(revision=10**6, steps=[1, 2]), "steps"),
        (policy_document(revision=10**6, mode="auto"), "mode"),
        (policy_document(revision=10**6, enableBelow=6), "enableBelow"),
        (policy_document(revision=10**6, minDwellSeconds=-1), "minDwellSeconds"),
        (policy_document(revision=10**6, colour="red"), "colour"),
        (policy_document(revision="7"), "revision"),
    ],
    ids=["no JSON", "no object", "rung not captured", "ladder without 0", "mode", "bounds", "dwell", "unknown", "revision"],
)
def test_invalid_policy_is_refused_by_field(server: Server, body: object, field: str) -> None:
    before = server.state()
    reply = server.call("PUT", POLICY, body, key=ADMIN_KEY)
    assert (reply.status, reply.body["field"]) == (422, field)
    assert reply.body["error"]
    assert server.state()["policy"] == before["policy"]


def test_unknown_path_and_method(server: Server) -> None:
    assert server.call("GET", "/specserver/v1/nothing", key=ADMIN_KEY).status == 404
    assert server.call("DELETE", POLICY, key=ADMIN_KEY).status == 405


def test_load_in_state_and_metrics_is_live(server: Server) -> None:
    """16 run, the others wait; both numbers are right within moments, and 0 when the server falls idle."""
    server.set_policy(mode="Auto")
    with server.background_load(PROMPTS[:20], tokens=200):
        wait_until(lambda: loads(server) == (16, 4, 16, 4), 15, lambda: f"16 running, 4 queued; {loads(server)}")
    wait_until(lambda: loads(server) == (0, 0, 0, 0), 10, lambda: f"idle; {loads(server)}")


def test_an_engine_that_works_on_nothing_is_told_by_its_metrics(server: Server) -> None:
    """As the operator reads them. A pause that puts all requests back into the queue stands for whatever stops an engine."""
    looks = Looks()

    def is_stalled(at: float) -> bool:
        page = parse_exposition(server.call("GET", "/metrics").text, ENGINE_NAMES)
        seen = observe_replica(build_pod(), page, at=at, data_parallel=1, looks=looks)
        assert isinstance(seen, PodLoad), seen
        return seen.stalled

    with server.background_load(PROMPTS[:4], tokens=200):
        wait_until(lambda: loads(server)[0] == 4, 15, "four requests run")
        assert not any(is_stalled(at) for at in (0, 20, 40)), "it decodes"
        server.call("POST", "/pause_generation", {"mode": "retract"}, key=ADMIN_KEY)
        try:
            wait_until(lambda: loads(server) == (0, 4, 0, 4), 15, lambda: f"all wait; {loads(server)}")
            assert [is_stalled(at) for at in (60, 80, 100)] == [False, False, True]
        finally:
            server.call("POST", "/continue_generation", {}, key=ADMIN_KEY)
    assert not is_stalled(120)


def cross_bridge(server: Server) -> None:
    """The first round after a zero phase is one more without drafts."""
    server.generate(PROMPTS[0], 4)


def loads(server: Server) -> tuple[float, ...]:
    state, metrics = server.state(), server.metrics()
    return (
        state["running"],
        state["queued"],
        metrics["specserver_running_requests"],
        metrics["specserver_queued_requests"],
    )


def test_metrics_agree_with_the_state(server: Server) -> None:
    server.set_policy(mode="Always")
    server.generate(PROMPTS[0], TOKENS)
    state, metrics = server.state(), server.metrics()
    assert metrics["specserver_armed"] == 1
    assert metrics["specserver_steps"] == state["steps"] == TOP
    for steps, count in state["rounds"].items():
        assert metrics[f'specserver_rounds_total{{steps="{steps}"}}'] == count
    for steps, time in state["stepTime"].items():
        assert metrics[f'specserver_step_seconds_count{{steps="{steps}"}}'] == time["rounds"]
        assert metrics[f'specserver_step_seconds_sum{{steps="{steps}"}}'] == pytest.approx(time["seconds"])
    for position, drafts in enumerate(state["acceptance"], start=1):
        for what, count in drafts.items():
            assert metrics.get(f'specserver_drafts_{what}_total{{position="{position}"}}', 0) == count
    switches = [value for name, value in metrics.items() if name.startswith("specserver_switches_total")]
    assert sum(switches) == state["switches"] == state["switchesLastHour"]
    assert metrics["specserver_accept_length"] == pytest.approx(state["acceptLength"])
    assert 1 <= state["acceptLength"] < 1.5, "random drafts are hardly ever right"


def test_key_is_nowhere_to_be_read(server: Server) -> None:
    for process in server.processes():
        assert ADMIN_KEY.encode() not in Path(f"/proc/{process}/cmdline").read_bytes(), process
    assert ADMIN_KEY not in server.log()
    shown = server.call("GET", "/server_info")
    assert shown.status == 200, "without an ordinary key this is open to everybody"
    assert shown.body["admin_api_key"] == "********"
    for path in ("/server_info", "/get_server_info", "/model_info", "/v1/models", "/v1/loads", "/metrics"):
        assert ADMIN_KEY not in server.call("GET", path).text, path


def test_sigterm_ends_it_in_order(server: Server) -> None:
    """Last, since nothing runs after it."""
    server.process.terminate()
    assert server.process.wait(timeout=60) == 0
    wait_until(lambda: not server.processes(), 10, lambda: f"left behind: {server.processes()}")
