"""`SpeculativeServer` v1alpha1: frozen pydantic types. `crds/` is generated from them (`api/crd.py`).

Only fields whose machinery works are here; a field that the operator would ignore is refused by the API server instead.
Every rule that one field or a few siblings can break is CEL (`api/rules.py`), so that `kubectl apply` says so.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from specserver.api import quantities

Quantity = Annotated[str, StringConstraints(pattern=quantities.QUANTITY_PATTERN)]
Duration = Annotated[str, StringConstraints(pattern=quantities.DURATION_PATTERN, max_length=32)]


class Node(BaseModel):
    """Base of all types here: immutable, camelCase on the wire, unknown fields refused."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="forbid")


class SecretKeyRef(Node):
    """One entry of a Secret in the resource's own namespace."""

    name: str = Field(
        min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="Name of the Secret, in the resource's namespace.",
    )  # fmt: skip
    key: str = Field(
        min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Entry of the Secret that holds the value."
    )


MODEL_URI_PATTERN = r"^(hf://[^/\s]+/[^\s]+|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^\s]*)?|file:///[^\s]*)$"


class Model(Node):
    """The language model to serve."""

    uri: str = Field(
        pattern=MODEL_URI_PATTERN, max_length=1024,
        description="Where the weights are: `hf://org/name` (fetched by the engine), `pvc://claim/path` (a volume claim of"
        " the namespace, mounted read-only) or `file:///path` (a path inside the image).",
    )  # fmt: skip
    revision: str | None = Field(
        None, min_length=1, max_length=255,
        description="Branch, tag or commit of an `hf://` model. Default: the hub's default branch.",
    )  # fmt: skip
    served_name: str | None = Field(
        None, min_length=1, max_length=255, pattern="^[^:]*$",
        description="Model name that the API answers to, without colons: SGLang reads an adapter's name after one. Default:"
        " the resource's name.",
    )  # fmt: skip
    token_secret_ref: SecretKeyRef | None = Field(
        None, description="Secret entry with the token for a gated `hf://` model (environment `HF_TOKEN`)."
    )
    trust_remote_code: bool = Field(False, description="Run code that ships with the model. Default: false.")


class DraftModel(Node):
    """The draft model that proposes tokens."""

    uri: str = Field(pattern=MODEL_URI_PATTERN, max_length=1024, description="Where the draft's weights are; as `model.uri`.")
    revision: str | None = Field(
        None, min_length=1, max_length=255, description="Branch, tag or commit of an `hf://` draft model."
    )


class Mode(StrEnum):
    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"
    OBSERVE = "Observe"


class Algorithm(StrEnum):
    EAGLE3 = "EAGLE3"
    EAGLE = "EAGLE"


Fraction = Annotated[str, StringConstraints(pattern=r"^(0(\.[0-9]+)?|1(\.0+)?)$", max_length=16)]
"""0 to 1, in a string."""


class Probe(Node):
    """How strategy Measured tries step counts that it knows too little of."""

    max_duty: Fraction = Field(
        "0.01",
        description='Most of the decode time that probes may take, as a fraction in a string. "0" turns them off. Default: 0.01.',
    )
    rounds: int = Field(
        8, ge=1, le=1000,
        description="Decode rounds of one probe; one that looks well goes on up to four times as long. Default: 8.",
    )  # fmt: skip
    min_interval: Duration = Field(
        "2s",
        description="Wait after a probe that failed, as a duration; doubles with each further one at this load. Default: 2s.",
    )
    max_interval: Duration = Field("20s", description="Longest such wait, as a duration. Default: 20s.")


class TableRow(Node):
    """One row of strategy Table."""

    running: int = Field(ge=0, le=100_000, description="Running requests per replica from which this row holds.")
    steps: int = Field(ge=0, le=10, description="Step count, one of the ladder.")


