"""HTTP to the API server, with the addresses, certificates and tokens that `kubernetes.aio` has found.

Rejected: the client's own request path. Of each request's time more than half goes into building it: bodies are copied
field by field, and the environment's proxies and the .netrc file are read anew in a thread. With a thousand servers that
was a third of all the operator did. What the client knows better, where the API server is and how its tokens are renewed,
is still the client's.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
import orjson
import yarl
from kubernetes.aio.client import ApiClient

_READ_BUFFER_BYTES = 2**21


@dataclass(frozen=True)
class Answer:
    """What the API server answered, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ApiHttp:
    """One session for all requests. Opened with the first one, since it belongs to the running event loop."""

    def __init__(self, api_client: ApiClient) -> None:
        self._api_client = api_client
        self._configuration = api_client.configuration
        self._host: str = self._configuration.host.rstrip("/")
        self._proxy: str | None = self._configuration.proxy or _environment_proxy(self._host)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._api_client.close()

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        accept: str = "application/json",
        content_type: str = "application/json",
        timeout_seconds: float,
    ) -> Answer:
        """The answer, whatever its status. TimeoutError, OSError or aiohttp.ClientError where there is none."""
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        request = self.request(
            method, path, query=query, body=body, accept=accept, content_type=content_type, timeout=timeout
        )
        async with await request as response:
            return Answer(response.status, response.headers, await response.read())

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        accept: str = "application/json",
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The answer with its body still to be read: a stream of a watch, or what `exchange` takes whole."""
        headers = {"Accept": accept}
        # Asked each time: a token of a service account is renewed every hour, and the client reads the file again in time.
        token = (await self._configuration.auth_settings()).get("BearerToken", {}).get("value")
        if token:
            headers["Authorization"] = token
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = orjson.dumps(body)
        url = yarl.URL(f"{self._host}{path}?{urlencode(query)}" if query else f"{self._host}{path}", encoded=True)
        return await self._open().request(
            method,
            url,
            headers=headers,
            data=data,
            proxy=self._proxy,
            timeout=timeout,
            server_hostname=self._configuration.tls_server_name or None,
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._api_client.rest_client.ssl_context, limit=self._configuration.connection_pool_maxsize
            )
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=_READ_BUFFER_BYTES
            )
        return self._session


def _environment_proxy(host: str) -> str | None:
    """The proxy that the environment names for this host, read once."""
    parts = urlsplit(host)
    if not parts.hostname or urllib.request.proxy_bypass(parts.hostname):
        return None
    return urllib.request.getproxies().get(parts.scheme)
