"""Watching the objects that belong to servers: only whose they are, and that something happened.

A pass reads what it needs itself, so of an event no more is wanted than the labels, and the API server is asked for
metadata alone. Rejected: kopf's watches, which serve the resource itself. For each object they keep a record, a queue and,
for seconds after each event, a task; with ten thousand pods that is more memory than all the rest, and nothing of it is used.

A stream that says nothing is dead: the API server sends a bookmark every minute. After a gap everything is listed anew, and
what was there before it counts as changed, too: an object that vanished meanwhile is in no list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from specserver.cluster.errors import ClusterError

_log = logging.getLogger(__name__)

_PAGE_SIZE = 500
_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_GONE = 410

Metadata = dict[str, Any]


class Streams(Protocol):
    """What watching needs of an API server."""

    async def list_metadata(
        self, kind: str, namespace: str, *, label_selector: str, limit: int, continue_at: str
    ) -> tuple[list[Metadata], Metadata]:
        """A page: the metadata of its objects, and the list's own."""
        ...

    def watch_metadata(
        self, kind: str, namespace: str, *, label_selector: str, version: str
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Types and objects of events, until the stream ends. ClusterError where it breaks."""
        ...


async def list_metadata(streams: Streams, kind: str, namespace: str) -> AsyncIterator[Metadata]:
    """The metadata of all of a kind, page by page: a thousand whole resources at once are tens of megabytes."""
    async for found, _ in _pages(streams, kind, namespace, ""):
        for metadata in found:
            yield metadata


async def _pages(streams: Streams, kind: str, namespace: str, selector: str) -> AsyncIterator[tuple[list[Metadata], Metadata]]:
    continue_at = ""
    while True:
        found, page = await streams.list_metadata(
            kind, namespace, label_selector=selector, limit=_PAGE_SIZE, continue_at=continue_at
        )
        yield found, page
        if not (continue_at := page.get("continue", "")):
            return


class Follower:
    """Follows one kind in one namespace, or in all where it is empty. `on_object` gets the metadata of what is or was there."""

    def __init__(
        self, streams: Streams, kind: str, namespace: str, *, label_selector: str, on_object: Callable[[Metadata], None]
    ) -> None:
        self._streams, self._kind, self._namespace = streams, kind, namespace
        self._selector, self._on_object = label_selector, on_object
        self._version = ""
        self._seen: dict[str, Metadata] = {}
        """By UID, namespace and labels: to tell after a gap what is gone."""

    async def run(self) -> None:
        """Until cancelled: whatever goes wrong is tried again."""
        failures = 0
        while True:
            try:
                if not self._version:
                    self._version = await self._list()
                await self._watch()
                failures = 0
            except ClusterError as error:
                failures += 1
                if error.status == _GONE:
                    self._version = ""
                _log.info("%s are not watched at the moment: %s", self._kind, error.message)
            await asyncio.sleep(min(_PAUSE_SECONDS * 2 ** min(failures, 10), _LONGEST_PAUSE_SECONDS))

    async def _list(self) -> str:
        """All that is there now, and all that was; returns the version from which to watch."""
        before, self._seen = self._seen, {}
        version = ""
        try:
            async for found, page in _pages(self._streams, self._kind, self._namespace, self._selector):
                version = page["resourceVersion"]
                for metadata in found:
                    self._note(metadata)
        except ClusterError:
            self._seen = before | self._seen
            raise
        for uid, metadata in before.items():
            if uid not in self._seen:
                self._on_object(metadata)
        return version

    async def _watch(self) -> None:
        async for kind, body in self._streams.watch_metadata(
            self._kind, self._namespace, label_selector=self._selector, version=self._version
        ):
            if kind == "ERROR":  # with 410 the versions since are gone; with anything else a new list does no harm
                self._version = ""
                return
            metadata = body["metadata"]
            self._version = metadata["resourceVersion"]
            if kind == "DELETED":
                self._seen.pop(metadata["uid"], None)
                self._on_object(metadata)
            elif kind != "BOOKMARK":
                self._note(metadata)

    def _note(self, metadata: Metadata) -> None:
        self._seen[metadata["uid"]] = {"namespace": metadata["namespace"], "labels": metadata.get("labels", {})}
        self._on_object(metadata)
