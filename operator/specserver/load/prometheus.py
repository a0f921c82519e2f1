"""Load by asking a Prometheus (prometheus-api-client).

The library is synchronous and its `requests` session is not made for several threads, so each `PrometheusLoad` has one
thread of its own: a slow Prometheus delays those who ask it, and neither the event loop nor other Prometheuses. Its own
defaults are unsuited: no time limit, retries that turn a refused connection into six seconds, queries in the URL even by
POST. Hence no retry (the next look is the retry), a session of ours, and a limit on time and size.

Whatever goes wrong becomes a `LoadUnknown` with a text made here; the library's carry object addresses, and may carry the
credentials of the URL.
"""

from __future__ import annotations

import asyncio
import io
import re
import ssl
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import requests
import yarl
from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from specserver.api.conditions import Reason
from specserver.core.observed import Load, LoadUnknown, Pod, PodLoad
from specserver.engines.http import excerpt
from specserver.load import queries
from specserver.load.exposition import Sample
from specserver.load.metric_names import ENGINE_NAMES, TARGET_UP
from specserver.load.replica import (
    NO_READY_REPLICAS,
    Looks,
    Unknown,
    assemble_load,
    observe_replica,
    replicas_to_observe,
    stale,
)

CONNECT_TIMEOUT_SECONDS = 3.0
TIMEOUT_SECONDS = 10.0
ANSWER_LIMIT_BYTES = 32 * 1024 * 1024

_STATUS = re.compile(r"HTTP Status Code (\d+) \((?:b['\"])?(.*)", re.DOTALL)
_HINTS = {
    400: "it refused the query",
    401: "the bearer token is missing, wrong or has expired (metrics.prometheus.authSecretRef)",
    403: "the bearer token may not query (metrics.prometheus.authSecretRef)",
    404: "the URL leads to something else than a Prometheus (metrics.prometheus.url)",
    422: "it refused the query",
}


