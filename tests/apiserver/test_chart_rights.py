"""The chart's rights are the operator's work: it never meets a refusal, and no right lies idle.

The real operator runs here as a process, with the token of the account that the chart made and the environment that the chart
gives it, against an API server with controllers. Without a kubelet the pods stay pending, which is enough for every request
that it makes: what isn't serving yet is drained like anything else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from specserver.api import labels
from tests.chart.helm import CHART, REPOSITORY, Helm, Values, only
from tests.chart.test_rbac import LEASE, WHERE_IT_WATCHES, Right, wanted
from tests.localcluster import ApiServer, ClusterError, start_apiserver
from tests.localcluster.binaries import ensure_helm
from tests.localcluster.processes import free_ports, log_tail, wait_until

HOME = "specserver-system"
SERVER = """
apiVersion: specserver.io/v1alpha1
kind: SpeculativeServer
metadata: {name: tiny}
spec:
  model: {uri: "hf://org/model"}
  speculation: {draftModel: {uri: "hf://org/draft"}}
  engine: {image: "sglang:dev"}
  replicas: 2
"""

# What each request of the operator's client asks of the authorizer.
VERBS = {
    "get": ["get"], "list": ["list"], "watch": ["watch"], "create": ["create"], "apply": ["create", "patch"], "patch": ["patch"],
}  # fmt: skip
RESOURCES = {
    "Deployment": ("apps", "deployments"),
    "ReplicaSet": ("apps", "replicasets"),
    "PodDisruptionBudget": ("policy", "poddisruptionbudgets"),
    "Pod": ("", "pods"),
    "Service": ("", "services"),
    "ConfigMap": ("", "configmaps"),
    "Secret": ("", "secrets"),
    "Event": ("", "events"),
    "Lease": ("coordination.k8s.io", "leases"),
    "SpeculativeServer": ("specserver.io", "speculativeservers"),
}


@dataclass(frozen=True)
class Operator:
    """A running operator. `log` is a file."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def answers(self, page: str) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{page}", timeout=5) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def requests(self) -> set[tuple[str, str, str]]:
        """Verb, kind and HTTP status of what its client has sent."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        (family,) = [one for one in families if one.name == "specserver_operator_api_requests"]
        return {
            (sample.labels["verb"], sample.labels["kind"], sample.labels["status"])
            for sample in family.samples
            if sample.name.endswith("_total")
        }

    def check(self) -> None:
        if self.process.poll() is not None:
            raise ClusterError(f"the operator ended with code {self.process.returncode}:\n{log_tail(self.log)}")


@contextmanager
def run_operator(api: ApiServer, manifests: list[dict[str, Any]], directory: Path) -> Iterator[Operator]:
    """As its Deployment would, but on this machine: the account's token, the container's environment, a free port."""
    deployment = only(manifests, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (port,) = free_ports(1)
    environment = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    environment |= {"SPECSERVER_PORT": str(port), "PYTHONPATH": str(REPOSITORY / "operator")}
    environment["KUBECONFIG"] = str(account_kubeconfig(api, pod["serviceAccountName"], directory / "kubeconfig"))
    log = directory / "operator.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "specserver"],
            env={**os.environ, **environment}, cwd=directory, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            yield Operator(process, port, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def account_kubeconfig(api: ApiServer, account: str, path: Path) -> Path:
    """The administrator's kubeconfig with the account's token in place of the administrator's certificate."""
    token = api.kubectl("create", "token", account, "-n", HOME).strip()
    config = yaml.safe_load(api.kubectl("config", "view", "--raw", "--minify", "--flatten", "--output=json"))
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with start_apiserver(tmp_path_factory.mktemp("api"), with_controllers=True) as api:
        api.kubectl("create", "namespace", HOME)
        yield api


@pytest.mark.parametrize("scope", ["all namespaces", "one namespace"])
def test_operator_does_its_work_with_the_rights_of_the_chart_and_needs_them_all(
    api: ApiServer, tmp_path: Path, scope: str
) -> None:
    team = scope.replace(" ", "-")
    values: Values = {"watchNamespaces": [team] if scope == "one namespace" else [], "logFormat": "text"}
    helm = Helm(ensure_helm(), tmp_path / "helm", api.kubeconfig)
    api.kubectl("create", "namespace", team)
    helm.run("install", "op", str(CHART), "-n", HOME, values=values)
    api.kubectl("wait", "crd", "speculativeservers.specserver.io", "--for=condition=Established", "--timeout=30s")

    def read(*what: str) -> dict[str, Any]:
        return dict(json.loads(api.kubectl("get", "-n", team, "--output=json", "--ignore-not-found", *what) or "{}"))

    def replicas() -> int | None:
        """The Deployment's number, once its pods are there."""
        wanted_replicas = read("deployment", "tiny").get("spec", {}).get("replicas")
        pods = read("pods", "--selector=specserver.io/server=tiny")["items"]
        return wanted_replicas if len(pods) == wanted_replicas else None

    with run_operator(api, helm.render(values, release="op", namespace=HOME), tmp_path) as operator:

        def wait(condition: Any, what: str) -> None:
            try:
                wait_until(condition, what, timeout_seconds=60, check=operator.check)
            except ClusterError as error:
                pytest.fail(f"{error}\n{log_tail(operator.log)}")

        # 1. It comes up, and makes what a server needs.
        wait(lambda: operator.answers("/readyz") and operator.answers("/healthz"), "the operator is ready")
        api.kubectl("create", "-n", team, "-f", "-", stdin=SERVER)
        wait(lambda: replicas() == 2, "two pods")
        wait(lambda: "conditions" in read("ssv", "tiny").get("status", {}), "conditions in the status")
        # 2. One replica fewer, which marks a pod and lowers the number.
        api.kubectl("patch", "ssv", "tiny", "-n", team, "--type=merge", '-p={"spec": {"replicas": 1}}')
        wait(lambda: replicas() == 1, "one pod")
        # 3. It notices at once, through its watches, what goes missing.
        api.kubectl("delete", "service", "tiny", "-n", team)
        wait(lambda: bool(read("service", "tiny")), "the Service again")
        # 4. It renews its Lease.
        wait(lambda: ("patch", "Lease", "200") in operator.requests(), "a renewal")
        requests = operator.requests()

    log = operator.log.read_text()
    refused = [request for request in requests if request[2] in ("401", "403")]
    assert not refused, log
    assert "forbidden" not in log.lower(), log
    assert used(requests) | {("specserver.io", "speculativeservers/finalizers", "update")} == wanted(WHERE_IT_WATCHES | LEASE)

    helm.run("uninstall", "op", "-n", HOME)
    api.kubectl("delete", "namespace", team)


def used(requests: set[tuple[str, str, str]]) -> set[Right]:
    """Rights that these requests and the watches ask for. The only patch of a SpeculativeServer is of its status."""
    rights = {(*RESOURCES[kind], verb) for request, kind, _status in requests for verb in VERBS[request]}
    rights |= {(labels.GROUP, labels.PLURAL, verb) for verb in ("list", "watch")}  # kopf's
    group, plural = RESOURCES["SpeculativeServer"]
    return {
        (group, f"{plural}/status", "patch") if right == (group, plural, "patch") else right for right in rights
    }
