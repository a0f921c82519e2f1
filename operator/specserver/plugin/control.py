"""The HTTP routes, on the engine's own port: under `/specserver/v1`, `GET|PUT policy`, `POST|DELETE force`, `GET state` and
`GET profile`.

They sit in front of SGLang's application, not among its routes. SGLang checks a route against its admin key or against
its ordinary key depending on which of the two are set, so the same call would need one key here and another there, and
where only an ordinary key is set nobody could be told what is missing. Here the admin key is the only one that counts,
whatever else is set.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from specserver import __version__
from specserver.plugin import channel, support
from specserver.plugin.force import parse_force
from specserver.policy.document import DocumentInvalid, parse_policy

logger = logging.getLogger(__name__)

PATH = "/specserver/v1"
ANSWER_SECONDS = 5.0
MAX_WAITING = 16
SHOWING_KEYS = ("/server_info", "/get_server_info")
MASK = b"********"

Reply = tuple[HTTPStatus, dict[str, Any]]


class Unanswered(Exception):
    """The scheduler did not answer, or not in a way that says what it did."""


class Ranks(Protocol):
    async def ask(self, method: str, body: Mapping[str, Any]) -> list[channel.Answer]:
        """One answer a rank. Unanswered when they do not come."""


class SchedulerClient:
    """Asks the ranks through SGLang's tokenizer manager."""

    def __init__(self, global_state: Callable[[], Any]) -> None:
        self._global_state = global_state
        self._waiting: set[asyncio.Task[list[channel.Answer]]] = set()

    async def ask(self, method: str, body: Mapping[str, Any]) -> list[channel.Answer]:
        # A question is never cancelled: SGLang matches answers to questions by their order, and the answer to a cancelled one
        # would be taken for the answer to the next. An unanswered one goes on waiting here, and only so many may.
        if len(self._waiting) >= MAX_WAITING:
            raise Unanswered(f"the scheduler has left {MAX_WAITING} earlier calls unanswered")
        task = asyncio.create_task(self._ask(method, body))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        done, _ = await asyncio.wait({task}, timeout=ANSWER_SECONDS)
        if not done:
            raise Unanswered(f"the scheduler did not answer in {ANSWER_SECONDS:.0f} s")
        return task.result()

    async def _ask(self, method: str, body: Mapping[str, Any]) -> list[channel.Answer]:
        from sglang.srt.managers.io_struct import DumperControlReqInput

        manager = self._global_state().tokenizer_manager
        outputs = await manager.dumper_control(DumperControlReqInput(method=method, body=dict(body)))
        failed = [output.error for output in outputs if not output.success]
        if failed:
            raise Unanswered(f"the scheduler does not know the plugin: {'; '.join(failed)}")
        # Data-parallel schedulers answer in any order.
        return sorted((each for output in outputs for each in output.response), key=lambda each: str(each["rank"]))


# ---- replies, apart from HTTP ---------------------------------------------------------------------------------------------


def find_key_problem(authorization: str, admin_key: str | None) -> Reply | None:
    """What is wrong with the key in the Authorization header, or None."""
    if not admin_key:
        message = "this engine was started without an admin key: set SPECSERVER_ADMIN_KEY"
        return HTTPStatus.FORBIDDEN, {"error": message}
    scheme, _, given = authorization.partition(" ")
    # Bytes, because compare_digest refuses text beyond ASCII; headers are Latin-1 on the wire.
    same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), admin_key.encode())
    if scheme.lower() == "bearer" and same:
        return None
    return HTTPStatus.UNAUTHORIZED, {"error": "wrong or missing admin key: send it as Authorization: Bearer …"}


async def reply_state(ranks: Ranks) -> Reply:
    reports = await ranks.ask(channel.STATE, {})
    _raise_for_failed(reports)
    body = {"pluginVersion": __version__, "engineVersion": support.engine_version(), "ranks": reports}
    return HTTPStatus.OK, body


async def reply_policy(ranks: Ranks) -> Reply:
    """The policy in force. Where ranks should ever differ, the oldest: it is what an operator has to replace."""
    policies = await ranks.ask(channel.POLICY_IN_FORCE, {})
    _raise_for_failed(policies)
    oldest = min(policies, key=lambda one: one["revision"] or 0)
    return HTTPStatus.OK, {"revision": oldest["revision"], "policy": oldest["policy"]}


async def reply_profile(ranks: Ranks) -> Reply:
    """The deciding rank's measured step costs. With several data-parallel schedulers, the first one's."""
    answers = await ranks.ask(channel.PROFILE, {})
    _raise_for_failed(answers)
    profile = next((answer["profile"] for answer in answers if answer["profile"] and answer["profile"]["stepSeconds"]), None)
    if profile is None:
        return HTTPStatus.NOT_FOUND, {"error": "no step cost has been measured yet: a policy must be in force, under traffic"}
    return HTTPStatus.OK, profile


async def put_policy(ranks: Ranks, body: bytes) -> Reply:
    # 1. What can be seen without the ranks.
    try:
        policy = parse_policy(json.loads(body))
    except ValueError as error:
        return _reply_invalid(error)
    # 2. Every rank takes it or says why not.
    answers = await ranks.ask(channel.POLICY, policy.to_document())
    refusal = _find_refusal(answers)
    if refusal is not None:
        return refusal
    # 3. Read back what is in force now.
    policies = await ranks.ask(channel.POLICY_IN_FORCE, {})
    _raise_for_failed(policies)
    applied = [{"rank": one["rank"], "revision": one["revision"]} for one in policies]
    behind = [one["rank"] for one in applied if one["revision"] is None or one["revision"] < policy.revision]
    if behind:
        raise Unanswered(f"not in force on {', '.join(behind)} after it was accepted")
    return HTTPStatus.OK, {"revision": policy.revision, "ranks": applied}


async def post_force(ranks: Ranks, body: bytes) -> Reply:
    try:
        force = parse_force(json.loads(body))
    except ValueError as error:
        return _reply_invalid(error)
    answers = await ranks.ask(channel.FORCE, force.to_document())
    return _find_refusal(answers) or (HTTPStatus.OK, {**force.to_document(), "ranks": [{"rank": a["rank"]} for a in answers]})


async def delete_force(ranks: Ranks) -> Reply:
    answers = await ranks.ask(channel.UNFORCE, {})
    return _find_refusal(answers) or (HTTPStatus.OK, {"ranks": answers})


def _reply_invalid(error: ValueError) -> Reply:
    if isinstance(error, DocumentInvalid):
        return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": error.message, "field": error.field}
    return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": f"not JSON: {error}", "field": ""}


def _find_refusal(answers: list[channel.Answer]) -> Reply | None:
    """What the first rank that refuses says, or None."""
    for answer in answers:
        if "status" in answer:
            refusal = dict(answer)
            refusal.pop("rank")
            return HTTPStatus(refusal.pop("status")), refusal
    return None


def _raise_for_failed(reports: list[channel.Answer]) -> None:
    for report in reports:
        if "error" in report:
            raise Unanswered(f"{report['rank']}: {report['error']}")


# ---- HTTP: an ASGI application of its own, small enough to need no framework ---------------------------------------------


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Keys:
    """The keys that the engine was started with; None or empty where there is none."""

    admin: str | None
    ordinary: str | None


def add_routes(app: Any, ranks: Ranks, read_keys: Callable[[], Keys]) -> None:
    """Puts the routes in front of a Starlette application, inside its own server. Keys are read when a request comes."""
    build_inner = app.build_middleware_stack
    app.build_middleware_stack = lambda: make_application(ranks, read_keys, build_inner())


def make_application(ranks: Ranks, read_keys: Callable[[], Keys], inner: Application) -> Application:
    """Answers what is under our path and hands everything else on.

    SGLang's /server_info shows its arguments, both keys among them: to everybody where there is only an admin key, and the admin
    key to every user where there are both. What it sends there is masked.
    """

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", "")).removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or not path.startswith("/specserver/"):
            if scope["type"] == "http" and path.rstrip("/") in SHOWING_KEYS:
                keys = read_keys()
                send = _masking(send, [key for key in (keys.admin, keys.ordinary) if key])
            await inner(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        problem = find_key_problem(headers.get("authorization", ""), read_keys().admin)
        reply = problem or await _reply(ranks, scope["method"], path, receive)
        await _send_json(send, *reply)

    return application


async def _reply(ranks: Ranks, method: str, path: str, receive: Receive) -> Reply:
    try:
        match method, path.removeprefix(PATH):
            case "GET", "/state":
                return await reply_state(ranks)
            case "GET", "/policy":
                return await reply_policy(ranks)
            case "PUT", "/policy":
                return await put_policy(ranks, await _read_body(receive))
            case "POST", "/force":
                return await post_force(ranks, await _read_body(receive))
            case "DELETE", "/force":
                return await delete_force(ranks)
            case "GET", "/profile":
                return await reply_profile(ranks)
            case _, "/state" | "/policy" | "/force" | "/profile":
                return HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"{method} is not known here"}
            case _:
                known = ", ".join(f"{PATH}/{name}" for name in ("policy", "state", "force", "profile"))
                return HTTPStatus.NOT_FOUND, {"error": f"no such path; known are {known}"}
    except Unanswered as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)}
    except Exception as error:
        # The outermost frame of a request: the server would close the connection without a word.
        logger.exception("%s %s failed", method, path)
        return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}: {error}"}


def _masking(send: Send, keys: list[str]) -> Send:
    """Sends a JSON response with every key in it masked. The whole body is held back: a key may span two parts of it."""
    start: MutableMapping[str, Any] = {}
    parts: list[bytes] = []

    async def send_masked(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            return
        parts.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = b"".join(parts)
        for key in keys:
            for spelling in (json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1]):
                body = body.replace(spelling.encode(), MASK)
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})

    return send_masked


async def _read_body(receive: Receive) -> bytes:
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _send_json(send: Send, status: HTTPStatus, body: dict[str, Any]) -> None:
    content = json.dumps(_without_nan(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _without_nan(value: Any) -> Any:
    """JSON has no word for infinite or undefined numbers; Python's is none that readers must take."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return value
