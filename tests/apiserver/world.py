"""One test's world: a namespace, and short words for what a user, a kubelet and a reader of status do in it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.apiserver.operator_process import OperatorProcess
from tests.fakes.api import Api, Body
from tests.fakes.engine import FakeEngine
from tests.fakes.kubelet import Behaviour, FakeKubelet
from tests.localcluster import ApiServer
from tests.waiting import eventually

KIND = "SpeculativeServer"
SERVING = "specserver.io/serving"
MARKS = ("specserver.io/draining-since", "controller.kubernetes.io/pod-deletion-cost")


def a_server(namespace: str, name: str = "chat", **spec: Any) -> Body:
    """A SpeculativeServer of two replicas with short times; `spec` is merged over it, and None takes a field away."""
    base: Body = {
        "model": {"uri": "hf://org/model"},
        "speculation": {
            "draftModel": {"uri": "hf://org/draft"},
            "policy": {"strategy": "Threshold", "disableAbove": 8, "enableBelow": 4},
        },
        "engine": {"image": "engine:1", "loadDeadline": "5m"},
        "replicas": 2,
        "metrics": {"interval": "1s", "staleness": "20s"},
        "rollout": {"drainTimeout": "30s"},
    }
    return {
        "apiVersion": "specserver.io/v1alpha1",
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": merge(base, spec),
    }


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Body:
    """RFC 7386."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = merge(merged[key] if isinstance(merged.get(key), Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


@dataclass
class World:
    api: Api
    server: ApiServer
    kubelet: FakeKubelet
    operator: OperatorProcess
    namespace: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:8]}")

    # ---- the user --------------------------------------------------------------------------------------------------------

    async def create(self, name: str = "chat", **spec: Any) -> Body:
        return await self.api.create(a_server(self.namespace, name, **spec))

    async def create_ready(self, name: str = "chat", **spec: Any) -> Body:
        """A server whose replicas are all ready and have their policy."""
        await self.create(name, **spec)
        await self.wait_condition("Ready", "True", name=name)
        await self.wait_condition("PolicyApplied", "True", name=name)
        return await self.read(name)

    async def change(self, name: str = "chat", **spec: Any) -> Body:
        return await self.api.patch(KIND, self.namespace, name, {"spec": spec}, manager="user")

    async def read(self, name: str = "chat") -> Body:
        return await self.api.get(KIND, self.namespace, name)

    async def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self.server.kubectl, "-n", self.namespace, *arguments, stdin=stdin)

    # ---- the kubelet -----------------------------------------------------------------------------------------------------

    def behave(self, behaviour: Behaviour) -> None:
        """How pods of this namespace start from now on."""
        self.kubelet.behaviours[self.namespace] = behaviour

    @property
    def engines(self) -> dict[str, FakeEngine]:
        return self.kubelet.engines(self.namespace)

    # ---- what is there ---------------------------------------------------------------------------------------------------

    async def status(self, name: str = "chat") -> Body:
        status: Body = (await self.read(name)).get("status", {})
        return status

    async def condition(self, kind: str, name: str = "chat") -> Body:
        """Empty where there is none yet."""
        conditions: list[Body] = (await self.status(name)).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    async def wait_condition(
        self, kind: str, status: str = "", reason: str = "", *, name: str = "chat", says: str = "", within_seconds: float = 20.0
    ) -> Body:
        """The condition once it is of this status and reason, and about the newest generation of the resource."""
        last: Body = {}

        async def check() -> Body | None:
            nonlocal last
            body = await self.read(name)
            last = body.get("status", {})
            for condition in last.get("conditions", []):
                fits = condition["type"] == kind and (not status or condition["status"] == status)
                fits = fits and (not reason or condition["reason"] == reason) and says in condition["message"]
                if fits and condition["observedGeneration"] == body["metadata"]["generation"]:
                    return dict(condition)
            return None

        def explain() -> str:
            wanted = f"{kind} {status} {reason} {says!r}"
            return f"{wanted}; the status is {json.dumps(last, indent=1)}; faults: {self.operator.faults()}"

        found = await eventually(check, explain, within_seconds=within_seconds)
        assert found is not None
        return found

    async def deployment(self, name: str = "chat") -> Body:
        return await self.api.get("Deployment", self.namespace, name)

    async def pods(self, name: str = "chat") -> list[Body]:
        """Pods of the server that are not on their way out, oldest first."""
        pods = await self.api.list("Pod", self.namespace, labelSelector=f"specserver.io/server={name}")
        live = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return sorted(live, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    async def pod_uids(self, name: str = "chat") -> set[str]:
        return {pod["metadata"]["uid"] for pod in await self.pods(name)}

    async def receiving(self, name: str = "chat") -> set[str]:
        """Pods that the Service sends requests to: its selector, and readiness."""
        selector = (await self.api.get("Service", self.namespace, name))["spec"]["selector"]
        pods = await self.api.list(
            "Pod", self.namespace, labelSelector=",".join(f"{key}={value}" for key, value in selector.items())
        )
        return {
            pod["metadata"]["name"]
            for pod in pods
            if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        }

    async def events(self, *reasons: str) -> list[Body]:
        """Events about servers of this namespace, oldest first."""
        events = await self.api.list("Event", self.namespace, fieldSelector=f"involvedObject.kind={KIND}")
        return sorted(
            (event for event in events if not reasons or event["reason"] in reasons),
            key=lambda event: int(event["metadata"]["resourceVersion"]),
        )

    async def wait_still(self, seconds: float = 1.5) -> None:
        """Nothing of this namespace has been written for so long."""
        loop = asyncio.get_running_loop()
        last, since = await self.versions(), loop.time()

        async def still() -> bool:
            nonlocal last, since
            now = await self.versions()
            if now != last:
                last, since = now, loop.time()
            return loop.time() - since >= seconds

        await eventually(still, lambda: f"rest; the last changes were in {last}", within_seconds=60)

    async def wait_alone(self) -> None:
        """No server of an earlier test is left: their ends aren't waited for, and the operator's counters are of all."""

        async def others() -> list[str]:
            return [
                f"{item['metadata']['namespace']}/{item['metadata']['name']}"
                for item in await self.api.list(KIND, "")
                if item["metadata"]["namespace"] != self.namespace
            ]

        left: list[str] = []

        async def alone() -> bool:
            nonlocal left
            left = await others()
            return not left

        await eventually(alone, lambda: f"the end of {left}", within_seconds=60)

    async def wait_event(self, reason: str) -> Body:
        """The one Event of this reason: it is written a moment after what it is about."""
        (event,) = await eventually(lambda: self.events(reason), f"an Event {reason}")
        return event

    async def versions(self) -> dict[tuple[str, str], str]:
        """Resource version of every object of the namespace that the operator could write to, its Events among them."""
        kinds = (KIND, "Deployment", "ReplicaSet", "Service", "ConfigMap", "Secret", "PodDisruptionBudget", "Pod")
        *listed, events = await asyncio.gather(*(self.api.list(kind, self.namespace) for kind in kinds), self.events())
        return {
            (kind, item["metadata"]["name"]): item["metadata"]["resourceVersion"]
            for kind, items in zip((*kinds, "Event"), (*listed, events), strict=True)
            for item in items
        }
