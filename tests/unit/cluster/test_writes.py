"""Applying, status, marks of a drain, Secrets and Events: what is written, and what is not."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.api.v1alpha1 import SecretKeyRef, parse
from specserver.cluster.apply import Applier
from specserver.cluster.errors import ClusterError, Refused, Unavailable
from specserver.cluster.events import emit_event
from specserver.cluster.pods import apply_drain_marks
from specserver.cluster.secrets import create_if_absent, read_entry
from specserver.cluster.status import invalid_status, merge_patch, write_status
from specserver.core.drain import ClearIdle, MarkDraining, NoteIdle, ReleaseReplica, ReturnToService
from specserver.core.events import Drift
from tests.fakes.cluster import MemoryCluster
from tests.fakes.pods import build_pod

SERVICE: dict[str, Any] = {"kind": "Service", "metadata": {"namespace": "ns", "name": "chat"}, "spec": {"port": 1}}
SERVER = parse(
    {
        "metadata": {"namespace": "ns", "name": "chat", "uid": "u", "generation": 4},
        "spec": {"model": {"uri": "hf://a/b"}, "speculation": {"mode": "Never"}, "engine": {"image": "e"}},
    }
)


# ---- apply ------------------------------------------------------------------------------------------------------------


async def live(cluster: MemoryCluster) -> dict[str, Any]:
    return await cluster.get("Service", "ns", "chat")


async def test_what_is_applied_already_is_not_applied_again() -> None:
    cluster = MemoryCluster()
    applier = Applier(cluster)
    assert await applier.apply(SERVICE, None, field_manager="m") is not None
    assert await applier.apply(SERVICE, await live(cluster), field_manager="m") is None
    assert cluster.writes == [("apply", "Service", "chat")]


DRIFTS = {"field taken": "hpa", "made anew": "m", "gone": ""}
"""By whom, where what differs is somebody else's doing."""


@pytest.mark.parametrize("why", ["changed", "restarted", "other manager", *DRIFTS])
async def test_what_differs_is_applied(why: str) -> None:
    cluster = MemoryCluster()
    applier = Applier(cluster)
    await applier.apply(SERVICE, None, field_manager="m")
    seen: dict[str, Any] | None = await live(cluster)
    assert seen is not None
    wanted = {**SERVICE, "spec": {"port": 2}} if why == "changed" else SERVICE
    if why == "field taken":
        seen["metadata"]["managedFields"][0]["fieldsV1"] = {}
        seen["metadata"]["managedFields"] += [
            {"manager": "edit", "operation": "Update", "time": "2026-01-01T00:00:00Z"},
            {"manager": "hpa", "operation": "Update", "time": "2026-01-01T00:00:01Z", "subresource": "scale"},
            {"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:02Z", "subresource": "status"},
        ]
    elif why == "made anew":
        seen["metadata"]["uid"] = "another"
    elif why == "gone":
        seen = None
    elif why == "restarted":
        applier = Applier(cluster)
    assert await applier.apply(wanted, seen, field_manager="other" if why == "other manager" else "m") is not None
    drifts = [Drift("Service", "chat", DRIFTS[why])] if why in DRIFTS else []
    assert applier.take_drifts("ns", "chat") == drifts
    assert applier.take_drifts("ns", "chat") == [], "told once"


async def test_an_object_with_two_managers_that_is_gone_is_one_drift() -> None:
    applier = Applier(MemoryCluster())
    for seen in (None, None):
        for manager in ("m", "other"):
            await applier.apply(SERVICE, seen, field_manager=manager)
    assert applier.take_drifts("ns", "chat") == [Drift("Service", "chat", "")]


async def test_a_server_that_is_gone_is_forgotten() -> None:
    cluster = MemoryCluster()
    applier = Applier(cluster)
    await applier.apply(SERVICE, None, field_manager="m")
    applier.forget("ns", "chat")
    assert await applier.apply(SERVICE, await live(cluster), field_manager="m") is not None


# ---- status -----------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=2), json_values, max_size=4)


def merged(base: Any, patch: Any) -> Any:
    """RFC 7386, from its own pseudo-code."""
    if not isinstance(patch, dict):
        return patch
    target = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


@given(objects, objects)
def test_the_patch_turns_one_into_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = merge_patch(before, after)
    assert merged(before, patch) == after
    assert (patch == {}) == (before == after)


async def test_an_equal_status_is_not_written() -> None:
    body = {"kind": "SpeculativeServer", "metadata": {"namespace": "ns", "name": "chat"}, "status": {"replicas": 1}}
    cluster = MemoryCluster(body)
    await write_status(cluster, body, {"replicas": 1})
    assert cluster.requests == []
    assert await write_status(cluster, body, {"replicas": 2}) == {}
    assert cluster.writes == [("patch_status", "SpeculativeServer", "chat")]


