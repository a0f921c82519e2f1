"""A SpeculativeServer as Kubernetes objects, as plain dicts. Pure: no clock, no randomness, no cluster.

One module a kind; `sglang` is the only one that knows SGLang's command line. Plain dicts rather than the client's model
classes: what is built is exactly what server-side apply claims, and nothing gets a default on the way.
"""

from __future__ import annotations

from collections.abc import Iterable

from specserver.api.v1alpha1 import SpeculativeServer
from specserver.build.config import Ladder, build_policy_config
from specserver.build.disruption import build_disruption_budget
from specserver.build.metadata import KubernetesObject
from specserver.build.service import build_service
from specserver.build.workload import build_workload


def build_all(server: SpeculativeServer, earlier_ladders: Iterable[Ladder] = ()) -> dict[str, KubernetesObject]:
    """The objects of the field manager `specserver`, by role, in the order in which to apply them.

    What a pod mounts comes before what makes pods. The Secret is apart (`secret`), as its keys are made once and kept, and
    so are the replicas (`workload.build_replicas`), which another field manager owns. BuildInvalid where the resource can't
    be built.
    """
    return {
        "policy": build_policy_config(server, earlier_ladders),
        "service": build_service(server),
        "disruption": build_disruption_budget(server),
        "workload": build_workload(server),
    }
