"""The client against a web server that answers as API servers do on their bad days."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from specserver.cluster import client as client_module
from specserver.cluster.client import KubernetesCluster
from specserver.cluster.errors import ClusterError, Conflict, NotFound, Refused, Unavailable

DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "ns", "name": "chat"}, "spec": {}}


@dataclass
class Stub:
    """Answers each request with `status`, `headers` and `body`, and keeps what came."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = field(default_factory=dict)
    drop: bool = False
    silent: bool = False
    """Begins an answer and never says more."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    counted: list[tuple[str, str, int]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.requests.append(
            {
                "method": request.method, "path": request.path, "query": dict(request.query),
                "type": request.headers.get("Content-Type"), "body": json.loads(text) if text else None,
                "accept": request.headers.get("Accept"), "token": request.headers.get("Authorization"),
            }
        )  # fmt: skip
        if self.drop:
            assert request.transport is not None
            request.transport.close()
        if self.silent:
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.sleep(60)
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return web.Response(status=self.status, headers=self.headers, text=text, content_type="application/json")


@pytest.fixture
def stub() -> Stub:
    return Stub()


@pytest_asyncio.fixture
async def cluster(stub: Stub) -> AsyncIterator[KubernetesCluster]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", stub.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    client = KubernetesCluster(
        ApiClient(configuration=configuration), on_request=lambda verb, kind, status: stub.counted.append((verb, kind, status))
    )
    yield client
    await client.close()
    await runner.cleanup()


async def test_an_apply_is_server_side_forced_and_by_its_manager(stub: Stub, cluster: KubernetesCluster) -> None:
    await cluster.apply(DEPLOYMENT, field_manager="specserver")
    assert stub.requests == [
        {
            "method": "PATCH", "path": "/apis/apps/v1/namespaces/ns/deployments/chat",
            "query": {"fieldManager": "specserver", "force": "true"}, "type": "application/apply-patch+yaml", "body": DEPLOYMENT,
            "accept": "application/json", "token": None,
        }
    ]  # fmt: skip
    assert stub.counted == [("apply", "Deployment", 200)]


async def test_other_requests(stub: Stub, cluster: KubernetesCluster) -> None:
    stub.body = {"items": [{"a": 1}]}
    assert await cluster.list_all("Pod", "ns", label_selector="x=y") == [{"a": 1}]
    await cluster.list_all("Pod", "")
    await cluster.get("Secret", "ns", "s")
    await cluster.create(DEPLOYMENT)
    await cluster.patch("Pod", "ns", "p", {"metadata": {"labels": {"l": None}}}, field_manager="m")
    await cluster.patch_status("SpeculativeServer", "ns", "chat", {"status": {}}, field_manager="m")
    assert [(one["method"], one["path"], one["query"]) for one in stub.requests] == [
        ("GET", "/api/v1/namespaces/ns/pods", {"labelSelector": "x=y"}),
        ("GET", "/api/v1/pods", {}),
        ("GET", "/api/v1/namespaces/ns/secrets/s", {}),
        ("POST", "/apis/apps/v1/namespaces/ns/deployments", {}),
        ("PATCH", "/api/v1/namespaces/ns/pods/p", {"fieldManager": "m"}),
        ("PATCH", "/apis/specserver.io/v1alpha1/namespaces/ns/speculativeservers/chat/status", {"fieldManager": "m"}),
    ]
    assert stub.requests[4]["type"] == "application/merge-patch+json"
    assert stub.requests[4]["body"] == {"metadata": {"labels": {"l": None}}}, "null removes, and is not lost on the way"


TERMINATING = "pods is forbidden: unable to create new content in namespace ns because it is being terminated"

ANSWERS = [
    pytest.param(404, {"message": "deployments \"chat\" not found"}, NotFound, "not found", id="404"),
    pytest.param(409, {"message": "the object has been modified"}, Conflict, "modified", id="409"),
    pytest.param(403, {"message": "exceeded quota: q"}, Refused, "exceeded quota: q", id="403 for a quota"),
    pytest.param(403, {"message": TERMINATING}, Unavailable, "being terminated", id="403 of a namespace that goes"),
    pytest.param(422, {"message": "spec.x: Invalid value"}, Refused, "spec.x: Invalid value", id="422"),
    pytest.param(413, "Request entity too large", Refused, "413", id="413 from a proxy"),
    pytest.param(401, {"message": "Unauthorized"}, Refused, "Unauthorized", id="401"),
    pytest.param(500, {"message": "etcdserver: request timed out"}, Unavailable, "request timed out", id="500"),
    pytest.param(
        500, {"message": "failed to create typed patch object (ns/chat): .spec.x: expected list, got &{map[]}"}, Refused,
        "expected list", id="500 for a field of another type",
    ),
    pytest.param(
        500, {"message": "failed to convert new object (ns/chat): unable to parse quantity's suffix"}, Refused,
        "quantity's suffix", id="500 for a quantity that is none",
    ),
    pytest.param(503, "<html>bad gateway</html>", Unavailable, "HTTP 503 <html>bad gateway</html>", id="503 from a proxy"),
    pytest.param(200, "half an ans", Unavailable, "JSONDecodeError", id="200 that is no JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "error", "says"), ANSWERS)
async def test_answers_by_what_to_do_about_them(
    stub: Stub, cluster: KubernetesCluster, status: int, body: Any, error: type[ClusterError], says: str
) -> None:
    stub.status, stub.body = status, body
    with pytest.raises(error, match=says) as caught:
        await cluster.apply(DEPLOYMENT, field_manager="m")
    assert type(caught.value) is error
    assert len(stub.requests) == 1, "whether to try again is the queue's to say"


@pytest.mark.parametrize("body", [{"message": "no:\n\x00" + "x" * 300_000}, "<html>\n" + "x" * 300_000], ids=["status", "page"])
async def test_an_endless_refusal_is_one_short_line(stub: Stub, cluster: KubernetesCluster, body: Any) -> None:
    """It goes into a condition, and one that is too long makes the API server refuse all of the status."""
    stub.status, stub.body = 422, body
    with pytest.raises(Refused) as caught:
        await cluster.apply(DEPLOYMENT, field_manager="m")
    assert len(caught.value.message) <= 600
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("soon", None), (None, None)])
async def test_too_many_requests_say_when_to_come_back(
    stub: Stub, cluster: KubernetesCluster, header: str | None, seconds: float | None
) -> None:
    stub.status, stub.body = 429, {"message": "too many requests"}
    stub.headers = {"Retry-After": header} if header else {}
    with pytest.raises(Unavailable) as caught:
        await cluster.get("Pod", "ns", "p")
    assert caught.value.retry_after_seconds == seconds


async def test_no_answer(stub: Stub, cluster: KubernetesCluster) -> None:
    stub.drop = True
    with pytest.raises(Unavailable, match="get Pod"):
        await cluster.get("Pod", "ns", "p")
    assert stub.counted == [("get", "Pod", 0)]


# ---- streams ------------------------------------------------------------------------------------------------------------


async def follow(cluster: KubernetesCluster) -> list[tuple[str, dict[str, Any]]]:
    return [event async for event in cluster.watch_metadata("Pod", "ns", label_selector="l=v", version="7")]


async def test_a_watch_asks_for_metadata_of_what_is_selected_with_bookmarks_and_an_end(
    stub: Stub, cluster: KubernetesCluster
) -> None:
    events = [("ADDED", {"metadata": {"name": "a"}}), ("BOOKMARK", {"metadata": {"resourceVersion": "9"}})]
    stub.body = "".join(json.dumps({"type": kind, "object": body}) + "\n" for kind, body in events)
    assert await follow(cluster) == events
    (asked,) = stub.requests
    assert asked["path"] == "/api/v1/namespaces/ns/pods"
    assert asked["query"] == {
        "watch": "1", "labelSelector": "l=v", "resourceVersion": "7", "allowWatchBookmarks": "true", "timeoutSeconds": "600",
    }  # fmt: skip
    assert "as=PartialObjectMetadata;" in asked["accept"]


async def test_a_stream_that_falls_silent_is_given_up(
    stub: Stub, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut by a load balancer it looks alive for ever; the end that the server was asked for never comes."""
    monkeypatch.setattr(client_module, "_SILENCE_SECONDS", 1.0)
    stub.silent = True
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable, match="watch Pod"):
            await follow(cluster)
    assert stub.counted == [("watch", "Pod", 200)]


async def test_a_stream_that_is_refused_says_why(stub: Stub, cluster: KubernetesCluster) -> None:
    stub.status, stub.body = 410, {"message": "too old resource version"}
    with pytest.raises(Unavailable, match="too old") as caught:
        await follow(cluster)
    assert caught.value.status == 410, "for then all is listed anew"
