"""What of a cluster is the demo's: two namespaces with a mark. It takes none without it, and takes away no other."""

from __future__ import annotations

import json
from typing import Any

import yaml

from demo.manifests import NAMESPACE
from demo.story import OPERATOR_NAMESPACE, uninstall_operator
from tests.localcluster import ClusterError, LocalCluster
from tests.localcluster.progress import say

MARK = "specserver.io/demo"
_GONE_WITHIN_SECONDS = 180


def claim(cluster: LocalCluster) -> None:
    """Makes and marks the demo's namespaces, empty the one with the server. What an earlier demo left in them is the demo's, too.

    ClusterError where one of them is somebody else's, or where there is another operator.
    """
    # 1. Whose they are.
    names = (NAMESPACE, OPERATOR_NAMESPACE)
    there = {body["metadata"]["name"]: body["metadata"] for body in _items(cluster, "namespaces")}
    others = [name for name in names if name in there and MARK not in there[name].get("labels", {})]
    if others:
        raise ClusterError(
            f"{cluster.name} has a namespace {others[0]} already, and the demo would install into it and delete it afterwards."
            f" Use a cluster without it; if it is left from a demo: kubectl label namespace {others[0]} {MARK}=true"
        )
    operators = _items(cluster, "deployments", "--all-namespaces", "--selector=app.kubernetes.io/name=specserver")
    elsewhere = [one["metadata"]["namespace"] for one in operators if one["metadata"]["namespace"] != OPERATOR_NAMESPACE]
    if elsewhere:
        raise ClusterError(
            f"{cluster.name} has an operator of SpecServer in the namespace {elsewhere[0]}, and the demo would install another"
            " one over its definition. Use a cluster without one"
        )
    # 2. What an earlier demo left goes first. Its operator may stay: Helm upgrades it.
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
    going = [f"namespace/{name}" for name in names if name in there and (name == NAMESPACE or "deletionTimestamp" in there[name])]
    if going:
        timeout = _GONE_WITHIN_SECONDS
        cluster.kubectl("wait", *going, "--for=delete", f"--timeout={timeout}s", timeout_seconds=timeout + 10)
    # 3. Ours from now on.
    bodies = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {MARK: "true"}}} for name in names]
    cluster.kubectl("apply", "--server-side", "--field-manager=demo-claim", "--filename=-", stdin=yaml.safe_dump_all(bodies))


def take_away(cluster: LocalCluster) -> None:
    """What the story made in a cluster of the user's. The definition stays: others' resources would go with it."""
    say("taking the demo away")
    try:
        uninstall_operator(cluster)
    finally:  # after it: Helm keeps what it knows of the release in the namespace
        cluster.kubectl("delete", "namespaces", f"--selector={MARK}", "--wait=false")


def _items(cluster: LocalCluster, kind: str, *arguments: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(cluster.kubectl("get", kind, "--output=json", *arguments))["items"]
    return items
