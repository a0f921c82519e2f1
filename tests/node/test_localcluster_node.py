"""The `node` size of the local cluster: real pods, and a machine that is afterwards as it was before."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.localcluster import ClusterError, Node, node_down, node_up
from tests.localcluster.archives import build_archive
from tests.localcluster.base import LocalCluster
from tests.localcluster.layout import Instance
from tests.localcluster.network import Network
from tests.localcluster.node import explain_node, find_node
from tests.localcluster.paths import REPOSITORY, state_root
from tests.localcluster.plan import read_plan
from tests.localcluster.processes import wait_until
from tests.node.machine import observe_machine

INTERRUPTED = 130


@pytest.fixture(scope="module", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Instances of these tests alone; binaries come from the ordinary cache. A short path: sockets lie in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("s")))
        patch.delenv("CONTEXT", raising=False)
        yield
        for left_by_a_failed_test in filter(Path.is_dir, state_root().iterdir()):
            node_down(left_by_a_failed_test.name, purge=True)


@pytest.fixture(scope="module")
def node(own_state: None) -> Iterator[Node]:
    started = node_up("shared")
    yield started
    node_down("shared", purge=True)


# ---- it is a cluster ----------------------------------------------------------------------------------------------------


def test_pods_find_services_by_name_and_the_host_reaches_both(node: Node) -> None:
    run_pod(node, "web", "sh", "-c", "mkdir /srv; echo -n hello > /srv/index.html; exec httpd -f -p 8080 -h /srv")
    node.kubectl("expose", "pod", "web", "--port=80", "--target-port=8080")
    run_pod(node, "client", "sleep", "3600")
    wget = ("exec", "client", "--", "timeout", "5", "wget", "-q", "-O-", "http://web.default.svc.cluster.local")
    wait_until(lambda: answer_of(node, *wget) == "hello", "the service answers", timeout_seconds=20)
    for what, field, port in (("pod/web", ".status.podIP", 8080), ("service/web", ".spec.clusterIP", 80)):
        ip = node.kubectl("get", what, f"--output=jsonpath={{{field}}}")
        with urllib.request.urlopen(f"http://{ip}:{port}", timeout=10) as answer:
            assert answer.read() == b"hello"
    assert node.kubectl("logs", "web") == ""  # the kubelet's certificate is good for the API server


def test_the_node_pulls_what_was_pushed_to_its_registry(node: Node) -> None:
    push(node, "specserver/probe:dev", text="one")
    run_pod(node, "pulled", "cat", "/bin/text", image=f"{node.registry}/specserver/probe:dev", until="Succeeded")
    assert node.kubectl("logs", "pulled") == "one"


def test_a_node_may_not_read_secrets_of_pods_that_it_does_not_run(node: Node) -> None:
    node.kubectl("create", "secret", "generic", "elsewhere", "--from-literal=key=value")
    kubelet = LocalCluster("kubelet", node.kubeconfig.parent / "kubelet.kubeconfig")
    with pytest.raises(ClusterError, match="no relationship found between node"):
        kubelet.kubectl("get", "secret", "elsewhere")


def test_a_node_may_not_give_itself_a_protected_label(node: Node) -> None:
    kubelet = LocalCluster("kubelet", node.kubeconfig.parent / "kubelet.kubeconfig")
    kubelet.kubectl("label", "node", "node", "harmless=yes")
    with pytest.raises(ClusterError, match="is not allowed to modify labels"):
        kubelet.kubectl("label", "node", "node", "node-restriction.kubernetes.io/tenant=me")


def test_pod_security_is_enforced(node: Node) -> None:
    node.kubectl("create", "namespace", "strict")
    node.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        node.kubectl("run", "probe", f"--image={node.busybox}", "--privileged", "--namespace=strict")


def test_a_dead_container_is_started_again_and_memory_is_limited(node: Node) -> None:
    """The kubelet's cgroups work: a limit is enforced, and its breach has a name."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "greedy"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": node.busybox,
                    "command": ["sh", "-c", "sleep 1; tail /dev/zero"],
                    "resources": {"limits": {"memory": "32Mi"}},
                }
            ],
        },
    }
    node.kubectl("create", "--filename=-", stdin=json.dumps(pod))
    reason = "{.status.containerStatuses[0].lastState.terminated.reason}"
    node.kubectl("wait", "pod/greedy", f"--for=jsonpath={reason}=OOMKilled", "--timeout=60s")
    node.kubectl("delete", "pod", "greedy")


