"""Which field of the resource makes new pods, field by field. A new pod loads a model for minutes: each entry is a decision.

A field that is added to the resource fails `test_every_field_is_decided` until it is entered here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from specserver.api import v1alpha1
from specserver.api.v1alpha1 import Spec
from specserver.build.workload import build_intent, build_workload
from tests.unit.build.support import make_server, pod_template

BASE: dict[str, Any] = {"speculation.draftModel.revision": "d0"}
SECRET = {"name": "other", "key": "other"}
TARGETS = [{"metric": "Running", "value": "24"}]

ROLLS: dict[str, dict[str, Any]] = {
    "model.uri": {"model.uri": "hf://org/other"},
    "model.revision": {"model.revision": "v2"},
    "model.servedName": {"model.servedName": "other"},
    "model.tokenSecretRef": {"model.tokenSecretRef": SECRET},
    "model.trustRemoteCode": {"model.trustRemoteCode": True},
    "speculation.algorithm": {"speculation.algorithm": "EAGLE"},
    "speculation.draftModel.uri": {"speculation.draftModel.uri": "hf://org/other"},
    "speculation.draftModel.revision": {"speculation.draftModel.revision": "d1"},
    "speculation.maxSteps": {"speculation.maxSteps": 4},
    "speculation.steps": {"speculation.steps": [0, 3]},
    "engine.image": {"engine.image": "registry.example.com/sglang:2"},
    "engine.imagePullPolicy": {"engine.imagePullPolicy": "Always"},
    "engine.args": {"engine.args": ["--log-level", "debug"]},
    "engine.env": {"engine.env": [{"name": "A", "value": "1"}]},
    "engine.port": {"engine.port": 8000},
    "engine.parallelism.tensor": {"engine.parallelism.tensor": 2},
    "engine.parallelism.pipeline": {"engine.parallelism.pipeline": 2},
    "engine.parallelism.data": {"engine.parallelism.data": 2},
    "engine.maxRunningRequests": {"engine.maxRunningRequests": 128},
    "engine.attentionBackend": {"engine.attentionBackend": "fa3"},
    "engine.sharedMemory": {"engine.sharedMemory": "16Gi"},
    "engine.resources.limits": {"engine.resources.limits": {"nvidia.com/gpu": 1}},
    "engine.resources.requests": {"engine.resources.requests": {"cpu": 1}},
    "engine.loadDeadline": {"engine.loadDeadline": "1h"},
    "engine.adminKeySecretRef": {"engine.adminKeySecretRef": SECRET},
    "engine.apiKeySecretRef": {"engine.apiKeySecretRef": SECRET},
    "template": {"template": {"spec": {"priorityClassName": "high"}}},
    "rollout.drainTimeout": {"rollout.drainTimeout": "5m"},
}
"""New pods: the running process, or what the kubelet knows of it, would have to be another."""

KEEPS: dict[str, dict[str, Any]] = {
    "speculation.mode": {"speculation.mode": "Always"},
    "speculation.policy.strategy": {"speculation.policy.strategy": "Threshold"},
    "speculation.policy.disableAbove": {"speculation.policy.disableAbove": 99},
    "speculation.policy.enableBelow": {"speculation.policy.enableBelow": 9},
    "speculation.policy.minDwell": {"speculation.policy.minDwell": "3s"},
    "speculation.policy.minAcceptLength": {"speculation.policy.minAcceptLength": "1.5"},
    "speculation.policy.marginUp": {"speculation.policy.marginUp": "0.1"},
    "speculation.policy.marginDown": {"speculation.policy.marginDown": "0.1"},
    "speculation.policy.probe.maxDuty": {"speculation.policy.probe.maxDuty": "0"},
    "speculation.policy.probe.rounds": {"speculation.policy.probe.rounds": 16},
    "speculation.policy.probe.minInterval": {"speculation.policy.probe.minInterval": "1s"},
    "speculation.policy.probe.maxInterval": {"speculation.policy.probe.maxInterval": "1m"},
    "speculation.policy.table": {"speculation.policy.table": [{"running": 0, "steps": 1}]},
    "engine.sglangRelease": {"engine.sglangRelease": "0.5.23"},
    "replicas": {"replicas": 5},
    "scaling": {"scaling": {"minReplicas": 2, "maxReplicas": 9, "targets": TARGETS}},
    "metrics.prometheus": {"metrics.prometheus": {"url": "http://prometheus:9090"}},
    "metrics.onLoss": {"metrics.prometheus": {"url": "http://prometheus:9090"}, "metrics.onLoss": "Fallback"},
    "metrics.interval": {"metrics.interval": "5s"},
    "metrics.staleness": {"metrics.staleness": "90s"},
    "rollout.maxSurge": {"rollout.maxSurge": 1},
    "rollout.maxUnavailable": {"rollout.maxUnavailable": 2},
    "rollout.progressDeadline": {"rollout.progressDeadline": "9h"},
    "rollout.paused": {"rollout.paused": True},
    "rollout.protectStartup": {"rollout.protectStartup": False},
    "rollout.onOperatorUpgrade": {"rollout.onOperatorUpgrade": "Roll"},
    "suspend": {"suspend": True},
}
"""The same pods: the engine takes it over HTTP, or it is no matter of the pods."""


@pytest.mark.parametrize("changes", ROLLS.values(), ids=ROLLS.keys())
def test_field_makes_new_pods(changes: dict[str, Any]) -> None:
    assert pod_template(BASE | changes) != pod_template(BASE)
    assert intent(BASE | changes) != intent(BASE), "or a change of the resource would be taken for one of the operator"


@pytest.mark.parametrize("changes", KEEPS.values(), ids=KEEPS.keys())
def test_field_keeps_the_pods(changes: dict[str, Any]) -> None:
    assert pod_template(BASE | changes) == pod_template(BASE)
    assert intent(BASE | changes) == intent(BASE), "or another version of the operator would make new pods with it"


def intent(changes: dict[str, Any]) -> dict[str, Any]:
    return build_intent(make_server(changes))


def test_a_default_that_is_written_out_is_no_other_intent() -> None:
    """So a field that a later version brings changes none while it has its default."""
    written = {"speculation.maxSteps": 3, "speculation.steps": [0, 1, 2, 3], "engine.port": 30000, "rollout.drainTimeout": "60s"}
    assert intent(BASE | written) == intent(BASE)
    assert "port" not in json.dumps(intent(BASE))


def test_in_mode_never_the_draft_is_no_intent() -> None:
    never = {"speculation.mode": "Never"}
    assert intent(never | {"speculation.draftModel.uri": "hf://org/other", "speculation.maxSteps": 5}) == intent(never)
    assert intent(never) != intent({})


def test_every_field_is_decided() -> None:
    assert not ROLLS.keys() & KEEPS.keys()
    decided = ROLLS.keys() | KEEPS.keys()
    undecided = [path for path in leaf_paths(Spec) if not any(path == one or path.startswith(f"{one}.") for one in decided)]
    assert undecided == []


def leaf_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every field that holds no object of ours, by its name on the wire; lists and references to Secrets count as one."""
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        node = next((one for one in alternatives(field.annotation) if one is not v1alpha1.SecretKeyRef), None)
        if node is None:
            yield path
        else:
            yield from leaf_paths(node, f"{path}.")


