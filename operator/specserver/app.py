"""The operator's process: one event loop with kopf's watches, the work queue, and the pages for probes and metrics."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

import kopf

from specserver import __version__
from specserver.api import labels
from specserver.cluster.client import KubernetesCluster
from specserver.cluster.errors import ClusterError, NotFound
from specserver.cluster.lease import Leases
from specserver.cluster.watch import list_metadata
from specserver.controller.handlers import ServerEvents, build_followers, build_registry, build_settings
from specserver.controller.policies import PolicyPusher
from specserver.controller.queue import Key, Outcome, RequeueAfter, WorkQueue
from specserver.controller.reconcile import Reconciler
from specserver.controller.sources import LoadSources
from specserver.engines.client import EngineClient
from specserver.engines.http import PodHttp, open_session
from specserver.settings import Settings
from specserver.telemetry import OperatorMetrics, serve_pages

_log = logging.getLogger(__name__)

_LONGEST_RECONCILE_SECONDS = 300.0
_CRD_POLL_SECONDS = 2.0
_LIST_SECONDS = 15.0
_LIST_AGAIN_SECONDS = 2.0
_WITHOUT_LEASE_SECONDS = 3.0


async def run(settings: Settings) -> None:
    """Runs until a signal ends it, or until a part of it dies: then all of it ends, and the kubelet starts it anew."""
    metrics = OperatorMetrics()
    cluster = await KubernetesCluster.connect(on_request=metrics.count_request)
    session = open_session()
    sources = LoadSources(cluster, session)
    pusher = PolicyPusher(EngineClient(PodHttp(session)), on_push=lambda result: metrics.pushes.labels(result).inc())
    reconciler = Reconciler(cluster, pusher, sources, version=__version__)
    leases = Leases(cluster, settings.namespaces, settings.identity, clock=time.monotonic)

    async def reconcile(key: Key) -> Outcome:
        if not leases.held(key[0]):
            return RequeueAfter(_WITHOUT_LEASE_SECONDS)
        began = time.monotonic()
        try:
            outcome = await reconciler.reconcile(key)
        except BaseException:
            metrics.reconciles.labels("Error").inc()
            raise
        metrics.reconciles.labels(type(outcome).__name__).inc()
        metrics.reconcile_seconds.observe(time.monotonic() - began)
        metrics.queue_length.set(len(queue))
        return outcome

    queue = WorkQueue(reconcile, workers=settings.workers)
    on_server = ServerEvents(queue.add)
    watching = asyncio.Event()

    def alive() -> str:
        seconds = queue.longest_run_seconds()
        return f"a reconcile takes {seconds:.0f} s" if seconds > _LONGEST_RECONCILE_SECONDS else ""

    def ready() -> str:
        if not watching.is_set():
            return f"waiting for the CustomResourceDefinition {labels.PLURAL}.{labels.GROUP}"
        return leases.waits_for()

    pages = await serve_pages(settings.port, metrics, alive=alive, ready=ready)
    # From the first moment: process 1 of a container has no default for SIGTERM. kopf puts its own handlers over these.
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    async def watch() -> None:
        await _await_crd(cluster, settings)
        watching.set()
        await kopf.operator(
            registry=build_registry(on_server),
            settings=build_settings(),
            # kopf would ask for the user's name, which a user without an entry in /etc/passwd has not.
            identity="specserver",  # type: ignore[arg-type]
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
        )

    listing = _list_servers(cluster, settings, on_server)
    following = (follower.run() for follower in build_followers(cluster, queue.add, settings.namespaces))
    parts = (queue.run(), watch(), listing, *following, leases.run(), stopped.wait())
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await leases.release()
        sources.close()
        await pages.cleanup()
        await session.close()
        await cluster.close()


async def _list_servers(cluster: KubernetesCluster, settings: Settings, on_server: ServerEvents) -> None:
    """Finds new and changed servers without the watch: a stream can be silent for a minute and look alive."""
    pause = _LIST_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            for namespace in settings.namespaces or ("",):
                async for metadata in list_metadata(cluster, labels.KIND, namespace):
                    on_server.handle("MODIFIED", {"metadata": metadata})
        except ClusterError as error:
            _log.info("servers were not listed: %s", error.message)
            pause = _LIST_AGAIN_SECONDS
            continue
        pause = _LIST_SECONDS


async def _await_crd(cluster: KubernetesCluster, settings: Settings) -> None:
    """Waits until the kind is there: kopf without scanning would not notice it when it comes later."""
    told = False
    while True:
        try:
            await cluster.list_all(labels.KIND, settings.namespaces[0] if settings.namespaces else "default")
            return
        except NotFound:
            if not told:
                _log.warning("the CustomResourceDefinition is not installed yet: waiting for it")
                told = True
        except ClusterError as error:
            _log.warning("the API server does not answer as it should: %s", error.message)
        await asyncio.sleep(_CRD_POLL_SECONDS)
