"""The HTTP routes in front of an application, without SGLang: keys, statuses, bodies, and what reaches the application."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from specserver.engines.client import ANSWER_LIMIT_BYTES
from specserver.engines.wire import parse_object, parse_state
from specserver.plugin import channel, control
from specserver.plugin.control import SchedulerClient, Unanswered, make_application
from specserver.plugin.state import MAX_REMEMBERED_DECISIONS, Rank
from specserver.policy.decider import Decider
from tests.unit.plugin.fakes import FakeEngine, document, make_rank, policy, record, turn

KEY = "s3cret/ä"
POLICY, STATE = "/specserver/v1/policy", "/specserver/v1/state"
FORCE, PROFILE = "/specserver/v1/force", "/specserver/v1/profile"
ROUTES = [("GET", POLICY), ("PUT", POLICY), ("GET", STATE), ("POST", FORCE), ("DELETE", FORCE), ("GET", PROFILE)]


class LocalRanks:
    """Ranks in this process."""

    def __init__(self, *ranks: Rank) -> None:
        self.ranks = ranks

    async def ask(self, method: str, body: Mapping[str, Any]) -> list[channel.Answer]:
        return [channel.answer(rank, method, body) for rank in self.ranks]


class SilentRanks:
    async def ask(self, method: str, body: Mapping[str, Any]) -> list[channel.Answer]:
        raise Unanswered("the scheduler did not answer in 5 s")


def ranks(revision: int = 5) -> LocalRanks:
    rank = make_rank()
    rank.set_policy(policy(revision=revision))
    return LocalRanks(rank)


async def call(
    served: control.Ranks,
    method: str,
    path: str,
    body: bytes = b"",
    *,
    admin_key: str | None = KEY,
    api_key: str | None = None,
    authorization: str | None = f"Bearer {KEY}",
    inner: control.Application | None = None,
    root_path: str = "",
) -> tuple[int, Any]:
    sent: list[MutableMapping[str, Any]] = []
    halves = [body[: len(body) // 2], body[len(body) // 2 :]]

    async def receive() -> MutableMapping[str, Any]:
        part = halves.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(halves)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    # UTF-8 on the wire, which an ASGI server hands on as bytes.
    headers = [(b"authorization", authorization.encode())] if authorization is not None else []
    scope = {"type": "http", "method": method, "path": root_path + path, "root_path": root_path, "headers": headers}
    application = make_application(served, lambda: control.Keys(admin_key, api_key), inner or no_application)
    await application(scope, receive, send)
    start, *parts = sent
    content = b"".join(part["body"] for part in parts)
    assert (b"content-length", str(len(content)).encode()) in start["headers"]
    return start["status"], json.loads(content)


async def no_application(scope: control.Scope, receive: control.Receive, send: control.Send) -> None:
    raise AssertionError(f"{scope['path']} should not get here")


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, "Bearer \U0001f511"],
)
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_wrong_key(method: str, path: str, authorization: str | None) -> None:
    served = ranks()
    content = {"steps": 1, "ttlSeconds": 60} if path == FORCE else document(revision=9)
    status, body = await call(served, method, path, json.dumps(content).encode(), authorization=authorization)
    assert (status, "admin key" in body["error"]) == (401, True)
    assert served.ranks[0].policy == policy(revision=5)
    assert served.ranks[0].report()["forced"] is None


@pytest.mark.parametrize("admin_key", [None, ""])
@pytest.mark.parametrize("authorization", [None, "Bearer ", "Bearer None"])
async def test_no_admin_key_configured(admin_key: str | None, authorization: str | None) -> None:
    status, body = await call(ranks(), "GET", STATE, admin_key=admin_key, authorization=authorization)
    assert (status, "SPECSERVER_ADMIN_KEY" in body["error"]) == (403, True)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_scheme_in_any_case(scheme: str) -> None:
    status, _ = await call(ranks(), "GET", STATE, authorization=f"{scheme} {KEY}")
    assert status == 200


async def test_the_operator_can_read_the_state_whatever_the_rule_believes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader refuses what is no JSON, NaN among it; and an answer above a megabyte."""
    engine = FakeEngine(running=9)
    rank = make_rank(engine)
    rank.set_policy(policy(strategy="Measured"))
    explain = Decider.explain
    monkeypatch.setattr(Decider, "explain", lambda self: explain(self) | {"realisedGoodput": math.nan, "plain": [math.inf]})
    for number in range(2 * MAX_REMEMBERED_DECISIONS):
        rank.force(number % 3, 60)
        turn(rank)
        record(rank, engine.current + 1, [0] * 9, iteration=number)
    status, body = await call(LocalRanks(rank), "GET", STATE)
    content = json.dumps(body, allow_nan=False).encode()
    assert (status, len(body["ranks"][0]["decisions"])) == (200, MAX_REMEMBERED_DECISIONS)
    (read,) = parse_state("pod-0", parse_object(content)).ranks
    assert (read.rank, read.armed, read.steps) == ("tp0", True, engine.current)
    assert len(content) < ANSWER_LIMIT_BYTES / 8, "room for eight ranks"