class Policy(Node):
    """When to speculate. A change reaches running engines within seconds and restarts none."""

    strategy: Literal["Measured", "Threshold", "Table"] = Field(
        "Measured",
        description="Rule that the engine follows. `Measured`: the step count with the highest predicted tokens a second, from"
        " the cost of rounds and the acceptance of drafts that the engine measures itself; 0 where no speculation pays."
        " `Threshold`: plain decode above `disableAbove` running requests, `maxSteps` below `enableBelow`. `Table`: as"
        " `table` says. Default: Measured.",
    )
    disable_above: int | None = Field(
        None, ge=1, le=100_000,
        description="Running requests per replica above which an engine stops speculating, whatever the strategy. Default:"
        " 64 with strategy Threshold, no such bound otherwise.",
    )  # fmt: skip
    enable_below: int | None = Field(
        None, ge=0, le=100_000,
        description="Running requests per replica below which an engine that went over `disableAbove` speculates again. Less"
        " than `disableAbove`, and only beside it. Default: three quarters of it.",
    )  # fmt: skip
    min_dwell: Duration = Field(
        "250ms",
        description="Least time between two switches of one engine, as a duration. Probes, and going down after a rise of the"
        " load, don't wait for it. Default: 250ms.",
    )
    min_accept_length: str = Field(
        "1.1", max_length=16, pattern=r"^[0-9]+(\.[0-9]+)?$",
        description="Tokens that a request must gain per round for a step count to be used at all, as a number in a string, 1"
        " or more. Strategy Measured. Default: 1.1.",
    )  # fmt: skip
    margin_up: Fraction = Field(
        "0.05",
        description="Predicted gain that is left alone before more steps are chosen, as a fraction in a string; shrinks to a"
        " fifth within ten quiet seconds. Strategy Measured. Default: 0.05.",
    )
    margin_down: Fraction = Field(
        "0.02", description="The same before fewer steps are chosen, as a fraction in a string. Default: 0.02."
    )
    probe: Probe = Field(default_factory=Probe, description="How strategy Measured tries what it does not know.")
    table: tuple[TableRow, ...] | None = Field(
        None, min_length=1, max_length=32,
        description="Rows of strategy Table, `running` rising: the last row at or below the running requests gives the steps.",
    )  # fmt: skip


class Speculation(Node):
    """How the server speculates."""

    mode: Mode = Field(
        Mode.AUTO,
        description="`Auto`: the policy decides. `Always`: the ladder's largest step count, whatever the load. `Never`:"
        " plain decode, no draft loaded. `Observe`: speculate as `Always` does and report what `Auto` would do.",
    )
    algorithm: Algorithm = Field(Algorithm.EAGLE3, description="Kind of draft model: `EAGLE3` or `EAGLE`. Default: EAGLE3.")
    draft_model: DraftModel | None = Field(None, description="The draft model. Required unless `mode` is Never.")
    max_steps: int = Field(
        3, ge=1, le=10, description="Longest draft chain, in steps. New pods are made when it changes. Default: 3."
    )
    steps: tuple[Annotated[int, Field(ge=0, le=10)], ...] | None = Field(
        None, min_length=2, max_length=11,
        description="The ladder: step counts that the engine may use, rising, starting at 0 (plain decode) and ending at"
        " `maxSteps`. Each has CUDA graphs from start-up. Default: 0, 1, …, maxSteps.",
    )  # fmt: skip
    policy: Policy = Field(default_factory=Policy, description="When to speculate.")

    @property
    def ladder(self) -> tuple[int, ...]:
        return self.steps if self.steps is not None else tuple(range(self.max_steps + 1))