def test_up_again_changes_nothing(node: Node) -> None:
    before = node.kubectl("get", "namespace", "kube-system", "--output=jsonpath={.metadata.uid}")
    assert node_up("shared") == node
    assert node.kubectl("get", "namespace", "kube-system", "--output=jsonpath={.metadata.uid}") == before


# ---- it leaves nothing behind -------------------------------------------------------------------------------------------


def test_down_leaves_the_machine_as_it_was_and_up_finds_its_images() -> None:
    instance = Instance("traces")
    before = observe_machine(instance)
    first = node_up("traces")
    push(first, "specserver/probe:dev", text="kept")
    run_pod(first, "busy", "sleep", "3600")
    during = observe_machine(instance)
    assert instance.link in "".join(during["links"])
    assert any(instance.cgroup in line for line in during["cgroups"])
    assert during["mounts"] == before["mounts"]
    assert during["iptables"] == before["iptables"]
    assert during["sysctls"] - before["sysctls"] == {line for line in during["sysctls"] if instance.link in line}
    node_down("traces")
    expect_machine(before, instance)
    node_down("traces")  # twice is once
    expect_machine(before, instance)

    second = node_up("traces")
    assert second.registry == first.registry
    assert second.kubectl("get", "pods").strip() == ""
    run_pod(second, "again", "cat", "/bin/text", image=f"{second.registry}/specserver/probe:dev", until="Succeeded")
    node_down("traces", purge=True)
    expect_machine(before, instance)
    assert not instance.directory.exists()


def link_is_there(instance: Instance, log: Path) -> bool:
    return Path("/sys/class/net", instance.link).exists()


def cgroup_is_there(instance: Instance, log: Path) -> bool:
    return any(Path("/sys/fs/cgroup").glob(f"*/{instance.cgroup}")) or Path("/sys/fs/cgroup", instance.cgroup).exists()


def api_is_ready(instance: Instance, log: Path) -> bool:
    return "API server ready" in log.read_text()


Moment = Callable[[Instance, Path], bool]


@pytest.mark.parametrize("moment", [cgroup_is_there, link_is_there, api_is_ready])
def test_down_after_a_run_that_was_killed(moment: Moment, tmp_path: Path) -> None:
    instance = Instance("killed")
    before = observe_machine(instance)
    end_up_at(moment, instance, signal.SIGKILL, tmp_path)
    node_down("killed", purge=True)
    expect_machine(before, instance)


def test_up_after_a_run_that_was_killed(tmp_path: Path) -> None:
    instance = Instance("killed")
    before = observe_machine(instance)
    end_up_at(api_is_ready, instance, signal.SIGKILL, tmp_path)
    assert find_node("killed") is None
    run_pod(node_up("killed"), "works", "true", until="Succeeded")
    node_down("killed", purge=True)
    expect_machine(before, instance)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (cgroup_is_there, signal.SIGINT),
        (link_is_there, signal.SIGINT),
        (api_is_ready, signal.SIGINT),
        (link_is_there, signal.SIGTERM),
    ],
)
def test_an_interrupted_run_takes_back_what_it_began(moment: Moment, number: signal.Signals, tmp_path: Path) -> None:
    instance = Instance("halted")
    before = observe_machine(instance)
    assert end_up_at(moment, instance, number, tmp_path, again=True) == INTERRUPTED
    expect_machine(before, instance)
    node_down("halted", purge=True)


def test_a_node_whose_first_process_was_killed_is_gone_with_all_its_containers() -> None:
    instance = Instance("beheaded")
    before = observe_machine(instance)
    node_up("beheaded")
    shims = [line for line in observe_machine(instance)["processes"] if "containerd-shim" in line]
    assert shims
    first = next(line for line in observe_machine(instance)["processes"] if line.split(maxsplit=1)[1].startswith(sys.executable))
    os.kill(int(first.split()[0]), signal.SIGKILL)
    wait_until(lambda: not observe_machine(instance)["processes"], "all of the node ended", timeout_seconds=20)
    assert explain_node("beheaded") == "beheaded: down"
    node_down("beheaded", purge=True)
    expect_machine(before, instance)


