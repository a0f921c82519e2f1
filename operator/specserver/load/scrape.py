"""Load by reading each ready pod's /metrics: the default, since it needs nothing in the cluster but the pods.

/metrics of SGLang takes no key, so none is sent. The limits on time, size and redirects are those of `engines/http.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specserver.api.conditions import Reason
from specserver.core.observed import Load, LoadUnknown, Pod, PodLoad
from specserver.engines.http import (
    PodHttp,
    PodUnreachable,
    excerpt,
)
from specserver.load.exposition import ACCEPT, ExpositionInvalid, Sample, parse_exposition
from specserver.load.metric_names import ENGINE_NAMES
from specserver.load.replica import (
    NO_READY_REPLICAS,
    Looks,
    Unknown,
    assemble_load,
    observe_replica,
    replicas_to_observe,
    stale,
)

METRICS_PATH = "/metrics"
PAGE_LIMIT_BYTES = 4 * 1024 * 1024


class DirectScraper:
    """Reads pods; one for all servers. Remembers each pod's last token count, by UID."""

    def __init__(self, http: PodHttp) -> None:
        self._http = http
        self._looks = Looks()

    async def observe_load(
        self, pods: Sequence[Pod], *, port: int, now: float, staleness_seconds: float, data_parallel: int = 1
    ) -> Load | LoadUnknown:
        """The load of the ready ones among these pods of one server."""
        self._looks.note_restarts(pods)
        ready = replicas_to_observe(pods)
        if not ready:
            return NO_READY_REPLICAS
        began = asyncio.get_running_loop().time()

        async def look(pod: Pod) -> PodLoad | Unknown:
            page = await self._read_page(pod, port)
            # Each page has the time at which it came: a rate by the time of asking would be off by the time of waiting.
            read_at = now + asyncio.get_running_loop().time() - began
            return page if isinstance(page, Unknown) else self._observe(pod, page, read_at, staleness_seconds, data_parallel)

        replicas = await asyncio.gather(*(look(pod) for pod in ready))
        self._looks.forget(now)
        return assemble_load(list(zip(ready, replicas, strict=True)))

    def _observe(
        self, pod: Pod, page: list[Sample], now: float, staleness_seconds: float, data_parallel: int
    ) -> PodLoad | Unknown:
        # A page may give its samples times of their own: it is then a copy of what somebody read earlier.
        at = min([now, *(sample.at for sample in page if sample.at is not None)])
        if now - at > staleness_seconds:
            return stale(staleness_seconds)
        return observe_replica(pod, page, at=at, data_parallel=data_parallel, looks=self._looks)

    async def _read_page(self, pod: Pod, port: int) -> list[Sample] | Unknown:
        where = f"GET {METRICS_PATH}"
        try:
            answer = await self._http.exchange(
                "GET", pod.ip, port, METRICS_PATH, limit_bytes=PAGE_LIMIT_BYTES, headers={"Accept": ACCEPT}
            )
            if answer.status == 404:
                return Unknown(
                    Reason.METRICS_MISSING, f"{where}: the engine answered 404: it was started without --enable-metrics"
                )
            if answer.status != 200:
                said = excerpt(answer.body.decode(errors="replace"))
                return Unknown(Reason.SCRAPE_ERROR, f"{where}: the engine answered {answer.status}: {said}")
            return parse_exposition(answer.body.decode(errors="replace"), ENGINE_NAMES)
        except PodUnreachable as error:
            return Unknown(Reason.SCRAPE_ERROR, str(error))
        except ExpositionInvalid as error:
            return Unknown(Reason.SCRAPE_ERROR, f"{where}: {error}")
