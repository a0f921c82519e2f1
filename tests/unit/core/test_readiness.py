"""Ready, Available and Progressing by table: from pods to a cause with a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specserver.api.conditions import Reason
from specserver.core.observed import Pod, Workload
from specserver.core.readiness import (
    Problem,
    count_replicas,
    plan_available,
    plan_progressing,
    plan_ready,
)
from tests.fakes.pods import NOW, WORKLOAD, build_pod
from tests.fakes.pods import build_failure as failure
from tests.fakes.pods import build_starting_pod as starting

DEADLINE = 600.0


def ready(
    *pods: Pod, desired: int = 2, workload: Workload | None = WORKLOAD, problems: tuple[Problem, ...] = ()
) -> tuple[str, str, str]:
    replicas = count_replicas(workload, pods, desired)
    condition = plan_ready(replicas, workload, pods, problems, load_deadline_seconds=DEADLINE, now=NOW)
    return condition.status.value, condition.reason.value, condition.message


A, B = build_pod("a"), build_pod("b")
OOM = failure("OOMKilled", exit_code=137)
ALL_READY = ("True", "AllReplicasReady", "2 replicas are ready")

READY = [
    pytest.param((A, B), 2, ALL_READY, id="all ready"),
    pytest.param((A,), 2, ("False", "RollingOut", "1 of 2 replicas have the newest revision"), id="one not made yet"),
    pytest.param(
        (A, starting("b")), 2, ("False", "ModelLoading", "pod b loads its model; 1 of 2 replicas are ready"), id="loading",
    ),
    pytest.param(
        (A, starting("b", created_at=NOW - 130)), 2,
        ("False", "ModelLoading", "pod b loads its model, for 2 min; 1 of 2 replicas are ready"), id="loading for a while",
    ),
    pytest.param(
        (A, build_pod("b", ready=False)), 2, ("False", "RollingOut", "1 of 2 replicas are ready"), id="started and not ready",
    ),
    pytest.param(
        (A, build_pod("b", template_hash="old")), 2, ("False", "RollingOut", "1 of 2 replicas have the newest revision"),
        id="an old one serves",
    ),
    pytest.param(
        (A, B, build_pod("c", template_hash="old")), 2, ("False", "RollingOut", "2 of 2 replicas have the newest revision"),
        id="an old one is still there",
    ),
    pytest.param(
        (A, B, build_pod("c", template_hash="old", terminating=True)), 2, ALL_READY,
        id="an old one is on its way out",
    ),
    pytest.param((A, B, build_pod("c", serving=False)), 2, ALL_READY, id="one drains"),
    pytest.param(
        (A, build_pod("b", serving=False)), 2, ("False", "RollingOut", "1 of 2 replicas are ready"), id="one too few serve",
    ),
    pytest.param(
        (A, B, build_pod("c", phase="Failed", ready=False, template_hash="old", failure=failure("Evicted", restarts=0))), 2,
        ALL_READY, id="an evicted one was replaced",
    ),
    pytest.param(
        (A, build_pod("b", stalled=True)), 2,
        (
            "False", "EngineStalled",
            "pod b: requests wait, and its engine works on none: see its log; unless somebody paused it, `kubectl delete pod b`"
            " has it replaced",
        ),
        id="ready and stalled",
    ),
    pytest.param((), 0, ("False", "ScaledToZero", "replicas is 0: nothing is served"), id="none wanted"),
    pytest.param(
        (A, build_pod("b", ready=False, failure=OOM)), 2,
        ("False", "OutOfMemory", "pod b: the container ran out of memory. Raise engine.resources.limits.memory"),
        id="out of memory",
    ),
    pytest.param(
        (A, build_pod("b", failure=OOM)), 2, ALL_READY,
        id="ready again after a failure",
    ),
    pytest.param(
        (A, starting("b", unschedulable_message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")), 2,
        (
            "False", "Unschedulable",
            "pod b: 0/3 nodes are available: Insufficient nvidia.com/gpu. Free or add GPUs, or lower engine.resources.limits",
        ),
        id="no node takes it",
    ),
    pytest.param(
        (starting("a"), starting("b", failure=failure("ImagePullBackOff", "no such image", None, 0))), 2,
        (
            "False", "ImagePullError",
            "pod b: ImagePullBackOff: no such image. Check engine.image and the pull secrets in template",
        ),
        id="failing is told before loading",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pods", "desired", "wanted"), READY)
def test_ready(pods: tuple[Pod, ...], desired: int, wanted: tuple[str, str, str]) -> None:
    assert ready(*pods, desired=desired) == wanted


def test_a_place_that_becomes_free_is_waited_for() -> None:
    pods = (A, starting("b", unschedulable_message="3 Insufficient nvidia.com/gpu."))
    replicas = count_replicas(WORKLOAD, pods, 2)
    said = plan_ready(replicas, WORKLOAD, pods, (), place_expected=True, load_deadline_seconds=DEADLINE, now=NOW)
    assert (said.reason, said.message) == ("RollingOut", "pod b waits for the place of a pod that is ending")


def test_suspended() -> None:
    pods = (A, build_pod("b", serving=False, draining_since=NOW))
    said = plan_ready(count_replicas(WORKLOAD, pods, 0), WORKLOAD, pods, (), suspended=True, load_deadline_seconds=1, now=NOW)
    assert (said.status, said.reason) == ("False", "Suspended")
    assert said.message == "spec.suspend is true; 2 pods finish their requests first"


def test_problems_of_the_operator_itself_come_first() -> None:
    problems = (Problem(Reason.SECRET_MISSING, "create it"), Problem(Reason.OBJECT_REFUSED, "rename it"))
    assert ready(A, B, problems=problems) == ("False", "SecretMissing", "create it; rename it")
    assert ready(workload=None) == ("False", "RollingOut", "the Deployment is being made")


def test_a_template_that_no_replica_set_has_yet_has_no_pods() -> None:
    replicas = count_replicas(replace(WORKLOAD, current_template_hash=None), (A, B), 2)
    assert (replicas.present, replicas.updated, replicas.ready, replicas.available) == (2, 0, 0, 2)


def test_pods_are_counted_whatever_the_deployment_counts() -> None:
    """Its own figures can stay behind for good, and with them a Ready that is read from them."""
    behind = replace(WORKLOAD, observed_generation=1, replicas=1, ready_replicas=0, updated_replicas=0, available_replicas=0)
    assert ready(A, B, workload=behind) == ALL_READY


@pytest.mark.parametrize(
    ("available", "desired", "max_unavailable", "status"),
    [
        pytest.param(2, 2, 1, "True", id="all"),
        pytest.param(1, 2, 1, "True", id="one less, as a rollout may"),
        pytest.param(0, 2, 1, "False", id="none"),
        pytest.param(0, 1, 1, "False", id="the only one, whatever a rollout may"),
        pytest.param(2, 4, 1, "False", id="too few"),
        pytest.param(0, 0, 0, "False", id="none wanted: nothing takes traffic"),
    ],
)
def test_available(available: int, desired: int, max_unavailable: int, status: str) -> None:
    pods = tuple(build_pod(f"p{index}") for index in range(available))
    replicas = count_replicas(WORKLOAD, pods, desired)
    assert plan_available(replicas, max_unavailable=max_unavailable).status == status


PROGRESS = [
    pytest.param((A, B), {}, "RolloutComplete", id="done"),
    pytest.param((A, build_pod("b", template_hash="old")), {}, "NewRevision", id="an old pod"),
    pytest.param((A, B, build_pod("c", serving=False)), {}, "Draining", id="one drains"),
    pytest.param((A, starting("b")), {}, "Scaling", id="one starts"),
    pytest.param((A, B, build_pod("c")), {}, "Scaling", id="one too many"),
    pytest.param((A, starting("b")), {"progress_deadline_exceeded": True}, "ProgressDeadlineExceeded", id="stopped"),
    pytest.param((A,), {"creation_refused": "exceeded quota: q"}, "QuotaExceeded", id="refused"),
    pytest.param((A, B), {"creation_refused": "exceeded quota: q"}, "RolloutComplete", id="refused what nobody wants any more"),
    pytest.param((A, B, build_pod("c", terminating=True, ends_at=NOW - 31)), {}, "StuckTerminating", id="one does not end"),
    pytest.param((A, B, build_pod("c", terminating=True, ends_at=NOW - 29)), {}, "RolloutComplete", id="one is about to end"),
]


@pytest.mark.parametrize(("pods", "different", "reason"), PROGRESS)
def test_progressing(pods: tuple[Pod, ...], different: dict[str, Any], reason: str) -> None:
    workload = replace(WORKLOAD, **different)
    condition = plan_progressing(count_replicas(workload, pods, 2), workload, pods, now=NOW)
    assert condition.reason == reason
    stopped = reason in ("ProgressDeadlineExceeded", "QuotaExceeded", "StuckTerminating")
    assert condition.status == ("False" if stopped else "True")


def test_unschedulable_pods_are_counted() -> None:
    pods = (A, starting("b", unschedulable_message="no"), starting("c", unschedulable_message="no", terminating=True))
    assert count_replicas(WORKLOAD, pods, 2).unschedulable == 1


def test_a_stalled_replica_is_ready_and_not_available() -> None:
    replicas = count_replicas(WORKLOAD, (A, build_pod("b", stalled=True)), 2)
    assert (replicas.ready, replicas.available) == (2, 1)
