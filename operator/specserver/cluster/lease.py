"""One operator at a time: a Lease for what an operator watches, held by renewing it.

Two operators for one resource would undo each other's work. The chart runs one pod and replaces it by Recreate; the Lease is for
what the chart can't see: a Deployment scaled to two, a second release, an operator started by hand. Who does not hold it watches,
does nothing, and says who holds it.

An operator that can't renew (its API server is away) stops working well before another may take over, and goes on when it finds
the Lease still its own; it does not end, for a container that restarts again and again comes back minutes after the API server.
Times of other machines are never compared with the clock here: a Lease has run out when it has not changed for its duration.

Rejected: kopf's peering, where equal priorities freeze both sides; and `kubernetes.aio.leaderelection`, which keeps the Lease
when it ends, so that each planned restart costs its duration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from specserver.api import labels
from specserver.cluster.client import Body, Cluster
from specserver.cluster.errors import ClusterError, Conflict, NotFound

_log = logging.getLogger(__name__)

NAME = "specserver-operator"
NAMESPACE_OF_ALL = "default"
"""Where the Lease of an operator for all namespaces is: a namespace that each cluster has, so that two of them meet there."""

DURATION_SECONDS = 15.0
RENEW_SECONDS = 5.0
GIVE_UP_SECONDS = 10.0
"""Without a renewal for this long nothing is done any more, 5 s before anybody else may begin."""
RETRY_SECONDS = 2.0
_RELEASE_SECONDS = 2.0
"""An operator that ends does not wait for an API server that hangs."""


class Lease:
    """One Lease. `run` keeps it or waits for it; `held` says whether to work."""

    def __init__(self, cluster: Cluster, namespace: str, identity: str, *, clock: Callable[[], float]) -> None:
        self._cluster, self.namespace, self._identity, self._clock = cluster, namespace, identity, clock
        self._renewed_at: float | None = None
        self._version = ""
        self._changed_at = 0.0
        self.waits_for = ""

    @property
    def held(self) -> bool:
        return self._renewed_at is not None and self._clock() - self._renewed_at < GIVE_UP_SECONDS

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(RENEW_SECONDS if self.held else RETRY_SECONDS)

    async def turn(self) -> None:
        """Renews the Lease, or takes it where it is free, or waits."""
        began = self._clock()
        try:
            taken = await self._take()
        except ClusterError as error:
            self.waits_for = f"the Lease {self.namespace}/{NAME} can't be had: {error.message}"
            _log.warning("%s", self.waits_for)
            return
        if taken:
            if not self.held:
                _log.info("holds the Lease %s/%s", self.namespace, NAME)
            self._renewed_at, self.waits_for = began, ""
        else:
            self._renewed_at = None

    async def release(self) -> None:
        """Lets go of it, so that the next operator need not wait until it runs out."""
        if not self.held:
            return
        self._renewed_at = None
        spec = {"holderIdentity": None, "renewTime": _now()}
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._write({"metadata": {"resourceVersion": self._version}, "spec": spec})
        except (ClusterError, TimeoutError) as error:
            _log.warning("the Lease %s/%s was not let go: %s", self.namespace, NAME, error)

    async def _take(self) -> bool:
        """Whether it is ours now. Each write names the version that was read, so of two operators one gets a Conflict."""
        spec = {"holderIdentity": self._identity, "leaseDurationSeconds": int(DURATION_SECONDS), "renewTime": _now()}
        try:
            if self.held:
                self._note(await self._write({"metadata": {"resourceVersion": self._version}, "spec": spec}))
                return True
            body = await self._cluster.get("Lease", self.namespace, NAME)
            self._note(body)
            holder = (body.get("spec") or {}).get("holderIdentity")
            if holder and holder != self._identity and self._clock() - self._changed_at < DURATION_SECONDS:
                self._wait_for(f"the operator {holder} holds the Lease {self.namespace}/{NAME}")
                return False
            taken = {**spec, "acquireTime": _now()}
            self._note(await self._write({"metadata": {"resourceVersion": self._version}, "spec": taken}))
        except NotFound:
            metadata = {"name": NAME, "namespace": self.namespace, "labels": {labels.MANAGED_BY: labels.MANAGED_BY_VALUE}}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
            self._note(await self._cluster.create({**body, "spec": {**spec, "acquireTime": _now()}}))
        except Conflict:
            self._wait_for(f"another operator takes the Lease {self.namespace}/{NAME}")
            return False
        return True

    def _note(self, body: Body) -> None:
        version = body["metadata"]["resourceVersion"]
        if version != self._version:
            self._version, self._changed_at = version, self._clock()

    def _wait_for(self, why: str) -> None:
        if why != self.waits_for:
            _log.warning("waits: %s. Two operators for the same servers would undo each other's work", why)
        self.waits_for = why

    async def _write(self, body: dict[str, Any]) -> Body:
        return await self._cluster.patch("Lease", self.namespace, NAME, body, field_manager=labels.MANAGER_OBJECTS)


class Leases:
    """The Leases of one operator: one for each namespace that it watches, or a single one where it watches all."""

    def __init__(self, cluster: Cluster, namespaces: Sequence[str], identity: str, *, clock: Callable[[], float]) -> None:
        self._all = not namespaces
        self._leases = {
            namespace: Lease(cluster, namespace, identity, clock=clock) for namespace in namespaces or (NAMESPACE_OF_ALL,)
        }

    def held(self, namespace: str) -> bool:
        """Whether to work on servers of this namespace."""
        lease = self._leases.get(NAMESPACE_OF_ALL if self._all else namespace)
        return lease is not None and lease.held

    def waits_for(self) -> str:
        """What keeps this operator from working, or an empty string."""
        waiting = [lease for lease in self._leases.values() if not lease.held]
        return (waiting[0].waits_for or "waiting for its Lease") if waiting else ""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for lease in self._leases.values():
                group.create_task(lease.run())

    async def release(self) -> None:
        await asyncio.gather(*(lease.release() for lease in self._leases.values()))


def _now() -> str:
    """A MicroTime; the API server refuses one without a fraction."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
