"""What keeps pods from serving, by name: out of the words of kubelet, scheduler, node controller and API server.

Each answer is a reason, which stays the same while the cause does, and a sentence with the pod and what to do about it. The
order in which `find_trouble` asks is the order in which a person would want to hear: what fails by itself, then what somebody
refused, then what waits for something.

Pods alone are read. Their Events and the nodes were rejected as sources: both are rights on more than the server's own
objects, and an Event may be gone or late while the pod still says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specserver.api.conditions import Condition, ConditionType, Reason, Status
from specserver.core.observed import ContainerFailure, Load, LoadUnknown, Pod, Workload

LONGEST_QUOTE = 400
STUCK_AFTER_SECONDS = 30.0
"""A pod this long past the end of its grace period is stuck: the kubelet kills at the end of it."""
NOT_CREATED_AFTER_SECONDS = 60.0
"""A pod that was placed this long ago and has no container yet waits for something: a volume, most often."""
REPLACED_WITHIN_SECONDS = 1800.0
"""So long an evicted pod explains a missing replica. It stays in the list for days."""

_IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_NOT_CREATED_REASONS = ("CreateContainerError", "RunContainerError")
"""The container runtime made no container of the image, and tries again for ever without counting it as a restart."""
_ARGUMENT_ERROR_EXIT_CODE = 2
"""What argparse exits with, and hence SGLang on an argument that it doesn't know."""
_DRAFT_WORDS = re.compile(r"eagle|draft", re.IGNORECASE)
_SHAPE_WORDS = re.compile(r"size mismatch|shape mismatch|shapes? .*(invalid|not match|incompatible|cannot be multiplied)", re.I)
_GPU = re.compile(r"insufficient [a-z0-9.-]+/\S+", re.IGNORECASE)
_SHORT = re.compile(r"insufficient (cpu|memory|ephemeral-storage)|too many pods", re.IGNORECASE)
_VOLUME = re.compile(r"persistentvolumeclaim|volume node affinity|persistent volumes? to bind|max volume count", re.IGNORECASE)


@dataclass(frozen=True)
class Trouble:
    """Why replicas don't serve, as a reason of Ready, and a sentence with what to do about it."""

    reason: Reason
    message: str


def find_trouble(
    pods: Sequence[Pod],
    workload: Workload,
    *,
    missing: int,
    unready: int,
    place_expected: bool,
    load_deadline_seconds: float,
    now: float,
) -> Trouble | None:
    """The first trouble there is.

    missing          wanted replicas without a pod
    unready          wanted replicas that don't serve
    place_expected   an ending pod gives its place to one that waits for it
    """
    live = [pod for pod in pods if pod.lives]
    stuck = [pod for pod in pods if is_stuck(pod, now)]
    # 1. A pod that fails. It is news even while enough others are ready; one that recovered is not.
    for pod in live:
        trouble = None if pod.works else classify_pod(pod, load_deadline_seconds=load_deadline_seconds, now=now)
        if trouble is not None:
            return trouble
    # 2. What somebody refused: the API server to make it, a node to run it.
    if missing > 0 and workload.creation_refused:
        return classify_refusal(workload.creation_refused)
    # 3. A place that doesn't become free, and one that is about to: no news about the cluster.
    if unready > 0 and stuck:
        return Trouble(Reason.STUCK_TERMINATING, _say_stuck(stuck[0]))
    waiting = next((pod for pod in live if pod.unschedulable_message), None)
    if waiting is not None and not place_expected:
        return Trouble(Reason.UNSCHEDULABLE, f"pod {waiting.name}: {classify_unschedulable(waiting.unschedulable_message)[1]}")
    # 4. A placed pod that gets no container.
    late = next((pod for pod in live if _is_not_created(pod, now)), None)
    if late is not None:
        return Trouble(
            Reason.CONTAINER_NOT_CREATED,
            f"pod {late.name} has a node and no container yet: it waits for a volume or for the node's network;"
            f" `kubectl describe pod {late.name}` says for which",
        )
    # 5. A replica that was lost, while its successor isn't there yet.
    lost = _find_lost(pods, now) if unready > 0 else None
    return None if lost is None else classify_lost(lost)


