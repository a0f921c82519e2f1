"""The Deployment that runs the engines, and the replica count that another field manager owns.

The pod template is the costly part: a change of it replaces every pod, and each new pod loads a model for minutes. It holds
only what a running engine can't take on otherwise, so policy bounds, the modes Auto, Always and Observe, replicas, scaling,
metrics and the operator's version are not in it. `rollout.drainTimeout` is, since the kubelet takes the grace period from
the pod alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from specserver.api import labels, quantities
from specserver.api.v1alpha1 import Engine, Mode, SpeculativeServer
from specserver.build.metadata import BuildInvalid, KubernetesObject, build_labels, build_metadata, build_selector, digest
from specserver.build.models import claim_mounts
from specserver.build.overlay import apply_overlay
from specserver.build.secret import admin_key_ref, api_key_ref, parse_secret_ref
from specserver.build.sglang import build_arguments

LAUNCHER = ["python", "-m", "specserver.plugin.launcher"]
"""Process 1 of the container. SGLang itself must not be: a crash at start-up would hang the pod for good."""

STARTUP_PERIOD_SECONDS = 5
READINESS_PERIOD_SECONDS = 2
LIVENESS_PERIOD_SECONDS = 15
PROBE_TIMEOUT_SECONDS = 5

PRE_STOP_SECONDS = 10
"""Time in which every Service endpoint learns that a pod goes, before it gets SIGTERM. An idle SGLang ends at once."""
DRAIN_POLL_SECONDS = 5
"""SGLang looks for SIGTERM this often."""
SCHEDULER_STOP_SECONDS = 15
"""SGLang gives its schedulers this long to end."""
STOP_MARGIN_SECONDS = 10

ROLLOUT_MARGIN_SECONDS = 60
"""Scheduling and image pull, on top of the old pod's end and the new pod's load."""
REVISION_HISTORY_LIMIT = 3

HELD_SECONDS = 1_000_000_000
"""`minReadySeconds` of a held rollout: thirty years."""


def build_workload(server: SpeculativeServer) -> KubernetesObject:
    """Deployment `<name>`, without `replicas`. OverlayInvalid where `spec.template` can't be merged."""
    rollout = server.spec.rollout
    template = apply_overlay(_build_pod_template(server), server.spec.template)
    origin = {labels.TEMPLATE_DIGEST: digest(template), labels.TEMPLATE_INTENT: digest(build_intent(server))}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**build_metadata(server, server.name), "annotations": origin},
        "spec": {
            "selector": {"matchLabels": build_selector(server)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
            },
            "progressDeadlineSeconds": _progress_deadline_seconds(server, template),
            "revisionHistoryLimit": REVISION_HISTORY_LIMIT,
            "template": template,
        },
    }


def build_intent(server: SpeculativeServer) -> dict[str, Any]:
    """The fields of the resource that the pod template is built from, without those at their defaults.

    It is how a change of the resource is told from a change of the operator: with the same intent, another template is the
    work of another version (`rollout.onOperatorUpgrade`). Defaults are left out so that a field that a later version brings
    changes no intent; that the default of such a field never changes is what v1alpha1 promises.
    """
    spec = server.spec
    plain = spec.speculation.mode is Mode.NEVER
    return {
        "model": spec.model.model_dump(mode="json", exclude_defaults=True),
        "servedName": spec.model.served_name or server.name,
        "draft": None if plain else spec.speculation.model_dump(
            mode="json", exclude_defaults=True, exclude={"mode", "policy", "steps", "max_steps"}
        ),
        "ladder": None if plain else spec.speculation.ladder,
        "engine": spec.engine.model_dump(mode="json", exclude_defaults=True, exclude={"sglang_release"}),
        "template": None if spec.template is None else spec.template.model_dump(mode="json", exclude_defaults=True),
        "drainTimeout": spec.rollout.drain_timeout,
    }  # fmt: skip


def gate_rollout(workload: KubernetesObject, max_unavailable: int) -> KubernetesObject:
    """The Deployment with its rollout held: so many pods of the present template may be made, and no more.

    A Deployment goes on when new pods become available. With a readiness that is never old enough they don't, so
    `maxUnavailable` is how many old pods it may have removed in all (see `core/rollout.py`).
    """
    spec = workload["spec"]
    rolling = {**spec["strategy"]["rollingUpdate"], "maxUnavailable": max_unavailable}
    held = {
        "strategy": {**spec["strategy"], "rollingUpdate": rolling},
        "minReadySeconds": HELD_SECONDS,
        "progressDeadlineSeconds": HELD_SECONDS + 1,
    }
    return {**workload, "spec": {**spec, **held}}


def keep_template(workload: KubernetesObject, template: dict[str, Any], origin: Mapping[str, str]) -> KubernetesObject:
    """The Deployment with the pod template that it has, and what is written on it of that template's origin."""
    metadata, spec = workload["metadata"], workload["spec"]
    return {**workload, "metadata": {**metadata, "annotations": dict(origin)}, "spec": {**spec, "template": template}}


def build_replicas(server: SpeculativeServer, replicas: int, rescale: Mapping[str, Any] | None) -> KubernetesObject:
    """The part of the Deployment that the field manager of the replicas applies: the count, and the last change of it."""
    told = {} if rescale is None else {"annotations": {labels.RESCALE: json.dumps(rescale, ensure_ascii=False)}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": server.name, "namespace": server.namespace, **told},
        "spec": {"replicas": replicas},
    }


