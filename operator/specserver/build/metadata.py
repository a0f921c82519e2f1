"""What every built object has in common: labels, the owner, and a hash that says "as the operator built it".

Ownership goes by ownerReferences alone, so that Kubernetes' garbage collector deletes what we made even while the operator
is down. A finalizer was rejected: it would leave the resource stuck whenever the operator is gone for good.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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


def desired_hash(built: Mapping[str, Any]) -> str:
    """Hash of a built object, the same whether or not the object carries the annotation with it already."""
    metadata = dict(built["metadata"])
    annotations = {key: value for key, value in metadata.pop("annotations", {}).items() if key != labels.DESIRED_HASH}
    if annotations:
        metadata["annotations"] = annotations
    canonical = json.dumps({**built, "metadata": metadata}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def with_desired_hash(built: KubernetesObject) -> KubernetesObject:
    """The object with its hash as annotation, on the object itself and never on a pod template."""
    annotations = {**built["metadata"].get("annotations", {}), labels.DESIRED_HASH: desired_hash(built)}
    return {**built, "metadata": {**built["metadata"], "annotations": annotations}}
