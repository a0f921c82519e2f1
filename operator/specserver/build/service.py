"""The Service in front of the pods that take traffic."""

from __future__ import annotations

from specserver.api import labels
from specserver.api.v1alpha1 import SpeculativeServer
from specserver.build.metadata import KubernetesObject, build_metadata, build_selector


def build_service(server: SpeculativeServer) -> KubernetesObject:
    """ClusterIP Service `<name>`.

    It selects on the `serving` label besides the server's own: taking that label off a pod drains it at once, without a
    readiness flip and its delay. The target is the port's name, so that pods with an old and a new number both get traffic
    while the port changes.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": build_metadata(server, server.name),
        "spec": {
            "type": "ClusterIP",
            "selector": {**build_selector(server), labels.SERVING: labels.SERVING_VALUE},
            "ports": [
                {
                    "name": labels.PORT_NAME,
                    "port": server.spec.engine.port,
                    "targetPort": labels.PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }
