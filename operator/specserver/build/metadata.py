"""What every built object has in common: labels and the owner.

Ownership goes by ownerReferences alone, so that Kubernetes' garbage collector deletes what we made even while the operator
is down. A finalizer was rejected: it would leave the resource stuck whenever the operator is gone for good.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from specserver.api import labels
from specserver.api.v1alpha1 import SpeculativeServer

KubernetesObject = dict[str, Any]


class BuildInvalid(ValueError):
    """The resource can't become objects, in a way that admission could not see. `field` is its path in the resource."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


def build_labels(server: SpeculativeServer) -> dict[str, str]:
    """Labels of every object and pod. Only names that never change: a label on the pod template is part of its hash."""
    return {
        labels.MANAGED_BY: labels.MANAGED_BY_VALUE,
        labels.APP_NAME: labels.APP_NAME_VALUE,
        labels.APP_INSTANCE: server.name,
        labels.SERVER: server.name,
    }


def build_selector(server: SpeculativeServer) -> dict[str, str]:
    """Labels by which a Deployment and a disruption budget know the server's pods. Immutable in a Deployment."""
    return {labels.SERVER: server.name}


def build_metadata(server: SpeculativeServer, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": server.namespace,
        "labels": build_labels(server),
        "ownerReferences": [
            {
                "apiVersion": labels.API_VERSION,
                "kind": labels.KIND,
                "name": server.name,
                "uid": server.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def digest(value: Any) -> str:
    """Of anything that is JSON, the same for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
