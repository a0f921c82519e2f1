"""Where the load of a server comes from: its pods, or the Prometheus that it names. One answer type for both."""

from __future__ import annotations

import aiohttp

from specserver.api import quantities
from specserver.api.conditions import Reason
from specserver.api.v1alpha1 import SecretKeyRef, SpeculativeServer
from specserver.cluster.client import Cluster
from specserver.cluster.secrets import read_entry
from specserver.core.observed import Load, LoadUnknown, Pod
from specserver.engines.http import PodHttp
from specserver.load.prometheus import PrometheusLoad
from specserver.load.scrape import DirectScraper

_Account = tuple[str, str, SecretKeyRef | None]
"""A Prometheus, and where the token for it stands, if it needs one: URL, namespace, Secret entry."""


class LoadSources:
    """One scraper for all servers, and one Prometheus client for each URL and Secret entry with a token."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._scraper = DirectScraper(PodHttp(session))
        self._prometheus: dict[_Account, tuple[str | None, PrometheusLoad]] = {}

    async def observe_load(self, server: SpeculativeServer, pods: tuple[Pod, ...], now: float) -> Load | LoadUnknown:
        spec = server.spec
        staleness = quantities.seconds(spec.metrics.staleness)
        prometheus = spec.metrics.prometheus
        port, data_parallel = spec.engine.port, spec.engine.parallelism.data
        if prometheus is None:
            return await self._scraper.observe_load(
                pods, port=port, now=now, staleness_seconds=staleness, data_parallel=data_parallel
            )
        token = None
        if prometheus.auth_secret_ref is not None:
            ref = prometheus.auth_secret_ref
            token = await read_entry(self._cluster, server.namespace, ref)
            if token is None:
                return LoadUnknown(
                    Reason.PROMETHEUS_ERROR,
                    f"metrics.prometheus.authSecretRef: Secret {ref.name} has no entry {ref.key}: create it",
                )
        client = self._client(prometheus.url, server.namespace, prometheus.auth_secret_ref, token)
        return await client.observe_load(
            pods,
            namespace=server.namespace,
            port=port,
            now=now,
            staleness_seconds=staleness,
            labels=prometheus.labels,
            data_parallel=data_parallel,
        )

    def _client(self, url: str, namespace: str, ref: SecretKeyRef | None, token: str | None) -> PrometheusLoad:
        """The client for this account. One with an earlier token is dropped, and its thread ends with its last query."""
        account = (url, namespace if ref else "", ref)
        known = self._prometheus.get(account)
        if known is None or known[0] != token:
            known = self._prometheus[account] = (token, PrometheusLoad(url, token=token))
        return known[1]

    def close(self) -> None:
        for _, client in self._prometheus.values():
            client.close()