class EnvVar(Node):
    """An environment variable of the engine; replaces one of ours with the same name whole."""

    name: str = Field(min_length=1, max_length=255, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", description="Name.")
    value: str | None = Field(None, max_length=32768, description="Literal value.")
    value_from: dict[str, Any] | None = Field(None, description="Source of the value, as in a container's `env[].valueFrom`.")


class Parallelism(Node):
    """GPUs per replica: tensor × pipeline × data."""

    tensor: int = Field(1, ge=1, le=64, description="Tensor-parallel ranks. Default: 1.")
    pipeline: int = Field(
        1, ge=1, le=64, description="Pipeline stages. Default: 1. With more the plugin is not armed, and says so."
    )
    data: int = Field(1, ge=1, le=64, description="Data-parallel copies inside one replica. Default: 1.")


class Resources(Node):
    """Compute resources of the engine container, as in a container's `resources`."""

    limits: dict[str, Quantity | int] | None = Field(None, description="Most that the container may use, by resource name.")
    requests: dict[str, Quantity | int] | None = Field(None, description="What the scheduler sets aside, by resource name.")


OWNED_FLAGS = (
    "--model-path", "--model", "--revision", "--served-model-name", "--host", "--port", "--api-key", "--admin-api-key",
    "--tp", "--tp-size", "--tensor-parallel-size", "--pp-size", "--pipeline-parallel-size", "--dp-size",
    "--data-parallel-size", "--max-running-requests", "--attention-backend", "--enable-metrics", "--trust-remote-code",
    "--config",
)  # fmt: skip
"""Flags that the operator passes itself from fields of the resource; `--speculative-…` are all owned too."""


class Engine(Node):
    """The SGLang process in each pod."""

    image: str = Field(
        min_length=1, max_length=1024,
        description="Image with SGLang and the SpecServer plugin (images/sglang). Used verbatim.",
    )  # fmt: skip
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When to pull the image, as in a container. Default: Kubernetes' own rule."
    )
    sglang_release: str | None = Field(
        None, max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+[.a-z0-9]*$",
        description="SGLang's release in the image, for example `0.5.23`: `args` are checked against its options before pods"
        " are made. Default: as the image's tag says (`…:v0.5.23-cu130`); where it says nothing, `args` are not checked.",
    )  # fmt: skip
    args: tuple[Annotated[str, StringConstraints(max_length=2048)], ...] = Field(
        (), max_length=64,
        description="Further arguments of `sglang.launch_server`, one list item per argument, passed byte for byte. Flags"
        " that have a field of their own here are refused.",
    )  # fmt: skip
    env: tuple[EnvVar, ...] = Field((), max_length=128, description="Environment variables of the engine.")
    port: int = Field(30000, ge=1, le=65535, description="TCP port that the engine and the Service listen on. Default: 30000.")
    parallelism: Parallelism = Field(default_factory=Parallelism, description="GPUs per replica.")
    max_running_requests: int = Field(
        256, ge=1, le=100_000,
        description="Most requests that one replica decodes at once. Always passed on: without it SGLang admits only 48"
        " when it speculates. Default: 256.",
    )  # fmt: skip
    attention_backend: str | None = Field(
        None, min_length=1, max_length=64, description="SGLang's `--attention-backend`. Default: SGLang's choice."
    )
    shared_memory: str = Field(
        "8Gi", max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?([KMGT]i?)?$",
        description="Size of the memory-backed /dev/shm, as a quantity of bytes. Counts against the memory limit. Default: 8Gi.",
    )  # fmt: skip
    resources: Resources = Field(
        default_factory=Resources,
        description="Compute resources. Where no `nvidia.com/gpu` stands in `limits` the operator adds none.",
    )
    load_deadline: Duration = Field(
        "30m", description="Time in which a started engine must have loaded its model, as a duration. Default: 30m."
    )
    admin_key_secret_ref: SecretKeyRef | None = Field(
        None, description="Secret entry with the engine's admin key. Default: the operator makes one, in `<name>-keys`."
    )
    api_key_secret_ref: SecretKeyRef | None = Field(
        None,
        description="Secret entry with the key that clients send. Default: the operator makes one, in `<name>-keys`.",
    )


class PodTemplateOverlay(Node):
    """Merged over the built pod template as `kubectl patch` would (strategic merge)."""

    metadata: dict[str, Any] | None = Field(None, description="Labels and annotations to add to the pods.")
    spec: dict[str, Any] | None = Field(
        None,
        description="Fields of a pod spec: node selector, tolerations, affinity, volumes, sidecars, … Lists that have a"
        " merge key (containers, volumes, env by name) are merged by it.",
    )


class TargetMetric(StrEnum):
    RUNNING = "Running"
    QUEUED = "Queued"