async def test_put_takes_and_reads_back() -> None:
    served = ranks()
    wanted = document(revision=6)
    status, body = await call(served, "PUT", POLICY, json.dumps(wanted).encode())
    assert (status, body) == (200, {"revision": 6, "ranks": [{"rank": "tp0", "revision": 6}]})
    assert await call(served, "GET", POLICY) == (200, {"revision": 6, "policy": {**wanted, "minDwellSeconds": 0.0}})


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        (b"{", 422, {"field": ""}),
        (b"\xff", 422, {"field": ""}),
        (b"null", 422, {"field": ""}),
        (json.dumps(document(mode="x")).encode(), 422, {"field": "mode"}),
        (json.dumps(document(revision=6, steps=[0, 9])).encode(), 422, {"field": "steps"}),
        (json.dumps(document(revision=4)).encode(), 409, {"field": "revision", "current": 5}),
    ],
    ids=["no JSON", "no text", "null", "invalid", "not captured", "older"],
)
async def test_put_refusals(body: bytes, status: int, expected: dict[str, Any]) -> None:
    got, answered = await call(ranks(), "PUT", POLICY, body)
    message = answered.pop("error")
    assert (got, answered) == (status, expected)
    assert message


async def test_force_and_take_back() -> None:
    served = ranks()
    status, body = await call(served, "POST", FORCE, b'{"steps": 1, "ttlSeconds": 60}')
    assert (status, body) == (200, {"steps": 1, "ttlSeconds": 60.0, "ranks": [{"rank": "tp0"}]})
    assert served.ranks[0].report()["forced"]["steps"] == 1
    assert await call(served, "DELETE", FORCE) == (200, {"ranks": [{"rank": "tp0"}]})
    assert served.ranks[0].report()["forced"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [(b"{", ""), (b"[]", ""), (b"{}", "steps"), (b'{"steps": 9, "ttlSeconds": 60}', "steps")],
    ids=["no JSON", "no object", "empty", "not captured"],
)
async def test_force_refusals(body: bytes, field: str) -> None:
    status, answered = await call(ranks(), "POST", FORCE, body)
    assert (status, answered["field"], bool(answered["error"])) == (422, field, True)


async def test_profile_is_the_first_that_was_measured() -> None:
    status, body = await call(ranks(), "GET", PROFILE)
    assert (status, "measured yet" in body["error"]) == (404, True)

    class Measured(LocalRanks):
        async def ask(self, method: str, body: Mapping[str, Any]) -> list[channel.Answer]:
            return [{"rank": "tp0", "profile": {"stepSeconds": {"0": [[1, 0.01]]}}}, {"rank": "tp1", "profile": None}]

    assert await call(Measured(), "GET", PROFILE) == (200, {"stepSeconds": {"0": [[1, 0.01]]}})


async def test_put_on_an_unarmed_engine() -> None:
    served = LocalRanks(make_rank(unarmed_reason="speculation is off"))
    status, body = await call(served, "PUT", POLICY, json.dumps(document()).encode())
    assert (status, body) == (503, {"error": "not armed: speculation is off", "field": "armed"})
    assert (await call(served, "GET", STATE))[1]["ranks"][0]["armed"] is False