class PrometheusLoad:
    """Asks one Prometheus, with one token; for all servers that name both. Remembers each pod's last token count, by UID."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        authorities: str | None = None,
        verify: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
        answer_limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> None:
        """`authorities`: PEM certificates to trust instead of the public ones. ValueError where they are none. `verify` False
        accepts any certificate."""
        if authorities is not None:
            _check_certificates(authorities)
        self._authorities, self._verify = authorities, verify
        # A token file ends in a line break more often than not.
        self._token = token.strip() if token else None
        self._timeout_seconds = timeout_seconds
        self._shown_url = _without_credentials(url)
        self._url = url.rstrip("/")
        self._session = _BoundedSession(timeout_seconds, answer_limit_bytes)
        self._client: PrometheusConnect | None = None
        self._file: IO[str] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prometheus")
        self._looks = Looks()

    def close(self) -> None:
        """Lets go of the connections; a query under way ends by its own time limit."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._session.close()
        if self._file is not None:
            self._file.close()

    async def observe_load(
        self,
        pods: Sequence[Pod],
        *,
        namespace: str,
        port: int,
        now: float,
        staleness_seconds: float,
        labels: Mapping[str, str] | None = None,
        data_parallel: int = 1,
    ) -> Load | LoadUnknown:
        """The load of the ready ones among these pods of one server. `labels`: further matchers for each query."""
        self._looks.note_restarts(pods)
        ready = replicas_to_observe(pods)
        if not ready:
            return NO_READY_REPLICAS
        names = [pod.name for pod in ready]
        query = queries.load(namespace, names, labels or {}, staleness_seconds=staleness_seconds)
        try:
            series = await self._query("load", query)
            by_pod = _group_by_pod(series, namespace, names)
            if not any(by_pod.values()):
                return await self._explain_nothing(namespace, names, labels or {})
        except _QueryFailed as failure:
            return LoadUnknown(Reason.PROMETHEUS_ERROR, str(failure))
        self._looks.forget(now)
        return assemble_load(
            [(pod, self._observe(pod, by_pod[pod.name], port, now, staleness_seconds, data_parallel)) for pod in ready]
        )

    def _observe(
        self, pod: Pod, series: list[Sample], port: int, now: float, staleness_seconds: float, data_parallel: int
    ) -> PodLoad | Unknown:
        # 1. Nothing at all of this pod.
        if not series:
            return Unknown(Reason.METRICS_MISSING, "Prometheus has no series of it: is it a target?")
        # 2. The last scrape: all its samples share one time. Where several jobs scrape the pod, the engine's port decides,
        #    then the newest.
        newest = max(series, key=lambda sample: (sample.name in ENGINE_NAMES, _on_port(sample, port), sample.at or 0.0))
        target = _target(newest)
        ups = [sample for sample in series if sample.name == TARGET_UP and _target(sample) == target]
        up = max(ups, key=lambda sample: sample.at or 0.0, default=None)
        # 3. Target down: what is left of it says nothing about now.
        if up is not None and up.value == 0 and (up.at or 0.0) >= (newest.at or 0.0):
            return Unknown(Reason.SCRAPE_ERROR, "Prometheus can't scrape it: up is 0")
        if now - (newest.at or 0.0) > staleness_seconds:
            return stale(staleness_seconds)
        # 4. Series that the last scrape did not have are over: an earlier container's, or another job's.
        page = [
            sample
            for sample in series
            if sample.name in ENGINE_NAMES and sample.at == newest.at and _target(sample) == target
        ]
        return observe_replica(pod, page, at=newest.at or 0.0, data_parallel=data_parallel, looks=self._looks)

    async def _explain_nothing(self, namespace: str, pods: Sequence[str], labels: Mapping[str, str]) -> LoadUnknown:
        """Nothing was found: says what there is instead, for that is mostly labels put on in another way."""
        series = await self._query("misplaced", queries.misplaced(namespace, labels))
        message = (
            f"Prometheus at {self._shown_url} has no series with namespace={namespace!r} and pod={pods[0]!r}"
            f"{f' or one of {len(pods) - 1} others' if len(pods) > 1 else ''}"
            f"{f' and {dict(labels)}' if labels else ''}: let it scrape the pods with these labels"
        )
        if series and isinstance(series[0], dict) and isinstance(series[0].get("metric"), dict):
            message += f" (it has {excerpt(str(series[0]['metric']), 300)})"
        return LoadUnknown(Reason.METRICS_MISSING, message)

    async def _query(self, title: str, query: str) -> list[Any]:
        """The result of the query; _QueryFailed with a text that names the query and the cause."""
        failed = f"Prometheus at {self._shown_url}, query {title}"
        if self._token is not None and not all("!" <= char <= "~" for char in self._token):
            raise _QueryFailed(f"{failed}: the bearer token has characters other than visible ASCII")
        running = asyncio.get_running_loop().run_in_executor(self._thread, self._ask, query)
        try:
            # Twice the time of a query: one may be under way for another server on the same thread.
            result = await asyncio.wait_for(running, 2 * self._timeout_seconds)
        except PrometheusApiClientException as error:
            raise _QueryFailed(f"{failed}: {self._describe_refusal(str(error))}") from None
        except TimeoutError:
            raise _QueryFailed(f"{failed}: no answer within {2 * self._timeout_seconds:g} s") from None
        except (requests.RequestException, HTTPError) as error:
            raise _QueryFailed(f"{failed}: {_cause(error, self._timeout_seconds)}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _QueryFailed(f"{failed}: the URL is none, or the answer is not that of a Prometheus") from None
        if not isinstance(result, list):
            raise _QueryFailed(f"{failed}: the answer is not that of a Prometheus")
        return result

    def _ask(self, query: str) -> Any:
        """Runs on the thread. The client is made here since a URL that is none raises, and belongs into the message."""
        if self._client is None:
            self._session.verify = self._verify if self._authorities is None else self._store_authorities(self._authorities)
            self._client = PrometheusConnect(
                self._url,
                retry=Retry(total=0),
                auth=_Bearer(self._token),
                session=self._session,
                timeout=(min(CONNECT_TIMEOUT_SECONDS, self._timeout_seconds), self._timeout_seconds),
                method="POST",
            )
        return self._client.custom_query(query)

    def _store_authorities(self, authorities: str) -> str:
        """The path of a file with them: `requests` takes authorities in no other way."""
        self._file = tempfile.NamedTemporaryFile("w", prefix="authorities-", suffix=".pem")  # noqa: SIM115 - lives as we do
        self._file.write(authorities)
        self._file.flush()
        return self._file.name

    def _describe_refusal(self, text: str) -> str:
        found = _STATUS.match(text)
        status, body = (int(found.group(1)), found.group(2)) if found else (0, text)
        if self._token:
            # An error page may quote the request's headers.
            body = body.replace(self._token, "<token>")
        if 300 <= status < 400:
            return f"answered {status}; redirects are refused, put the final URL into metrics.prometheus.url"
        hint = f", {_HINTS[status]}" if status in _HINTS else ""
        return f"answered {status}{hint}: {excerpt(body)}"


class _QueryFailed(Exception):
    pass


def _group_by_pod(series: Iterable[Any], namespace: str, pods: Sequence[str]) -> dict[str, list[Sample]]:
    """The newest sample of each series, by pod. Others' series are dropped even where a server ignored the matchers."""
    by_pod: dict[str, list[Sample]] = {pod: [] for pod in pods}
    for item in series:
        try:
            labels = {str(name): str(value) for name, value in item["metric"].items()}
            at, text = item["values"][-1]
            sample = Sample(labels.pop("__name__", ""), labels, str(text), float(at))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise _QueryFailed("Prometheus, query load: the answer is not a list of series with their samples") from None
        if labels.get("namespace") == namespace and labels.get("pod") in by_pod:
            by_pod[labels["pod"]].append(sample)
    return by_pod


def _target(sample: Sample) -> tuple[str, str]:
    return sample.labels.get("job", ""), sample.labels.get("instance", "")


def _on_port(sample: Sample, port: int) -> bool:
    return sample.labels.get("instance", "").endswith(f":{port}")


def _without_credentials(url: str) -> str:
    try:
        return str(yarl.URL(url).with_user(None))
    except ValueError:
        return "the configured URL"


def _cause(error: Exception, timeout_seconds: float) -> str:
    """Words for an error of requests or urllib3, the same each time it happens."""
    if isinstance(error, _AnswerTooLarge):
        return str(error)
    if isinstance(error, requests.exceptions.SSLError):
        return f"its TLS certificate is not trusted: {_certificate_problem(error)} (metrics.prometheus.tls)"
    if isinstance(error, requests.exceptions.Timeout):
        return f"no answer within {timeout_seconds:g} s"
    if isinstance(error, requests.exceptions.JSONDecodeError):
        return "answered 200 with something that is not JSON: a login page, or another service (metrics.prometheus.url)"
    if isinstance(error, requests.exceptions.ConnectionError):
        text = str(error)
        for sign, words in (
            ("NameResolutionError", "its host name is unknown"),
            ("Connection refused", "connection refused"),
            ("Connection reset", "the connection was reset"),
            ("Remote end closed", "the connection was closed without an answer"),
            ("No route to host", "no route to host"),
            ("unreachable", "network unreachable"),
        ):
            if sign in text:
                return words
        return "no connection"
    return "the answer broke off" if isinstance(error, HTTPError) else f"the request failed ({type(error).__name__})"


def _certificate_problem(error: Exception) -> str:
    found = re.search(r"certificate verify failed: (.+?)\.? \(_ssl", str(error))
    return found.group(1).strip() if found else "the TLS handshake failed"


def _check_certificates(authorities: str) -> None:
    try:
        ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, ValueError):
        raise ValueError("no PEM certificates") from None


class _AnswerTooLarge(requests.RequestException):
    pass


class _Bearer(requests.auth.AuthBase):
    """Sets the token. Also without one: `requests` would otherwise look for credentials in a .netrc file."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _BoundedSession(requests.Session):
    """Sends the query in the body, follows no redirect, and stops reading at a size and at a time."""

    def __init__(self, timeout_seconds: float, limit_bytes: int) -> None:
        super().__init__()
        self._timeout_seconds = timeout_seconds
        self._limit_bytes = limit_bytes

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **options: Any) -> requests.Response:
        deadline = time.monotonic() + self._timeout_seconds
        # The library puts the query into the URL even of a POST; with many pods that is longer than proxies let through.
        options["data"] = options.pop("params", None)
        response = super().request(method, url, *args, **{**options, "allow_redirects": False, "stream": True})
        with response:
            body = bytearray()
            while chunk := response.raw.read1(64 * 1024, decode_content=True):
                body += chunk
                if len(body) > self._limit_bytes:
                    raise _AnswerTooLarge(f"the answer is larger than {self._limit_bytes} bytes")
                if time.monotonic() > deadline:
                    raise requests.exceptions.ReadTimeout
        response.raw = io.BytesIO(bytes(body))
        return response