class Target(Node):
    """A load that each replica should carry."""

    metric: TargetMetric = Field(
        description="`Running`: requests being decoded. `Queued`: requests waiting for a place in the batch."
    )
    value: str = Field(
        max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?$",
        description="Wanted average per replica, as a number of requests in a string, for example \"24\".",
    )  # fmt: skip


class ScalingPolicy(Node):
    """One limit on the speed of scaling (autoscaling/v2 HPAScalingPolicy)."""

    type: Literal["Pods", "Percent"] = Field(description="`Pods` or `Percent` of the present replicas.")
    value: int = Field(gt=0, le=100_000, description="Amount allowed per period: pods, or percent.")
    period_seconds: int = Field(gt=0, le=1800, description="Length of the period, in seconds (1 to 1800).")


class ScalingRules(Node):
    """Scaling in one direction (autoscaling/v2 HPAScalingRules)."""

    stabilization_window_seconds: int | None = Field(
        None, ge=0, le=3600,
        description="Seconds of past recommendations that count. Default: 0 up, 300 down, as in the HPA.",
    )  # fmt: skip
    select_policy: Literal["Max", "Min", "Disabled"] | None = Field(
        None, description="Which policy wins: `Max` (default), `Min`, or `Disabled` for none in this direction."
    )
    policies: tuple[ScalingPolicy, ...] | None = Field(
        None, max_length=16, description="Limits on the speed. Default: as in the HPA."
    )
    tolerance: str | int | None = Field(
        None,
        description='Relative deviation from the target that is left alone, as a quantity, for example "0.05". Default:'
        " 0.1, as in the HPA.",
    )


class Behavior(Node):
    """autoscaling/v2 HorizontalPodAutoscalerBehavior, verbatim."""

    scale_up: ScalingRules | None = Field(None, description="Rules for adding replicas.")
    scale_down: ScalingRules | None = Field(None, description="Rules for removing replicas.")


class Scaling(Node):
    """Replicas by load."""

    min_replicas: int = Field(1, ge=1, le=10_000, description="Fewest replicas. Default: 1.")
    max_replicas: int = Field(ge=1, le=10_000, description="Most replicas.")
    targets: tuple[Target, ...] = Field(
        min_length=1, max_length=8, description="Loads to aim at; the one that asks for most replicas decides."
    )
    behavior: Behavior = Field(default_factory=Behavior, description="Speed and damping, as in autoscaling/v2.")
    paused: bool = Field(False, description="Leave the replicas as they are. Default: false.")


class PrometheusTls(Node):
    """How the certificate of an https URL is checked. Default: against the public authorities."""

    ca_secret_ref: SecretKeyRef | None = Field(
        None, description="Secret entry with the authorities to trust instead of the public ones, as PEM certificates."
    )
    insecure_skip_verify: bool = Field(False, description="Accept any certificate. Default: false.")


class Prometheus(Node):
    """A Prometheus that scrapes the engines."""

    url: str = Field(max_length=1024, pattern=r"^https?://[^\s]+$", description="Base URL, for example http://prometheus:9090.")
    tls: PrometheusTls = Field(default_factory=PrometheusTls, description="How the certificate of an https URL is checked.")
    auth_secret_ref: SecretKeyRef | None = Field(None, description="Secret entry with a bearer token for the URL.")
    labels: dict[str, str] | None = Field(
        None, description="Further label matchers for every query, for example `cluster: eu-1`."
    )


class OnLoss(StrEnum):
    HOLD = "Hold"
    FALLBACK = "Fallback"


class Metrics(Node):
    """Where the load comes from."""

    prometheus: Prometheus | None = Field(
        None, description="Ask this Prometheus. Default: the operator reads each pod's /metrics itself."
    )
    interval: Duration = Field("15s", description="How often the load is read, as a duration. Default: 15s.")
    staleness: Duration = Field("60s", description="Age at which a sample counts as unknown, as a duration. Default: 60s.")
    on_loss: OnLoss = Field(
        OnLoss.HOLD,
        description="What to do while the Prometheus does not tell the load of every ready replica. Hold: the load is unknown,"
        " and nothing is scaled by it. Fallback: read the pods' own /metrics. Default: Hold.",
    )


