"""The control API's client against fake engines and worse."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from specserver.core.observed import EngineState, EngineUnreachable, Pushed, PushRejected, PushResult
from specserver.engines import client as client_module
from specserver.engines.client import EngineClient
from specserver.engines.http import PodHttp, open_session
from tests.fakes.engine import FakeEngine, Refusal
from tests.fakes.pods import build_pod

KEY = "admin-key"
POLICY: dict[str, Any] = {
    "revision": 7, "mode": "Auto", "strategy": "Threshold", "steps": [0, 1, 2, 3],
    "disableAbove": 64, "enableBelow": 48, "minDwellSeconds": 0.25,
}  # fmt: skip
RANK: dict[str, Any] = {
    "rank": "tp0", "armed": True, "reason": "", "revision": 7, "policy": POLICY, "steps": 3, "decidedSteps": 3,
    "running": 5, "queued": 1, "acceptLength": 2.5, "rounds": {"0": 4, "3": 96}, "switches": 2, "switchesLastHour": 1,
    "lastSwitchAt": 1764000000.5, "hookErrors": 0,
}  # fmt: skip
STATE: dict[str, Any] = {"pluginVersion": "0.1.0", "engineVersion": "0.5.23", "ranks": [RANK]}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as session:
        yield session


async def push(
    session: aiohttp.ClientSession, engine: FakeEngine, *, key: str = KEY, timeout_seconds: float = 6, **different: Any
) -> PushResult:
    client = EngineClient(PodHttp(session, timeout_seconds=timeout_seconds))
    pod = build_pod("m-0", ip=engine.host)
    return await client.push_policy(pod, port=engine.port, admin_key=key, document={**POLICY, **different})


async def read(session: aiohttp.ClientSession, engine: FakeEngine, *, key: str = KEY) -> EngineState | EngineUnreachable:
    return await EngineClient(PodHttp(session)).read_state(build_pod("m-0", ip=engine.host), port=engine.port, admin_key=key)


# ---- as it should be -----------------------------------------------------------------------------------------------------


async def test_a_policy_is_taken_and_read_back_from_every_rank(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(host="127.9.1.2", ranks=("tp0", "tp1"), running=5, accept_length=2.5) as engine:
        assert await push(session, engine) == Pushed("m-0", 7)
        state = await read(session, engine)
    assert engine.pushes == [POLICY]
    assert isinstance(state, EngineState)
    assert [(rank.rank, rank.revision, rank.steps, rank.running) for rank in state.ranks] == [
        ("tp0", 7, 3, 5), ("tp1", 7, 3, 5),
    ]  # fmt: skip
    assert state.ranks[0].policy == POLICY
    assert state.ranks[0].accept_length == 2.5


async def test_the_fake_engine_switches_by_its_load(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(initial_policy={**POLICY, "minDwellSeconds": 0}) as engine:
        steps = []
        for running in (5, 65, 50, 47):
            engine.running = running
            state = await read(session, engine)
            assert isinstance(state, EngineState)
            steps.append(state.ranks[0].steps)
    assert steps == [3, 0, 0, 3]
    assert isinstance(state, EngineState)
    assert state.ranks[0].switches == 2


async def test_an_equal_revision_is_taken_again(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        assert await push(session, engine) == await push(session, engine) == Pushed("m-0", 7)


async def test_a_restarted_engine_has_forgotten_what_was_pushed(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        await push(session, engine)
        engine.restart()
        state = await read(session, engine)
    assert isinstance(state, EngineState)
    assert state.ranks[0].revision is None


async def test_ipv6(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(host="::1") as engine:
        assert await push(session, engine) == Pushed("m-0", 7)


# ---- refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "status", "field", "words"),
    [
        pytest.param(FakeEngine(admin_key="other"), 401, "", "the admin key is wrong: ", id="wrong-key"),
        pytest.param(FakeEngine(admin_key=None), 403, "", "SPECSERVER_ADMIN_KEY", id="engine-without-key"),
        pytest.param(FakeEngine(has_plugin=False), 404, "", "the SpecServer plugin is not in this image", id="no-plugin"),
        pytest.param(FakeEngine(unarmed_reason="SGLang 9"), 503, "armed", "not armed: SGLang 9", id="unarmed"),
        pytest.param(FakeEngine(ladder=(0, 1)), 422, "steps", "captured", id="ladder"),
        pytest.param(
            FakeEngine(initial_policy={**POLICY, "revision": 9}), 409, "revision", "a newer policy is in force", id="newer"
        ),
        pytest.param(FakeEngine(refusal=Refusal(503, "", "no answer in 5 s")), 503, "", "no answer in 5 s", id="busy"),
        pytest.param(FakeEngine(refusal=Refusal(422, "mode", "x" * 9999)), 422, "mode", "…", id="endless-text"),
        pytest.param(
            FakeEngine(ranks=("tp0", "tp1"), stuck_rank="tp1"), 200, "ranks",
            "revision 7 is not in force on every rank: tp1 has 0", id="one-rank-differs",
        ),
    ],
)  # fmt: skip
async def test_refusals(
    session: aiohttp.ClientSession, engine: FakeEngine, status: int, field: str, words: str
) -> None:
    async with engine:
        result = await push(session, engine)
    assert isinstance(result, PushRejected)
    assert (result.pod, result.status, result.field) == ("m-0", status, field)
    assert words in result.message
    assert len(result.message) < 400


# ---- unreachable ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        pytest.param(FakeEngine(admin_key="other"), "the admin key is wrong: ", id="wrong-key"),
        pytest.param(FakeEngine(admin_key=None), "without an admin key", id="engine-without-key"),
        pytest.param(FakeEngine(has_plugin=False), "the SpecServer plugin is not in this image", id="no-plugin"),
    ],
)
async def test_a_state_that_is_not_told(session: aiohttp.ClientSession, engine: FakeEngine, words: str) -> None:
    async with engine:
        result = await read(session, engine)
    assert isinstance(result, EngineUnreachable)
    assert words in result.message
    assert "GET /specserver/v1/state" in result.message


async def test_nobody_listens(session: aiohttp.ClientSession) -> None:
    engine = FakeEngine(host="127.9.1.3", port=9)
    for result in (await push(session, engine), await read(session, engine)):
        assert isinstance(result, EngineUnreachable)
        assert result.message.endswith("connection refused")


async def test_a_pod_without_an_address(session: aiohttp.ClientSession) -> None:
    result = await EngineClient(PodHttp(session)).read_state(build_pod(ip=None), port=1, admin_key=KEY)
    assert isinstance(result, EngineUnreachable)
    assert "no IP yet" in result.message


async def test_a_slow_engine_costs_its_time_limit(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(delay_seconds=30) as engine:
        started = time.monotonic()
        result = await push(session, engine, timeout_seconds=0.3)
        assert time.monotonic() - started < 3
    assert isinstance(result, EngineUnreachable)
    assert "no full answer within 0.3 s" in result.message


@pytest.mark.parametrize("key", ["", "line\nbreak", "with space", "schlüssel"])
async def test_a_key_that_fits_no_header_is_said_and_not_shown(session: aiohttp.ClientSession, key: str) -> None:
    async with FakeEngine() as engine:
        result = await push(session, engine, key=key)
    assert isinstance(result, EngineUnreachable)
    assert "the admin key is empty or has characters" in result.message
    assert not key or key not in result.message
    assert engine.answers == []


@asynccontextmanager
async def answering(
    body: bytes | str | object, *, status: int = 200, headers: dict[str, str] | None = None
) -> AsyncIterator[FakeEngine]:
    """Something on an engine's port that answers everything with the same."""
    content = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=content, status=status, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield FakeEngine(port=runner.addresses[0][1])
    finally:
        await runner.cleanup()


