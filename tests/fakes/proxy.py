"""A front of the real API server in which requests go wrong on purpose.

    async with FaultyApi(kubeconfig) as front:
        operator = OperatorProcess(front.write_kubeconfig(path), …)
        front.fault = lambda call: Answer(500) if call.writes else None
        front.answered = …           # a request has been served, and the operator does not know yet
    front.silent = True          # open watches stay open and carry nothing
        await front.end_watches(gone=True)

Plain HTTP towards the operator; what is not meddled with goes through as it is, the operator's own credentials included.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import yaml
from aiohttp import web

GONE = {
    "type": "ERROR",
    "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410,
               "message": "too old resource version: 1 (2)"},
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A request of the operator."""

    method: str
    path: str
    watch: bool
    dry_run: bool = False

    @property
    def writes(self) -> bool:
        return self.method != "GET" and "/leases" not in self.path


@dataclass(frozen=True)
class Answer:
    """In place of the API server's."""

    status: int
    message: str = "on purpose"
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    """A body that is no Status."""


@dataclass(frozen=True)
class Hang:
    """No answer, for as long as the client waits."""


@dataclass(frozen=True)
class Cut:
    """The connection is closed without an answer."""


Fault = Answer | Hang | Cut


async def _nothing(_call: Call, _status: int) -> None: ...


class FaultyApi:
    """The front. `fault` is asked for each request; None lets it through."""

    def __init__(self, kubeconfig: Path) -> None:
        self._document = yaml.safe_load(kubeconfig.read_text())
        cluster = self._document["clusters"][0]["cluster"]
        self._target: str = cluster["server"]
        self._ssl = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self.fault: Callable[[Call], Fault | None] = lambda _call: None
        self.answered: Callable[[Call, int], Awaitable[None]] = _nothing
        """Called with each request that the API server has answered, and the status, before the operator learns of it."""
        self.silent = False
        self.hits = 0
        """Requests that met a fault, and events of watches that were swallowed."""
        self._watches: dict[web.StreamResponse, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._ssl, limit=0), auto_decompress=False)
        application = web.Application(client_max_size=8 * 2**20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def write_kubeconfig(self, path: Path) -> Path:
        """The given kubeconfig, with this front in the API server's place."""
        path.write_text(yaml.safe_dump({**self._document, "clusters": [{"name": self._document["clusters"][0]["name"],
                                                                       "cluster": {"server": self.url}}]}))  # fmt: skip
        return path

    def heal(self) -> None:
        self.fault, self.answered, self.silent = lambda _call: None, _nothing, False

    async def end_watches(self, *, gone: bool = False) -> None:
        """Ends all open watches, with a 410 as their last word or with none."""
        for response, task in list(self._watches.items()):
            if gone:
                await response.write(json.dumps(GONE).encode() + b"\n")
            task.cancel()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.path, "watch" in request.query, "dryRun" in request.query)
        fault = self.fault(call)
        if fault is not None:
            self.hits += 1
            return await self._go_wrong(request, fault)
        dropped = ("host", "accept-encoding", "content-length", "connection")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        async with self._session.request(
            request.method, self._target + request.path_qs, headers=headers, data=await request.read() or None,
            timeout=aiohttp.ClientTimeout(total=None), allow_redirects=False,
        ) as upstream:  # fmt: skip
            if not (call.watch and upstream.status == 200):
                passed = {name: value for name, value in upstream.headers.items() if name in ("Content-Type", "Retry-After")}
                body = await upstream.read()
                await self.answered(call, upstream.status)
                return web.Response(status=upstream.status, headers=passed, body=body)
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            task = asyncio.create_task(self._pass_on(upstream, response))
            self._watches[response] = task
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
                del self._watches[response]
            return response

    async def _pass_on(self, upstream: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        async for line in upstream.content:
            if self.silent:
                self.hits += 1
            else:
                await response.write(line)

    async def _go_wrong(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        match fault:
            case Hang():
                await asyncio.sleep(3600)
            case Answer(status=status, message=message, headers=headers, text=text):
                body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": message}
                said = json.dumps(body) if text is None else text
                kind = "application/json" if text is None else "text/html"
                return web.Response(status=status, text=said, headers=headers, content_type=kind)
        if request.transport is not None:
            request.transport.close()
        return web.Response(status=500)