class OperatorUpgrade(StrEnum):
    KEEP = "Keep"
    ROLL = "Roll"


class Rollout(Node):
    """How pods are replaced: one at a time, each drained first."""

    max_surge: int = Field(
        0, ge=0, le=1000, description="Pods above the wanted number while rolling; each needs GPUs of its own. Default: 0."
    )
    max_unavailable: int = Field(
        1, ge=0, le=1000,
        description="Pods that may be out of service while rolling. Above 1 it counts only with `protectStartup` false."
        " Default: 1.",
    )  # fmt: skip
    drain_timeout: Duration = Field(
        "60s", description="Time that a pod has to finish its requests before it goes, as a duration. Default: 60s."
    )
    progress_deadline: Duration = Field(
        "1h", description="Time without progress after which a rollout counts as failed, as a duration. Default: 1h."
    )
    paused: bool = Field(
        False, description="Start no further replacement; pods that are there stay. Scaling goes on. Default: false."
    )
    protect_startup: bool = Field(
        True, description="Replace no pod while another still loads its model. Default: true."
    )
    on_operator_upgrade: OperatorUpgrade = Field(
        OperatorUpgrade.KEEP,
        description="When a new version of the operator builds other pods from the same resource: `Keep` those that are there"
        " until the resource asks for new ones, or `Roll`. Default: Keep.",
    )


class Spec(Node):
    """What the user wants."""

    model: Model = Field(description="The language model to serve.")
    speculation: Speculation = Field(description="How the server speculates.")
    engine: Engine = Field(description="The SGLang process in each pod.")
    template: PodTemplateOverlay | None = Field(None, description="Overlay on the built pod template.")
    replicas: int | None = Field(None, ge=0, le=10_000, description="Number of replicas. Default: 1, unless `scaling` is there.")
    scaling: Scaling | None = Field(None, description="Replicas by load, instead of `replicas`.")
    suspend: bool = Field(
        False, description="Run no pods and free their GPUs, and keep everything else. Default: false."
    )
    metrics: Metrics = Field(default_factory=Metrics, description="Where the load comes from.")
    rollout: Rollout = Field(default_factory=Rollout, description="How pods are replaced.")


# ---- status -----------------------------------------------------------------------------------------------------------

_TIME: dict[str, Any] = {"format": "date-time"}


class BoundsStatus(Node):
    """The bounds that engines report, where they all report the same."""

    disable_above: int = Field(description="Running requests above which engines decode plainly.")
    enable_below: int = Field(description="Running requests below which engines speculate.")


class SpeculationStatus(Node):
    """What the engines themselves report, read back; never what was asked."""

    desired_revision: int | None = Field(None, description="Revision of the policy that engines should have.")
    replicas_applied: int | None = Field(None, description="Replicas whose every rank reports the desired revision.")
    replicas_speculating: int | None = Field(None, description="Replicas whose present round has steps above 0.")
    replicas_plain: int | None = Field(None, description="Replicas that decode plainly at present.")
    steps: str | None = Field(None, description="Step counts in use now, for example `3`, `0` or `0,3`.")
    accept_length: str | None = Field(None, description="Accepted tokens per speculative round, mean over replicas, recent.")
    last_switch_time: str | None = Field(None, json_schema_extra=_TIME, description="Last change of an engine's steps.")
    switches_last_hour: int | None = Field(None, description="Changes of steps in the last hour, over all replicas.")
    bounds: BoundsStatus | None = Field(None, description="Bounds in force, where all replicas agree.")


class LoadStatus(Node):
    """The load, rounded so that idle noise writes nothing."""

    running: int | None = Field(None, description="Requests being decoded, over all replicas.")
    queued: int | None = Field(None, description="Requests waiting, over all replicas.")
    token_usage: str | None = Field(None, description="Fraction of KV-cache tokens in use, mean over replicas.")
    tokens_per_second: int | None = Field(None, description="Tokens generated a second, over all replicas.")
    observed_at: str | None = Field(None, json_schema_extra=_TIME, description="When the load last changed.")


