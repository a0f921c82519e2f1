"""What was seen of a server: its pods, its load, its engines. Plain values; who makes them is `cluster/`, `load/`, `engines/`.

Times are seconds since the epoch (UTC). `None` means unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specserver.api.conditions import Reason

# ---- load ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PodLoad:
    """One replica's load.

    running, queued    requests being decoded, requests waiting; summed over data-parallel ranks
    token_usage        fraction of KV-cache tokens in use, 0 to 1; the fullest rank's
    tokens_per_second  generated tokens a second since the last look; None before there are two looks
    observed_at        time of the sample
    stalled            requests wait, none runs, and no token was read or written for a while
    skewed             requests wait for one data-parallel rank while another has nothing to do
    """

    pod: str
    running: float
    queued: float
    token_usage: float
    tokens_per_second: float | None
    observed_at: float
    stalled: bool = False
    skewed: bool = False


@dataclass(frozen=True)
class PodLoadUnknown:
    """A replica whose load could not be read, and why."""

    pod: str
    message: str


@dataclass(frozen=True)
class Load:
    """The load of a server, one entry a ready pod. At least one entry is known.

    `instead_of` says why it is not from where it should be; empty where it is.
    """

    pods: tuple[PodLoad, ...]
    unknown: tuple[PodLoadUnknown, ...] = ()
    instead_of: str = ""

    @property
    def complete(self) -> bool:
        return not self.unknown

    @property
    def gap(self) -> str:
        """Whose load is missing and why, in words; of an incomplete load alone."""
        first, total = self.unknown[0], len(self.unknown) + len(self.pods)
        return f"{len(self.unknown)} of {total} replicas have no known load; pod {first.pod}: {first.message}"

    @property
    def running(self) -> float:
        return sum(pod.running for pod in self.pods)

    @property
    def queued(self) -> float:
        return sum(pod.queued for pod in self.pods)

    @property
    def token_usage(self) -> float:
        """Mean over the known replicas."""
        return sum(pod.token_usage for pod in self.pods) / len(self.pods)

    @property
    def tokens_per_second(self) -> float | None:
        rates = [pod.tokens_per_second for pod in self.pods if pod.tokens_per_second is not None]
        return sum(rates) if rates else None

    @property
    def observed_at(self) -> float:
        """Age of the oldest sample in it."""
        return min(pod.observed_at for pod in self.pods)

    def of(self, pod: str) -> PodLoad | None:
        return next((one for one in self.pods if one.pod == pod), None)


@dataclass(frozen=True)
class LoadUnknown:
    """No replica's load is known. `reason` is a reason of the condition MetricsAvailable; the message says which query."""

    reason: str
    message: str


# ---- engines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankState:
    """What one scheduler rank of an engine reports (`GET /specserver/v1/state`).

    revision           revision of the policy in force; None before the first
    steps              step count of the present round
    decided_steps      step count that the rule asks for; differs from `steps` in mode Observe
    accept_length      accepted tokens per verify round with steps > 0, recent mean; None before the first such round
    rounds             decode rounds since start, by step count
    switches           changes of `steps` since start
    switches_last_hour changes of `steps` in the last 3600 s
    last_switch_at     time of the last change; None where there was none
    """

    rank: str
    armed: bool
    reason: str
    revision: int | None
    policy: dict[str, Any] | None
    steps: int
    decided_steps: int
    running: int
    queued: int
    accept_length: float | None
    rounds: dict[int, int]
    switches: int
    switches_last_hour: int
    last_switch_at: float | None
    hook_errors: int


@dataclass(frozen=True)
class EngineState:
    """An engine that answered."""

    pod: str
    plugin_version: str
    engine_version: str
    ranks: tuple[RankState, ...]


@dataclass(frozen=True)
class EngineUnreachable:
    """An engine that did not answer, or not in a way that we understand; or that can't be asked, for a `reason` of its own."""

    pod: str
    message: str
    reason: Reason = Reason.ENGINE_UNREACHABLE


@dataclass(frozen=True)
class Pushed:
    """The engine took the policy; every rank has it."""

    pod: str
    revision: int