def test_a_resource_that_cannot_be_read_keeps_its_status_but_for_ready() -> None:
    others = {"type": "Available", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "T"}
    ready = {"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "T"}
    body = {"metadata": {"generation": 5}, "status": {"replicas": 2, "conditions": [ready, others]}}
    status = invalid_status(body, "spec.x: wrong", "1.0", 0.0)
    assert (status["replicas"], status["observedGeneration"]) == (2, 5)
    (found,) = (one for one in status["conditions"] if one["type"] == "Ready")
    assert (found["status"], found["reason"], found["message"]) == ("False", "InvalidSpec", "spec.x: wrong")
    assert others in status["conditions"]


# ---- pods -------------------------------------------------------------------------------------------------------------


def a_pod_body() -> dict[str, Any]:
    labels = {"specserver.io/serving": "true", "specserver.io/server": "chat"}
    return {"kind": "Pod", "metadata": {"namespace": "ns", "name": "m-0", "labels": labels, "annotations": {"kept": "yes"}}}


async def test_marks_of_a_drain_and_their_removal() -> None:
    cluster, pod = MemoryCluster(a_pod_body()), build_pod("m-0")
    before = a_pod_body()["metadata"]
    await apply_drain_marks(cluster, "ns", [MarkDraining(pod, 100.0), NoteIdle(pod, 106.0), ReleaseReplica(1, "why")])
    metadata = cluster.objects["Pod", "m-0"]["metadata"]
    assert metadata["labels"] == {"specserver.io/server": "chat"}
    assert metadata["annotations"] == {
        "kept": "yes", "specserver.io/draining-since": "1970-01-01T00:01:40Z",
        "specserver.io/drained-idle-since": "1970-01-01T00:01:46Z",
        "controller.kubernetes.io/pod-deletion-cost": "-2147483647",
    }  # fmt: skip
    assert cluster.writes == [("patch", "Pod", "m-0")] * 2, "one patch a mark, and none for the Deployment"
    await apply_drain_marks(cluster, "ns", [ClearIdle(pod), ReturnToService(pod)])
    metadata = cluster.objects["Pod", "m-0"]["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == (before["labels"], before["annotations"])


async def test_a_drain_for_a_rollout_has_a_mark_of_its_own() -> None:
    cluster, pod = MemoryCluster(a_pod_body()), build_pod("m-0")
    await apply_drain_marks(cluster, "ns", [MarkDraining(pod, 100.0, "rollout")])
    assert cluster.objects["Pod", "m-0"]["metadata"]["annotations"]["specserver.io/draining-for"] == "rollout"
    await apply_drain_marks(cluster, "ns", [ReturnToService(pod)])
    assert cluster.objects["Pod", "m-0"]["metadata"]["annotations"] == {"kept": "yes"}


async def test_a_pod_that_went_meanwhile_needs_no_mark() -> None:
    await apply_drain_marks(MemoryCluster(), "ns", [MarkDraining(build_pod(), 1.0)])


# ---- secrets and events -----------------------------------------------------------------------------------------------


def secret(**data: bytes) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"kind": "Secret", "metadata": {"namespace": "ns", "name": "s"}, "data": encoded}


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        pytest.param(secret(k=b"key\n"), "key", id="with the line break that an editor adds"),
        pytest.param(secret(k=b" \n"), None, id="blank"),
        pytest.param(secret(k=b"\xff\xfe"), None, id="no text"),
        pytest.param(secret(other=b"key"), None, id="another entry"),
        pytest.param({**secret(), "data": None}, None, id="no entries"),
        pytest.param({**secret(), "data": {"k": "%%%"}}, None, id="not base64"),
        pytest.param(None, None, id="no Secret"),
    ],
)
async def test_an_entry_of_a_secret(stored: dict[str, Any] | None, value: str | None) -> None:
    cluster = MemoryCluster(*([stored] if stored else []))
    assert await read_entry(cluster, "ns", SecretKeyRef(name="s", key="k")) == value


async def test_a_secret_that_is_there_is_kept() -> None:
    cluster = MemoryCluster(secret(k=b"old"))
    assert not await create_if_absent(cluster, secret(k=b"new"))
    assert await read_entry(cluster, "ns", SecretKeyRef(name="s", key="k")) == "old"


async def test_an_event_is_about_the_server_and_never_too_long() -> None:
    cluster = MemoryCluster()
    await emit_event(cluster, SERVER, kind="Warning", reason="CrashLoop", message="x" * 5000, about="a", now=0.0)
    ((_, event),) = cluster.objects.items()
    assert event["involvedObject"]["uid"] == "u"
    assert (event["type"], event["reason"], len(event["message"])) == ("Warning", "CrashLoop", 1024)
    assert len(event["metadata"]["name"]) <= 253


@pytest.mark.parametrize("error", [Refused("no"), Unavailable("later")])
async def test_an_event_that_cannot_be_written_stops_nothing(error: ClusterError) -> None:
    cluster = MemoryCluster()

    def refuse(_request: object) -> None:
        raise error

    cluster.on_request = refuse
    await emit_event(cluster, SERVER, kind="Normal", reason="R", message="m", about="a", now=0.0)


async def test_the_same_news_is_one_event_however_often_it_is_told() -> None:
    cluster = MemoryCluster()
    for about in ("a", "a", "b"):
        await emit_event(cluster, SERVER, kind="Normal", reason="R", message="m", about=about, now=0.0)
    assert len(cluster.objects) == 2
