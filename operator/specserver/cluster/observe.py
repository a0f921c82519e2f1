"""Live GETs and LISTs turned into the values of `core/observed.py`. Caches of a watch are never trusted: after a gap in
the watch an object that vanished would stay in them for good."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specserver.api import labels
from specserver.cluster.client import Body, Cluster
from specserver.cluster.errors import NotFound
from specserver.core.observed import ContainerFailure, Pod, Revision, Workload
from specserver.core.times import epoch_seconds

_TEMPLATE_HASH = "pod-template-hash"


@dataclass(frozen=True)
class ObservedObjects:
    """The live objects under one server's names.

    objects        by kind; what is not there is absent, what belongs to somebody else is here too (`is_ours` tells)
    workload, pods of the server alone: a foreign Deployment under its name and foreign pods under its label are left out
    """

    objects: Mapping[str, Body]
    workload: Workload | None
    pods: tuple[Pod, ...]
    templates: Mapping[str, Body] = field(default_factory=dict)
    """The pod templates of the Deployment's revisions, by the digest of what the operator had built."""


async def observe_objects(
    cluster: Cluster, namespace: str, names: Mapping[str, str], *, selector: str, owner_uid: str
) -> ObservedObjects:
    """Everything of one server in two round trips' time. `names` maps kind to object name."""
    # 1. All but the ReplicaSets.
    pods, *live = await asyncio.gather(
        cluster.list_all("Pod", namespace, label_selector=selector),
        *(_get_or_none(cluster, kind, namespace, name) for kind, name in names.items()),
    )
    assert isinstance(pods, list)
    objects = {kind: body for kind, body in zip(names, live, strict=True) if isinstance(body, dict)}
    deployment = objects.get("Deployment")
    if deployment is None or not is_ours(deployment, owner_uid):
        return ObservedObjects(objects, None, ())
    # 2. The ReplicaSets after the pods: so that of each pod that was seen the ReplicaSet is, too.
    listed = await cluster.list_all("ReplicaSet", namespace, label_selector=selector)
    owned = [one for one in listed if is_ours(one, deployment["metadata"]["uid"])]
    uids = [one["metadata"]["uid"] for one in owned]
    ours = [parse_pod(pod) for pod in pods if any(is_ours(pod, uid) for uid in uids)]
    workload = parse_workload(deployment, owned)
    digests = [one["metadata"].get("annotations", {}).get(labels.TEMPLATE_DIGEST) for one in owned]
    templates = {
        digest: _without_hash(one["spec"]["template"]) for digest, one in zip(digests, owned, strict=True) if digest
    }
    return ObservedObjects(objects, workload, tuple(sorted(ours, key=lambda pod: pod.name)), templates)


def is_ours(body: Body, owner_uid: str) -> bool:
    """Whether an owner reference of the object names this owner."""
    return any(reference.get("uid") == owner_uid for reference in body["metadata"].get("ownerReferences", []))


async def _get_or_none(cluster: Cluster, kind: str, namespace: str, name: str) -> Body | None:
    try:
        return await cluster.get(kind, namespace, name)
    except NotFound:
        return None


def parse_workload(deployment: Body, replica_sets: Sequence[Body]) -> Workload:
    """The Deployment, and which of its ReplicaSets has its present template.

    Found as the Deployment's controller finds it, by comparing templates. The revision annotation was rejected: between a
    change of the template and the controller's next look it still names the old ReplicaSet, and its pods would count as new.
    """
    metadata, spec, status = deployment["metadata"], deployment["spec"], deployment.get("status", {})
    newest = [one for one in replica_sets if _without_hash(one["spec"]["template"]) == spec["template"]]
    conditions = tuple(status.get("conditions", []))
    return Workload(
        uid=metadata["uid"],
        generation=metadata["generation"],
        observed_generation=status.get("observedGeneration", 0),
        spec_replicas=spec.get("replicas", 1),
        replicas=status.get("replicas", 0),
        ready_replicas=status.get("readyReplicas", 0),
        updated_replicas=status.get("updatedReplicas", 0),
        available_replicas=status.get("availableReplicas", 0),
        current_template_hash=newest[0]["metadata"]["labels"].get(_TEMPLATE_HASH) if newest else None,
        progress_deadline_exceeded=status.get("observedGeneration", 0) >= metadata["generation"]
        and any(
            condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded"
            for condition in conditions
        ),
        conditions=conditions,
        revisions=tuple(_parse_revision(one) for one in replica_sets),
        template_digest=metadata.get("annotations", {}).get(labels.TEMPLATE_DIGEST, ""),
        template_intent=metadata.get("annotations", {}).get(labels.TEMPLATE_INTENT, ""),
        held=spec.get("minReadySeconds", 0) > 0,
        max_unavailable=_whole(spec.get("strategy", {}).get("rollingUpdate", {}).get("maxUnavailable")) or 0,
        creation_refused=next(
            (one.get("message", "") for one in conditions if one["type"] == "ReplicaFailure" and one["status"] == "True"), ""
        ),
    )