def classify_pod(pod: Pod, *, load_deadline_seconds: float, now: float) -> Trouble | None:
    """What is wrong with a live pod that doesn't work; None where nothing is, or nothing yet."""
    if pod.ready and pod.stalled:
        return Trouble(
            Reason.ENGINE_STALLED,
            f"pod {pod.name}: requests wait, and its engine works on none: see its log; unless somebody paused it,"
            f" `kubectl delete pod {pod.name}` has it replaced",
        )
    if pod.failure is not None:
        classified = classify_failure(pod.failure, load_deadline_seconds=load_deadline_seconds)
        if classified is not None:
            return Trouble(classified[0], f"pod {pod.name}: {classified[1]}")
    if pod.containers_ready and pod.started and not pod.ready:
        where = f" {pod.node}" if pod.node else ""
        return Trouble(
            Reason.NODE_LOST,
            f"pod {pod.name}: its node{where} no longer reports, and Kubernetes took the pod out of service. Mend the node;"
            " after its toleration the pod is replaced",
        )
    if pod.running_since is not None and not pod.started and now - pod.running_since > load_deadline_seconds:
        return Trouble(
            Reason.LOAD_DEADLINE_EXCEEDED,
            f"pod {pod.name}: the model was not loaded in {load_deadline_seconds:g} s: see its log, or raise engine.loadDeadline",
        )
    return None


def find_stalled(pods: Sequence[Pod], load: Load | LoadUnknown, before: frozenset[str]) -> frozenset[str]:
    """UIDs of the ready pods whose engines are stalled. Where a pod's load isn't known, it is what it was `before`."""
    known = {one.pod: one.stalled for one in load.pods} if isinstance(load, Load) else {}
    return frozenset(pod.uid for pod in pods if pod.ready and known.get(pod.name, pod.uid in before))


def classify_failure(failure: ContainerFailure, *, load_deadline_seconds: float) -> tuple[Reason, str] | None:
    """The condition's reason for a container's failure and what to do about it; None where it is no failure yet."""
    if failure.container:
        return _classify_added(failure)
    said = last_line(failure.message)
    detail = f": {said}" if said else ""
    if failure.reason in _IMAGE_REASONS:
        return Reason.IMAGE_PULL_ERROR, f"{failure.reason}{detail}. Check engine.image and the pull secrets in template"
    if failure.reason == "CreateContainerConfigError":
        return Reason.SECRET_MISSING, f"{failure.reason}{detail}. Create what is missing; the pod starts by itself then"
    if failure.reason in _NOT_CREATED_REASONS:
        return Reason.CONTAINER_NOT_CREATED, f"{failure.reason}{detail}. Check engine.image and template against the node"
    if failure.reason == "OOMKilled":
        return Reason.OUT_OF_MEMORY, "the container ran out of memory. Raise engine.resources.limits.memory"
    if "out of memory" in failure.message.lower():
        return Reason.OUT_OF_MEMORY, f"the GPU ran out of memory{detail}. Lower --mem-fraction-static or maxRunningRequests"
    if failure.exit_code == _ARGUMENT_ERROR_EXIT_CODE and "error:" in failure.message:
        return Reason.ENGINE_ARGUMENTS_REFUSED, f"SGLang refused an argument{detail}. Mend engine.args"
    if _SHAPE_WORDS.search(failure.message) and _DRAFT_WORDS.search(failure.message):
        return Reason.DRAFT_MISMATCH, f"the draft doesn't fit the model{detail}. Check speculation.draftModel and algorithm"
    if failure.ran_seconds is not None and failure.ran_seconds >= load_deadline_seconds:
        return (
            Reason.LOAD_DEADLINE_EXCEEDED,
            f"the model was not loaded in {load_deadline_seconds:g} s{detail}. Raise engine.loadDeadline",
        )
    return _classify_end("the engine", failure)


