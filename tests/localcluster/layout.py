"""Names, paths and addresses of one node instance; everything here follows from its name and its network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.network import Subnet
from tests.localcluster.paths import short_hash, state_root
from tests.localcluster.pki import Pki

NODE_NAME = "node"
API_PORT = 6443  # the node has a network namespace of its own: no port of it can be taken
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
REGISTRY_PORT = 5000


@dataclass(frozen=True)
class Instance:
    """One node: what its name alone says.

    Kept between runs: images (containerd's store, the registry's store) and the network, so that image names stay the
    same. Fresh in every run: certificates, etcd, kubelet, logs.
    """

    name: str

    @property
    def directory(self) -> Path:
        return state_root() / self.name

    @property
    def lock(self) -> Path:
        return state_root() / f"{self.name}.lock"

    @property
    def record(self) -> Path:
        """JSON: the network, and what was changed on the machine that has to be undone."""
        return self.directory / "instance.json"

    @property
    def run(self) -> Path:
        """Everything that is fresh in every run."""
        return self.directory / "run"

    @property
    def store(self) -> Path:
        """Everything that is kept between runs."""
        return self.directory / "store"

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def ready_mark(self) -> Path:
        """There when the node has become ready; holds the key of what it was built from."""
        return self.run / "ready"

    @property
    def ended(self) -> Path:
        """A line for each of the node's programs that ended by itself."""
        return self.run / "ended"

    @property
    def plan(self) -> Path:
        return self.run / "plan.json"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def pki(self) -> Pki:
        return Pki(self.run / "pki")

    @property
    def identity(self) -> str:
        """Of the directory, not the name: two users may both call theirs `mine`."""
        return short_hash(str(self.directory))

    @property
    def link(self) -> str:
        return f"ssv{self.identity}"  # 15 characters at most

    @property
    def cgroup(self) -> str:
        return f"specserver-{self.name}-{self.identity}"


@dataclass(frozen=True)
class Addresses:
    """Where the node is reached, inside and outside."""

    subnet: Subnet

    @property
    def api_url(self) -> str:
        return f"https://{self.subnet.node_ip}:{API_PORT}"

    @property
    def registry(self) -> str:
        return f"{self.subnet.node_ip}:{REGISTRY_PORT}"
