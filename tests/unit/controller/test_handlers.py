"""Which events become work."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest

from specserver.cluster.watch import Metadata
from specserver.controller.handlers import ServerEvents, build_followers, build_registry, build_settings, owner_of
from specserver.controller.queue import Key
from tests.waiting import eventually


def body(generation: int = 1, uid: str = "u", *, deleting: bool = False) -> dict[str, Any]:
    deleted = {"deletionTimestamp": "T"} if deleting else {}
    return {"metadata": {"namespace": "ns", "name": "chat", "uid": uid, "generation": generation, **deleted}}


@pytest.mark.parametrize(
    ("events", "passes"),
    [
        pytest.param([(None, body())], 1, id="there at the start"),
        pytest.param([("ADDED", body()), ("MODIFIED", body())], 1, id="our own status"),
        pytest.param([("ADDED", body()), ("MODIFIED", body(2))], 2, id="the spec changed"),
        pytest.param([("ADDED", body()), ("MODIFIED", body(deleting=True))], 2, id="being deleted"),
        pytest.param([("ADDED", body()), ("DELETED", body())], 2, id="deleted"),
        pytest.param([("ADDED", body()), ("DELETED", body()), ("ADDED", body())], 3, id="made anew"),
        pytest.param([("ADDED", body()), ("MODIFIED", body(uid="v"))], 2, id="made anew, and the deletion was missed"),
        pytest.param([("ADDED", body()), (None, body())], 2, id="listed again after a gap in the watch"),
    ],
)
def test_events_of_the_resource(events: list[tuple[str | None, dict[str, Any]]], passes: int) -> None:
    keys: list[Key] = []
    handler = ServerEvents(keys.append)
    for kind, event_body in events:
        handler.handle(kind, event_body)
    assert keys == [("ns", "chat")] * passes


@pytest.mark.parametrize(
    ("namespace", "labels", "key"),
    [
        ("ns", {"specserver.io/server": "chat"}, ("ns", "chat")),
        ("ns", {"app.kubernetes.io/instance": "chat"}, None),
        ("ns", {"specserver.io/server": ""}, None),
        (None, {"specserver.io/server": "chat"}, None),
    ],
)
def test_events_of_owned_objects(namespace: str | None, labels: dict[str, str], key: Key | None) -> None:
    assert owner_of(namespace, labels) == key


Asked = tuple[str, str, str]
"""Kind, namespace, label selector."""


class AskedStreams:
    """Notes what is listed and what is watched; nothing is there, and nothing happens."""

    def __init__(self) -> None:
        self.listed: list[Asked] = []
        self.watched: list[Asked] = []

    async def list_metadata(
        self, kind: str, namespace: str, *, label_selector: str, limit: int, continue_at: str
    ) -> tuple[list[Metadata], Metadata]:
        self.listed.append((kind, namespace, label_selector))
        return [], {"resourceVersion": "1"}

    async def watch_metadata(
        self, kind: str, namespace: str, *, label_selector: str, version: str
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.watched.append((kind, namespace, label_selector))
        await asyncio.Event().wait()
        yield "", {}


@pytest.mark.parametrize(("namespaces", "asked"), [((), [""]), (("a", "b"), ["a", "b"])], ids=["all", "named"])
async def test_the_api_server_is_asked_for_our_objects_alone(namespaces: tuple[str, ...], asked: list[str]) -> None:
    """Sorted out here instead, every pod of the cluster would come over the wire at each of its changes."""
    streams = AskedStreams()
    tasks = [asyncio.create_task(one.run()) for one in build_followers(streams, lambda _key: None, namespaces)]
    await eventually(lambda: len(streams.watched) == len(tasks), lambda: f"all streams; there are {streams.watched}")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    kinds = ("ConfigMap", "Deployment", "Pod", "PodDisruptionBudget", "Service")
    wanted = {(kind, namespace, "app.kubernetes.io/managed-by=specserver") for kind in kinds for namespace in asked}
    assert set(streams.listed) == set(streams.watched) == wanted


def test_handlers_are_in_a_registry_of_their_own() -> None:
    """kopf's default one is the process's: what is in it runs in every other operator and test that is started here."""
    build_registry(ServerEvents(lambda _key: None))
    shared = kopf.get_default_registry()
    assert not shared._watching._handlers


def test_nothing_is_registered_that_writes_to_resources() -> None:
    """A timer, a daemon or a change handler would leave a finalizer or an annotation on every server."""
    registry = build_registry(ServerEvents(lambda _key: None))
    assert len(registry._watching._handlers) == 1
    assert not registry._changing._handlers
    assert not registry._spawning._handlers
    assert not registry._indexing._handlers


def test_settings_of_the_watches() -> None:
    settings = build_settings()
    assert settings.watching.client_timeout is not None, "else a stream that was cut in silence stays open for ever"
    assert settings.networking.request_timeout == 10
    backoffs = settings.networking.error_backoffs
    assert not isinstance(backoffs, int | float)
    for _ in range(2):  # it is used for each request anew
        first_hour = list(itertools.islice(backoffs, 720))
        assert len(first_hour) == 720, "where they end the operator ends with them"
        assert max(first_hour) <= 5, "or a watch comes back long after the API server"
    assert settings.scanning.disabled
    assert settings.peering.standalone
    assert not settings.posting.enabled
