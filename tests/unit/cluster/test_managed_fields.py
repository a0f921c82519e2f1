"""An object that is as we want it is known without an apply; whatever differs is not taken for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from specserver.cluster.apply import Applier
from specserver.cluster.managed_fields import is_in_place
from tests.fakes.cluster import MemoryCluster

DESIRED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "chat", "namespace": "ns", "labels": {"app.kubernetes.io/managed-by": "specserver"},
        "ownerReferences": [{"uid": "u1", "kind": "SpeculativeServer", "name": "chat"}],
    },
    "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {
            "spec": {
                "volumes": [{"name": "shm", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "engine", "args": ["--port", "1"],
                        "ports": [{"containerPort": 30000}], "env": [{"name": "X", "value": "1"}],
                    }
                ],
            }
        },
    },
}  # fmt: skip

FIELDS: dict[str, Any] = {
    "f:metadata": {
        "f:labels": {"f:app.kubernetes.io/managed-by": {}},
        "f:ownerReferences": {'k:{"uid":"u1"}': {".": {}, "f:uid": {}, "f:kind": {}, "f:name": {}}},
    },
    "f:spec": {
        "f:selector": {},
        "f:template": {
            "f:spec": {
                "f:volumes": {'k:{"name":"shm"}': {".": {}, "f:name": {}, "f:emptyDir": {}}},
                "f:containers": {
                    'k:{"name":"engine"}': {
                        ".": {}, "f:name": {}, "f:args": {},
                        "f:ports": {'k:{"containerPort":30000,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
                        "f:env": {'k:{"name":"X"}': {".": {}, "f:name": {}, "f:value": {}}},
                    }
                },
            }
        },
    },
}  # fmt: skip


def build_live() -> dict[str, Any]:
    """As the API server has it: with defaults, a status, and fields of others."""
    live = copy.deepcopy(DESIRED)
    live["metadata"] |= {
        "uid": "u", "resourceVersion": "7",
        "managedFields": [
            {"manager": "specserver", "operation": "Apply", "fieldsV1": copy.deepcopy(FIELDS)},
            {"manager": "specserver-replicas", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
        ],
    }  # fmt: skip
    live["metadata"]["labels"]["somebody"] = "else"
    live["spec"] |= {"replicas": 3, "revisionHistoryLimit": 10}
    spec = live["spec"]["template"]["spec"]
    spec["restartPolicy"] = "Always"
    spec["containers"][0]["ports"][0]["protocol"] = "TCP"
    spec["containers"].insert(0, {"name": "sidecar", "image": "x"})
    live["status"] = {"replicas": 3}
    return live


def test_it_is_in_place_with_defaults_and_with_fields_of_others() -> None:
    assert is_in_place(DESIRED, build_live(), "specserver")


def test_each_manager_is_looked_at_alone() -> None:
    replicas = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "chat", "namespace": "ns"}}
    assert is_in_place({**replicas, "spec": {"replicas": 3}}, build_live(), "specserver-replicas")
    assert not is_in_place({**replicas, "spec": {"replicas": 4}}, build_live(), "specserver-replicas")
    assert not is_in_place({**replicas, "spec": {"replicas": 3}}, build_live(), "somebody-new")


def container(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = body["spec"]["template"]["spec"]["containers"][-1]
    return found


def owned_container(body: dict[str, Any]) -> dict[str, Any]:
    fields = body["metadata"]["managedFields"][0]["fieldsV1"]
    found: dict[str, Any] = fields["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"engine"}']
    return found


LIVE_CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a value changed": lambda live: container(live).update(args=["--port", "2"]),
    "a value of a list's item changed": lambda live: container(live)["env"][0].update(value="2"),
    "an atomic map grew": lambda live: live["spec"]["selector"]["matchLabels"].update(c="d"),
    "a field was taken from us": lambda live: owned_container(live).pop("f:args"),
    "we own more than we want": lambda live: owned_container(live).update({"f:image": {}}),
    "an item of ours was taken": lambda live: owned_container(live).update({"f:env": {'k:{"name":"Y"}': {"f:name": {}}}}),
    "an item is gone": lambda live: container(live)["env"].clear(),
    "the label is gone": lambda live: live["metadata"]["labels"].pop("app.kubernetes.io/managed-by"),
    "nothing is known of us": lambda live: live["metadata"]["managedFields"].pop(0),
    "an update of ours is no apply": lambda live: live["metadata"]["managedFields"][0].update(operation="Update"),
    "an unknown kind of path": lambda live: owned_container(live).update({"i:0": {}}),
}


@pytest.mark.parametrize("change", LIVE_CHANGES)
def test_whatever_differs_in_the_live_object_is_seen(change: str) -> None:
    live = build_live()
    LIVE_CHANGES[change](live)
    assert not is_in_place(DESIRED, live, "specserver")


DESIRED_CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field more": lambda desired: container(desired).update(image="x"),
    "a field less": lambda desired: container(desired).pop("args"),
    "an item more": lambda desired: container(desired)["env"].append({"name": "Y", "value": "1"}),
    "another item": lambda desired: container(desired)["env"][0].update(name="Y"),
    "another port": lambda desired: container(desired)["ports"][0].update(containerPort=1),
    "an annotation": lambda desired: desired["metadata"].update(annotations={"a": "b"}),
    "another owner": lambda desired: desired["metadata"]["ownerReferences"][0].update(uid="u2"),
}


@pytest.mark.parametrize("change", DESIRED_CHANGES)
def test_whatever_is_wanted_otherwise_is_seen(change: str) -> None:
    desired = copy.deepcopy(DESIRED)
    DESIRED_CHANGES[change](desired)
    assert not is_in_place(desired, build_live(), "specserver")


async def test_after_a_restart_what_is_in_place_is_not_applied_and_later_drift_is() -> None:
    cluster = MemoryCluster()
    applier = Applier(cluster)
    assert await applier.apply(DESIRED, build_live(), field_manager="specserver") is None
    assert cluster.requests == []
    taken = build_live()
    owned_container(taken).pop("f:args")
    await applier.apply(DESIRED, taken, field_manager="specserver")
    assert cluster.requests == [("apply", "Deployment", "chat")]
