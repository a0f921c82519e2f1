"""The live Deployment: what of it is to change now, and what has to wait for a rollout's next step.

Everything but the pod template and the gate is kept as the resource says at every pass. The template changes only where
`core/rollout.py` says so: a pass that isn't a step of a rollout writes the template that is there already, as the ReplicaSet
of its digest remembers it, and so repairs what somebody else changed without making a single new pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specserver.api import labels
from specserver.api.v1alpha1 import OperatorUpgrade, SpeculativeServer
from specserver.build.workload import gate_rollout, keep_template
from specserver.cluster.apply import Applier
from specserver.cluster.client import Body, Cluster
from specserver.cluster.errors import Refused
from specserver.cluster.observe import ObservedObjects
from specserver.core.observed import Workload
from specserver.core.rollout import RolloutPlan, Target, plan_target

_EARLIER = "earlier"
"""Digest of a template that an operator made which wrote none."""


@dataclass(frozen=True)
class Wanted:
    """The Deployment as this operator builds it, against the one that is there.

    refusal   why the API server would not take the new template; empty where it would
    """

    built: Body
    target: Target
    refusal: str = ""

    @property
    def digest(self) -> str:
        digest: str = self.built["metadata"]["annotations"][labels.TEMPLATE_DIGEST]
        return digest


class Workloads:
    """Compares and applies. What is remembered saves requests only."""

    def __init__(self, cluster: Cluster, applier: Applier) -> None:
        self._cluster, self._applier = cluster, applier
        self._accepted: dict[tuple[str, str], tuple[str, str]] = {}
        """By server: the Deployment's UID and the digest of the last template that the API server would take."""

    async def compare(
        self, server: SpeculativeServer, built: Body, seen: ObservedObjects, previous: Mapping[str, Any]
    ) -> Wanted:
        """What the built template is against the live one. A new one is shown to the API server before anything is drained."""
        workload = seen.workload
        assert workload is not None
        origin = built["metadata"]["annotations"]
        if workload.template_digest:
            target = plan_target(
                workload,
                digest=origin[labels.TEMPLATE_DIGEST],
                intent=origin[labels.TEMPLATE_INTENT],
                on_upgrade=server.spec.rollout.on_operator_upgrade,
            )
        else:
            target = await self._adopt(server, built, seen, previous)
        key, accepted = (server.namespace, server.name), (workload.uid, origin[labels.TEMPLATE_DIGEST])
        if target is not Target.NEW or self._accepted.get(key) == accepted:
            return Wanted(built, target)
        try:
            await self._cluster.apply(built, field_manager=labels.MANAGER_OBJECTS, dry_run=True)
        except Refused as error:
            return Wanted(built, target, error.message)
        self._accepted[key] = accepted
        return Wanted(built, target)

    async def settle(self, wanted: Wanted, seen: ObservedObjects) -> bool:
        """The Deployment as it should be where no step is taken; whether anything had to be written."""
        assert seen.workload is not None
        gate = seen.workload.max_unavailable if seen.workload.held else None
        return await self._apply(self._standing(wanted, seen), gate, seen)

    async def advance(self, wanted: Wanted, plan: RolloutPlan, seen: ObservedObjects) -> bool:
        """The step that a rollout takes now; whether it wrote anything."""
        body = wanted.built if plan.new_template else self._standing(wanted, seen)
        return await self._apply(body, plan.gate, seen)

    def forget(self, namespace: str, name: str) -> None:
        """Drops what is remembered of a server that is gone."""
        self._accepted.pop((namespace, name), None)

    async def _adopt(
        self, server: SpeculativeServer, built: Body, seen: ObservedObjects, previous: Mapping[str, Any]
    ) -> Target:
        """A Deployment without our annotations: an earlier version's, or somebody took them away. The API server is asked
        what the built template would change, since only it knows the defaults in the live one."""
        live = seen.objects["Deployment"]
        try:
            answer = await self._cluster.apply(built, field_manager=labels.MANAGER_OBJECTS, dry_run=True)
        except Refused:
            return Target.NEW
        if answer["spec"]["template"] == live["spec"]["template"]:
            return Target.CURRENT
        known = previous.get("observedGeneration") == server.generation
        return Target.KEPT if known and server.spec.rollout.on_operator_upgrade is OperatorUpgrade.KEEP else Target.NEW

    def _standing(self, wanted: Wanted, seen: ObservedObjects) -> Body:
        """With the template that is there."""
        if wanted.target is Target.CURRENT:
            return wanted.built
        live = seen.objects["Deployment"]
        workload = seen.workload
        assert workload is not None
        origin = _origin(workload)
        if wanted.target is Target.KEPT and not workload.template_digest:
            origin = {**wanted.built["metadata"]["annotations"], labels.TEMPLATE_DIGEST: _EARLIER}
        return keep_template(wanted.built, seen.templates.get(workload.template_digest, live["spec"]["template"]), origin)

    async def _apply(self, body: Body, gate: int | None, seen: ObservedObjects) -> bool:
        desired = body if gate is None else gate_rollout(body, gate)
        return await self._applier.apply(desired, seen.objects["Deployment"], field_manager=labels.MANAGER_OBJECTS) is not None


def _origin(workload: Workload) -> dict[str, str]:
    values = {labels.TEMPLATE_DIGEST: workload.template_digest, labels.TEMPLATE_INTENT: workload.template_intent}
    return {name: value for name, value in values.items() if value}
