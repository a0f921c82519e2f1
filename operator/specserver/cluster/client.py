"""A thin client over `kubernetes.aio`: plain dicts in and out, a static table of kinds, an error per intent.

Rejected: typed models (they drop fields that they don't know) and the dynamic client's discovery (four requests and a cache
file for eight kinds whose paths never change).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
import orjson
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from specserver.api import labels
from specserver.cluster.errors import ClusterError, Conflict, NotFound, Refused, Unavailable
from specserver.cluster.http import ApiHttp

Body = dict[str, Any]

_PREFIXES = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Event": ("/api/v1", "events"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    labels.KIND: (f"/apis/{labels.API_VERSION}", labels.PLURAL),
}
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_WATCH_SECONDS = 600
_SILENCE_SECONDS = 70.0
"""A stream that carries nothing for so long is dead: bookmarks come every minute."""
_REQUEST_TIMEOUT_SECONDS = 10.0
"""With the queue's longest back-off this is less than 30 s, in which a server is to be in order after an API server that hung."""


_LONGEST_MESSAGE = 600


class Cluster(Protocol):
    """What the rest of the package needs of an API server."""

    async def get(self, kind: str, namespace: str, name: str) -> Body: ...
    async def list_all(self, kind: str, namespace: str, *, label_selector: str = "") -> list[Body]:
        """Those of a namespace, or of all where it is empty."""
        ...

    async def create(self, body: Body) -> Body: ...
    async def apply(self, body: Body, *, field_manager: str, dry_run: bool = False) -> Body: ...
    async def patch(self, kind: str, namespace: str, name: str, body: Body, *, field_manager: str) -> Body: ...
    async def patch_status(self, kind: str, namespace: str, name: str, body: Body, *, field_manager: str) -> Body: ...