def changed(**different: Any) -> dict[str, Any]:
    return {**STATE, "ranks": [{**RANK, **different}]}


def without(field: str) -> dict[str, Any]:
    return {**STATE, "ranks": [{key: value for key, value in RANK.items() if key != field}]}


MISFITS: dict[str, tuple[object, str]] = {
    "html": ("<html>hello</html>", "read as JSON"),
    "not utf-8": (b"\xff\xfe{", "read as JSON"),
    "nested without end": ("[" * 100_000, "read as JSON"),
    "NaN": ('{"ranks": NaN}', "read as JSON"),
    "list": ([1], "a JSON array, not an object"),
    "no ranks": ({"pluginVersion": "1", "engineVersion": "1"}, "ranks: missing"),
    "empty ranks": ({**STATE, "ranks": []}, "ranks: must be a list of 1 to"),
    "too many ranks": ({**STATE, "ranks": [RANK] * 1025}, "ranks: must be a list of 1 to"),
    "rank is a string": ({**STATE, "ranks": ["tp0"]}, "ranks[0]: must be an object, not string"),
    "same rank twice": ({**STATE, "ranks": [RANK, RANK]}, "ranks: names are not unique"),
    "no plugin version": ({"engineVersion": "1", "ranks": [RANK]}, "pluginVersion: missing"),
    **{f"no {field}": (without(field), f"ranks[0].{field}: missing") for field in RANK},
    "armed is a number": (changed(armed=1), "ranks[0].armed: must be true or false, not number"),
    "reason is null": (changed(reason=None), "ranks[0].reason: must be a string, not null"),
    "revision is text": (changed(revision="7"), "ranks[0].revision: must be a whole number of 0 or more, not '7'"),
    "steps is true": (changed(steps=True), "ranks[0].steps: must be a whole number"),
    "steps is negative": (changed(steps=-1), "ranks[0].steps: must be a whole number"),
    "running is a fraction": (changed(running=1.5), "ranks[0].running: must be a whole number"),
    "queued is enormous": (changed(queued=10**30), "ranks[0].queued: must be a whole number"),
    "policy is a list": (changed(policy=[]), "ranks[0].policy: must be an object or null, not array"),
    "accept length is text": (changed(acceptLength="2"), "ranks[0].acceptLength: must be a number"),
    "accept length overflows": (json.dumps(changed(acceptLength=0)).replace('"acceptLength": 0', '"acceptLength": 1e999'),
                                "the body can't be read as JSON"),
    "rounds is a list": (changed(rounds=[]), "ranks[0].rounds: must be an object, not array"),
    "rounds of no step": (changed(rounds={"many": 1}), "ranks[0].rounds: 'many' is not a step count"),
    "rounds are text": (changed(rounds={"0": "1"}), "ranks[0].rounds.0: must be a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
async def test_a_state_of_another_form_is_said_field_by_field(session: aiohttp.ClientSession, case: str) -> None:
    body, words = MISFITS[case]
    async with answering(body) as engine:
        result = await read(session, engine)
    assert isinstance(result, EngineUnreachable)
    assert words in result.message
    assert "of different versions" in result.message
    assert len(result.message) < 500


async def test_a_state_in_the_promised_form_is_taken_with_fields_that_are_new(session: aiohttp.ClientSession) -> None:
    newer = {**STATE, "new": 1, "ranks": [{**RANK, "new": 1, "acceptLength": None, "lastSwitchAt": None, "revision": None}]}
    async with answering(newer) as engine:
        state = await read(session, engine)
    assert isinstance(state, EngineState)
    assert state.ranks[0].rounds == {0: 4, 3: 96}
    assert (state.ranks[0].accept_length, state.ranks[0].last_switch_at, state.ranks[0].revision) == (None, None, None)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        pytest.param({"ok": True}, EngineUnreachable, "ranks: missing", id="old-plugin"),
        pytest.param("done", EngineUnreachable, "read as JSON", id="not-json"),
        pytest.param({"revision": 7, "ranks": []}, EngineUnreachable, "ranks: must be a list", id="no-rank"),
        pytest.param({"revision": 7, "ranks": [{"rank": "tp0"}]}, EngineUnreachable, "ranks[0].revision", id="unread"),
        pytest.param(
            {"revision": 6, "ranks": [{"rank": "tp0", "revision": 7}]}, PushRejected, "the engine reports 6", id="other"
        ),
    ],
)
async def test_a_push_that_was_not_confirmed_is_none(
    session: aiohttp.ClientSession, body: object, kind: type[PushResult], words: str
) -> None:
    async with answering(body) as engine:
        result = await push(session, engine)
    assert isinstance(result, kind)
    assert not isinstance(result, Pushed)
    assert words in result.message


