"""Kubernetes Events about a server: one when something happens, none while it stays as it is."""

from __future__ import annotations

import hashlib
import logging
from typing import Literal

from specserver.api import labels
from specserver.api.v1alpha1 import SpeculativeServer
from specserver.cluster.client import Cluster
from specserver.cluster.errors import ClusterError, Conflict
from specserver.core.times import rfc3339

_log = logging.getLogger(__name__)
_LONGEST_MESSAGE = 1024
"""The API server refuses more."""


async def emit_event(
    cluster: Cluster,
    server: SpeculativeServer,
    *,
    kind: Literal["Normal", "Warning"],
    reason: str,
    message: str,
    about: str,
    now: float,
) -> None:
    """Best effort: an Event that can't be written is logged and never stops a reconcile.

    `about` is part of its name, with the reason and the server: what is told again after a crash has that name already.
    """
    identity = hashlib.sha256(f"{server.uid} {reason} {about}".encode()).hexdigest()[:16]
    time = rfc3339(now)
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": server.namespace, "name": f"{server.name}.{identity}"},
        "involvedObject": {
            "apiVersion": labels.API_VERSION,
            "kind": labels.KIND,
            "namespace": server.namespace,
            "name": server.name,
            "uid": server.uid,
        },
        "type": kind,
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": "specserver"},
        "reportingComponent": f"{labels.GROUP}/operator",
    }
    try:
        await cluster.create(body)
    except Conflict:
        return  # told already
    except ClusterError as error:
        _log.warning("%s/%s: the Event %s was not written: %s", server.namespace, server.name, reason, error.message)