def _progress_deadline_seconds(server: SpeculativeServer, template: dict[str, Any]) -> int:
    """Never shorter than one pod's replacement, or Kubernetes would call a healthy slow load a failed rollout."""
    ends = template["spec"].get("terminationGracePeriodSeconds")
    if not isinstance(ends, int):  # an overlay's mistake, which the API server names better
        ends = _grace_period_seconds(server)
    loads = quantities.seconds(server.spec.engine.load_deadline)
    replacement = ends + loads + ROLLOUT_MARGIN_SECONDS
    return math.ceil(max(quantities.seconds(server.spec.rollout.progress_deadline), replacement))


def _grace_period_seconds(server: SpeculativeServer) -> int:
    """SGLang finishes its requests after SIGTERM and sets itself no limit; the kubelet's SIGKILL is the only one."""
    drain = math.ceil(quantities.seconds(server.spec.rollout.drain_timeout))
    return PRE_STOP_SECONDS + drain + DRAIN_POLL_SECONDS + SCHEDULER_STOP_SECONDS + STOP_MARGIN_SECONDS


def _build_pod_template(server: SpeculativeServer) -> dict[str, Any]:
    return {
        "metadata": {"labels": {**build_labels(server), labels.SERVING: labels.SERVING_VALUE}},
        "spec": {
            # Kubernetes would otherwise set SGLANG_PORT=tcp://… for a Service named `sglang`, and SGLang reads that name.
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _grace_period_seconds(server),
            # Not runAsNonRoot: SGLang's public images run as root. An overlay can set it for an image that doesn't need it.
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [_build_engine_container(server)],
            "volumes": _build_volumes(server),
        },
    }


def _build_engine_container(server: SpeculativeServer) -> dict[str, Any]:
    engine = server.spec.engine
    pull_policy = {"imagePullPolicy": engine.image_pull_policy} if engine.image_pull_policy else {}
    return {
        "name": labels.ENGINE_CONTAINER,
        "image": engine.image,
        **pull_policy,
        "command": list(LAUNCHER),
        "args": build_arguments(server),
        "env": _build_environment(server),
        "ports": [{"name": labels.PORT_NAME, "containerPort": engine.port, "protocol": "TCP"}],
        "resources": _build_resources(engine),
        "volumeMounts": _build_volume_mounts(server),
        **_build_probes(engine),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        # The end of the log becomes the pod's termination message: what a failed load says reaches the condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _build_resources(engine: Engine) -> dict[str, dict[str, str]]:
    """Amounts as strings, which is how the API server gives them back."""
    kinds = {"limits": engine.resources.limits, "requests": engine.resources.requests}
    return {kind: {name: str(amount) for name, amount in amounts.items()} for kind, amounts in kinds.items() if amounts}


def _build_environment(server: SpeculativeServer) -> list[dict[str, Any]]:
    """Ours and the user's by name; an entry of the user's replaces one of ours whole, never field by field."""
    for variable in server.spec.engine.env:
        source = variable.value_from or {}
        if "secretKeyRef" in source and parse_secret_ref(source["secretKeyRef"]) is None:
            raise BuildInvalid(
                f"spec.engine.env[{variable.name}].valueFrom.secretKeyRef", "must have the name and the key of a Secret here"
            )
    secrets = {labels.ENV_ADMIN_KEY: admin_key_ref(server), labels.ENV_API_KEY: api_key_ref(server)}
    if server.spec.model.token_secret_ref is not None:
        secrets["HF_TOKEN"] = server.spec.model.token_secret_ref
    values = {
        labels.ENV_POLICY_FILE: f"{labels.POLICY_DIRECTORY}/{labels.POLICY_FILE}",
        # Makes /health a look at a flag. Otherwise each probe generates a token, and a long prefill fails it.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    }
    variables: dict[str, dict[str, Any]] = {
        **{
            name: {"name": name, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}}
            for name, ref in secrets.items()
        },
        **{name: {"name": name, "value": value} for name, value in values.items()},
        **{one.name: one.model_dump(by_alias=True, exclude_none=True) for one in server.spec.engine.env},
    }
    return list(variables.values())


def _build_probes(engine: Engine) -> dict[str, Any]:
    """/ready and /health are looks at flags inside SGLang and need no key. A forward that hangs is the watchdog's matter."""
    load_seconds = quantities.seconds(engine.load_deadline)
    return {
        "startupProbe": _build_probe(
            "/ready", STARTUP_PERIOD_SECONDS, failures=max(1, math.ceil(load_seconds / STARTUP_PERIOD_SECONDS))
        ),
        "readinessProbe": _build_probe("/ready", READINESS_PERIOD_SECONDS, failures=3),
        "livenessProbe": _build_probe("/health", LIVENESS_PERIOD_SECONDS, failures=3),
    }


def _build_probe(path: str, period_seconds: int, *, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": labels.PORT_NAME},
        "periodSeconds": period_seconds,
        "timeoutSeconds": PROBE_TIMEOUT_SECONDS,
        "failureThreshold": failures,
    }


def _build_volume_mounts(server: SpeculativeServer) -> list[dict[str, Any]]:
    return [
        {"name": labels.POLICY_VOLUME, "mountPath": labels.POLICY_DIRECTORY, "readOnly": True},
        {"name": labels.SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"},
        *(
            {"name": mount.volume, "mountPath": mount.directory, "readOnly": True}
            for mount in claim_mounts(server)
        ),
    ]


def _build_volumes(server: SpeculativeServer) -> list[dict[str, Any]]:
    return [
        {"name": labels.POLICY_VOLUME, "configMap": {"name": labels.policy_config_map_name(server.name)}},
        {
            "name": labels.SHARED_MEMORY_VOLUME,
            "emptyDir": {"medium": "Memory", "sizeLimit": server.spec.engine.shared_memory},
        },
        *(
            {"name": mount.volume, "persistentVolumeClaim": {"claimName": mount.claim, "readOnly": True}}
            for mount in claim_mounts(server)
        ),
    ]
