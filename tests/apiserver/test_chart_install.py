"""Helm and a real API server: what an install makes, what it may do, what an uninstall leaves."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.helm import CHART, CRD_SOURCE, Helm, HelmRefused, Values, of_kind, only
from tests.chart.test_rbac import LEASE, WHERE_IT_WATCHES, Right, wanted
from tests.localcluster import ApiServer, ClusterError, start_apiserver
from tests.localcluster.binaries import ensure_helm

CRD = "speculativeservers.specserver.io"
OperatorObject = tuple[str, str, str]
"""Kind, namespace (empty: cluster-wide), name."""

SERVER = """
apiVersion: specserver.io/v1alpha1
kind: SpeculativeServer
metadata: {name: tiny}
spec:
  model: {uri: "hf://org/model"}
  speculation: {draftModel: {uri: "hf://org/draft"}}
  engine: {image: "sglang:dev"}
"""


@dataclass(frozen=True)
class Cluster:
    """The API server with a helm that speaks to it."""

    api: ApiServer
    helm: Helm

    def new_namespace(self, **labels: str) -> str:
        name = f"chart-{uuid.uuid4().hex[:8]}"
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.api.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        return name

    def install(self, namespace: str, values: Values | None = None, *, release: str = "op", flags: tuple[str, ...] = ()) -> None:
        self.helm.run("install", release, str(CHART), "-n", namespace, *flags, values=values or {})

    def upgrade(self, namespace: str, values: Values, *, release: str = "op") -> None:
        self.helm.run("upgrade", release, str(CHART), "-n", namespace, "--reset-values", values=values)

    def uninstall(self, namespace: str, *, release: str = "op") -> None:
        self.helm.run("uninstall", release, "-n", namespace)

    def releases(self) -> set[tuple[str, str]]:
        """Namespace and name of each."""
        listed = json.loads(self.helm.run("list", "--all-namespaces", "--output=json"))
        return {(release["namespace"], release["name"]) for release in listed}

    def namespaces(self) -> set[str]:
        return {item["metadata"]["name"] for item in self.read("namespaces")["items"]}

    def read(self, *arguments: str) -> Any:
        return json.loads(self.api.kubectl("get", *arguments, "--output=json"))

    def objects(self) -> set[OperatorObject]:
        """All there is, but for what the API server keeps for itself (its lease, its endpoints) and passing Events."""
        kinds = self.api.kubectl("api-resources", "--verbs=list", "--output=name").split()
        kept_by_others = ("events", "leases.", "endpoints", "apiservices.", "componentstatuses", "flowschemas", "ipaddresses")
        wanted_kinds = ",".join(kind for kind in kinds if not kind.startswith(kept_by_others))
        items = self.read(wanted_kinds, "--all-namespaces")["items"]
        return {(i["kind"], i["metadata"].get("namespace", ""), i["metadata"]["name"]) for i in items}

    def uid(self, *what: str) -> str:
        return str(self.read(*what)["metadata"]["uid"])

    def wait_established(self) -> None:
        self.api.kubectl("wait", "crd", CRD, "--for=condition=Established", "--timeout=30s")

    def create_server(self, namespace: str) -> str:
        """A SpeculativeServer; its uid."""
        self.wait_established()
        self.api.kubectl("create", "-n", namespace, "-f", "-", stdin=SERVER)
        return self.uid("ssv", "tiny", "-n", namespace)

    def rights_in(self, namespace: str, user: str) -> set[Right]:
        """What the API server's own authorizer says that somebody may do there, beyond what everybody may."""
        answer = self._review("SelfSubjectRulesReview", {"namespace": namespace}, f"--as={user}")
        return {
            (group, resource, verb)
            for rule in answer["resourceRules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if group not in ("authorization.k8s.io", "authentication.k8s.io")
        }

    def may(self, user: str, **attributes: str) -> bool:
        """Whether the authorizer lets somebody do this one thing."""
        answer = self._review("SubjectAccessReview", {"user": user, "resourceAttributes": attributes})
        return bool(answer["allowed"])

    def _review(self, kind: str, spec: dict[str, Any], *flags: str) -> dict[str, Any]:
        body = json.dumps({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})
        # Without validation: for that kubectl would list the CRDs, as the user in question.
        answer = self.api.kubectl("create", "--validate=false", "--output=json", *flags, "-f", "-", stdin=body)
        return dict(json.loads(answer)["status"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_apiserver(tmp_path_factory.mktemp("api")) as api:
        found = api.kubectl("get", "crd", CRD, "--ignore-not-found", "--output=name")
        if found:
            raise ClusterError(f"{found.strip()} is in this cluster already, and these tests remove it: use an empty cluster")
        yield Cluster(api, Helm(ensure_helm(), tmp_path_factory.mktemp("helm"), api.kubeconfig))


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """What a test installs is gone after it."""
    releases, namespaces = running.releases(), running.namespaces()
    yield running
    for namespace, release in running.releases() - releases:
        running.uninstall(namespace, release=release)
    with contextlib.suppress(ClusterError):  # it may be gone, or going
        # Not before its names are accepted: the API server was once seen to hang for a minute over one deleted just then.
        running.wait_established()
    running.api.kubectl("delete", "crd", CRD, "--ignore-not-found", "--timeout=100s")
    # Not waited for: without the controller-manager a namespace never ends.
    if made := running.namespaces() - namespaces:
        running.api.kubectl("delete", "namespace", "--wait=false", *made)


def account(namespace: str, name: str = "op-specserver") -> str:
    return f"system:serviceaccount:{namespace}:{name}"


# ---- install, upgrade, uninstall --------------------------------------------------------------------------------------


def test_uninstall_leaves_what_the_readme_names_and_nothing_else(cluster: Cluster) -> None:
    home, team = cluster.new_namespace(), cluster.new_namespace()
    before = cluster.objects()

    cluster.install(home)
    cluster.create_server(team)
    installed = cluster.objects() - before
    assert {(kind, name) for kind, _namespace, name in installed if kind != "Secret"} == {
        ("CustomResourceDefinition", CRD),
        ("ServiceAccount", "op-specserver"),
        ("ClusterRole", f"{home}-op-specserver"),
        ("ClusterRoleBinding", f"{home}-op-specserver"),
        ("Role", f"{home}-op-specserver"),
        ("RoleBinding", f"{home}-op-specserver"),
        ("Service", "op-specserver"),
        ("Deployment", "op-specserver"),
        ("SpeculativeServer", "tiny"),
    }

    cluster.upgrade(home, {"watchNamespaces": [team], "logLevel": "debug"})
    (container,) = cluster.read("deployment", "op-specserver", "-n", home)["spec"]["template"]["spec"]["containers"]
    assert {"name": "SPECSERVER_NAMESPACES", "value": team} in container["env"]
    upgraded = cluster.objects() - before
    assert not [name for kind, _namespace, name in upgraded if kind.startswith("ClusterRole")]
    assert ("Role", team, "specserver-operator") in upgraded

    cluster.uninstall(home)
    assert cluster.objects() - before == {("CustomResourceDefinition", "", CRD), ("SpeculativeServer", team, "tiny")}


def test_servers_live_through_every_change_of_the_release(cluster: Cluster) -> None:
    """Elsewhere an uninstall, or a switch that took the definition out of the chart, deleted all resources with it."""
    home, team = cluster.new_namespace(), cluster.new_namespace()
    cluster.install(home)
    uid = cluster.create_server(team)

    cluster.upgrade(home, {"crds": {"install": False}})
    assert cluster.uid("ssv", "tiny", "-n", team) == uid
    cluster.uninstall(home)
    assert cluster.uid("ssv", "tiny", "-n", team) == uid
    cluster.install(home)
    assert cluster.uid("ssv", "tiny", "-n", team) == uid
    cluster.uninstall(home)

    with pytest.raises(HelmRefused, match=CRD):
        cluster.install(home, release="other")
    cluster.install(home, release="other", flags=("--take-ownership",))
    assert cluster.uid("ssv", "tiny", "-n", team) == uid


def test_upgrade_reaches_the_definition(cluster: Cluster, tmp_path: Path) -> None:
    """Helm never upgrades what lies in a chart's crds/ directory; ours is a template."""
    home = cluster.new_namespace()
    cluster.install(home)
    before = cluster.read("crd", CRD)
    cluster.api.kubectl("patch", "crd", CRD, "--type=json", '-p=[{"op": "remove", "path": "/spec/names/shortNames"}]')
    cluster.helm.run("upgrade", "op", str(CHART), "-n", home, "--force-conflicts")
    assert cluster.read("crd", CRD)["spec"]["names"]["shortNames"] == before["spec"]["names"]["shortNames"]


def test_a_definition_that_is_not_kept_goes_with_the_release(cluster: Cluster) -> None:
    home = cluster.new_namespace()
    cluster.install(home, {"crds": {"keep": False}})
    cluster.create_server(home)
    cluster.uninstall(home)
    cluster.api.kubectl("wait", "crd", CRD, "--for=delete", "--timeout=60s")


def test_upgrade_without_a_change_changes_nothing(cluster: Cluster) -> None:
    home = cluster.new_namespace()
    cluster.install(home)
    cluster.wait_established()

    def generations() -> list[int]:
        objects = ["deployment", "op-specserver", "-n", home], ["crd", CRD]
        return [cluster.read(*what)["metadata"]["generation"] for what in objects]

    before = generations()
    cluster.upgrade(home, {})
    assert generations() == before


def test_the_definition_can_be_applied_by_hand_twice(cluster: Cluster) -> None:
    """By client-side apply, which stores a copy in an annotation of limited size."""
    assert "created" in cluster.api.kubectl("apply", "-f", str(CRD_SOURCE))
    assert "unchanged" in cluster.api.kubectl("apply", "-f", str(CRD_SOURCE))


# ---- more than one release --------------------------------------------------------------------------------------------


def test_two_releases_of_one_name_for_two_teams(cluster: Cluster) -> None:
    homes, teams = [cluster.new_namespace() for _ in range(2)], [cluster.new_namespace() for _ in range(2)]
    cluster.install(homes[0], {"watchNamespaces": [teams[0]]})
    cluster.install(homes[1], {"watchNamespaces": [teams[1]], "crds": {"install": False}})
    for home, own, others in zip(homes, teams, reversed(teams), strict=True):
        assert cluster.rights_in(own, account(home)) == wanted(WHERE_IT_WATCHES | LEASE)
        assert cluster.rights_in(others, account(home)) == set()


def test_a_namespace_has_one_operator(cluster: Cluster) -> None:
    first, second, team = (cluster.new_namespace() for _ in range(3))
    cluster.install(first, {"watchNamespaces": [team]})
    with pytest.raises(HelmRefused, match="specserver-operator"):
        cluster.install(second, {"watchNamespaces": [team], "crds": {"install": False}})


def test_the_longest_release_name_installs(cluster: Cluster) -> None:
    release = "a-release-name-that-has-all-the-53-characters-allowed"
    cluster.install(cluster.new_namespace(), release=release)


# ---- rights -----------------------------------------------------------------------------------------------------------


def test_rights_for_all_namespaces(cluster: Cluster) -> None:
    home, elsewhere = cluster.new_namespace(), cluster.new_namespace()
    cluster.install(home)
    for namespace in (home, elsewhere):
        assert cluster.rights_in(namespace, account(home)) == wanted(WHERE_IT_WATCHES)
    assert cluster.rights_in("default", account(home)) == wanted(WHERE_IT_WATCHES | LEASE)


@pytest.fixture(scope="module")
def namespaced(running: Cluster) -> Iterator[dict[str, str]]:
    """A release that watches one namespace: its account, its own namespace, that one and another."""
    home, team, other = (running.new_namespace() for _ in range(3))
    running.install(home, {"watchNamespaces": [team], "crds": {"install": False}})
    yield {"account": account(home), "home": home, "team": team, "other": other}
    running.uninstall(home)
    running.api.kubectl("delete", "namespace", "--wait=false", home, team, other)


@pytest.mark.parametrize(
    ("verb", "what", "where", "allowed"),
    [
        pytest.param("patch", ("specserver.io", "speculativeservers", "status"), "team", True, id="status"),
        pytest.param("create", ("apps", "deployments", ""), "team", True, id="deployments"),
        pytest.param("get", ("", "secrets", ""), "team", True, id="a secret by name"),
        pytest.param("patch", ("specserver.io", "speculativeservers", "status"), "other", False, id="status elsewhere"),
        pytest.param("create", ("apps", "deployments", ""), "other", False, id="deployments elsewhere"),
        pytest.param("get", ("", "secrets", ""), "other", False, id="a secret elsewhere"),
        pytest.param("get", ("", "secrets", ""), "home", False, id="a secret at home"),
        pytest.param("list", ("", "secrets", ""), "team", False, id="list secrets"),
        pytest.param("watch", ("", "secrets", ""), "team", False, id="watch secrets"),
        pytest.param("delete", ("", "pods", ""), "team", False, id="delete pods"),
        pytest.param("delete", ("apps", "deployments", ""), "team", False, id="delete deployments"),
        pytest.param("patch", ("specserver.io", "speculativeservers", ""), "team", False, id="change the user's resource"),
        pytest.param("create", ("", "pods", "exec"), "team", False, id="exec"),
        pytest.param("patch", ("", "secrets", ""), "team", False, id="change a secret"),
        pytest.param("create", ("rbac.authorization.k8s.io", "rolebindings", ""), "team", False, id="widen its rights"),
    ],
)
def test_rights_in_named_namespaces(
    running: Cluster, namespaced: dict[str, str], verb: str, what: tuple[str, str, str], where: str, allowed: bool
) -> None:
    group, resource, subresource = what
    assert allowed is running.may(
        namespaced["account"],
        verb=verb, group=group, resource=resource, subresource=subresource, namespace=namespaced[where], name="some",
    )  # fmt: skip


# ---- admission --------------------------------------------------------------------------------------------------------


def test_pod_is_admitted_where_pod_security_is_restricted(cluster: Cluster) -> None:
    """By the API server's own admission, in a dry run: the same pod with one right more is refused."""
    home = cluster.new_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"})
    cluster.install(home)
    manifests = cluster.helm.render(release="op", namespace=home)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "namespace": home},
        "spec": only(manifests, "Deployment")["spec"]["template"]["spec"],
    }
    cluster.api.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ClusterError, match="allowPrivilegeEscalation"):
        cluster.api.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))


def test_every_rendered_object_is_accepted_strictly(cluster: Cluster) -> None:
    """A field that the API server doesn't know would be dropped in silence by Helm's own request."""
    home = cluster.new_namespace()
    manifests = cluster.helm.render({"watchNamespaces": [home]}, namespace=home)
    assert of_kind(manifests, "Deployment")
    text = yaml.safe_dump_all(manifests)
    cluster.api.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
