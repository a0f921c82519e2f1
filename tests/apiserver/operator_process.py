"""The operator as a process of its own, with the chart's rights and no more: what it may not do fails here, too."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import yaml

from tests.chart.helm import Helm, of_kind
from tests.localcluster import ApiServer
from tests.localcluster.binaries import ensure_helm
from tests.localcluster.paths import REPOSITORY
from tests.localcluster.processes import free_ports, log_tail, start_child
from tests.waiting import eventually

NAMESPACE = "specserver-system"
WRITES = ("create", "apply", "patch")


def install_rights(api: ApiServer, directory: Path) -> Path:
    """What the chart installs beside the operator itself, and a kubeconfig of the operator's account."""
    manifests = Helm(ensure_helm(), directory / "helm", api.kubeconfig).render(release="specserver", namespace=NAMESPACE)
    wanted = of_kind(
        manifests, "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"
    )
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all([namespace, *wanted]))
    api.kubectl("wait", "crd/speculativeservers.specserver.io", "--for=condition=Established", "--timeout=20s")
    (account,) = (one["metadata"]["name"] for one in of_kind(wanted, "ServiceAccount"))
    document = yaml.safe_load(api.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": api.kubectl("create", "token", account, "-n", NAMESPACE, "--duration=8h").strip()}
    kubeconfig = directory / "operator.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(document))
    return kubeconfig


class OperatorProcess:
    """`python -m specserver`, started, stopped and killed as tests like."""

    def __init__(
        self, kubeconfig: Path, log: Path, *, namespaces: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        (self.port,) = free_ports(1)
        self.log = log
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": str(REPOSITORY / "operator"),
            "SPECSERVER_PORT": str(self.port),
            "SPECSERVER_IDENTITY": f"operator-{self.port}",
            "SPECSERVER_LOG_FORMAT": "text",
            "SPECSERVER_NAMESPACES": ",".join(namespaces),
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def launch(self) -> None:
        self._process = start_child([sys.executable, "-m", "specserver"], self.log, env=self._environment)

    async def start(self) -> None:
        """Launches it and waits until it watches."""
        await self.launch()
        await eventually(self.is_ready, lambda: f"the operator is not ready:\n{log_tail(self.log)}")

    async def kill(self) -> None:
        """As the kernel does when memory runs out."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """As the kubelet does; the exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return await self.wait()

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, 15)

    async def page(self, path: str) -> str:
        """The page, or nothing where it is no success."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return await response.text() if response.status == 200 else ""

    async def text(self, path: str) -> str:
        """The page, whatever its status."""
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return await response.text()

    async def writes(self) -> dict[str, int]:
        """Requests so far that could have changed something, whether or not they did, by verb and kind, for all namespaces;
        but for the operator's own Lease."""
        page = await self.page("/metrics")
        series = r'^specserver_operator_api_requests_total\{kind="(\w+)",status="(\w+)",verb="(\w+)"\} ([0-9.e+]+)$'
        found = re.findall(series, page, re.MULTILINE)
        return {
            f"{verb} {kind} {status}": round(float(count))
            for kind, status, verb, count in found
            if verb in WRITES and kind != "Lease"
        }

    def faults(self) -> list[str]:
        """Lines of the log that no test may cause: what nobody foresaw, and what the chart's rights lack.

        Tests delete their namespace at the end, in which nothing can be written any more.
        """
        pattern = re.compile(r"Traceback|reconcile failed|refuses the operator itself|was not written|[Uu]nclosed|never awaited")
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if pattern.search(line) and "because it is being terminated" not in line]

    async def serves_pages(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            return await self.page("/healthz") != ""
        return False

    async def is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the operator ended with code {self._process.returncode}:\n{log_tail(self.log, 40)}")
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            return await self.page("/readyz") == "ok"
        return False


def decode(secret: dict[str, str], entry: str) -> str:
    return base64.b64decode(secret[entry]).decode()
