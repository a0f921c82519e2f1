"""The administrator's requests of a run: the tests' client, and what only a measurement asks for."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import TypeVar

import aiohttp

from tests.fakes.api import Api, Body

T = TypeVar("T")

AT_ONCE = 24
"""Requests of the harness at the same time: enough to keep two cores busy."""

PLURALS = {
    "Deployment": "/apis/apps/v1/{}deployments",
    "PodDisruptionBudget": "/apis/policy/v1/{}poddisruptionbudgets",
    "Service": "/api/v1/{}services",
    "ConfigMap": "/api/v1/{}configmaps",
    "Secret": "/api/v1/{}secrets",
    "SpeculativeServer": "/apis/specserver.io/v1alpha1/{}speculativeservers",
}
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_OURS = "labelSelector=app.kubernetes.io/managed-by%3Dspecserver"


class WatchEnded(Exception):
    """In the API server's words."""


class ScaleApi(Api):
    """Requests over all namespaces."""

    async def count(self, kind: str) -> int:
        """How many of a kind carry the operator's label, without reading them."""
        path = PLURALS[kind].format("")
        answer = await self._request("GET", f"{path}?{_OURS}")
        return len(answer["items"])

    async def delete_all(self, kind: str, namespace: str) -> None:
        await self._request("DELETE", f"{PLURALS[kind].format(f'namespaces/{namespace}/')}?{_OURS}")

    async def list_all(self, kind: str) -> tuple[list[Body], str]:
        """All of a kind, and the version that they are of."""
        answer = await self._request("GET", PLURALS[kind].format(""))
        items = [{"apiVersion": answer["apiVersion"], "kind": kind, **item} for item in answer["items"]]
        return items, answer["metadata"]["resourceVersion"]

    async def watch(self, kind: str, version: str) -> AsyncIterator[tuple[str, Body]]:
        """What happens to a kind after `version`, until cancelled. WatchEnded where the API server has no more to tell."""
        url = f"{self.url}{PLURALS[kind].format('')}"
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "3600"}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        async with self._session.get(url, params=query, timeout=timeout) as response:
            if response.status != 200:
                raise WatchEnded(f"{response.status}: {(await response.text())[:200]}")
            buffer = bytearray()
            async for chunk in response.content.iter_any():
                buffer += chunk
                *lines, rest = buffer.split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise WatchEnded(str(event["object"])[:200])
                    yield event["type"], event["object"]
                buffer = bytearray(rest)

    async def requests(self) -> Counter[tuple[str, str]]:
        """All requests that the API server has answered, by verb and resource, whoever made them."""
        async with self._session.get(f"{self.url}/metrics") as response:
            page = await response.text()
        found: Counter[tuple[str, str]] = Counter()
        for labels, value in _REQUESTS.findall(page):
            known = dict(_LABEL.findall(labels))
            resource = known["resource"] + (f"/{known['subresource']}" if known["subresource"] else "")
            found[known["verb"], resource] += round(float(value))
        return found


async def bounded(work: Iterable[Awaitable[T]], at_once: int = AT_ONCE) -> list[T]:
    """Results of all, `at_once` at the same time."""
    slots = asyncio.Semaphore(at_once)

    async def one(call: Awaitable[T]) -> T:
        async with slots:
            return await call

    return await asyncio.gather(*(one(call) for call in work))