def _classify_added(failure: ContainerFailure) -> tuple[Reason, str] | None:
    """The same of a container that the user added. What its program's words and exit codes mean is not known here."""
    who, said = f"container {failure.container}", last_line(failure.message)
    detail = f": {said}" if said else ""
    if failure.reason in _IMAGE_REASONS:
        return Reason.IMAGE_PULL_ERROR, f"{who}: {failure.reason}{detail}. Check its image and the pull secrets in template"
    if failure.reason == "CreateContainerConfigError":
        return Reason.SECRET_MISSING, f"{who}: {failure.reason}{detail}. Create what is missing; the pod starts by itself then"
    if failure.reason in _NOT_CREATED_REASONS:
        return Reason.CONTAINER_NOT_CREATED, f"{who}: {failure.reason}{detail}. Check its image and fields in template"
    if failure.reason == "OOMKilled":
        return Reason.OUT_OF_MEMORY, f"{who} ran out of memory. Raise its resources.limits.memory in template"
    return _classify_end(who, failure)


def _classify_end(who: str, failure: ContainerFailure) -> tuple[Reason, str] | None:
    """A container that ended for no reason with a name; None where it may have been once."""
    if failure.restarts == 0 and failure.reason != "CrashLoopBackOff":
        return None
    code = "" if failure.exit_code is None else f" with exit code {failure.exit_code}"
    said = last_line(failure.message)
    return Reason.CRASH_LOOP, f"{who} ended{code}, {failure.restarts} restarts{f': {said}' if said else ''}"


def classify_unschedulable(message: str) -> tuple[Reason, str]:
    """What the scheduler lacks, as a reason of Scheduled, and its sentence with what to do.

    A scheduler names a cause for each node, so several at once: a volume has no other node, and a shortage of GPUs is on
    every node without one. So GPUs count before taints, unless the taint is about GPUs itself.
    """
    said = _steady(message)
    taint = "untolerated taint" in said
    if _VOLUME.search(said):
        return Reason.VOLUME_UNAVAILABLE, f"{said}. Create the volume claim, or one in a zone with free nodes"
    if _GPU.search(said) and not (taint and re.search(r"taint \{[^}]*gpu", said, re.IGNORECASE)):
        return Reason.INSUFFICIENT_GPU, f"{said}. Free or add GPUs, or lower engine.resources.limits"
    if taint:
        return Reason.TAINT_MISMATCH, f"{said}. Add a toleration to template.spec.tolerations"
    if "node affinity" in said or "node selector" in said.lower():
        return Reason.NODE_SELECTOR_MISMATCH, f"{said}. Change nodeSelector or affinity in template.spec, or label a node"
    if _SHORT.search(said):
        return Reason.INSUFFICIENT_RESOURCES, f"{said}. Free or add nodes, or lower engine.resources.requests"
    return Reason.UNSCHEDULABLE, f"{said}. Free or add what is short, or change template"


def classify_refusal(message: str) -> Trouble:
    """Why the API server made no pod. The message is the ReplicaSet's, and names the pod that it wanted."""
    said = last_line(message)
    lowered = said.lower()
    if "exceeded quota" in lowered or "failed quota" in lowered:
        return Trouble(Reason.QUOTA_EXCEEDED, f"{said}. Raise the ResourceQuota, or lower replicas or engine.resources")
    if "podsecurity" in lowered:
        return Trouble(
            Reason.POD_SECURITY_REFUSED, f"{said}. Set what it asks for in template.spec, or relax the namespace's Pod Security"
        )
    return Trouble(Reason.POD_CREATION_REFUSED, f"{said}. Change what the API server refuses")


def classify_lost(pod: Pod) -> Trouble:
    """Why a pod as a whole came to its end."""
    assert pod.failure is not None
    said = last_line(pod.failure.message)
    detail = f": {said}" if said else ""
    if pod.failure.reason == "Evicted":
        return Trouble(
            Reason.EVICTED, f"pod {pod.name} was evicted{detail}. Its successor is on its way; raise engine.resources.requests"
        )
    where = f" by node {pod.node}" if pod.node else ""
    return Trouble(
        Reason.NODE_REFUSED,
        f"pod {pod.name} was refused{where} with {pod.failure.reason}{detail}. Its successor is on its way; check the devices",
    )