def alternatives(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated):
        for one in get_args(annotation):
            yield from alternatives(one)


@pytest.mark.parametrize("mode", ["Auto", "Always", "Observe"])
def test_a_running_engine_takes_another_speculating_mode(mode: str) -> None:
    assert pod_template({"speculation.mode": mode}) == pod_template()


def test_mode_never_makes_pods_without_a_draft() -> None:
    assert pod_template({"speculation.mode": "Never"}) != pod_template()


def test_ladder_written_out_is_the_default_ladder() -> None:
    assert pod_template({"speculation.steps": [0, 1, 2, 3]}) == pod_template()


@given(
    generation=st.integers(1, 10_000),
    bounds=st.tuples(st.integers(0, 1000), st.integers(1, 1000)).map(lambda pair: (pair[0], sum(pair))),
    replicas=st.integers(0, 100),
    interval=st.integers(1, 300),
)
def test_nothing_that_changes_in_daily_life_changes_the_pods(
    generation: int, bounds: tuple[int, int], replicas: int, interval: int
) -> None:
    changes = {
        "speculation.policy": {"enableBelow": bounds[0], "disableAbove": bounds[1]},
        "replicas": replicas,
        "metrics.interval": f"{interval}s",
        "metrics.staleness": f"{interval * 4}s",
    }
    assert build_workload(make_server(changes, generation=generation)) == build_workload(make_server())
