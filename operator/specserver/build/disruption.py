"""The disruption budget: a node drain takes one replica at a time."""

from __future__ import annotations

from specserver.api.v1alpha1 import SpeculativeServer
from specserver.build.metadata import KubernetesObject, build_metadata, build_selector


def build_disruption_budget(server: SpeculativeServer) -> KubernetesObject:
    """PodDisruptionBudget `<name>`, maxUnavailable 1.

    `minAvailable` was rejected: with one replica it would block every node drain for good. A pod that is not ready may
    always be evicted: a server that can't start must not keep a node from being emptied.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": build_metadata(server, server.name),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": build_selector(server)},
        },
    }
