"""One bounded HTTP exchange with a pod.

A pod's answer is somebody else's data: a hung, broken or hostile engine must cost one slot for a few seconds and nothing
else. So: a time limit on the whole exchange, a cap on what is read, no redirect followed (a pod could send our key to
another host), no compressed body (a small one can unpack to gigabytes), and a limit on exchanges at once whose queue does
not count against the time limit, so that hung pods do not make healthy ones look slow.

Error texts are made here, from the kind of error: those of the libraries carry object addresses and change from one
attempt to the next, and a text that changes is a status write and an Event each time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import yarl

CONNECT_TIMEOUT_SECONDS = 2.0
TOTAL_TIMEOUT_SECONDS = 6.0
"""The plugin itself gives up on its scheduler after 5 s and says so with 503."""
EXCHANGES_AT_ONCE = 64
EXCERPT_CHARACTERS = 200


class PodUnreachable(Exception):
    """No usable answer. The text says what was asked and the cause; it names no pod and no key."""


@dataclass(frozen=True)
class Answer:
    """What a pod answered, whole."""

    status: int
    content_type: str
    body: bytes


def open_session() -> aiohttp.ClientSession:
    """The session for all pods. Its owner closes it."""
    return aiohttp.ClientSession(
        # The limit on exchanges is PodHttp's. Idle connections go before uvicorn closes them (5 s), which would otherwise
        # fail the next exchange.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


class PodHttp:
    """Bounded exchanges over one session."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
        timeout_seconds: float = TOTAL_TIMEOUT_SECONDS,
        at_once: int = EXCHANGES_AT_ONCE,
    ) -> None:
        self._session = session
        self._connect_timeout_seconds = connect_timeout_seconds
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(at_once)

    async def exchange(
        self,
        method: str,
        ip: str | None,
        port: int,
        path: str,
        *,
        limit_bytes: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """The answer of the pod with this IP. PodUnreachable where there is none in time, or too large a one."""
        if ip is None:
            raise PodUnreachable(f"{method} {path}: the pod has no IP yet")
        url = yarl.URL.build(scheme="http", host=ip, port=port, path=path)
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    return await self._exchange(method, url, limit_bytes, headers or {}, body)
            except aiohttp.ConnectionTimeoutError as error:
                raise PodUnreachable(
                    f"{method} {url}: no connection within {self._connect_timeout_seconds:g} s"
                ) from error
            except TimeoutError as error:
                raise PodUnreachable(f"{method} {url}: no full answer within {self._timeout_seconds:g} s") from error
            except aiohttp.ClientError as error:
                raise PodUnreachable(f"{method} {url}: {_cause(error)}") from error

    async def _exchange(
        self, method: str, url: yarl.URL, limit_bytes: int, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        async with self._session.request(
            method,
            url,
            headers={"Accept-Encoding": "identity", **headers},
            data=body,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_seconds),
        ) as response:
            if 300 <= response.status < 400:
                raise PodUnreachable(f"{method} {url}: answered {response.status}; redirects are refused")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise PodUnreachable(f"{method} {url}: the answer is compressed, which was not asked for")
            received = bytearray()
            async for chunk in response.content.iter_chunked(64 * 1024):
                received += chunk
                if len(received) > limit_bytes:
                    raise PodUnreachable(f"{method} {url}: the answer is larger than {limit_bytes} bytes")
            return Answer(response.status, response.content_type, bytes(received))


def excerpt(text: str, limit: int = EXCERPT_CHARACTERS) -> str:
    """A foreign text fit for a status message: one line, printable, short."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _cause(error: aiohttp.ClientError) -> str:
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off"
    if isinstance(error, aiohttp.ClientResponseError):
        return "the answer is not HTTP"
    return type(error).__name__