class ScaleEvent(Node):
    """One change of the replicas."""

    time: str = Field(json_schema_extra=_TIME, description="When.")
    from_: int = Field(alias="from", description="Replicas before.")
    to: int = Field(description="Replicas after.")
    reason: str = Field(description="Why.")


class ScalingStatus(Node):
    """What scaling did and wants."""

    desired_replicas: int | None = Field(None, description="Replicas that the load asks for, within all limits.")
    last_scale_time: str | None = Field(None, json_schema_extra=_TIME, description="Last change of the replicas.")
    history: tuple[ScaleEvent, ...] | None = Field(None, max_length=5, description="Last changes, newest first.")


class RolloutStatus(Node):
    """Where a rollout stands."""

    revision: str | None = Field(None, description="Hash of the newest pod template.")
    phase: Literal["Complete", "Progressing", "Deferred", "Paused", "Stalled"] | None = Field(None, description="How far it is.")


class FailureStatus(Node):
    """The newest failure of a pod."""

    pod: str = Field(description="Which pod.")
    reason: str = Field(description="Kubernetes' reason, for example OOMKilled or ImagePullBackOff.")
    message: str = Field(description="Last line of the log, or the kubelet's message.")
    exit_code: int | None = Field(None, description="Exit code of the container.")
    time: str | None = Field(None, json_schema_extra=_TIME, description="When.")


class ConditionStatus(Node):
    """metav1.Condition."""

    type: str = Field(max_length=316, description="Kind of condition, in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="Cause, in CamelCase.")
    message: str = Field(max_length=32768, description="Which pod, and what to do about it.")
    observed_generation: int = Field(description="Generation of the resource that was looked at.")
    last_transition_time: str = Field(json_schema_extra=_TIME, description="Last change of `status`.")


class Status(Node):
    """What the operator saw and did."""

    observed_generation: int | None = Field(None, description="Generation of the resource that this status is about.")
    replicas: int | None = Field(None, description="Pods that exist and are not terminating.")
    ready_replicas: int | None = Field(None, description="Ready pods of the present revision.")
    updated_replicas: int | None = Field(None, description="Pods of the present revision.")
    available_replicas: int | None = Field(
        None, description="Ready pods of any revision that serve: in the Service, and not stalled."
    )
    unschedulable_replicas: int | None = Field(None, description="Pods that no node takes.")
    selector: str | None = Field(None, description="Label selector of the pods, for the scale subresource.")
    speculation: SpeculationStatus | None = Field(None, description="Speculation as the engines report it.")
    load: LoadStatus | None = Field(None, description="The load as it was last read.")
    scaling: ScalingStatus | None = Field(None, description="What scaling did and wants.")
    rollout: RolloutStatus | None = Field(None, description="Where a rollout stands.")
    last_failure: FailureStatus | None = Field(None, description="The newest failure of a pod.")
    url: str | None = Field(None, description="Where the model is served inside the cluster.")
    operator_version: str | None = Field(None, description="Version of the operator that wrote this.")
    conditions: tuple[ConditionStatus, ...] | None = Field(
        None,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="What is true of the server, and why.",
    )


class SpeculativeServer(Node):
    """A resource as the operator works on it: names, identity, what is wanted. Status is read apart (`core/status.py`)."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: Spec


class InvalidResource(ValueError):
    """The resource doesn't parse. `problems` are lines of `field: what is wrong`."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def parse(body: dict[str, Any]) -> SpeculativeServer:
    """The typed resource from the API server's object. InvalidResource names each field that is wrong.

    The API server has checked the same schema, so this fails only for an object stored under another version of the CRD.
    """
    metadata = body["metadata"]
    try:
        spec = Spec.model_validate(body.get("spec", {}))
    except ValidationError as error:
        problems = [f"spec.{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()]
        raise InvalidResource(problems) from error
    return SpeculativeServer(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 1),
        spec=spec,
    )
