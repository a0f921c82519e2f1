"""The `apiserver` size: etcd and kube-apiserver on loopback, no root, one directory each, as many at once as wanted.

Controller-manager and scheduler come on request; there is no kubelet, so pods stay Pending until a test plays one.
Authorization, admission and authentication are those of a real cluster: RBAC, service accounts, client certificates.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.localcluster.base import LocalCluster, named_context, write_context_kubeconfig
from tests.localcluster.binaries import ensure_binaries
from tests.localcluster.components import answers, apiserver_flags, client_flags, etcd_flags, manager_flags
from tests.localcluster.errors import ClusterError
from tests.localcluster.paths import short_hash
from tests.localcluster.pki import create_pki, write_kubeconfig
from tests.localcluster.processes import free_ports, log_tail, restart_child, start_child, stop_children, wait_until

SERVICE_CIDR = "10.96.0.0/16"
SERVICE_IP = "10.96.0.1"
_START_TRIES = 3  # a free port may be taken by somebody else before it is used
_READY_SECONDS = 60.0


class _PortTakenError(ClusterError):
    """A port that was free is not any more."""


@dataclass(frozen=True)
class ApiServer(LocalCluster):
    """A running API server; a context manager that stops it."""

    url: str = ""
    directory: Path = field(default_factory=Path)
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """By program."""

    def stop(self) -> None:
        """End the processes. A second call does nothing. The directory stays: it holds the logs."""
        stop_children(list(self.children.values()))

    def kill(self, program: str) -> None:
        """End one of the programs as the kernel would, for a test of those that are left."""
        stop_children([self.children[program]])

    def start_again(self, program: str) -> None:
        """Start a killed program as it was: same port, same data."""
        self.children[program] = restart_child(self.children[program], self.directory / f"{program}.log")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_apiserver(directory: Path, *, with_controllers: bool = False) -> ApiServer:
    """Start one in `directory` (made if absent; fresh data each time) and return when it is ready.

    With `with_controllers` also controller-manager and scheduler; ready then means that they work, too.
    With CONTEXT set: that cluster, and nothing is started.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.resolve()
    kubeconfig = directory / "kubeconfig"
    if context := named_context():
        write_context_kubeconfig(context, kubeconfig)
        given = LocalCluster(context, kubeconfig, os.environ.get("REGISTRY"))
        url = given.kubectl("config", "view", "--output=jsonpath={.clusters[0].cluster.server}")
        return ApiServer(context, kubeconfig, given.registry, url=url, directory=directory)
    names = ["etcd", "kube-apiserver", "kubectl"]
    names += ["kube-controller-manager", "kube-scheduler"] if with_controllers else []
    binaries = ensure_binaries(names)
    for last in (*[False] * (_START_TRIES - 1), True):
        work = Path(tempfile.mkdtemp(prefix="run-", dir=directory))
        try:
            return _start(work, kubeconfig, binaries, with_controllers=with_controllers)
        except _PortTakenError:
            if last:
                raise
    raise AssertionError("the last try returns or raises")


def _start(work: Path, kubeconfig: Path, binaries: Mapping[str, Path], *, with_controllers: bool) -> ApiServer:
    name = f"apiserver-{short_hash(str(work))}"
    # 1. ports, certificates, the administrator's kubeconfig
    port, etcd_port, peer_port, manager_port, scheduler_port = free_ports(5)
    url = f"https://127.0.0.1:{port}"
    pki = create_pki(work / "pki")
    pki.sign("api", "/CN=kube-apiserver", ["DNS:localhost", "DNS:kubernetes.default.svc", "IP:127.0.0.1", f"IP:{SERVICE_IP}"])
    pki.sign("admin", "/O=system:masters/CN=admin")
    write_kubeconfig(kubeconfig, pki, "admin", url, name=name)

    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(program: str, flags: list[str]) -> None:
        running[program] = start_child([binaries[program], *flags], work / f"{program}.log")

    def wait(condition: Callable[[], bool], what: str) -> None:
        wait_until(
            condition, f"{what}; logs in {work}", timeout_seconds=_READY_SECONDS, check=lambda: _check(running, work)
        )

    with contextlib.ExitStack() as undo:
        undo.callback(lambda: stop_children(list(running.values())))
        # 2. etcd and the API server together: the second waits for the first by itself
        start("etcd", etcd_flags(work / "etcd", port=etcd_port, peer_port=peer_port))
        start("kube-apiserver", apiserver_flags(
            pki, work / "apiserver", bind="127.0.0.1", advertise="127.0.0.1", port=port,
            etcd_port=etcd_port, service_cidr=SERVICE_CIDR,
        ))  # fmt: skip
        wait(lambda: answers(url, pki), f"{url}/readyz")
        # 3. controllers: that they work shows in what they make
        if with_controllers:
            for program, client_port, flags in (
                ("kube-controller-manager", manager_port, manager_flags(pki)),
                ("kube-scheduler", scheduler_port, []),
            ):
                pki.sign(program, f"/CN=system:{program}")
                config = write_kubeconfig(work / f"{program}.kubeconfig", pki, program, url, name=name)
                start(program, [*client_flags(config, work / program, port=client_port), *flags])
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            wait(lambda: answers(url, pki, account), "the default service account, made by the controller-manager")
        undo.pop_all()
    return ApiServer(name, kubeconfig, url=url, directory=work, children=running)


def _check(running: Mapping[str, subprocess.Popen[bytes]], work: Path) -> None:
    """Waiting is pointless once one of them has ended."""
    for program, child in running.items():
        if child.poll() is not None:
            tail = log_tail(work / f"{program}.log")
            kind = _PortTakenError if "address already in use" in tail else ClusterError
            raise kind(f"{program} ended with code {child.returncode}:\n{tail}")