@pytest.mark.parametrize("status", [302, 307, 500, 502, 418])
async def test_unexpected_statuses(session: aiohttp.ClientSession, status: int) -> None:
    async with FakeEngine() as elsewhere:
        headers = {"Location": f"http://127.0.0.1:{elsewhere.port}/specserver/v1/state"}
        async with answering("oops\n\x00 it broke", status=status, headers=headers if status < 400 else None) as engine:
            results = (await push(session, engine), await read(session, engine))
    assert elsewhere.answers == [], "a redirect would carry the admin key to another host"
    for result in results:
        assert isinstance(result, EngineUnreachable)
        assert f"answered {status}" in result.message
        if status >= 400:
            assert "oops it broke" in result.message


async def test_an_error_page_that_quotes_the_key_is_quoted_without_it(session: aiohttp.ClientSession) -> None:
    key = "k" * 150
    for status in (401, 403, 422, 500):
        async with answering(f"{'x' * 100} Authorization: Bearer {key}", status=status) as engine:
            for result in (await push(session, engine, key=key), await read(session, engine, key=key)):
                assert isinstance(result, PushRejected | EngineUnreachable)
                assert "kkk" not in result.message


async def test_an_answer_beyond_the_limit_is_not_read(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_LIMIT_BYTES", 1000)
    async with answering(b" " * 5000) as engine:
        result = await read(session, engine)
    assert isinstance(result, EngineUnreachable)
    assert "larger than 1000 bytes" in result.message


async def test_a_hundred_engines_at_once_of_which_some_hang(session: aiohttp.ClientSession) -> None:
    client = EngineClient(PodHttp(session, timeout_seconds=5))
    async with FakeEngine() as good, FakeEngine(host="127.9.1.4", port=good.port, delay_seconds=30) as hung:
        pods = [build_pod(f"m-{index}", ip=hung.host if index % 10 == 0 else good.host) for index in range(100)]
        started = time.monotonic()
        results = await asyncio.gather(
            *(client.push_policy(pod, port=good.port, admin_key=KEY, document=POLICY) for pod in pods)
        )
        assert time.monotonic() - started < 25
    assert sum(isinstance(result, Pushed) for result in results) == 90
    assert sum(isinstance(result, EngineUnreachable) for result in results) == 10
