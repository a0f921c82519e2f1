"""The `apiserver` size of the local cluster: real admission, real authorization, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.localcluster import ApiServer, ClusterError, LocalCluster, node_down, node_up, start_apiserver
from tests.localcluster.paths import REPOSITORY
from tests.localcluster.processes import read_identity, wait_until

READY_SECONDS = 10.0  # with the binaries built and in the page cache; the figure the project promises


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with start_apiserver(tmp_path_factory.mktemp("controlled"), with_controllers=True) as api:
        yield api


@pytest.fixture(autouse=True)
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTEXT", raising=False)


def test_two_start_fast_side_by_side_and_know_nothing_of_each_other(tmp_path: Path) -> None:
    start_apiserver(tmp_path / "warm-up").stop()
    began = time.monotonic()
    with start_apiserver(tmp_path / "one") as one:
        first = time.monotonic()
        with start_apiserver(tmp_path / "two") as two:
            second = time.monotonic()
            assert one.url != two.url
            one.kubectl("create", "namespace", "only-in-one")
            with pytest.raises(ClusterError, match="not found"):
                two.kubectl("get", "namespace", "only-in-one")
    assert min(first - began, second - first) < READY_SECONDS, "the other one may have met busy neighbours"
    assert all(child.poll() is not None for child in (*one.children.values(), *two.children.values()))
    one.stop()  # a second time is harmless


def test_the_version_is_the_pinned_one(controlled: ApiServer) -> None:
    assert '"gitVersion": "v1.36.3"' in controlled.kubectl("get", "--raw", "/version")


def test_service_account_admission_gives_a_pod_its_account(controlled: ApiServer) -> None:
    controlled.kubectl("run", "probe", "--image=none", "--namespace=default")
    account = controlled.kubectl("get", "pod", "probe", "--output=jsonpath={.spec.serviceAccountName}")
    assert account == "default"


def test_pod_security_admission_refuses_a_privileged_pod(controlled: ApiServer) -> None:
    controlled.kubectl("create", "namespace", "strict")
    controlled.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        controlled.kubectl("run", "probe", "--image=none", "--privileged", "--namespace=strict")


def test_rbac_refuses_an_account_without_a_role(controlled: ApiServer) -> None:
    with pytest.raises(ClusterError, match="Forbidden"):
        controlled.kubectl("get", "secrets", "--as=system:serviceaccount:default:default")


def test_controllers_work(controlled: ApiServer) -> None:
    controlled.kubectl("create", "deployment", "web", "--image=none", "--replicas=2")
    controlled.kubectl("wait", "--for=create", "pod", "--selector=app=web", "--timeout=20s")
    controlled.kubectl("wait", "pod", "--selector=app=web", "--for=jsonpath={.status.phase}=Pending", "--timeout=20s")
    controlled.kubectl("wait", "pod", "--selector=app=web", "--for=condition=PodScheduled=false", "--timeout=20s")


def test_nothing_outlives_a_test_run_that_was_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, threading, time
        from pathlib import Path
        from tests.localcluster import start_apiserver
        started = []
        # From a thread that ends: the programs must live as long as the process, not as long as the thread.
        thread = threading.Thread(target=lambda: started.append(start_apiserver(Path(sys.argv[1]))))
        thread.start(); thread.join()
        time.sleep(0.5)
        assert all(child.poll() is None for child in started[0].children.values())
        print(*[child.pid for child in started[0].children.values()], flush=True)
        time.sleep(600)
        """
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert run.stdout is not None
    children = [identity for pid in run.stdout.readline().split() if (identity := read_identity(int(pid)))]
    assert len(children) == 2
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    wait_until(lambda: not any(child.alive() for child in children), "etcd and API server gone", timeout_seconds=10)


def test_a_program_that_fails_at_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "assets" / "etcd"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no space left >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(broken.parent))
    with pytest.raises(ClusterError, match="etcd ended with code 3:\nno space left"):
        start_apiserver(tmp_path / "broken")


def test_context_uses_the_named_cluster_and_starts_nothing(
    controlled: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(controlled.kubeconfig))
    monkeypatch.setenv("CONTEXT", controlled.name)
    with start_apiserver(tmp_path) as given:
        assert given.url == controlled.url
        assert given.children == {}
        given.wait_ready()
    controlled.wait_ready()


def test_an_unknown_context_is_an_error(controlled: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(controlled.kubeconfig))
    monkeypatch.setenv("CONTEXT", "nowhere")
    with pytest.raises(ClusterError, match="CONTEXT=nowhere"):
        start_apiserver(tmp_path)


def test_a_node_from_a_named_context_is_that_cluster(
    controlled: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(controlled.kubeconfig))
    monkeypatch.setenv("CONTEXT", controlled.name)
    monkeypatch.setenv("REGISTRY", "registry.example:5000")
    given = node_up()
    assert given.registry == "registry.example:5000"
    given.kubectl("get", "namespace", "default")
    node_down()
    controlled.wait_ready()


def test_a_proxy_of_the_user_is_not_asked_for_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with start_apiserver(tmp_path) as api:
        api.wait_ready()


def test_from_the_command_line_it_runs_until_interrupted() -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.localcluster", "up", "--size", "apiserver"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    exported = dict(line.removeprefix("export ").strip().split("=", 1) for line in (run.stdout.readline() for _ in range(3)))
    cluster = LocalCluster("from the command line", Path(exported["KUBECONFIG"]))
    cluster.kubectl("get", "serviceaccount", "default")
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=20) == 130
    with pytest.raises(ClusterError):
        cluster.kubectl("get", "--raw", "/readyz")
    assert not Path(exported["KUBECONFIG"]).exists()
