"""A Prometheus that answers what it is told to: whatever it was asked, and however wrong that is."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class FakePrometheus:
    """`results` are given one a query, the last one for ever; `measure`, where it is given, makes each anew."""

    results: list[Any] = field(default_factory=lambda: [[]])
    measure: Callable[[], Any] | None = None
    status: int = 200
    body: str | None = None
    content_type: str = "application/json"
    location: str | None = None
    delay_seconds: float = 0.0
    padding_bytes: int = 0
    drips: bool = False
    queries: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path_qs)
        self.authorization.append(request.headers.get("Authorization"))
        self.queries.append(str((await request.post()).get("query", "")))
        if self.drips:
            response = web.StreamResponse(headers={"Content-Length": "100000"})
            await response.prepare(request)
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.05)
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if self.measure is not None:
            result = self.measure()
        text = self.body
        if text is None:
            data = {"resultType": "matrix", "result": result}
            text = json.dumps({"status": "success", "data": data, "warnings": ["partial"]}) + " " * self.padding_bytes
        headers = {"Location": self.location} if self.location else None
        return web.Response(text=text, status=self.status, content_type=self.content_type, headers=headers)


@asynccontextmanager
async def serving(prometheus: FakePrometheus, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakePrometheus]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", prometheus.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    prometheus.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield prometheus
    finally:
        await runner.cleanup()