@dataclass(frozen=True)
class PushRejected:
    """The engine refused the policy. `field` names the document's field where the engine did."""

    pod: str
    status: int
    field: str
    message: str


PushResult = Pushed | PushRejected | EngineUnreachable


# ---- cluster ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContainerFailure:
    """The newest trouble of a pod's containers. `reason` is Kubernetes' own: OOMKilled, ImagePullBackOff, Error, …"""

    reason: str
    message: str
    exit_code: int | None
    restarts: int
    at: float | None
    ran_seconds: float | None = None
    """How long the container ran before it ended; None where it never did."""
    container: str = ""
    """Which one, where it is one that the user added; empty for the engine and for the pod as a whole."""


@dataclass(frozen=True)
class Pod:
    """A pod of the server, as far as decisions need it."""

    name: str
    uid: str
    ip: str | None
    created_at: float
    template_hash: str
    """Value of `pod-template-hash`: which ReplicaSet, hence which revision, the pod belongs to."""
    phase: str
    ready: bool
    scheduled: bool
    unschedulable_message: str
    terminating: bool
    started: bool
    """The startup probe has passed."""
    serving: bool
    """The label that the Service selects on is there."""
    draining_since: float | None
    drained_idle_since: float | None
    deletion_cost: int | None
    failure: ContainerFailure | None
    node: str = ""
    draining_for: str = ""
    """What the drain is for: `rollout`, or a scale-down where it says nothing."""
    scheduled_at: float | None = None
    running_since: float | None = None
    """Start of the engine's container that runs now."""
    ready_since: float | None = None
    ends_at: float | None = None
    """End of the grace period of a pod that terminates."""
    containers_ready: bool = False
    """As the kubelet said last. A pod with ready containers that is not ready has a node that is lost."""
    pulling: bool = False
    """The kubelet has taken it up: its volumes are there, and the container is being made or its image pulled."""
    stalled: bool = False
    """Its load says so, or did when it was last known; the kubelet knows nothing of it."""

    @property
    def lives(self) -> bool:
        """Counted as a replica, by its ReplicaSet too.

        One that terminates or has finished (evicted, refused by its node) was replaced already.
        """
        return not self.terminating and self.phase not in ("Succeeded", "Failed")

    @property
    def works(self) -> bool:
        """Ready, and its engine isn't stalled: what counts as capacity."""
        return self.ready and not self.stalled


@dataclass(frozen=True)
class Revision:
    """A ReplicaSet of the Deployment: the pods of one template.

    digest        of the template as the operator built it; empty where an earlier version of the operator did
    replicas      how many pods it should have
    scaled_for    the Deployment's replicas when its controller last shared them out; None where it never did
    """

    template_hash: str
    digest: str
    created_at: float
    replicas: int
    held: bool
    scaled_for: int | None


@dataclass(frozen=True)
class Workload:
    """The Deployment behind the server."""

    uid: str
    generation: int
    observed_generation: int
    spec_replicas: int
    replicas: int
    ready_replicas: int
    updated_replicas: int
    available_replicas: int
    current_template_hash: str | None
    """`pod-template-hash` of the ReplicaSet with the Deployment's present template; None before there is one."""
    progress_deadline_exceeded: bool
    conditions: tuple[dict[str, Any], ...] = ()
    revisions: tuple[Revision, ...] = ()
    template_digest: str = ""
    template_intent: str = ""
    held: bool = False
    """Its rollout is gated: `max_unavailable` is how many old pods may have been removed in all."""
    max_unavailable: int = 1
    creation_refused: str = ""
    """Why the API server makes no pod for it: a quota, Pod Security, a webhook; empty where it does."""


@dataclass(frozen=True)
class Observed:
    """All that one reconcile pass saw."""

    workload: Workload | None
    pods: tuple[Pod, ...]
    load: Load | LoadUnknown
    engines: dict[str, EngineState | EngineUnreachable] = field(default_factory=dict)
    """By pod name; pods that are not started are absent."""
    place_expected: bool = False
    """A pod of the server is ending, or has just ended: one that waits for its place has it in a moment."""
