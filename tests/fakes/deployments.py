"""A Deployment's controllers, scheduler and kubelet in memory, with a clock that a test moves: for tests that begin again at
every write, which on a real API server would take hours.

The controllers do what Kubernetes' own do (pkg/controller/deployment: `sync.go`, `rolling.go`; pkg/controller/replicaset), step
by step and in their order, as far as the operator could tell. That the real ones do so is shown in tests/apiserver.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specserver.api import labels
from specserver.cluster.client import Body
from specserver.core.observed import Load, LoadUnknown, PodLoad
from specserver.core.times import epoch_seconds, rfc3339
from tests.fakes.cluster import MemoryCluster

_DESIRED = "deployment.kubernetes.io/desired-replicas"
_MAXIMUM = "deployment.kubernetes.io/max-replicas"
_HASH = "pod-template-hash"


@dataclass
class LivingCluster(MemoryCluster):
    """`load_seconds` by image: how long its model loads; None: it never becomes ready. `requests` by pod."""

    server: Body
    now: float = 1_700_000_000.0
    gpus: int = 8
    stop_seconds: float = 3.0
    load_seconds: dict[str, float | None] = field(default_factory=dict)
    requests_of: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """Pods that were told to end while they had requests or took new ones."""

    def __post_init__(self) -> None:
        super().__init__(self.server)
        self._applied: dict[tuple[str, str, str], Body] = {}
        self._made = 0

    # ---- the API server --------------------------------------------------------------------------------------------------

    async def apply(self, body: Body, *, field_manager: str, dry_run: bool = False) -> Body:
        """Server-side apply: what this manager applied before and applies no more goes."""
        kind, name = body["kind"], body["metadata"]["name"]
        self._note("dry run" if dry_run else "apply", kind, name)
        live = copy.deepcopy(self.objects.get((kind, name), {}))
        before = copy.deepcopy(live.get("spec"))
        others = [one for (k, n, m), one in self._applied.items() if (k, n) == (kind, name) and m != field_manager]
        _prune(live, self._applied.get((kind, name, field_manager), {}), body, others)
        merged = _merge(live, body)
        if dry_run:
            return merged
        self._applied[kind, name, field_manager] = copy.deepcopy(body)
        metadata = merged["metadata"]
        metadata["generation"] = metadata.get("generation", 0) + (merged.get("spec") != before)
        entries = [one for one in metadata.get("managedFields", []) if one["manager"] != field_manager]
        owned = hashlib.sha256(json.dumps(_paths(body)).encode()).hexdigest()
        metadata["managedFields"] = [*entries, {"manager": field_manager, "operation": "Apply", "fieldsV1": owned}]
        metadata.setdefault("creationTimestamp", rfc3339(self.now))
        return self._store(kind, name, merged)

    def of(self, kind: str) -> list[Body]:
        return [body for (found, _), body in sorted(self.objects.items()) if found == kind]

    @property
    def live_pods(self) -> list[Body]:
        return [pod for pod in self.of("Pod") if "deletionTimestamp" not in pod["metadata"]]

    def is_ready(self, pod: Body) -> bool:
        return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])

    # ---- time ------------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Whole seconds, and in each what the controllers have to do."""
        for _ in range(max(1, math.ceil(seconds))):
            self.now += 1
            for _ in range(6):
                self._sync_replica_sets()
                self._sync_deployment()
            self._play_pods()

    def observe_load(self) -> Load | LoadUnknown:
        ready = [pod["metadata"]["name"] for pod in self.live_pods if self.is_ready(pod)]
        if not ready:
            return LoadUnknown("NoReadyReplicas", "none")
        return Load(tuple(PodLoad(name, self.requests_of.get(name, 0), 0, 0.1, None, self.now) for name in ready))

    # ---- the Deployment's controller -------------------------------------------------------------------------------------

    def _sync_deployment(self) -> None:
        deployment = self.objects.get(("Deployment", "chat"))
        if deployment is None:
            return
        spec = deployment["spec"]
        replicas = spec.get("replicas", 1)
        rolling = spec["strategy"]["rollingUpdate"]
        surge, unavailable = rolling["maxSurge"], rolling["maxUnavailable"]
        assert surge or unavailable, "the API server would refuse it"
        # 1. A change of the scale comes first, and is all that is done then.
        active = [one for one in self.of("ReplicaSet") if one["spec"]["replicas"] > 0]
        if any(int(one["metadata"]["annotations"][_DESIRED]) != replicas for one in active):
            self._scale(replicas, surge)
            return
        # 2. The ReplicaSet of the present template.
        newest = self._newest(deployment)
        if newest is None:
            self._make_replica_set(deployment, replicas, surge)
            return
        newest["metadata"]["annotations"] |= self._copied(deployment, replicas, surge)
        newest["spec"]["minReadySeconds"] = spec.get("minReadySeconds", 0)
        old = [one for one in self.of("ReplicaSet") if one is not newest]
        # 3. Up.
        total = sum(one["spec"]["replicas"] for one in (newest, *old))
        room = min(replicas + surge - total, replicas - newest["spec"]["replicas"])
        if room > 0:
            newest["spec"]["replicas"] += room
            return
        if newest["spec"]["replicas"] > replicas:
            newest["spec"]["replicas"] = replicas
            return
        # 4. Down.
        allowed = total - (replicas - unavailable) - (newest["spec"]["replicas"] - self._available(newest))
        if allowed <= 0:
            return
        old.sort(key=lambda one: one["metadata"]["number"])
        for one in old:  # what isn't available
            broken = min(allowed, one["spec"]["replicas"] - self._available(one))
            if broken > 0:
                one["spec"]["replicas"] -= broken
                allowed -= broken
        available = sum(self._available(one) for one in (newest, *old)) - (replicas - unavailable)
        for one in old:
            fewer = min(max(available, 0), one["spec"]["replicas"])
            one["spec"]["replicas"] -= fewer
            available -= fewer

    def _scale(self, replicas: int, surge: int) -> None:
        sets = [one for one in self.of("ReplicaSet") if one["spec"]["replicas"] > 0]
        allowed = replicas + surge if replicas and len(sets) > 1 else replicas
        change = allowed - sum(one["spec"]["replicas"] for one in sets)
        sets.sort(key=lambda one: (-one["spec"]["replicas"], one["metadata"]["number"] * (-1 if change > 0 else 1)))
        left = change
        for one in sets:
            share = round(one["spec"]["replicas"] * allowed / int(one["metadata"]["annotations"][_MAXIMUM]) + 1e-9)
            part = share - one["spec"]["replicas"]
            part = min(part, left) if change > 0 else max(part, left)
            one["spec"]["replicas"] += part
            left -= part
        if sets:
            sets[0]["spec"]["replicas"] = max(0, sets[0]["spec"]["replicas"] + left)
        for one in self.of("ReplicaSet"):
            one["metadata"]["annotations"] |= {_DESIRED: str(replicas), _MAXIMUM: str(replicas + surge)}

    def _newest(self, deployment: Body) -> Body | None:
        return next(
            (one for one in self.of("ReplicaSet") if _unhashed(one["spec"]["template"]) == deployment["spec"]["template"]), None
        )

    def _copied(self, deployment: Body, replicas: int, surge: int) -> dict[str, str]:
        return {**deployment["metadata"].get("annotations", {}), _DESIRED: str(replicas), _MAXIMUM: str(replicas + surge)}

    def _make_replica_set(self, deployment: Body, replicas: int, surge: int) -> None:
        self._made += 1
        template = copy.deepcopy(deployment["spec"]["template"])
        template_hash = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:6]
        template["metadata"]["labels"][_HASH] = template_hash
        total = sum(one["spec"]["replicas"] for one in self.of("ReplicaSet"))
        name = f"chat-{template_hash}"
        self.objects["ReplicaSet", name] = {
            "kind": "ReplicaSet",
            "metadata": {
                "namespace": "ns", "name": name, "uid": name, "number": self._made, "creationTimestamp": rfc3339(self.now),
                "labels": {labels.SERVER: "chat", _HASH: template_hash},
                "ownerReferences": [{"uid": deployment["metadata"]["uid"]}],
                "annotations": self._copied(deployment, replicas, surge),
            },
            "spec": {
                "replicas": max(0, min(replicas, replicas + surge - total)), "template": template,
                "minReadySeconds": deployment["spec"].get("minReadySeconds", 0),
            },
        }  # fmt: skip

    # ---- the ReplicaSets' ------------------------------------------------------------------------------------------------

    def _pods_of(self, replica_set: Body) -> list[Body]:
        owner = replica_set["metadata"]["uid"]
        return [pod for pod in self.live_pods if pod["metadata"]["ownerReferences"][0]["uid"] == owner]

    def _available(self, replica_set: Body) -> int:
        if replica_set["spec"]["minReadySeconds"] > 1000:
            return 0
        return sum(self.is_ready(pod) for pod in self._pods_of(replica_set))

    def _sync_replica_sets(self) -> None:
        for one in self.of("ReplicaSet"):
            pods = self._pods_of(one)
            for _ in range(one["spec"]["replicas"] - len(pods)):
                self._make_pod(one)
            for pod in sorted(pods, key=self._removal_order)[: max(0, len(pods) - one["spec"]["replicas"])]:
                self.end_pod(pod["metadata"]["name"])

    def _removal_order(self, pod: Body) -> tuple[bool, bool, int, float]:
        cost = int(pod["metadata"].get("annotations", {}).get(labels.POD_DELETION_COST, 0))
        newest_first = -epoch_seconds(pod["metadata"]["creationTimestamp"])
        return (pod["status"]["phase"] != "Pending", self.is_ready(pod), cost, newest_first)

    def _make_pod(self, replica_set: Body) -> None:
        self._made += 1
        name = f"{replica_set['metadata']['name']}-{self._made:03}"
        template = copy.deepcopy(replica_set["spec"]["template"])
        self.objects["Pod", name] = {
            "kind": "Pod",
            "metadata": {
                "namespace": "ns", "name": name, "uid": f"uid-{name}", "creationTimestamp": rfc3339(self.now),
                "labels": template["metadata"]["labels"], "annotations": {},
                "ownerReferences": [{"uid": replica_set["metadata"]["uid"]}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
        }  # fmt: skip

    # ---- the kubelet -----------------------------------------------------------------------------------------------------

    def end_pod(self, name: str) -> None:
        pod = self.objects["Pod", name]
        taking = self.is_ready(pod) and labels.SERVING in pod["metadata"]["labels"]
        if self.is_ready(pod) and (taking or self.requests_of.get(name)):
            self.lost.append(name)
        pod["metadata"]["deletionTimestamp"] = rfc3339(self.now + self.stop_seconds)

    def _play_pods(self) -> None:
        for pod in self.of("Pod"):
            metadata, status = pod["metadata"], pod["status"]
            if "deletionTimestamp" in metadata:
                if self.now >= epoch_seconds(metadata["deletionTimestamp"]):
                    del self.objects["Pod", metadata["name"]]
                continue
            placed = sum(one["status"]["phase"] == "Running" for one in self.of("Pod"))
            if status["phase"] == "Pending":
                if placed >= self.gpus:
                    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
                    _set_condition(status, "PodScheduled", "False", reason="Unschedulable", message=message)
                    continue
                status["phase"], status["began"] = "Running", self.now
                status["loads"] = self.load_seconds.get(pod["spec"]["containers"][0]["image"], 2.0)
                _set_condition(status, "PodScheduled", "True")
            ready = status["loads"] is not None and self.now - status["began"] >= status["loads"]
            running = {"running": {"startedAt": rfc3339(status["began"])}}
            status["containerStatuses"] = [{"name": "engine", "state": running, "started": ready, "ready": ready}]
            _set_condition(status, "Ready", str(ready))


def _set_condition(status: Body, kind: str, value: str, **more: str) -> None:
    others = [one for one in status["conditions"] if one["type"] != kind]
    status["conditions"] = [*others, {"type": kind, "status": value, **more}]


def _unhashed(template: Body) -> Body:
    kept = {key: value for key, value in template["metadata"]["labels"].items() if key != _HASH}
    return {**template, "metadata": {**template["metadata"], "labels": kept}}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Body:
    merged = dict(base)
    for key, value in over.items():
        before = merged.get(key)
        merged[key] = _merge(before if isinstance(before, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return copy.deepcopy(merged)


def _prune(live: Body, before: Mapping[str, Any], now: Mapping[str, Any], others: list[Body]) -> None:
    for key, value in before.items():
        theirs = [one[key] for one in others if key in one]
        if key not in now and not theirs:
            live.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(live.get(key), dict) and isinstance(now.get(key, {}), Mapping):
            _prune(live[key], value, now.get(key, {}), [one for one in theirs if isinstance(one, dict)])


def _paths(body: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in sorted(body.items()):
        found += _paths(value, f"{prefix}.{key}") if isinstance(value, Mapping) else [f"{prefix}.{key}"]
    return found
