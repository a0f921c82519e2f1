"""Where the load is read from: the client of a Prometheus is kept while its token holds, and let go when the Secret rotates."""

from __future__ import annotations

import asyncio
import base64
import gc
import weakref
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from specserver.api.v1alpha1 import SpeculativeServer, parse
from specserver.controller import sources
from specserver.core.observed import Load, LoadUnknown, PodLoad, PodLoadUnknown
from specserver.engines.http import open_session
from specserver.load.replica import NO_READY_REPLICAS
from tests.fakes.cluster import MemoryCluster
from tests.fakes.pods import build_pod


class RecordedClient:
    """Known to the test for as long as somebody else holds it."""

    alive: ClassVar[weakref.WeakSet[RecordedClient]] = weakref.WeakSet()

    def __init__(self, url: str, *, token: str | None, authorities: str | None, verify: bool) -> None:
        self.url, self.token, self.authorities, self.verify = url, token, authorities, verify
        self.alive.add(self)

    async def observe_load(self, *_: Any, **__: Any) -> LoadUnknown:
        return LoadUnknown("NoReadyReplicas", "none")


def a_server(**metrics: Any) -> SpeculativeServer:
    return parse(
        {
            "metadata": {"namespace": "ns", "name": "chat"},
            "spec": {
                "model": {"uri": "hf://org/model"}, "speculation": {"draftModel": {"uri": "hf://org/draft"}},
                "engine": {"image": "engine:1"}, "metrics": metrics,
            },
        }
    )  # fmt: skip


def a_secret(token: str) -> dict[str, Any]:
    data = {"token": base64.b64encode(token.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "ns", "name": "prometheus"}, "data": data}


async def test_a_rotated_token_gets_a_client_of_its_own_and_the_old_one_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PrometheusLoad", RecordedClient)
    prometheus = {"url": "http://prometheus:9090", "authSecretRef": {"name": "prometheus", "key": "token"}}
    server = a_server(prometheus=prometheus)
    cluster = MemoryCluster(a_secret("first"))
    async with open_session() as session:
        looks = sources.LoadSources(cluster, session)
        await looks.observe_load(server, (), 0.0)
        first = set(map(id, RecordedClient.alive))
        await looks.observe_load(server, (), 1.0)
        assert set(map(id, RecordedClient.alive)) == first, "kept while the token holds"
        cluster.objects["Secret", "prometheus"] = a_secret("second")
        await looks.observe_load(server, (), 2.0)
        gc.collect()
        assert [client.token for client in RecordedClient.alive] == ["second"]


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({"authSecretRef": {"name": "none", "key": "token"}}, "authSecretRef: Secret none has no entry token"),
        ({"tls": {"caSecretRef": {"name": "none", "key": "ca"}}}, "tls.caSecretRef: Secret none has no entry ca"),
        (
            {"tls": {"caSecretRef": {"name": "prometheus", "key": "token"}}},
            "tls.caSecretRef: Secret prometheus, entry token holds no PEM certificates",
        ),
    ],
)
async def test_a_secret_that_is_of_no_use(metrics: dict[str, Any], says: str) -> None:
    async with open_session() as session:
        looks = sources.LoadSources(MemoryCluster(a_secret("s3cret")), session)
        load = await looks.observe_load(a_server(prometheus={"url": "https://prometheus", **metrics}), (), 0.0)
    assert isinstance(load, LoadUnknown)
    assert says in load.message
    assert "s3cret" not in load.message


PODS = (build_pod("m-0"), build_pod("m-1"))


def a_load(*running: float, at: float = 0.0) -> Load:
    """Of as many pods as there are figures; the others' is unknown."""
    known = tuple(PodLoad(pod.name, one, 0, 0.1, None, at) for pod, one in zip(PODS, running, strict=False))
    return Load(known, tuple(PodLoadUnknown(pod.name, "no series") for pod in PODS[len(known) :]))


LOST = LoadUnknown("PrometheusError", "query load: connection refused")
DARK = LoadUnknown("ScrapeError", "pod m-0: timed out")
WHOLE = a_load(7, 8)


@pytest.mark.parametrize(
    ("on_loss", "asked", "scraped", "expected"),
    [
        pytest.param("Hold", LOST, WHOLE, LOST, id="lost, and held"),
        pytest.param("Hold", a_load(1), WHOLE, a_load(1), id="one replica lost, and held"),
        pytest.param("Fallback", LOST, WHOLE, replace(WHOLE, instead_of=LOST.message), id="lost"),
        pytest.param("Fallback", a_load(1), WHOLE, replace(WHOLE, instead_of=a_load(1).gap), id="one replica lost"),
        pytest.param("Fallback", a_load(1, 2), WHOLE, a_load(1, 2), id="nothing lost"),
        pytest.param("Fallback", a_load(1), DARK, a_load(1), id="one replica lost, and no pod answers"),
        pytest.param(
            "Fallback", LOST, DARK, LoadUnknown(LOST.reason, f"{LOST.message}; and {DARK.message}"), id="both are lost"
        ),
        pytest.param("Fallback", NO_READY_REPLICAS, WHOLE, NO_READY_REPLICAS, id="there is nothing to ask"),
        pytest.param(
            "Fallback",
            None,
            WHOLE,
            replace(WHOLE, instead_of="metrics.prometheus: no answer within 0.5 s"),
            id="it does not answer in half the staleness",
        ),
    ],
)
async def test_what_is_taken_for_a_loss(
    monkeypatch: pytest.MonkeyPatch,
    on_loss: str,
    asked: Load | LoadUnknown | None,
    scraped: Load | LoadUnknown,
    expected: Load | LoadUnknown,
) -> None:
    class Prometheus(RecordedClient):
        async def observe_load(self, *_: Any, **__: Any) -> Any:
            return await asyncio.sleep(30) if asked is None else asked

    class Scraper:
        def __init__(self, _http: Any) -> None: ...

        async def observe_load(self, *_: Any, **__: Any) -> Load | LoadUnknown:
            return scraped

    monkeypatch.setattr(sources, "PrometheusLoad", Prometheus)
    monkeypatch.setattr(sources, "DirectScraper", Scraper)
    metrics = {"prometheus": {"url": "http://prometheus"}, "onLoss": on_loss, "interval": "1s", "staleness": "1s"}
    async with open_session() as session:
        looks = sources.LoadSources(MemoryCluster(), session)
        assert await looks.observe_load(a_server(**metrics), PODS, 0.0) == expected