async def test_put_is_not_confirmed_where_one_rank_is_behind() -> None:
    served = ranks()

    class HalfDeaf(LocalRanks):
        async def ask(self, method: str, body: Mapping[str, Any]) -> list[channel.Answer]:
            answers = await super().ask(method, body)
            return answers if method == channel.POLICY else [*answers, {**answers[0], "rank": "tp1", "revision": 5}]

    status, body = await call(HalfDeaf(*served.ranks), "PUT", POLICY, json.dumps(document(revision=6)).encode())
    assert (status, "tp1" in body["error"]) == (503, True)


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_a_silent_scheduler(method: str, path: str) -> None:
    content = {"steps": 1, "ttlSeconds": 60} if path == FORCE else document()
    status, body = await call(SilentRanks(), method, path, json.dumps(content).encode())
    assert (status, body) == (503, {"error": "the scheduler did not answer in 5 s"})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/specserver/v1/x", 404), ("DELETE", POLICY, 405), ("PUT", STATE, 405), ("GET", FORCE, 405)],
)
async def test_unknown(method: str, path: str, status: int) -> None:
    assert (await call(ranks(), method, path))[0] == status


async def test_under_a_root_path() -> None:
    assert (await call(ranks(), "GET", STATE, root_path="/model"))[0] == 200


def answering(content: bytes) -> control.Application:
    """An application that sends its answer in two parts, cut anywhere."""

    async def application(scope: control.Scope, receive: control.Receive, send: control.Send) -> None:
        length = (b"content-length", str(len(content)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        middle = len(content) // 2
        await send({"type": "http.response.body", "body": content[:middle], "more_body": True})
        await send({"type": "http.response.body", "body": content[middle:]})

    return application


async def test_everything_else_goes_to_the_application_untouched() -> None:
    content = json.dumps({"text": KEY}).encode()
    assert await call(ranks(), "GET", "/v1/models", inner=answering(content), authorization=None) == (200, {"text": KEY})


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info", "/server_info/"])
@pytest.mark.parametrize("ascii_only", [True, False])
async def test_keys_are_masked_where_the_engine_shows_its_arguments(path: str, ascii_only: bool) -> None:
    shown = {"admin_api_key": KEY, "api_key": "user-key", "command": f"--admin-api-key {KEY}", "model": "m"}
    content = json.dumps(shown, ensure_ascii=ascii_only).encode()
    status, body = await call(ranks(), "GET", path, api_key="user-key", inner=answering(content))
    assert status == 200
    masked = "********"
    assert body == {"admin_api_key": masked, "api_key": masked, "command": f"--admin-api-key {masked}", "model": "m"}


# ---- through SGLang's tokenizer manager -----------------------------------------------------------------------------------


async def test_a_late_answer_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang matches answers to questions by their order: a question that was given up on must go on waiting for its own."""
    monkeypatch.setattr(control, "ANSWER_SECONDS", 0.01)
    answered: asyncio.Future[list[channel.Answer]] = asyncio.get_running_loop().create_future()
    client = SchedulerClient(lambda: None)

    async def ask(method: str, body: Mapping[str, Any]) -> list[channel.Answer]:
        return await answered

    monkeypatch.setattr(client, "_ask", ask)
    for _ in range(control.MAX_WAITING):
        with pytest.raises(Unanswered, match="did not answer"):
            await client.ask(channel.STATE, {})
    assert not answered.cancelled()
    with pytest.raises(Unanswered, match="16 earlier calls"):
        await client.ask(channel.STATE, {})
    answered.set_result([{"rank": "tp0"}])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await client.ask(channel.STATE, {}) == [{"rank": "tp0"}]


def test_routes_are_put_in_front_of_the_application() -> None:
    app = SimpleNamespace(build_middleware_stack=lambda: "inner")
    control.add_routes(app, ranks(), lambda: control.Keys(KEY, None))
    assert callable(app.build_middleware_stack())