class KubernetesCluster:
    """`Cluster` over HTTP. Open it with `connect`, close it with `close`."""

    def __init__(self, api_client: ApiClient, *, on_request: Callable[[str, str, int], None] | None = None) -> None:
        self._http = ApiHttp(api_client)
        self._on_request = on_request or (lambda _verb, _kind, _status: None)

    @classmethod
    async def connect(cls, *, on_request: Callable[[str, str, int], None] | None = None) -> KubernetesCluster:
        """With the pod's service account inside a cluster, with the kubeconfig outside."""
        configuration = Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        return cls(ApiClient(configuration=configuration), on_request=on_request)

    async def close(self) -> None:
        await self._http.close()

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        return await self._request("get", kind, _path(kind, namespace, name))

    async def list_all(self, kind: str, namespace: str, *, label_selector: str = "") -> list[Body]:
        # In one piece: with a limit many API servers ask etcd, which reads every pod of the namespace to find a server's.
        query = [("labelSelector", label_selector)] if label_selector else []
        answer = await self._request("list", kind, _path(kind, namespace), query=query)
        items: list[Body] = answer["items"]
        return items

    async def create(self, body: Body) -> Body:
        return await self._request("create", body["kind"], _path(body["kind"], body["metadata"]["namespace"]), body=body)

    async def apply(self, body: Body, *, field_manager: str, dry_run: bool = False) -> Body:
        """Server-side apply. Conflicts are forced: a field that we own is ours. A dry run answers and changes nothing."""
        path = _path(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
        query = [("fieldManager", field_manager), ("force", "true"), *([("dryRun", "All")] if dry_run else [])]
        return await self._request(
            "apply", body["kind"], path, body=body, query=query, content_type="application/apply-patch+yaml"
        )

    async def patch(self, kind: str, namespace: str, name: str, body: Body, *, field_manager: str) -> Body:
        """Merge patch (RFC 7386): null removes."""
        return await self._merge_patch(kind, _path(kind, namespace, name), body, field_manager)

    async def patch_status(self, kind: str, namespace: str, name: str, body: Body, *, field_manager: str) -> Body:
        return await self._merge_patch(kind, _path(kind, namespace, name) + "/status", body, field_manager)

    async def _merge_patch(self, kind: str, path: str, body: Body, field_manager: str) -> Body:
        query = [("fieldManager", field_manager)]
        return await self._request("patch", kind, path, body=body, query=query, content_type="application/merge-patch+json")

    async def list_metadata(
        self, kind: str, namespace: str, *, label_selector: str, limit: int, continue_at: str
    ) -> tuple[list[Body], Body]:
        query = [("limit", str(limit))]
        query += [("labelSelector", label_selector)] if label_selector else []
        query += [("continue", continue_at)] if continue_at else []
        answer = await self._request("list", kind, _path(kind, namespace), query=query, accept=_METADATA_LIST)
        return [item["metadata"] for item in answer["items"] or ()], answer["metadata"]

    async def watch_metadata(
        self, kind: str, namespace: str, *, label_selector: str, version: str
    ) -> AsyncIterator[tuple[str, Body]]:
        query = [
            ("watch", "1"),
            ("labelSelector", label_selector),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(_WATCH_SECONDS)),
        ]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_TIMEOUT_SECONDS, sock_read=_SILENCE_SECONDS)
        path, status = _path(kind, namespace), 0
        try:
            async with await self._http.request("GET", path, query=query, accept=_METADATA, timeout=timeout) as response:
                status = response.status
                self._on_request("watch", kind, status)
                if status != 200:
                    raise _error(status, await response.read(), response.headers, f"watch {kind} {path}")
                async for line in response.content:
                    event = orjson.loads(line)
                    yield event["type"], event["object"]
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            if not status:
                self._on_request("watch", kind, status)
            raise Unavailable(f"watch {kind} {path}: {type(error).__name__} {error}".rstrip()) from error

    async def _request(
        self,
        verb: str,
        kind: str,
        path: str,
        *,
        body: Body | None = None,
        query: list[tuple[str, str]] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Body:
        method = {"get": "GET", "list": "GET", "create": "POST", "apply": "PATCH", "patch": "PATCH"}[verb]
        status = 0
        try:
            response = await self._http.exchange(
                method,
                path,
                query=query or (),
                body=body,
                accept=accept,
                content_type=content_type,
                timeout_seconds=_REQUEST_TIMEOUT_SECONDS,
            )
            status = response.status
            if not 200 <= status <= 299:
                raise _error(status, response.body, response.headers, f"{verb} {kind} {path}")
            answer: Body = orjson.loads(response.body)
            return answer
        except (TimeoutError, aiohttp.ClientError, OSError, json.JSONDecodeError) as error:
            raise Unavailable(f"{verb} {kind} {path}: {type(error).__name__} {error}".rstrip()) from error
        finally:
            self._on_request(verb, kind, status)


def _path(kind: str, namespace: str, name: str = "") -> str:
    prefix, plural = _PREFIXES[kind]
    path = f"{prefix}/namespaces/{quote(namespace, safe='')}/{plural}" if namespace else f"{prefix}/{plural}"
    return f"{path}/{quote(name, safe='')}" if name else path


def _one_line(text: str) -> str:
    """Fit for a condition, of which the API server takes no longer one. It quotes whole objects at times."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * _LONGEST_MESSAGE]).split())
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…"


_UNFIT = ("failed to create typed patch object", "failed to convert new object")
"""What an apply says of an object with a field of the wrong type: with status 500, though no later try can end otherwise."""


def _error(status: int, raw: bytes | str, headers: Mapping[str, str], request: str) -> ClusterError:
    """The error for a refusal. 403 for a namespace that is going away is not the object's fault, hence not `Refused`."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    try:
        message = _one_line(str(json.loads(text)["message"]))
    except (ValueError, KeyError, TypeError):
        message = f"{request}: HTTP {status} {_one_line(text)[:200]}".rstrip()
    if status == 404:
        return NotFound(message, status=status)
    if status == 409:
        return Conflict(message, status=status)
    unfit = any(sign in message for sign in _UNFIT)
    if unfit or (status in (400, 401, 403, 413, 422) and "because it is being terminated" not in message):
        return Refused(message, status=status)
    retry_after = headers.get("Retry-After", "")
    return Unavailable(message, status=status, retry_after_seconds=float(retry_after) if retry_after.isdigit() else None)
