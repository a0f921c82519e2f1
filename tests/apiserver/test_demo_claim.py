"""On a cluster of the user's the demo takes nothing that is somebody else's, and takes its own away again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from demo.claim import MARK, claim, take_away
from demo.manifests import NAMESPACE
from demo.story import OPERATOR_NAMESPACE
from tests.localcluster import ApiServer, ClusterError, start_apiserver

OPERATOR = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: specserver, labels: {app.kubernetes.io/name: specserver}}
spec:
  replicas: 0
  selector: {matchLabels: {app: specserver}}
  template: {metadata: {labels: {app: specserver}}, spec: {containers: [{name: operator, image: operator}]}}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with start_apiserver(tmp_path_factory.mktemp("cluster"), with_controllers=True) as api:
        yield api


def namespaces(cluster: ApiServer) -> set[str]:
    return set(cluster.kubectl("get", "namespaces", "--output=jsonpath={.items[*].metadata.name}").split())


@pytest.mark.parametrize("name", [NAMESPACE, OPERATOR_NAMESPACE])
def test_a_namespace_of_somebody_elses_is_refused_with_the_way_out(cluster: ApiServer, name: str) -> None:
    cluster.kubectl("create", "namespace", name)
    before = namespaces(cluster)
    with pytest.raises(ClusterError, match=f"namespace {name} already.*kubectl label namespace {name} {MARK}=true"):
        claim(cluster)
    take_away(cluster)
    assert namespaces(cluster) == before
    cluster.kubectl("delete", "namespace", name)


def test_another_operator_is_refused(cluster: ApiServer) -> None:
    cluster.kubectl("create", "namespace", "theirs")
    cluster.kubectl("--namespace", "theirs", "create", "--filename=-", stdin=OPERATOR)
    with pytest.raises(ClusterError, match="an operator of SpecServer in the namespace theirs"):
        claim(cluster)
    assert not {NAMESPACE, OPERATOR_NAMESPACE} & namespaces(cluster)
    cluster.kubectl("delete", "namespace", "theirs")


def test_an_earlier_demo_is_taken_over_and_what_of_it_is_going_is_waited_for(cluster: ApiServer) -> None:
    claim(cluster)
    cluster.kubectl("--namespace", OPERATOR_NAMESPACE, "create", "--filename=-", stdin=OPERATOR)
    claim(cluster)
    take_away(cluster)
    claim(cluster)
    assert cluster.kubectl("--namespace", OPERATOR_NAMESPACE, "get", "deployments", "--output=name") == ""
    take_away(cluster)
    cluster.kubectl("wait", f"namespace/{NAMESPACE}", f"namespace/{OPERATOR_NAMESPACE}", "--for=delete", "--timeout=60s")
    claim(cluster)
    assert {NAMESPACE, OPERATOR_NAMESPACE} <= namespaces(cluster)
