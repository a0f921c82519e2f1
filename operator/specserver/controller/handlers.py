"""Events become keys in the queue, and nothing else happens here.

kopf watches the resource; the objects that belong to it are watched by `cluster/watch.py`, which says why. Of kopf's handlers
only the stateless `on.event` are used: with them kopf writes nothing to any object, no finalizer and no annotation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import kopf

from specserver.api import labels
from specserver.cluster.watch import Follower, Streams
from specserver.controller.queue import Key

Enqueue = Callable[[Key], None]

_OWNED_KINDS = ("Deployment", "Service", "ConfigMap", "Pod", "PodDisruptionBudget")
"""Kinds whose changes concern a server. Secrets are not watched: that would be a right to read them all."""


def build_registry(on_server: ServerEvents) -> kopf.OperatorRegistry:
    """A registry of its own, so that importing this module registers nothing."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_via_client)

    @kopf.on.event(labels.GROUP, labels.VERSION, labels.PLURAL, registry=registry)
    async def server_event(type: str | None, body: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf names it
        on_server.handle(type, body)

    return registry


def build_followers(streams: Streams, enqueue: Enqueue, namespaces: Iterable[str]) -> list[Follower]:
    """For each kind and namespace one; all namespaces together where none is named."""

    def on_object(metadata: Mapping[str, Any]) -> None:
        key = owner_of(metadata.get("namespace"), metadata.get("labels", {}))
        if key is not None:
            enqueue(key)

    ours = f"{labels.MANAGED_BY}={labels.MANAGED_BY_VALUE}"
    return [
        Follower(streams, kind, namespace, label_selector=ours, on_object=on_object)
        for namespace in tuple(namespaces) or ("",)
        for kind in _OWNED_KINDS
    ]


def owner_of(namespace: str | None, object_labels: Mapping[str, str]) -> Key | None:
    """The server that an object belongs to, by its label."""
    server = object_labels.get(labels.SERVER)
    return (namespace, server) if namespace and server else None


class ServerEvents:
    """Lets through what is news. Our own status writes come back as events too, and a busy server's status changes at every
    look: answering each with another look would never end."""

    def __init__(self, enqueue: Enqueue) -> None:
        self._enqueue = enqueue
        self._generations: dict[Key, tuple[str, int]] = {}

    def handle(self, event_type: str | None, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if event_type == "DELETED":
            self._generations.pop(key, None)
        else:
            generation = (metadata["uid"], metadata.get("generation", 1))
            known = self._generations.get(key) == generation
            self._generations[key] = generation
            if known and event_type == "MODIFIED" and "deletionTimestamp" not in metadata:
                return
        self._enqueue(key)


class _Endless:
    """Seconds between kopf's tries of a request. Its own list ends after a minute, and the operator with it."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0, 3.0), itertools.repeat(5.0))


def build_settings() -> kopf.OperatorSettings:
    """kopf's settings: streams that notice when they are dead, no posting, no scanning, no peering."""
    settings = kopf.OperatorSettings()
    # Both timeouts: with the server's alone a stream that a load balancer cut silently stays open for ever.
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 30
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 10
    settings.networking.error_backoffs = _Endless()
    settings.scanning.disabled = True  # so that a namespaced Role is enough
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiff()
    return settings


class _NoDiff(kopf.DiffBaseStorage):
    """kopf takes a deep copy of each object at each event, to find out what changed. Nobody here asks."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None, ignored_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass
