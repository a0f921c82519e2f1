"""What is read out of live objects, and what is left out because it is somebody else's."""

from __future__ import annotations

from typing import Any

import pytest

from specserver.cluster.observe import observe_objects, parse_pod, parse_workload
from specserver.core.times import epoch_seconds
from tests.fakes.cluster import MemoryCluster

LABELS = {"specserver.io/server": "chat"}
OWNER = {"uid": "server-uid", "kind": "SpeculativeServer", "name": "chat"}


def body(kind: str, name: str, *, owner: str = "", labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {
            "namespace": "ns", "name": name, "uid": f"uid-{name}", "generation": 1, "labels": {**LABELS, **(labels or {})},
            "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [{"uid": owner}] if owner else [],
        },
        **more,
    }  # fmt: skip


def template(image: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": {**LABELS, **labels}}, "spec": {"containers": [{"image": image}]}}


def deployment(owner: str = "server-uid", image: str = "new") -> dict[str, Any]:
    spec = {"replicas": 2, "template": template(image)}
    return body("Deployment", "chat", owner=owner, spec=spec, status={"observedGeneration": 1})


def replica_set(name: str, image: str, owner: str = "uid-chat") -> dict[str, Any]:
    labels = {"pod-template-hash": name}
    spec = {"template": template(image, **labels)}
    return body("ReplicaSet", name, owner=owner, labels=labels, spec=spec)


def pod(name: str, owner: str, template_hash: str = "h", **status: Any) -> dict[str, Any]:
    return body("Pod", name, owner=owner, labels={"pod-template-hash": template_hash}, status=status)


async def observe(*objects: dict[str, Any]) -> Any:
    names = {"Deployment": "chat", "Service": "chat"}
    selector = "specserver.io/server=chat"
    return await observe_objects(MemoryCluster(*objects), "ns", names, selector=selector, owner_uid="server-uid")


async def test_the_newest_revision_is_the_one_with_the_present_template() -> None:
    pods = (pod("a", "uid-old"), pod("b", "uid-new"))
    seen = await observe(deployment(), replica_set("old", "old"), replica_set("new", "new"), *pods)
    assert seen.workload.current_template_hash == "new"
    assert [one.name for one in seen.pods] == ["a", "b"]


async def test_before_its_replica_set_there_is_no_newest_revision() -> None:
    seen = await observe(deployment(image="newer"), replica_set("old", "old"))
    assert seen.workload.current_template_hash is None


async def test_somebody_elses_deployment_is_no_workload() -> None:
    seen = await observe(deployment(owner="other"), replica_set("new", "new"), pod("a", "uid-new"))
    assert seen.workload is None
    assert seen.pods == ()
    assert seen.objects["Deployment"]["metadata"]["uid"] == "uid-chat", "to say whose name it has"


async def test_somebody_elses_pods_are_no_replicas() -> None:
    foreign = replica_set("foreign", "new", owner="uid-of-another-deployment")
    pods = (pod("a", "uid-foreign"), pod("b", ""), pod("c", "uid-new"))
    seen = await observe(deployment(), replica_set("new", "new"), foreign, *pods)
    assert [one.name for one in seen.pods] == ["c"]


async def test_replica_sets_are_read_after_pods() -> None:
    """The other way round, the pod of a ReplicaSet made in between would count as somebody else's, and as missing."""
    cluster = MemoryCluster(deployment())
    await observe_objects(cluster, "ns", {"Deployment": "chat"}, selector="specserver.io/server=chat", owner_uid="server-uid")
    kinds = [kind for verb, kind, _ in cluster.requests if verb == "list"]
    assert kinds == ["Pod", "ReplicaSet"]


async def test_a_deadline_that_passed_for_an_older_generation_is_no_news() -> None:
    conditions = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
    stopped = deployment()
    stopped["status"]["conditions"] = conditions
    assert (await observe(stopped)).workload.progress_deadline_exceeded
    stopped["metadata"]["generation"] = 2
    assert not (await observe(stopped)).workload.progress_deadline_exceeded


def test_a_pod_of_which_nothing_is_known_yet() -> None:
    seen = parse_pod(pod("a", "x"))
    assert (seen.phase, seen.ready, seen.scheduled, seen.started, seen.serving, seen.failure) == (
        "Pending", False, False, False, False, None,
    )  # fmt: skip


def test_a_running_pod() -> None:
    live = pod(
        "a", "x", phase="Running", podIP="10.0.0.1",
        conditions=[{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        containerStatuses=[{"name": "sidecar", "started": False}, {"name": "engine", "started": True, "state": {"running": {}}}],
    )  # fmt: skip
    live["metadata"]["labels"]["specserver.io/serving"] = "true"
    live["metadata"]["annotations"] = {
        "specserver.io/draining-since": "2026-01-01T00:00:05Z",
        "specserver.io/drained-idle-since": "nonsense",
        "controller.kubernetes.io/pod-deletion-cost": "-5",
    }
    seen = parse_pod(live)
    assert (seen.ip, seen.ready, seen.scheduled, seen.started, seen.serving) == ("10.0.0.1", True, True, True, True)
    assert (seen.draining_since, seen.drained_idle_since, seen.deletion_cost) == (1767225605.0, None, -5)


def ended(code: int = 1, **more: Any) -> dict[str, Any]:
    times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:30Z"}
    return {"terminated": {"exitCode": code, "reason": "Error", "message": "boom", **times, **more}}


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
RUNNING = {"running": {}}
NO_IMAGE = ("ImagePullBackOff", "no such image", None, 0)


@pytest.mark.parametrize(
    ("containers", "wanted"),
    [
        pytest.param([{"state": CREATING}], None, id="being made"),
        pytest.param([{"state": RUNNING, "ready": True}], None, id="running"),
        pytest.param([{"state": PULL}], NO_IMAGE, id="image"),
        pytest.param(
            [{"state": BACK_OFF, "lastState": ended(), "restartCount": 3}], ("Error", "boom", 1, 3),
            id="what ended, not the back-off",
        ),
        pytest.param([{"state": ended(137, reason="OOMKilled")}], ("OOMKilled", "boom", 137, 0), id="just ended"),
        pytest.param(
            [{"state": RUNNING, "lastState": ended(2), "restartCount": 1}], ("Error", "boom", 2, 1), id="started again",
        ),
        pytest.param([{"state": RUNNING, "ready": True}, {"state": PULL}], NO_IMAGE, id="a sidecar"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_containers(containers: list[dict[str, Any]], wanted: tuple[Any, ...] | None) -> None:
    named = [{"name": f"c{index}", **container} for index, container in enumerate(containers)]
    failure = parse_pod(pod("a", "x", containerStatuses=named)).failure
    assert (failure and (failure.reason, failure.message, failure.exit_code, failure.restarts)) == wanted
    if failure is not None and failure.exit_code is not None:
        assert (failure.at, failure.ran_seconds) == (1767225690.0, 90.0)


def test_an_init_container_and_the_pod_as_a_whole() -> None:
    fetch = {"name": "fetch", "state": BACK_OFF, "lastState": ended(), "restartCount": 2}
    waiting = {"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}
    failure = parse_pod(pod("a", "x", initContainerStatuses=[fetch], containerStatuses=[waiting])).failure
    assert failure is not None
    assert (failure.reason, failure.restarts, failure.container) == ("Error", 2, "fetch")
    evicted = parse_pod(pod("a", "x", phase="Failed", reason="Evicted", message="disk pressure")).failure
    assert evicted is not None
    assert (evicted.reason, evicted.message, evicted.container) == ("Evicted", "disk pressure", "")


def test_of_a_failure_only_a_container_that_the_user_added_is_named() -> None:
    of_the_engine = parse_pod(pod("a", "x", containerStatuses=[{"name": "engine", "state": PULL}])).failure
    of_a_sidecar = parse_pod(pod("a", "x", containerStatuses=[{"name": "side", "state": PULL}])).failure
    assert (of_the_engine and of_the_engine.container, of_a_sidecar and of_a_sidecar.container) == ("", "side")


# ---- what rollouts and failures are told from --------------------------------------------------------------------------

AT = "2026-01-01T00:01:00Z"


def running_pod(**status: Any) -> dict[str, Any]:
    engine = {"name": "engine", "ready": True, "started": True, "state": {"running": {"startedAt": AT}}}
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": AT},
        {"type": "PodReadyToStartContainers", "status": "True"},
        {"type": "Ready", "status": "True", "lastTransitionTime": AT},
    ]
    made = pod("a", "uid-new", phase="Running", containerStatuses=[engine], conditions=conditions, **status)
    return {**made, "spec": {"nodeName": "n1"}}


def test_times_and_places_of_a_pod() -> None:
    seen = parse_pod(running_pod())
    at = epoch_seconds(AT)
    assert (seen.node, seen.scheduled_at, seen.running_since, seen.ready_since) == ("n1", at, at, at)
    assert (seen.containers_ready, seen.pulling, seen.ends_at, seen.draining_for) == (True, True, None, "")


def test_a_pod_that_ends_and_one_that_a_rollout_drains() -> None:
    body = running_pod()
    body["metadata"] |= {"deletionTimestamp": AT, "annotations": {"specserver.io/draining-for": "rollout"}}
    seen = parse_pod(body)
    assert (seen.terminating, seen.ends_at, seen.draining_for) == (True, epoch_seconds(AT), "rollout")


def test_containers_that_one_knows_nothing_of_are_not_ready() -> None:
    """Otherwise each new pod would look like one whose node is lost."""
    seen = parse_pod(pod("a", "uid-new", phase="Pending"))
    assert (seen.containers_ready, seen.running_since, seen.ready_since, seen.scheduled_at) == (False, None, None, None)


def test_when_a_pod_was_evicted() -> None:
    body = running_pod(reason="Evicted", message="low on memory")
    body["status"]["phase"] = "Failed"
    failure = parse_pod(body).failure
    assert failure is not None
    assert (failure.reason, failure.at) == ("Evicted", epoch_seconds(AT))


def test_the_gate_and_the_revisions_of_a_deployment() -> None:
    live = deployment()
    live["metadata"]["annotations"] = {"specserver.io/template-digest": "d2", "specserver.io/template-intent": "i2"}
    live["spec"] |= {"minReadySeconds": 1_000_000_000, "strategy": {"rollingUpdate": {"maxUnavailable": 2}}}
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q"}
    live["status"]["conditions"] = [refused]
    old, new = replica_set("old", "old"), replica_set("new", "new")
    old["metadata"]["annotations"] = {"specserver.io/template-digest": "d1", "deployment.kubernetes.io/desired-replicas": "3"}
    new["spec"] |= {"replicas": 2, "minReadySeconds": 1_000_000_000}
    seen = parse_workload(live, [old, new])
    assert (seen.held, seen.max_unavailable, seen.template_digest, seen.template_intent) == (True, 2, "d2", "i2")
    assert seen.creation_refused == "exceeded quota: q"
    assert [(one.template_hash, one.digest, one.replicas, one.held, one.scaled_for) for one in seen.revisions] == [
        ("old", "d1", 1, False, 3), ("new", "", 2, True, None),
    ]  # fmt: skip


def test_a_deployment_that_somebody_gave_percentages() -> None:
    live = deployment()
    live["spec"]["strategy"] = {"rollingUpdate": {"maxUnavailable": "25%"}}
    assert parse_workload(live, []).max_unavailable == 0
    assert not parse_workload(live, []).held


async def test_templates_are_remembered_by_what_they_were_built_as() -> None:
    old = replica_set("old", "old")
    old["metadata"]["annotations"] = {"specserver.io/template-digest": "d1"}
    seen = await observe(deployment(), old, replica_set("new", "new"))
    assert seen.templates == {"d1": template("old")}
