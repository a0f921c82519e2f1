"""Following objects through gaps, errors and silence: whatever happens to the stream, each change becomes known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from specserver.cluster import watch
from specserver.cluster.errors import Unavailable
from specserver.cluster.watch import Follower, Metadata
from tests.waiting import eventually


def metadata(name: str, version: int = 1, namespace: str = "ns") -> Metadata:
    return {
        "namespace": namespace, "name": name, "uid": f"uid-{name}", "resourceVersion": str(version),
        "labels": {"specserver.io/server": name},
    }  # fmt: skip


Event = tuple[str, dict[str, Any]]


def event(kind: str, name: str, version: int) -> Event:
    return kind, {"metadata": metadata(name, version)}


class FakeStreams:
    """Lists what is `there`; each watch is one of `streams`, the last of which stays open."""

    def __init__(self, *there: Metadata, streams: list[list[Event | Exception]]) -> None:
        self.there, self.streams = list(there), streams
        self.page_size = 100
        self.version = 10
        self.lists = 0
        self.failing_lists: list[Exception] = []
        self.watched_from: list[str] = []
        self.on_watch: Callable[[], None] = lambda: None

    async def list_metadata(
        self, kind: str, namespace: str, *, label_selector: str, limit: int, continue_at: str
    ) -> tuple[list[Metadata], Metadata]:
        assert (kind, namespace, label_selector) == ("Pod", "ns", "l=v")
        if self.failing_lists:
            raise self.failing_lists.pop(0)
        self.lists += 1
        begin = int(continue_at or 0)
        end = begin + self.page_size
        more = {"continue": str(end)} if end < len(self.there) else {}
        return self.there[begin:end], {"resourceVersion": str(self.version), **more}

    async def watch_metadata(
        self, kind: str, namespace: str, *, label_selector: str, version: str
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.watched_from.append(version)
        self.on_watch()
        for one in self.streams.pop(0):
            if isinstance(one, Exception):
                raise one
            yield one
        if not self.streams:
            await asyncio.Event().wait()


class Followed:
    """A running follower and what it told."""

    def __init__(self, streams: FakeStreams) -> None:
        self.told: list[str] = []
        self._follower = Follower(streams, "Pod", "ns", label_selector="l=v", on_object=self._tell)

    def _tell(self, one: Metadata) -> None:
        self.told.append(one["labels"]["specserver.io/server"])

    async def __aenter__(self) -> Followed:
        self._task = asyncio.create_task(self._follower.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self, *told: str) -> None:
        await eventually(lambda: self.told == list(told), lambda: f"{told}; told is {self.told}")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_PAUSE_SECONDS", 0.0)


async def test_what_is_there_and_what_happens() -> None:
    streams = FakeStreams(
        metadata("a"), metadata("b"), streams=[[event("ADDED", "c", 11), event("MODIFIED", "a", 12), event("DELETED", "b", 13)]]
    )
    async with Followed(streams) as followed:
        await followed.wait("a", "b", "c", "a", "b")
    assert streams.watched_from == ["10"]


async def test_long_lists_are_read_in_pages() -> None:
    streams = FakeStreams(*(metadata(name) for name in "abcde"), streams=[[]])
    streams.page_size = 2
    async with Followed(streams) as followed:
        await followed.wait(*"abcde")
    assert streams.lists == 3


async def test_a_stream_that_ends_is_taken_up_where_it_ended() -> None:
    """Bookmarks move that place on, and tell nobody of anything."""
    streams = FakeStreams(streams=[[event("ADDED", "a", 11), ("BOOKMARK", {"metadata": {"resourceVersion": "20"}})], []])
    async with Followed(streams) as followed:
        await eventually(lambda: len(streams.watched_from) == 2, "a second stream")
    assert streams.watched_from == ["10", "20"]
    assert streams.lists == 1
    assert followed.told == ["a"]


TOO_OLD = ("ERROR", {"kind": "Status", "code": 410, "metadata": {}})


@pytest.mark.parametrize("last", [TOO_OLD, Unavailable("too old", status=410)], ids=["event", "answer"])
async def test_what_vanished_in_a_gap_is_told_though_no_list_has_it(last: Event | Exception) -> None:
    streams = FakeStreams(metadata("a"), metadata("b"), streams=[[event("ADDED", "c", 11), last], []])

    def vanish() -> None:
        streams.there, streams.version = [metadata("a")], 50

    streams.on_watch = vanish
    async with Followed(streams) as followed:
        await followed.wait("a", "b", "c", "a", "b", "c")
        await eventually(lambda: streams.watched_from == ["10", "50"], "a stream from the new list on")


async def test_a_list_that_fails_halfway_forgets_nothing() -> None:
    streams = FakeStreams(metadata("a"), metadata("b"), streams=[[Unavailable("too old", status=410)], []])

    def vanish() -> None:
        streams.there = []
        streams.failing_lists = [Unavailable("no answer")]

    streams.on_watch = vanish
    async with Followed(streams) as followed:
        await followed.wait("a", "b", "a", "b")


async def test_a_broken_stream_is_opened_again_from_the_same_place() -> None:
    cut = [event("ADDED", "a", 11), Unavailable("cut")]
    streams = FakeStreams(streams=[cut, [Unavailable("refused")], [event("ADDED", "b", 12)]])
    async with Followed(streams) as followed:
        await followed.wait("a", "b")
    assert streams.watched_from == ["10", "11", "11"]
    assert streams.lists == 1
