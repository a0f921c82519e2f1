"""What the operator may do: exactly this, and only where it watches."""

from __future__ import annotations

import pytest

from tests.chart.helm import Helm, Manifest, of_kind, only

Right = tuple[str, str, str]
"""API group, resource, verb."""

WHERE_IT_WATCHES: dict[tuple[str, str], set[str]] = {
    ("specserver.io", "speculativeservers"): {"get", "list", "watch"},
    ("specserver.io", "speculativeservers/status"): {"patch"},
    ("specserver.io", "speculativeservers/finalizers"): {"update"},
    ("apps", "deployments"): {"get", "list", "watch", "create", "patch"},
    ("apps", "replicasets"): {"list"},
    ("", "services"): {"get", "list", "watch", "create", "patch"},
    ("", "configmaps"): {"get", "list", "watch", "create", "patch"},
    ("", "pods"): {"list", "watch", "patch"},
    ("", "secrets"): {"get", "create"},
    ("", "events"): {"create"},
    ("policy", "poddisruptionbudgets"): {"get", "list", "watch", "create", "patch"},
}

LEASE: dict[tuple[str, str], set[str]] = {("coordination.k8s.io", "leases"): {"create", "get", "patch"}}
"""In each watched namespace; in `default` where all are watched."""


def rights(role: Manifest) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def wanted(table: dict[tuple[str, str], set[str]]) -> set[Right]:
    return {(group, resource, verb) for (group, resource), verbs in table.items() for verb in verbs}


def test_all_namespaces_is_one_cluster_role(helm: Helm) -> None:
    manifests = helm.render()
    assert rights(only(manifests, "ClusterRole")) == wanted(WHERE_IT_WATCHES)
    lease = only(manifests, "Role")
    assert lease["metadata"]["namespace"] == "default"
    assert rights(lease) == wanted(LEASE)


def test_named_namespaces_are_a_role_each_and_nothing_cluster_wide(helm: Helm) -> None:
    manifests = helm.render({"watchNamespaces": ["team-a", "team-b"]})
    assert of_kind(manifests, "ClusterRole", "ClusterRoleBinding") == []
    by_namespace = {role["metadata"]["namespace"]: rights(role) for role in of_kind(manifests, "Role")}
    both = wanted(WHERE_IT_WATCHES | LEASE)
    assert by_namespace == {"team-a": both, "team-b": both}


@pytest.mark.parametrize("namespaces", [[], ["team-a"]], ids=["all", "one"])
def test_of_leases_only_its_own(helm: Helm, namespaces: list[str]) -> None:
    """But for `create`, which RBAC can't bind to a name."""
    roles = of_kind(helm.render({"watchNamespaces": namespaces}), "Role", "ClusterRole")
    rules = [rule for role in roles for rule in role["rules"] if "leases" in rule["resources"]]
    assert [rule.get("resourceNames") for rule in rules if rule["verbs"] != ["create"]] == [["specserver-operator"]]


@pytest.mark.parametrize("namespaces", [[], ["team-a", "team-b"]], ids=["all", "two"])
def test_each_role_is_bound_to_the_operator_and_to_nobody_else(helm: Helm, namespaces: list[str]) -> None:
    manifests = helm.render({"watchNamespaces": namespaces})
    account = only(manifests, "ServiceAccount")["metadata"]
    subject = {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    roles = {_identity(role, role["kind"]) for role in of_kind(manifests, "Role", "ClusterRole")}
    bindings = of_kind(manifests, "RoleBinding", "ClusterRoleBinding")
    assert {_identity(binding, binding["roleRef"]["kind"]) for binding in bindings} == roles
    for binding in bindings:
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
        assert binding["subjects"] == [subject]


def _identity(manifest: Manifest, kind: str) -> tuple[str, str | None, str]:
    return kind, manifest["metadata"].get("namespace"), manifest["metadata"]["name"]


@pytest.mark.parametrize("namespaces", [[], ["team-a"]], ids=["all", "one"])
def test_no_wildcard_no_delete_no_listing_of_secrets(helm: Helm, namespaces: list[str]) -> None:
    """Said a second time, apart from the table: whoever widens the table should have to argue with this."""
    manifests = helm.render({"watchNamespaces": namespaces})
    all_rights = set().union(*(rights(role) for role in of_kind(manifests, "Role", "ClusterRole")))
    for group, resource, verb in all_rights:
        assert "*" not in group + resource + verb
        assert verb not in ("delete", "deletecollection", "escalate", "bind", "impersonate")
        assert resource != "secrets" or verb not in ("list", "watch")
        assert group != "rbac.authorization.k8s.io"
