"""A small client of the API server for whatever a test plays: the user, another controller, the kubelet.

Not the operator's own client: what that one gets wrong, this one must be able to see.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

Body = dict[str, Any]

_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Event": "/api/v1/namespaces/{}/events",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "SpeculativeServer": "/apis/specserver.io/v1alpha1/namespaces/{}/speculativeservers",
}

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(Exception):
    """What the API server refused, in its own words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Api:
    """Requests as the administrator of the kubeconfig."""

    def __init__(self, kubeconfig: Path, *, patience_seconds: float = 0.0) -> None:
        """`patience_seconds`: for how long a request is made again while nobody listens, or says to be starting."""
        self._patience_seconds = patience_seconds
        document = yaml.safe_load(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self.url: str = cluster["server"]
        context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        headers = {"Accept": "application/json"}
        if "token" in user:
            headers["Authorization"] = f"Bearer {user['token']}"
        else:
            with tempfile.TemporaryDirectory() as directory:  # the ssl module reads certificates from files alone
                certificate, key = Path(directory, "crt"), Path(directory, "key")
                certificate.write_bytes(base64.b64decode(user["client-certificate-data"]))
                key.write_bytes(base64.b64decode(user["client-key-data"]))
                context.load_cert_chain(certificate, key)
        self._ssl, self._headers = context, headers

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._ssl, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        return await self._request("GET", f"{_path(kind, namespace)}/{name}")

    async def find(self, kind: str, namespace: str, name: str) -> Body | None:
        """The object, or None where there is none."""
        try:
            return await self.get(kind, namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str, **query: str) -> list[Body]:
        answer: list[Body] = (await self._request("GET", _path(kind, namespace), query=query))["items"]
        return answer

    async def create(self, body: Body, *, dry_run: bool = False) -> Body:
        """Strict: an unknown field is an error here, as with kubectl."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        namespace = body["metadata"].get("namespace", "")
        return await self._request("POST", _path(body["kind"], namespace), body=body, query=query)

    async def patch(
        self, kind: str, namespace: str, name: str, body: Any, *, how: str = MERGE, manager: str = "somebody",
        subresource: str = "",
    ) -> Body:  # fmt: skip
        path = f"{_path(kind, namespace)}/{name}" + (f"/{subresource}" if subresource else "")
        query = {"fieldManager": manager, **({"force": "true"} if how == APPLY else {})}
        return await self._request("PATCH", path, body=body, query=query, content_type=how)

    async def delete(self, kind: str, namespace: str, name: str, *, grace_seconds: int | None = None, uid: str = "") -> None:
        """Deleting what is not there, or is another object by now, does nothing."""
        options: Body = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", f"{_path(kind, namespace)}/{name}", body=options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def watch_pods(self, field_selector: str) -> AsyncIterator[tuple[str, Body]]:
        """Type and pod of every event, those that are there first. Ends when the API server ends it."""
        query = {"fieldSelector": field_selector}
        listed = await self._request("GET", "/api/v1/pods", query=query)
        for pod in listed["items"]:
            yield "ADDED", pod
        query |= {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        async with self._session.get(f"{self.url}/api/v1/pods", params=query, timeout=timeout) as response:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]

    async def _request(
        self, method: str, path: str, *, body: Any = None, query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Body:  # fmt: skip
        deadline = asyncio.get_running_loop().time() + self._patience_seconds
        while True:
            try:
                return await self._exchange(method, path, body, query, content_type)
            except (aiohttp.ClientConnectionError, ApiError) as error:
                refused = isinstance(error, aiohttp.ClientConnectorError) or (isinstance(error, ApiError) and error.status == 503)
                lost = isinstance(error, aiohttp.ClientConnectionError) and method != "POST"
                if not (refused or lost) or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def _exchange(self, method: str, path: str, body: Any, query: dict[str, str] | None, content_type: str) -> Body:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(method, self.url + path, params=query, data=data, headers=headers) as response:
            text = await response.text()
            if not 200 <= response.status <= 299:
                try:
                    message = json.loads(text)["message"]
                except (ValueError, KeyError):
                    message = text
                raise ApiError(response.status, message)
            answer: Body = json.loads(text)
            return answer


def _path(kind: str, namespace: str) -> str:
    """Of all namespaces where `namespace` is empty."""
    path = _PATHS[kind]
    return path.format(namespace) if namespace else path.replace("/namespaces/{}", "")
