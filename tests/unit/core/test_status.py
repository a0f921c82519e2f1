"""The whole status: what it says, and that it stays equal while nothing happens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.api.conditions import Condition, ConditionType, Reason, Status
from specserver.api.v1alpha1 import parse
from specserver.core.noise import settle
from specserver.core.observed import ContainerFailure, Load, LoadUnknown, Observed, PodLoad, PodLoadUnknown, Workload
from specserver.core.rollout import Stand
from specserver.core.status import ScalingOutcome, build_status, plan_metrics_available
from specserver.core.times import epoch_seconds, rfc3339
from tests.fakes.pods import build_pod

NOW = 1_700_000_000.0
SERVER = parse(
    {
        "metadata": {"namespace": "ns", "name": "chat", "uid": "u", "generation": 4},
        "spec": {
            "model": {"uri": "hf://org/model"}, "speculation": {"draftModel": {"uri": "hf://org/draft"}},
            "engine": {"image": "engine:1"}, "replicas": 2,
        },
    }
)  # fmt: skip
WORKLOAD = Workload(
    uid="w", generation=9, observed_generation=9, spec_replicas=2, replicas=2, ready_replicas=2, updated_replicas=2,
    available_replicas=2, current_template_hash="h", progress_deadline_exceeded=False,
)  # fmt: skip
PODS = (build_pod("a"), build_pod("b"))


def load(*running: float, usage: float = 0.1, tokens: float | None = 1234.0, at: float = NOW, queued: float = 0) -> Load:
    return Load(tuple(PodLoad(pod, value, queued, usage, tokens, at) for pod, value in zip("ab", running, strict=False)))


def status(
    *, seen: Load | LoadUnknown | None = None, pods: Any = PODS, workload: Workload | None = WORKLOAD,
    scaling: ScalingOutcome | None = None, previous: dict[str, Any] | None = None, now: float = NOW,
    stand: Stand | None = None,
) -> dict[str, Any]:  # fmt: skip
    return build_status(
        SERVER, Observed(workload, pods, load(3, 4) if seen is None else seen), scaling or ScalingOutcome(2, ()),
        policy={"revision": 4}, pushes={}, problems=(), selector="specserver.io/server=chat", operator_version="1.2.3",
        previous=previous or {}, now=now, stand=stand,
    )  # fmt: skip


def conditions(of: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in of["conditions"]}


def test_what_it_says() -> None:
    said = status()
    assert said["observedGeneration"] == 4, "the resource's generation, not the Deployment's"
    assert said["operatorVersion"] == "1.2.3"
    assert said["url"] == "http://chat.ns.svc:30000"
    assert said["rollout"] == {"revision": "h", "phase": "Complete"}
    assert said["load"] == {
        "running": 7, "queued": 0, "tokenUsage": "0.10", "tokensPerSecond": 2500, "observedAt": rfc3339(NOW),
    }  # fmt: skip
    assert conditions(said)["Ready"] == ("True", "AllReplicasReady")
    assert conditions(said)["MetricsAvailable"] == ("True", "MetricsFound")
    assert "lastFailure" not in said


def test_every_condition_is_about_this_generation() -> None:
    assert {one["observedGeneration"] for one in status()["conditions"]} == {4}


def test_an_unchanged_server_has_an_equal_status_later() -> None:
    first = status()
    assert status(previous=first, now=NOW + 600, seen=load(3, 4, at=NOW + 600)) == first


@pytest.mark.parametrize(
    ("seen", "changed"),
    [
        pytest.param(load(3, 5, usage=0.14, tokens=1300, at=NOW + 9), False, id="trembles"),
        pytest.param(load(6, 6, at=NOW + 9), True, id="rises"),
        pytest.param(load(0, 0, at=NOW + 9), True, id="idle"),
        pytest.param(load(3, 4, queued=9, at=NOW + 9), True, id="queue"),
        pytest.param(load(3, 4, usage=0.3, at=NOW + 9), True, id="fuller"),
        pytest.param(load(3, 4, tokens=3000, at=NOW + 9), True, id="faster"),
    ],
)
def test_load_is_written_when_it_has_moved(seen: Load, changed: bool) -> None:
    first = status()["load"]
    then = status(previous={"load": first}, seen=seen)["load"]
    assert (then != first) is changed
    assert (then["observedAt"] != first["observedAt"]) is changed


@given(st.lists(st.integers(-1, 1), max_size=50))
def test_noise_around_any_level_writes_at_most_once(noise: list[int]) -> None:
    before = {"load": status(seen=load(50))["load"]}
    for step in noise:
        assert status(previous=before, seen=load(50 + step))["load"] == before["load"]


def test_unknown_load_is_absent_and_not_zero() -> None:
    said = status(seen=LoadUnknown(Reason.SCRAPE_ERROR, "no answer"), previous=status())
    assert "load" not in said
    assert conditions(said)["MetricsAvailable"] == ("False", "ScrapeError")


def test_metrics_of_some() -> None:
    some = Load((PodLoad("a", 1, 0, 0, None, NOW),), (PodLoadUnknown("b", "timed out"),))
    condition = plan_metrics_available(some, PODS)
    assert (condition.status, condition.reason) == ("False", "MetricsMissing")
    assert condition.message == "no replica is removed meanwhile: 1 of 2 replicas have no known load; pod b: timed out"


def test_nobody_to_be_asked_is_no_fault_of_the_metrics() -> None:
    nobody = (build_pod("a", ready=False),)
    condition = plan_metrics_available(LoadUnknown(Reason.NO_READY_REPLICAS, "none"), nobody)
    assert condition.status == "Unknown"


def test_a_replica_that_is_drained_is_not_missed() -> None:
    pods = (*PODS, build_pod("c", serving=False, draining_since=NOW))
    said = status(pods=pods, workload=replace(WORKLOAD, spec_replicas=3))
    assert conditions(said)["Ready"] == ("True", "AllReplicasReady")
    assert conditions(said)["Progressing"] == ("True", "Draining")
    assert said["rollout"]["phase"] == "Progressing"
    assert said["replicas"] == 3


def test_a_deployment_that_is_not_there_yet() -> None:
    said = status(pods=(), workload=None)
    assert conditions(said)["Ready"] == ("False", "RollingOut")
    assert "rollout" not in said


@pytest.mark.parametrize(
    ("reason", "phase"),
    [
        (Reason.ROLLOUT_PAUSED, "Paused"), (Reason.ROLLOUT_DEFERRED, "Deferred"), (Reason.ROLLOUT_STOPPED, "Stalled"),
        (Reason.DRAFT_MISMATCH, "Stalled"), (Reason.NEW_REVISION, "Progressing"), (Reason.DRAINING, "Progressing"),
    ],
)  # fmt: skip
def test_where_a_rollout_stands(reason: Reason, phase: str) -> None:
    said = status(workload=replace(WORKLOAD, current_template_hash=None), stand=Stand(Status.TRUE, reason, "why"))
    assert conditions(said)["Progressing"] == ("True", reason.value)
    assert said["rollout"] == {"phase": phase}
    assert said["readyReplicas"] == 0, "ready pods of before are not of the newest revision"


def test_history_of_scaling_holds_five_lines() -> None:
    previous: dict[str, Any] = {}
    for count in range(7):
        change = {"time": rfc3339(NOW + count), "from": count, "to": count + 1, "reason": f"reason {count}"}
        previous = status(scaling=ScalingOutcome(count + 1, (), (change,)), previous=previous, now=NOW + count)
    scaling = previous["scaling"]
    assert [line["reason"] for line in scaling["history"]] == [f"reason {count}" for count in (6, 5, 4, 3, 2)]
    assert scaling["lastScaleTime"] == rfc3339(NOW + 6)
    assert status(previous=previous, scaling=ScalingOutcome(7, ()))["scaling"] == scaling
    assert status(previous=previous, scaling=ScalingOutcome(7, (), (change,)))["scaling"] == scaling, "told once"


def test_a_change_that_a_dead_operator_did_not_tell_is_told_with_the_next() -> None:
    first, second = ({"time": rfc3339(NOW + at), "from": at, "to": at + 1, "reason": "r"} for at in (1, 2))
    assert status(scaling=ScalingOutcome(3, (), (first, second)))["scaling"]["history"] == [second, first]


def test_conditions_of_scaling_come_and_go_with_it() -> None:
    active = Condition(ConditionType.SCALING_ACTIVE, Status.TRUE, Reason.VALID_METRIC_FOUND)
    said = status(scaling=ScalingOutcome(2, (active,)))
    assert "ScalingActive" in conditions(said)
    assert "ScalingActive" not in conditions(status(previous=said))


def test_the_last_failure_stays_to_be_read() -> None:
    older = ContainerFailure("Error", "old", 1, 1, NOW - 100)
    newer = ContainerFailure("OOMKilled", "x" * 9000, 137, 3, NOW - 10)
    pods = (build_pod("a", failure=newer), build_pod("b", failure=older))
    said = status(pods=pods)
    assert said["lastFailure"] == {
        "pod": "a", "reason": "OOMKilled", "message": "x" * 1024, "exitCode": 137, "time": rfc3339(NOW - 10),
    }  # fmt: skip
    assert status(previous=said)["lastFailure"] == said["lastFailure"]


def test_status_stays_small() -> None:
    """Elsewhere a status grew with each decision and each error text until the API server took no more of it."""
    failure = ContainerFailure("Error", "\x00" + "line of a log\n" * 3_000, 1, 99, NOW)
    pods = tuple(build_pod(f"pod-{index}", ready=False, failure=failure) for index in range(50))
    previous: dict[str, Any] = {}
    for count in range(20):
        change = {"time": rfc3339(NOW + count), "from": 2, "to": 3, "reason": f"reason {count}"}
        scaling = ScalingOutcome(50, (), (change,))
        previous = status(pods=pods, scaling=scaling, previous=previous)
    assert len(json.dumps(previous)) < 16_000


@pytest.mark.parametrize(
    ("now", "before", "told"),
    [
        pytest.param(5, None, 5, id="first"),
        pytest.param(5, 4, 4, id="within the slack"),
        pytest.param(6, 4, 6, id="beyond"),
        pytest.param(0, 1, 0, id="idle is told"),
        pytest.param(1, 0, 0, id="a single request is noise"),
        pytest.param(115, 100, 100, id="within the share"),
        pytest.param(125, 100, 125, id="beyond the share"),
    ],
)
def test_settle(now: int, before: int | None, told: int) -> None:
    assert settle(now, before, slack=1, share=0.2) == told


@given(st.floats(0, 4_000_000_000))
def test_times_survive_being_written(at: float) -> None:
    assert -0.001 < at - epoch_seconds(rfc3339(at)) < 1.001, "whole seconds, cut off"


def test_what_is_no_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        epoch_seconds("yesterday")
