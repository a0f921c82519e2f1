"""Where the load is read from: the client of a Prometheus is kept while its token holds, and let go when the Secret rotates."""

from __future__ import annotations

import base64
import gc
import weakref
from typing import Any, ClassVar

import pytest

from specserver.api.v1alpha1 import parse
from specserver.controller import sources
from specserver.core.observed import LoadUnknown
from specserver.engines.http import open_session
from tests.fakes.cluster import MemoryCluster


class RecordedClient:
    """Known to the test for as long as somebody else holds it."""

    alive: ClassVar[weakref.WeakSet[RecordedClient]] = weakref.WeakSet()

    def __init__(self, url: str, *, token: str | None) -> None:
        self.url, self.token = url, token
        self.alive.add(self)

    async def observe_load(self, *_: Any, **__: Any) -> LoadUnknown:
        return LoadUnknown("NoReadyReplicas", "none")


def a_secret(token: str) -> dict[str, Any]:
    data = {"token": base64.b64encode(token.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "ns", "name": "prometheus"}, "data": data}


async def test_a_rotated_token_gets_a_client_of_its_own_and_the_old_one_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PrometheusLoad", RecordedClient)
    prometheus = {"url": "http://prometheus:9090", "authSecretRef": {"name": "prometheus", "key": "token"}}
    server = parse(
        {
            "metadata": {"namespace": "ns", "name": "chat"},
            "spec": {
                "model": {"uri": "hf://org/model"}, "speculation": {"draftModel": {"uri": "hf://org/draft"}},
                "engine": {"image": "engine:1"}, "metrics": {"prometheus": prometheus},
            },
        }
    )  # fmt: skip
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