def test_a_program_that_ends_makes_the_node_unusable_and_up_replaces_it() -> None:
    instance = Instance("limping")
    node_up("limping")
    kubelet = next(line for line in observe_machine(instance)["processes"] if "/kubelet --config" in line)
    os.kill(int(kubelet.split()[0]), signal.SIGKILL)
    wait_until(lambda: "kubelet ended with code -9" in explain_node("limping"), "status tells of it", timeout_seconds=10)
    run_pod(node_up("limping"), "works", "true", until="Succeeded")
    node_down("limping", purge=True)


def test_two_that_start_together_do_not_collide() -> None:
    names = ("left", "right")
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(node_up, names)
    assert left.registry != right.registry
    run_pod(left, "works", "true", until="Succeeded")
    node_down("left", purge=True)
    run_pod(right, "works", "nslookup", "kubernetes.default.svc.cluster.local", until="Succeeded")
    node_down("right", purge=True)


def test_a_service_address_that_nobody_has_refuses_at_once(node: Node) -> None:
    """Rather than leaving the client to hang, as it would for a service that is only just being set up."""
    services = Network(read_plan((node.kubeconfig.parent / "plan.json").read_text()).services)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((str(services[-2]), 80), timeout=10)


# ---- help ---------------------------------------------------------------------------------------------------------------


def run_pod(node: Node, name: str, *command: str, image: str | None = None, until: str = "Running") -> None:
    node.kubectl("run", name, f"--image={image or node.busybox}", "--restart=Never", "--", *command)
    node.kubectl("wait", f"pod/{name}", f"--for=jsonpath={{.status.phase}}={until}", "--timeout=60s")


def answer_of(node: Node, *arguments: str) -> str | None:
    try:
        return node.kubectl(*arguments)
    except ClusterError:
        return None


def push(node: Node, image: str, *, text: str) -> None:
    """An image of one program and one text, by the tool that builds the product's images."""
    file = node.kubeconfig.parent / "text"
    file.write_text(text)
    archive = node.kubeconfig.parent / "probe.tar"
    archive.write_bytes(
        build_archive(f"localhost/{image}", {"bin/cat": Path("/bin/busybox"), "bin/text": file}, entrypoint=())
    )
    storage = node.kubeconfig.parent / "buildah"  # its own, so that the machine's stays out of this
    buildah = ["buildah", f"--root={storage}", f"--runroot={storage}/run", "--storage-driver=vfs"]
    for arguments in (["pull", f"docker-archive:{archive}"],
                      ["push", "--tls-verify=false", f"localhost/{image}", f"docker://{node.registry}/{image}"]):  # fmt: skip
        done = subprocess.run([*buildah, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def end_up_at(
    moment: Moment, instance: Instance, number: signal.Signals, tmp_path: Path, *, again: bool = False
) -> int:
    """Start `up` from the command line and send it a signal at that moment, and another while it cleans up; its exit status."""
    log = tmp_path / "up.log"
    with log.open("w") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "tests.localcluster", "up", "--name", instance.name],
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
        )
    wait_until(
        lambda: moment(instance, log), f"{moment.__name__}; {log}", timeout_seconds=60, interval_seconds=0.01,
        check=lambda: pytest.fail(log.read_text()) if run.poll() is not None else None,
    )  # fmt: skip
    run.send_signal(number)
    if again:
        wait_until(lambda: "cleaning up" in log.read_text(), f"it cleans up; {log}", timeout_seconds=60, interval_seconds=0.01)
        run.send_signal(number)
    return run.wait(timeout=60)


def expect_machine(before: dict[str, set[str]], instance: Instance) -> None:
    """As before; the kernel clears dead network namespaces a moment late."""

    def difference() -> dict[str, set[str]]:
        after = observe_machine(instance)
        return {kind: after[kind] ^ before[kind] for kind in before if after[kind] != before[kind]}

    try:
        wait_until(lambda: not difference(), "the machine is as it was", timeout_seconds=10)
    except ClusterError:
        pytest.fail(f"left behind or taken away: {difference()}")
