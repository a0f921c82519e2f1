"""The `node` size: a whole Kubernetes node in its own mount, network and process namespaces. Root on Linux.

Up is a sequence of steps that each find a clean machine, because the first of them removes whatever an earlier try
left: killed, half-finished or running something else. Down is that same removal. Neither believes in process numbers:
the node's first process is found by its command line, and when it dies the kernel ends everything else of the node.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests.localcluster import binaries as programs
from tests.localcluster.archives import BUSYBOX_IMAGE, Containerd, build_archive, build_busybox
from tests.localcluster.base import LocalCluster, named_context, write_context_kubeconfig
from tests.localcluster.cgroups import create_cgroup, remove_cgroup
from tests.localcluster.components import answers
from tests.localcluster.errors import ClusterError
from tests.localcluster.layout import NODE_NAME, Addresses, Instance
from tests.localcluster.network import Network, connect, disconnect, observe_networks, plan_subnet
from tests.localcluster.packages import NODE, OFFER, SYSTEM_PATH, ensure_packages, find_tool, missing_packages
from tests.localcluster.paths import REPOSITORY, cache_root, check_instance, default_instance, short_hash, state_root
from tests.localcluster.pki import create_pki, write_kubeconfig
from tests.localcluster.plan import COVERED, build_dns, build_files, build_plan
from tests.localcluster.processes import (
    ProcessIdentity,
    file_lock,
    find_processes,
    log_tail,
    read_parent,
    undisturbed,
    wait_until,
)
from tests.localcluster.progress import say

# One lock for the machine while a network is chosen and taken: between two instances that start together.
_MACHINE_LOCK = Path("/run/lock/specserver-network.lock")
_CAP_SYS_RESOURCE = 24
_START_SECONDS = 120.0
_SOCKET_PATH_LIMIT = 107


@dataclass(frozen=True)
class Node(LocalCluster):
    """A running node. `busybox` is an image that is always there."""

    busybox: str = BUSYBOX_IMAGE

    def down(self) -> None:
        node_down(self.name)


def node_up(name: str | None = None) -> Node:
    """The node of this name (default: this clone's), started unless it runs already; returns when it is usable.

    With CONTEXT set: that cluster, and nothing is started; its registry is REGISTRY, if that is set.
    """
    if context := named_context():
        kubeconfig = write_context_kubeconfig(context, state_root() / f"context-{short_hash(context)}" / "kubeconfig")
        return Node(context, kubeconfig, os.environ.get("REGISTRY"))
    instance = Instance(check_instance(name or default_instance()))
    check_machine(instance)
    with file_lock(instance.lock, waiting=lambda: say(f"another run holds {instance.lock}: waiting for it")):
        if (running := find_node(instance.name)) is not None:
            say(f"node {instance.name} is up already")
            return running
        ensure_packages(NODE)
        paths = programs.ensure_binaries(programs.BUILT)
        _clean(instance)
        try:
            return _start(instance, paths)
        except BaseException:  # also Ctrl-C: what was begun is taken back, and the error goes on its way
            say(f"node {instance.name} did not come up: cleaning up (logs stay in {instance.logs})")
            _clean(instance)
            raise


def node_down(name: str | None = None, *, purge: bool = False) -> None:
    """Take the node away and leave the machine as it was. Images and logs stay for the next time, unless purged.

    Harmless when there is none, and with CONTEXT set: a cluster that wasn't started here isn't stopped here.
    """
    if named_context():
        return
    instance = Instance(check_instance(name or default_instance()))
    if not instance.directory.exists():
        return
    if os.geteuid() != 0:
        raise ClusterError(f"taking down node {instance.name} takes root")
    with file_lock(instance.lock, waiting=lambda: say(f"another run holds {instance.lock}: waiting for it")):
        _clean(instance)
        if purge:
            shutil.rmtree(instance.directory)  # not the lock: somebody may be waiting for it


def find_node(name: str | None = None) -> Node | None:
    """The node of this name if it is up, healthy, and of the versions that this clone asks for."""
    instance = Instance(check_instance(name or default_instance()))
    subnet = _recorded_network(instance)
    try:
        current = instance.ready_mark.read_text() == programs.build_key()
    except FileNotFoundError:
        return None
    if subnet is None or not current or not _node_processes(instance) or _ended(instance):
        return None
    addresses = Addresses(plan_subnet([], preferred=subnet, seed=0))
    return _handle(instance, addresses) if answers(addresses.api_url, instance.pki) else None


def explain_node(name: str | None = None) -> str:
    """One line for a person: up, down, or what is wrong."""
    instance = Instance(check_instance(name or default_instance()))
    if find_node(instance.name):
        return f"{instance.name}: up"
    if not _node_processes(instance):
        return f"{instance.name}: down"
    ended = _ended(instance)
    return f"{instance.name}: not usable" + (f" ({'; '.join(ended)})" if ended else "") + f"; logs in {instance.logs}"


def check_machine(instance: Instance) -> None:
    """What no package can bring."""
    if not sys.platform.startswith("linux"):
        raise ClusterError(f"a node takes Linux, and this is {sys.platform}. {OFFER}")
    if os.geteuid() != 0:
        packages = missing_packages(NODE)
        also = f" It also takes these Debian packages, which are missing: {' '.join(packages)}." if packages else ""
        raise ClusterError(f"a node takes root: it makes namespaces, mounts and cgroups.{also} {OFFER}")
    for path in (instance.directory, cache_root(), REPOSITORY, Path(sys.prefix)):
        for covered in COVERED:
            if path.is_relative_to(covered):
                raise ClusterError(
                    f"{path}: the node has a {covered} of its own and would not see it; move it, or set "
                    "XDG_STATE_HOME and XDG_CACHE_HOME to directories elsewhere"
                )
    if len(f"{instance.containerd_socket}.ttrpc") > _SOCKET_PATH_LIMIT:
        raise ClusterError(
            f"{instance.containerd_socket}.ttrpc is too long for a socket ({_SOCKET_PATH_LIMIT} characters at most); "
            "set XDG_STATE_HOME to a shorter path"
        )


# ---- up -----------------------------------------------------------------------------------------------------------------


def _start(instance: Instance, paths: Mapping[str, Path]) -> Node:
    say(f"starting node {instance.name}")
    began = time.monotonic()
    # 1. fresh directories, the cgroup, the modules
    _make_directories(instance)
    record = replace(_read_record(instance), cgroup_controllers=create_cgroup(instance.cgroup))
    _write_record(instance, record)
    _load_modules()
    # 2. the network, and process 1 that lives in it
    with file_lock(_MACHINE_LOCK):
        subnet = plan_subnet(
            observe_networks(), preferred=_recorded_network(instance), seed=int(instance.identity, 16)
        )
        _write_record(instance, replace(record, network=str(subnet.network)))
        addresses = Addresses(subnet)
        pause = f"localhost/pause:{programs.build_key()}"
        _write_configuration(instance, addresses, paths, sandbox_image=pause)
        connect(instance.link, subnet, _start_init(instance).pid)
    say(f"network {subnet.network}, certificates and configuration written")

    def check() -> None:
        if ended := _ended(instance):
            raise ClusterError("; ".join(ended))
        if not _node_processes(instance):
            raise ClusterError(f"the node's first process is gone:\n{log_tail(instance.logs / 'init.log')}")

    # 3. images, before the first pod asks for them
    containerd = Containerd(instance.containerd_socket)
    wait_until(instance.containerd_socket.exists, "containerd's socket", timeout_seconds=_START_SECONDS, check=check)
    dns = f"localhost/coredns:{programs.build_key()}"
    there = containerd.images()
    for reference, program in ((pause, "pause"), (dns, "coredns")):
        if reference not in there:
            containerd.load(build_archive(reference, {f"bin/{program}": paths[program]}, entrypoint=[f"/bin/{program}"]))
    containerd.load(build_busybox())
    # 4. the API server, cluster DNS, the node
    wait_until(lambda: answers(addresses.api_url, instance.pki), f"{addresses.api_url}/readyz",
               timeout_seconds=_START_SECONDS, check=check)  # fmt: skip
    say("API server ready")
    node = _handle(instance, addresses)
    items = {"apiVersion": "v1", "kind": "List", "items": build_dns(addresses, image=dns)}
    node.kubectl("apply", "--filename=-", stdin=json.dumps(items))
    for path in (f"/api/v1/nodes/{NODE_NAME}", "/api/v1/namespaces/default/serviceaccounts/default"):
        wait_until(lambda path=path: answers(addresses.api_url, instance.pki, path), path,  # type: ignore[misc]
                   timeout_seconds=_START_SECONDS, check=check)  # fmt: skip
    node.wait_ready(timeout_seconds=_START_SECONDS)
    node.kubectl("--namespace=kube-system", "rollout", "status", "deployment/coredns", f"--timeout={_START_SECONDS:.0f}s",
                 timeout_seconds=_START_SECONDS + 10)  # fmt: skip
    check()
    instance.ready_mark.write_text(programs.build_key())
    say(f"node {instance.name} is ready after {time.monotonic() - began:.1f} s")
    return node


def _load_modules() -> None:
    """Where the kernel has them as modules. They stay: somebody else may have come to use them by the time of `down`."""
    for module, sign in (("br_netfilter", Path("/proc/sys/net/bridge")), ("overlay", Path("/sys/module/overlay"))):
        if not sign.exists() and (modprobe := find_tool("modprobe")):
            subprocess.run([modprobe, module], check=False)  # built in without a sign, or the node will say what it misses


def _make_directories(instance: Instance) -> None:
    if instance.run.exists():
        shutil.rmtree(instance.run)
    instance.directory.mkdir(parents=True, exist_ok=True)
    instance.directory.chmod(0o700)  # keys lie here
    for directory in ("log", "var-log", "kubelet", "etcd", "cni", "sysctl", "certs", "volume-plugins"):
        (instance.run / directory).mkdir(parents=True)
    (instance.store / "registry").mkdir(parents=True, exist_ok=True)


def _write_configuration(
    instance: Instance, addresses: Addresses, paths: Mapping[str, Path], *, sandbox_image: str
) -> None:
    subnet = addresses.subnet
    pki = create_pki(instance.pki.directory)
    services = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    ips = ["127.0.0.1", subnet.node_ip, subnet.api_service_ip]
    pki.sign("api", "/CN=kube-apiserver", [*(f"DNS:{one}" for one in services), *(f"IP:{one}" for one in ips)])
    pki.sign("kubelet-server", f"/O=system:nodes/CN=system:node:{NODE_NAME}", [f"IP:{subnet.node_ip}"])
    for client, subject in {
        "admin": "/O=system:masters/CN=admin",
        "kubelet-client": "/O=system:masters/CN=kube-apiserver-kubelet-client",
        "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
        "kube-controller-manager": "/CN=system:kube-controller-manager",
        "kube-scheduler": "/CN=system:kube-scheduler",
        "kube-proxy": "/CN=system:kube-proxy",
    }.items():
        pki.sign(client, subject)
        write_kubeconfig(instance.run / f"{client}.kubeconfig", pki, client, addresses.api_url, name=instance.name)
    (instance.run / "admin.kubeconfig").rename(instance.kubeconfig)
    resolv = Path("/etc/resolv.conf")
    (instance.run / "resolv.conf").write_text(resolv.read_text() if resolv.exists() else "")
    files = build_files(
        instance, addresses, sandbox_image=sandbox_image, lower_oom_scores=_has_capability(_CAP_SYS_RESOURCE)
    )
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    instance.plan.write_text(build_plan(instance, addresses, paths).to_json())


def _start_init(instance: Instance) -> ProcessIdentity:
    """Process 1 of the node. It outlives this process on purpose; its parent `unshare` takes it along when killed."""
    with (instance.logs / "init.log").open("ab") as log:
        unshare = subprocess.Popen(
            [
                "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc",
                sys.executable, *_init_argv(instance),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=REPOSITORY,
            env={"PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}", "HOME": "/root"},  # no proxies, no surprises
        )  # fmt: skip
    found: list[ProcessIdentity] = []

    def in_its_namespace() -> bool:
        found[:] = [one for one in _node_processes(instance) if read_parent(one.pid) == unshare.pid]
        return bool(found) and os.readlink(f"/proc/{found[0].pid}/ns/net") != os.readlink("/proc/self/ns/net")

    def check() -> None:
        if unshare.poll() is not None:
            raise ClusterError(f"the node's namespaces could not be made:\n{log_tail(instance.logs / 'init.log')}")

    wait_until(in_its_namespace, "the node's first process", timeout_seconds=10, check=check)
    return found[0]


def _handle(instance: Instance, addresses: Addresses) -> Node:
    return Node(instance.name, instance.kubeconfig, addresses.registry)


# ---- down ---------------------------------------------------------------------------------------------------------------


def _clean(instance: Instance) -> None:
    """Everything of the instance that is not a file, gone; whatever state it was in."""
    with undisturbed():
        for process in (processes := _node_processes(instance)):
            process.kill()
        wait_until(
            lambda: not any(process.alive() for process in processes), "the node's processes are gone", timeout_seconds=60
        )
        instance.ready_mark.unlink(missing_ok=True)
        disconnect(instance.link)
        remove_cgroup(instance.cgroup, _read_record(instance).cgroup_controllers)
    if processes:
        say(f"node {instance.name} is down")


def _init_argv(instance: Instance) -> list[str]:
    return ["-m", "tests.localcluster.inside", str(instance.directory)]


def _node_processes(instance: Instance) -> list[ProcessIdentity]:
    """The node's first process and its parent `unshare`: the only ones whose command line ends like this."""
    return find_processes(_init_argv(instance))


def _ended(instance: Instance) -> list[str]:
    """The node's programs that ended by themselves, with the end of their logs."""
    if not instance.ended.exists():
        return []
    entries = [json.loads(line) for line in instance.ended.read_text().splitlines()]
    return [
        f"{entry['name']} ended with code {entry['code']}:\n{log_tail(instance.logs / (entry['name'] + '.log'))}"
        for entry in entries
    ]


@dataclass(frozen=True)
class _Record:
    """On disk at once, so that the next run can undo what this one, killed, could not.

    network             the last one used: taken again if it is free, so that image names stay the same
    cgroup_controllers  switched on for the node, by hierarchy; to be switched off
    """

    network: str | None = None
    cgroup_controllers: dict[str, list[str]] = field(default_factory=dict)


def _write_record(instance: Instance, record: _Record) -> None:
    fresh = instance.record.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(record)))
    fresh.rename(instance.record)


def _read_record(instance: Instance) -> _Record:
    return _Record(**json.loads(instance.record.read_text())) if instance.record.exists() else _Record()


def _recorded_network(instance: Instance) -> Network | None:
    network = _read_record(instance).network
    return Network(network) if network else None


def _has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(mask, 16) >> number & 1)