def plan_scheduled(
    pods: Sequence[Pod], workload: Workload | None, *, missing: int, place_expected: bool = False
) -> Condition:
    """The condition Scheduled: whether every pod has a node, and if not, what it lacks."""

    def scheduled(status: Status, reason: Reason, message: str) -> Condition:
        return Condition(ConditionType.SCHEDULED, status, reason, message)

    live = [pod for pod in pods if pod.lives]
    if workload is not None and missing > 0 and workload.creation_refused:
        refusal = classify_refusal(workload.creation_refused)
        return scheduled(Status.FALSE, refusal.reason, refusal.message)
    waiting = [pod for pod in live if pod.unschedulable_message]
    if waiting and place_expected:
        return scheduled(Status.UNKNOWN, Reason.SCHEDULING, f"pod {waiting[0].name} waits for the place of a pod that is ending")
    if waiting:
        reason, message = classify_unschedulable(waiting[0].unschedulable_message)
        more = f" ({len(waiting)} pods wait)" if len(waiting) > 1 else ""
        return scheduled(Status.FALSE, reason, f"pod {waiting[0].name}: {message}{more}")
    if not live:
        return scheduled(Status.UNKNOWN, Reason.NO_PODS, "there is no pod to be placed")
    if not all(pod.scheduled for pod in live):
        return scheduled(Status.UNKNOWN, Reason.SCHEDULING, "the scheduler has not decided yet")
    return scheduled(Status.TRUE, Reason.ALL_PODS_SCHEDULED, f"{len(live)} pods have a node")


def is_stuck(pod: Pod, now: float) -> bool:
    """Whether a pod should have been gone for a while. Its node is lost, or a finalizer holds it."""
    return pod.terminating and pod.ends_at is not None and now - pod.ends_at > STUCK_AFTER_SECONDS


def find_stuck(pods: Sequence[Pod], now: float) -> str:
    """What is to be said of a pod that won't end; empty where there is none."""
    return next((_say_stuck(pod) for pod in pods if is_stuck(pod, now)), "")


def last_line(text: str) -> str:
    """The last line that says something, printable and short: of a log's end, the cause."""
    printable = "".join(char if char.isprintable() or char == "\n" else " " for char in text[-4 * LONGEST_QUOTE :])
    lines = [line.strip() for line in printable.splitlines() if line.strip()]
    return lines[-1][-LONGEST_QUOTE:] if lines else ""


def _say_stuck(pod: Pod) -> str:
    where = f" on node {pod.node}" if pod.node else ""
    return (
        f"pod {pod.name}{where} should have ended and has not: if its node is gone for good, delete the Node or run"
        f" `kubectl delete pod {pod.name} --grace-period=0 --force`"
    )


def _is_not_created(pod: Pod, now: float) -> bool:
    placed = pod.scheduled and pod.scheduled_at is not None and now - pod.scheduled_at > NOT_CREATED_AFTER_SECONDS
    return placed and pod.phase == "Pending" and pod.failure is None and not pod.pulling


def _find_lost(pods: Sequence[Pod], now: float) -> Pod | None:
    """The newest pod that its node gave up, recently."""
    failed = [pod for pod in pods if pod.phase == "Failed" and not pod.terminating and pod.failure is not None]
    recent = [pod for pod in failed if pod.failure and pod.failure.at and now - pod.failure.at < REPLACED_WITHIN_SECONDS]
    return max(recent, key=lambda pod: (pod.failure.at if pod.failure else 0.0) or 0.0, default=None)


def _steady(message: str) -> str:
    """The scheduler's causes without what differs from one try to the next while they stay: on how many nodes each is, the order
    that follows from that, and what it says of preemption."""
    said = re.split(r" (?:preemption:|no new claims to deallocate)", message)[0].strip().rstrip(".,")
    summary, colon, causes = said.partition("nodes are available: ")
    each = (re.sub(r"^\d+ ", "", cause) for cause in re.split(r", (?=\d+ )", causes))
    return f"{summary}{colon}{', '.join(sorted(each))}"
