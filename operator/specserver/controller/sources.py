"""Where the load of a server comes from: its pods, or the Prometheus that it names. One answer type for both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import aiohttp

from specserver.api import quantities
from specserver.api.conditions import Reason
from specserver.api.v1alpha1 import OnLoss, Prometheus, SecretKeyRef, SpeculativeServer
from specserver.cluster.client import Cluster
from specserver.cluster.secrets import read_entry
from specserver.core.observed import Load, LoadUnknown, Pod
from specserver.engines.http import PodHttp
from specserver.load.prometheus import PrometheusLoad
from specserver.load.replica import NO_READY_REPLICAS
from specserver.load.scrape import DirectScraper


@dataclass(frozen=True)
class _Account:
    """A Prometheus as one resource names it. The namespace counts where Secrets do."""

    url: str
    namespace: str
    token_ref: SecretKeyRef | None
    authorities_ref: SecretKeyRef | None
    verify: bool


@dataclass(frozen=True)
class _Secrets:
    """What the account's references held when its client was made."""

    token: str | None
    authorities: str | None


class LoadSources:
    """One scraper for all servers, and one Prometheus client for each account."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._scraper = DirectScraper(PodHttp(session))
        self._prometheus: dict[_Account, tuple[_Secrets, PrometheusLoad]] = {}

    async def observe_load(self, server: SpeculativeServer, pods: tuple[Pod, ...], now: float) -> Load | LoadUnknown:
        """The load from where the resource says; where that does not know all of it, as `metrics.onLoss` says."""
        metrics = server.spec.metrics
        if metrics.prometheus is None:
            return await self._scrape(server, pods, now)
        if metrics.on_loss is OnLoss.HOLD:
            return await self._ask(server, metrics.prometheus, pods, now)
        # Half of the staleness for the answer, so that a Prometheus that hangs does not make the pods' own numbers old.
        began, limit = asyncio.get_running_loop().time(), quantities.seconds(metrics.staleness) / 2
        try:
            load = await asyncio.wait_for(self._ask(server, metrics.prometheus, pods, now), limit)
        except TimeoutError:
            load = LoadUnknown(Reason.PROMETHEUS_ERROR, f"metrics.prometheus: no answer within {limit:g} s")
        if load == NO_READY_REPLICAS or (isinstance(load, Load) and load.complete):
            return load
        why = load.gap if isinstance(load, Load) else load.message
        instead = await self._scrape(server, pods, now + asyncio.get_running_loop().time() - began)
        if isinstance(instead, LoadUnknown):
            return load if isinstance(load, Load) else replace(load, message=f"{why}; and {instead.message}")
        return replace(instead, instead_of=why)

    async def _scrape(self, server: SpeculativeServer, pods: tuple[Pod, ...], now: float) -> Load | LoadUnknown:
        spec = server.spec
        return await self._scraper.observe_load(
            pods,
            port=spec.engine.port,
            now=now,
            staleness_seconds=quantities.seconds(spec.metrics.staleness),
            data_parallel=spec.engine.parallelism.data,
        )

    async def _ask(
        self, server: SpeculativeServer, prometheus: Prometheus, pods: tuple[Pod, ...], now: float
    ) -> Load | LoadUnknown:
        spec, namespace, tls = server.spec, server.namespace, prometheus.tls
        values = {}
        for field, ref in (("authSecretRef", prometheus.auth_secret_ref), ("tls.caSecretRef", tls.ca_secret_ref)):
            values[field] = await read_entry(self._cluster, namespace, ref) if ref else None
            if ref and values[field] is None:
                return LoadUnknown(
                    Reason.PROMETHEUS_ERROR,
                    f"metrics.prometheus.{field}: Secret {ref.name} has no entry {ref.key}: create it",
                )
        named = prometheus.auth_secret_ref or tls.ca_secret_ref
        account = _Account(
            prometheus.url,
            namespace if named else "",
            prometheus.auth_secret_ref,
            tls.ca_secret_ref,
            not tls.insecure_skip_verify,
        )
        try:
            client = self._client(account, _Secrets(values["authSecretRef"], values["tls.caSecretRef"]))
        except ValueError as error:
            ref = tls.ca_secret_ref
            where = f"Secret {ref.name}, entry {ref.key}" if ref else "the Secret"
            return LoadUnknown(Reason.PROMETHEUS_ERROR, f"metrics.prometheus.tls.caSecretRef: {where} holds {error}")
        return await client.observe_load(
            pods,
            namespace=namespace,
            port=spec.engine.port,
            now=now,
            staleness_seconds=quantities.seconds(spec.metrics.staleness),
            labels=prometheus.labels,
            data_parallel=spec.engine.parallelism.data,
        )

    def _client(self, account: _Account, held: _Secrets) -> PrometheusLoad:
        """The client for this account. One with earlier secrets is dropped, and its thread ends with its last query."""
        known = self._prometheus.get(account)
        if known is None or known[0] != held:
            client = PrometheusLoad(account.url, token=held.token, authorities=held.authorities, verify=account.verify)
            known = self._prometheus[account] = (held, client)
        return known[1]

    def close(self) -> None:
        for _, client in self._prometheus.values():
            client.close()
