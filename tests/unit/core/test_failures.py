"""What keeps pods from serving, by table: from what Kubernetes says to a reason and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.api.conditions import Reason
from specserver.core.failures import (
    LONGEST_QUOTE,
    classify_failure,
    classify_refusal,
    classify_unschedulable,
    find_stalled,
    find_trouble,
    last_line,
    plan_scheduled,
)
from specserver.core.observed import ContainerFailure, Load, LoadUnknown, Pod, PodLoad, PodLoadUnknown
from tests.fakes.pods import NOW, WORKLOAD, build_pod
from tests.fakes.pods import build_failure as failure
from tests.fakes.pods import build_starting_pod as starting

DEADLINE = 600.0


# ---- containers ---------------------------------------------------------------------------------------------------------

FAILURES = [
    pytest.param(failure("ErrImagePull", "401", None, 0), Reason.IMAGE_PULL_ERROR, "ErrImagePull: 401", id="image"),
    pytest.param(failure("CreateContainerConfigError", "secret s", None, 0), Reason.SECRET_MISSING, "secret s", id="secret"),
    pytest.param(
        failure("CreateContainerError", "executable file `python` not found in $PATH", None, 0), Reason.CONTAINER_NOT_CREATED,
        "`python` not found", id="no container of this image",
    ),
    pytest.param(
        failure("RunContainerError", "no such device", None, 0), Reason.CONTAINER_NOT_CREATED, "no such device",
        id="a container that can't be started",
    ),
    pytest.param(failure("OOMKilled", "", 137), Reason.OUT_OF_MEMORY, "limits.memory", id="container memory"),
    pytest.param(
        failure(message="CUDA out of memory.\nmore"), Reason.OUT_OF_MEMORY, "--mem-fraction-static",
        id="GPU memory, not on the last line",
    ),
    pytest.param(
        failure(message="usage: x\nx: error: unrecognized arguments: --y", exit_code=2, restarts=0),
        Reason.ENGINE_ARGUMENTS_REFUSED, "unrecognized arguments: --y", id="argument",
    ),
    pytest.param(failure(message="segfault", exit_code=2), Reason.CRASH_LOOP, "exit code 2", id="exit code 2 of another cause"),
    pytest.param(failure(exit_code=137, ran_seconds=600.0), Reason.LOAD_DEADLINE_EXCEEDED, "loadDeadline", id="too late"),
    pytest.param(failure(exit_code=137, ran_seconds=599.0), Reason.CRASH_LOOP, "1 restarts", id="within the deadline"),
    pytest.param(failure("CrashLoopBackOff", restarts=0, exit_code=None), Reason.CRASH_LOOP, "the engine ended,", id="back-off"),
    pytest.param(failure("Completed", restarts=0, exit_code=0), None, "", id="ended once"),
    pytest.param(
        failure(message='File "eagle.py"\nRuntimeError: size mismatch for fc.weight'), Reason.DRAFT_MISMATCH,
        "size mismatch for fc.weight. Check speculation.draftModel", id="draft of another shape",
    ),
    pytest.param(
        failure(message="RuntimeError: size mismatch for lm_head.weight"), Reason.CRASH_LOOP, "size mismatch",
        id="a wrong shape that is not the draft's",
    ),
    pytest.param(
        failure(message="Fetching\n403 gated repo: org/model\n", restarts=2, container="fetch"), Reason.CRASH_LOOP,
        "container fetch ended with exit code 1, 2 restarts: 403 gated repo: org/model", id="an init container",
    ),
    pytest.param(failure(restarts=0, container="fetch"), None, "", id="an init container, once"),
    pytest.param(
        failure(message="fetch: error: no such bucket", exit_code=2, container="fetch"), Reason.CRASH_LOOP,
        "container fetch ended with exit code 2", id="another program's exit code 2",
    ),
    pytest.param(
        failure(message="out of memory", ran_seconds=601.0, container="side"), Reason.CRASH_LOOP, "container side ended",
        id="another program's words and times",
    ),
    pytest.param(
        failure("OOMKilled", "", 137, container="side"), Reason.OUT_OF_MEMORY,
        "container side ran out of memory. Raise its resources.limits.memory in template", id="memory of a sidecar",
    ),
    pytest.param(
        failure("ErrImagePull", "401", None, 0, container="side"), Reason.IMAGE_PULL_ERROR, "container side: ErrImagePull: 401",
        id="image of a sidecar",
    ),
    pytest.param(
        failure("CreateContainerConfigError", "secret s", None, 0, container="side"), Reason.SECRET_MISSING, "container side: ",
        id="secret of a sidecar",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("container", "reason", "says"), FAILURES)
def test_failures_by_name(container: ContainerFailure, reason: Reason | None, says: str) -> None:
    classified = classify_failure(container, load_deadline_seconds=DEADLINE)
    assert (classified[0] if classified else None) == reason
    assert says in (classified[1] if classified else "")


def test_of_a_log_the_last_line_that_says_something_is_quoted() -> None:
    assert last_line("Traceback\n  File\nValueError: bad\n\n  \n") == "ValueError: bad"
    assert last_line("\x00\x1b[31mred\r\n") == "[31mred"
    assert last_line("") == last_line("\n\x00\n") == ""


@given(st.text(max_size=2000))
def test_a_quote_is_short_printable_and_one_line(text: str) -> None:
    assert len(last_line(text)) <= LONGEST_QUOTE
    assert last_line(text).isprintable()


# ---- the scheduler ------------------------------------------------------------------------------------------------------

NODES = "0/5 nodes are available: "
UNSCHEDULABLE = [
    pytest.param(f"{NODES}5 Insufficient nvidia.com/gpu.", "InsufficientGPU", "Free or add GPUs", id="GPU"),
    pytest.param(f"{NODES}5 Insufficient amd.com/gpu.", "InsufficientGPU", "amd.com/gpu", id="GPU of another maker"),
    pytest.param(
        f"{NODES}2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {{dedicated: db}}.", "InsufficientGPU",
        "Free or add GPUs", id="GPU, and nodes that are not for it",
    ),
    pytest.param(
        f"{NODES}3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {{nvidia.com/gpu: present}}.", "TaintMismatch",
        "template.spec.tolerations", id="the GPU nodes are tainted",
    ),
    pytest.param(f"{NODES}5 node(s) had untolerated taint {{a: b}}.", "TaintMismatch", "tolerations", id="taint"),
    pytest.param(
        f"{NODES}5 node(s) didn't match Pod's node affinity/selector.", "NodeSelectorMismatch", "nodeSelector", id="selector",
    ),
    pytest.param(
        f"{NODES}pod has unbound immediate PersistentVolumeClaims.", "VolumeUnavailable", "volume claim", id="unbound claim",
    ),
    pytest.param(
        'persistentvolumeclaim "weights" not found', "VolumeUnavailable", 'claim "weights" not found', id="no such claim",
    ),
    pytest.param(
        f"{NODES}2 Insufficient nvidia.com/gpu, 3 node(s) had volume node affinity conflict.", "VolumeUnavailable", "zone",
        id="a volume has no other node",
    ),
    pytest.param(f"{NODES}5 Insufficient memory.", "InsufficientResources", "requests", id="memory"),
    pytest.param(f"{NODES}5 Too many pods.", "InsufficientResources", "nodes", id="too many pods"),
    pytest.param(f"{NODES}5 node(s) were unschedulable.", "Unschedulable", "unschedulable", id="anything else"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "reason", "says"), UNSCHEDULABLE)
def test_what_the_scheduler_lacks(message: str, reason: str, says: str) -> None:
    named, sentence = classify_unschedulable(f"{message} preemption: 0/5 nodes are available: 5 No victims found.")
    assert named == reason
    assert says in sentence
    assert "preemption" not in sentence, "it says the same again, and changes"


def test_a_scheduler_that_counts_again_says_the_same() -> None:
    """It sorts its causes by their text, of which the count is the beginning. Each new text would be a write of status."""
    tries = (
        "0/9 nodes are available: 7 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {a: b}.",
        "0/9 nodes are available: 3 node(s) had untolerated taint {a: b}, 6 Insufficient nvidia.com/gpu.",
        "0/9 nodes are available: 3 node(s) had untolerated taint {a: b}, 6 Insufficient nvidia.com/gpu."
        " preemption: 0/9 nodes are available: 3 Preemption is not helpful for scheduling, 6 No preemption victims found.",
    )
    ((reason, message),) = {classify_unschedulable(text) for text in tries}
    assert reason == "InsufficientGPU"
    assert message.startswith("0/9 nodes are available: Insufficient nvidia.com/gpu, node(s) had untolerated taint {a: b}. ")


def test_scheduled() -> None:
    def scheduled(*pods: Pod, missing: int = 0, refused: str = "") -> tuple[str, str, str]:
        one = plan_scheduled(pods, replace(WORKLOAD, creation_refused=refused), missing=missing)
        return one.status.value, one.reason.value, one.message

    waiting = starting("b", scheduled=False, unschedulable_message="5 Insufficient nvidia.com/gpu.")
    assert scheduled(build_pod("a")) == ("True", "AllPodsScheduled", "1 pods have a node")
    assert scheduled(build_pod("a"), waiting)[:2] == ("False", "InsufficientGPU")
    assert scheduled(waiting, replace(waiting, name="c"))[2].endswith("(2 pods wait)")
    assert scheduled(build_pod("a"), starting("b", scheduled=False))[:2] == ("Unknown", "Scheduling")
    assert scheduled()[:2] == ("Unknown", "NoPods")
    assert scheduled(missing=1, refused="exceeded quota: gpus")[:2] == ("False", "QuotaExceeded")
    assert scheduled(build_pod("a"), missing=0, refused="exceeded quota: gpus")[0] == "True"
    assert scheduled(replace(waiting, terminating=True), build_pod("a"))[0] == "True"


# ---- the API server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "reason", "says"),
    [
        pytest.param(
            'pods "chat-1-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 2, limited: 2',
            "QuotaExceeded", "Raise the ResourceQuota", id="quota",
        ),
        pytest.param(
            'pods "c" is forbidden: failed quota: q: must specify limits.memory for: engine', "QuotaExceeded", "limits.memory",
            id="a quota that wants a limit",
        ),
        pytest.param(
            'pods "c" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true', "PodSecurityRefused",
            "template.spec", id="Pod Security",
        ),
        pytest.param('admission webhook "w" denied the request: no', "PodCreationRefused", "denied", id="webhook"),
    ],
)  # fmt: skip
def test_refusals(message: str, reason: str, says: str) -> None:
    trouble = classify_refusal(message)
    assert trouble.reason == reason
    assert says in trouble.message


# ---- all of it ----------------------------------------------------------------------------------------------------------

A = build_pod("a")
EVICTED = build_pod(
    "gone", phase="Failed", ready=False, node="n1",
    failure=ContainerFailure("Evicted", "The node was low on resource: memory.", None, 0, NOW - 60),
)  # fmt: skip
OLD_EVICTION = replace(EVICTED, failure=replace(EVICTED.failure, at=NOW - 7200))  # type: ignore[type-var]
REFUSED_BY_NODE = build_pod(
    "gone", phase="Failed", ready=False, node="n1",
    failure=ContainerFailure("UnexpectedAdmissionError", "no healthy devices present", None, 0, NOW - 60),
)  # fmt: skip
STUCK = build_pod("stuck", terminating=True, ends_at=NOW - 31, node="n1")
PENDING = starting("b", phase="Pending", scheduled=False, unschedulable_message="1 Insufficient nvidia.com/gpu")
SILENT = starting("b", phase="Pending", scheduled_at=NOW - 61)
LOST = build_pod("b", ready=False, containers_ready=True, node="n1")

#  name: (pods, missing, unready, refusal, reason, words)
TROUBLE: dict[str, tuple[tuple[Pod, ...], int, int, str, str | None, str]] = {
    "none": ((A, build_pod("b")), 0, 0, "", None, ""),
    "a crash": ((A, starting("b", failure=failure())), 0, 1, "", "CrashLoop", "pod b: the engine ended"),
    "a crash before a shortage": ((PENDING, starting("c", failure=failure())), 0, 2, "", "CrashLoop", "pod c"),
    "its container can't be made": (
        (A, starting("b", phase="Pending", failure=failure("CreateContainerError", "no such device", None, 0))), 0, 1, "",
        "ContainerNotCreated", "pod b: CreateContainerError: no such device"),
    "loads, and has time": ((A, starting("b", running_since=NOW - 599)), 0, 1, "", None, ""),
    "loads for too long": (
        (A, starting("b", running_since=NOW - 601)), 0, 1, "", "LoadDeadlineExceeded", "raise engine.loadDeadline"),
    "has loaded, long ago": ((A, build_pod("b", ready=False, running_since=NOW - 9000)), 0, 1, "", None, ""),
    "its node is lost": ((A, LOST), 0, 1, "", "NodeLost", "pod b: its node n1 no longer reports"),
    "not ready, and its node reports": ((A, build_pod("b", ready=False)), 0, 1, "", None, ""),
    "no quota for one more": ((A,), 1, 1, "exceeded quota: gpus", "QuotaExceeded", "exceeded quota: gpus"),
    "refused what is not missing": ((A, build_pod("b")), 0, 0, "exceeded quota: gpus", None, ""),
    "no GPU": ((A, PENDING), 0, 1, "", "Unschedulable", "Free or add GPUs"),
    "no GPU, since one doesn't become free": (
        (A, PENDING, STUCK), 0, 1, "", "StuckTerminating", "kubectl delete pod stuck --grace-period=0 --force"),
    "stuck, and nobody waits for it": ((A, build_pod("b"), STUCK), 0, 0, "", None, ""),
    "placed, and no container": ((A, SILENT), 0, 1, "", "ContainerNotCreated", "kubectl describe pod b"),
    "placed just now": ((A, replace(SILENT, scheduled_at=NOW - 59)), 0, 1, "", None, ""),
    "placed, and its image is being pulled": ((A, replace(SILENT, pulling=True)), 0, 1, "", None, ""),
    "evicted": ((A, EVICTED, starting("b")), 0, 1, "", "Evicted", "low on resource: memory"),
    "evicted and replaced": ((A, EVICTED, build_pod("b")), 0, 0, "", None, ""),
    "evicted some time ago": ((A, OLD_EVICTION, starting("b")), 0, 1, "", None, ""),
    "thousands refused by their node, and replaced": (
        (A, build_pod("b"), *(replace(REFUSED_BY_NODE, name=f"gone-{index}") for index in range(3000))), 0, 0, "", None, ""),
    "refused by its node": (
        (A, REFUSED_BY_NODE, starting("b")), 0, 1, "", "NodeRefused", "refused by node n1 with UnexpectedAdmissionError"),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "missing", "unready", "refused", "reason", "says"), TROUBLE.values(), ids=TROUBLE.keys())
def test_trouble(pods: tuple[Pod, ...], missing: int, unready: int, refused: str, reason: str | None, says: str) -> None:
    workload = replace(WORKLOAD, creation_refused=refused)
    trouble = find_trouble(
        pods, workload, missing=missing, unready=unready, place_expected=False, load_deadline_seconds=DEADLINE, now=NOW
    )
    assert (trouble.reason if trouble else None) == reason
    assert says in (trouble.message if trouble else "")


def test_a_place_that_becomes_free_is_no_shortage() -> None:
    pods = (A, PENDING, build_pod("c", terminating=True, ends_at=NOW + 20))
    trouble = find_trouble(
        pods, WORKLOAD, missing=0, unready=1, place_expected=True, load_deadline_seconds=DEADLINE, now=NOW
    )
    assert trouble is None
    said = plan_scheduled(pods, WORKLOAD, missing=0, place_expected=True)
    assert (said.status, said.reason) == ("Unknown", "Scheduling")


def test_a_stall_lasts_while_the_load_is_unknown_and_ends_with_what_is_seen() -> None:
    pods = [build_pod(name) for name in ("a", "b", "c")]
    restarted = [build_pod("b", ready=False)]
    unread = Load((PodLoad("a", 0, 9, 0.0, 0.0, NOW, stalled=True),), (PodLoadUnknown("b", "connection refused"),))
    seen = find_stalled(pods, unread, frozenset({"uid-b", "uid-gone"}))
    assert seen == {"uid-a", "uid-b"}
    assert find_stalled(restarted, unread, seen) == frozenset()
    assert find_stalled(pods, LoadUnknown("ScrapeError", "connection refused"), seen) == seen
    works = Load(tuple(PodLoad(name, 1, 0, 0.0, 5.0, NOW) for name in ("a", "b", "c")))
    assert find_stalled(pods, works, seen) == frozenset()
