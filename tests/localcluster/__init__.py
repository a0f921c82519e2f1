"""A Kubernetes cluster on this machine, for the tests, the demo and anybody's experiments.

    with start_apiserver(directory) as api: ...    etcd + kube-apiserver, no root, seconds
    node = node_up()                               everything: kubelet, containers, DNS, a registry; root on Linux
"""

from tests.localcluster.apiserver import ApiServer, start_apiserver
from tests.localcluster.base import LocalCluster
from tests.localcluster.errors import ClusterError
from tests.localcluster.node import Node, node_down, node_up
from tests.localcluster.packages import ensure_packages

__all__ = [
    "ApiServer",
    "ClusterError",
    "LocalCluster",
    "Node",
    "ensure_packages",
    "node_down",
    "node_up",
    "start_apiserver",
]