def _parse_revision(replica_set: Body) -> Revision:
    metadata, spec = replica_set["metadata"], replica_set["spec"]
    annotations = metadata.get("annotations", {})
    return Revision(
        template_hash=metadata["labels"].get(_TEMPLATE_HASH, ""),
        digest=annotations.get(labels.TEMPLATE_DIGEST, ""),
        created_at=epoch_seconds(metadata["creationTimestamp"]),
        replicas=spec.get("replicas", 1),
        held=spec.get("minReadySeconds", 0) > 0,
        scaled_for=_whole(annotations.get("deployment.kubernetes.io/desired-replicas")),
    )


def _whole(value: Any) -> int | None:
    """A whole number, as JSON or as an annotation has it."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else None


def _without_hash(template: Body) -> Body:
    metadata = template["metadata"]
    kept = {key: value for key, value in metadata["labels"].items() if key != _TEMPLATE_HASH}
    return {**template, "metadata": {**metadata, "labels": kept}}


def parse_pod(body: Body) -> Pod:
    """A pod as decisions need it. Anything the kubelet has not said yet is false or None."""
    metadata, status = body["metadata"], body.get("status", {})
    pod_labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    engine: Mapping[str, Any] = next(
        (one for one in status.get("containerStatuses", []) if one["name"] == labels.ENGINE_CONTAINER), {}
    )
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    cost = annotations.get(labels.POD_DELETION_COST)
    ready = conditions.get("Ready", {})
    begun = conditions.get("PodReadyToStartContainers", {}).get("status") == "True"
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP"),
        created_at=epoch_seconds(metadata["creationTimestamp"]),
        template_hash=pod_labels.get(_TEMPLATE_HASH, ""),
        phase=status.get("phase", "Pending"),
        ready=ready.get("status") == "True",
        scheduled=scheduled.get("status") == "True",
        unschedulable_message=scheduled.get("message", "no node takes it") if unschedulable else "",
        terminating="deletionTimestamp" in metadata,
        started=engine.get("started") is True,
        serving=pod_labels.get(labels.SERVING) == labels.SERVING_VALUE,
        draining_since=_time(annotations.get(labels.DRAINING_SINCE)),
        drained_idle_since=_time(annotations.get(labels.DRAINED_IDLE_SINCE)),
        deletion_cost=int(cost) if cost is not None and cost.lstrip("-").isdigit() else None,
        failure=_parse_failure(status),
        node=body.get("spec", {}).get("nodeName", ""),
        draining_for=annotations.get(labels.DRAINING_FOR, ""),
        scheduled_at=_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        running_since=_time(engine.get("state", {}).get("running", {}).get("startedAt")),
        ready_since=_time(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
        ends_at=_time(metadata.get("deletionTimestamp")),
        containers_ready=bool(status.get("containerStatuses")) and all(one.get("ready") for one in status["containerStatuses"]),
        pulling=begun,
    )


def _time(text: str | None) -> float | None:
    """A time that we wrote, or None; what somebody else broke counts as not written."""
    try:
        return epoch_seconds(text) if text else None
    except ValueError:
        return None


def _parse_failure(status: Mapping[str, Any]) -> ContainerFailure | None:
    """The newest trouble: of the pod as a whole (evicted), else of a waiting or ended container."""
    if status.get("phase") == "Failed" and status.get("reason"):
        changes = [_time(one.get("lastTransitionTime")) for one in status.get("conditions", [])]
        at = max((change for change in changes if change is not None), default=None)
        return ContainerFailure(status["reason"], status.get("message", ""), None, 0, at)
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        state, last = container.get("state", {}), container.get("lastState", {})
        waiting, restarts = state.get("waiting", {}), container.get("restartCount", 0)
        added = "" if container["name"] == labels.ENGINE_CONTAINER else container["name"]
        ended = state.get("terminated") or last.get("terminated")
        if waiting.get("reason") in ("CrashLoopBackOff", None) and ended:
            if ended.get("exitCode") == 0 and container.get("ready"):
                continue
            started, finished = ended.get("startedAt"), ended.get("finishedAt")
            return ContainerFailure(
                reason=ended.get("reason", "Error"),
                message=ended.get("message", ""),
                exit_code=ended.get("exitCode"),
                restarts=restarts,
                at=_time(finished),
                ran_seconds=epoch_seconds(finished) - epoch_seconds(started) if started and finished else None,
                container=added,
            )
        if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
            return ContainerFailure(waiting["reason"], waiting.get("message", ""), None, restarts, None, container=added)
    return None
