"""What every cluster offers its users, whichever size it has and whoever started it."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.binaries import ensure_binary, ensure_helm
from tests.localcluster.errors import ClusterError


@dataclass(frozen=True)
class LocalCluster:
    """A cluster that can be used now.

    kubeconfig  of an administrator
    registry    HOST:PORT of the image registry that the cluster's nodes pull from; None where there is none
    """

    name: str
    kubeconfig: Path
    registry: str | None = None

    @property
    def kubectl_path(self) -> Path:
        return ensure_binary("kubectl")

    @property
    def helm(self) -> Path:
        return ensure_helm()

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 120.0) -> str:
        """kubectl's standard output; ClusterError with its standard error when it fails."""
        done = subprocess.run(
            [str(self.kubectl_path), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env=os.environ | self._no_proxy(),
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {shlex.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def wait_ready(self, *, timeout_seconds: float = 60.0) -> None:
        """Until the API server says that it is ready and every node that there is says so too."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self.kubectl("get", "--raw", "/readyz")
                break
            except ClusterError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"{self.name} is not ready after {timeout_seconds:.0f} s: {error}") from error
                time.sleep(0.1)
        if self.kubectl("get", "nodes", "--output=name").strip():
            left = max(1, int(deadline - time.monotonic()))
            self.kubectl("wait", "node", "--all", "--for=condition=Ready", f"--timeout={left}s", timeout_seconds=left + 10)

    def environment(self) -> dict[str, str]:
        """What `python -m tests.localcluster env` prints."""
        values = {"KUBECONFIG": str(self.kubeconfig), "KUBECTL": str(self.kubectl_path), "HELM": str(self.helm)}
        return values | ({"REGISTRY": self.registry} if self.registry else {}) | self._no_proxy()

    def _no_proxy(self) -> dict[str, str]:
        """Where the user's programs go through a proxy: an exception for this machine's own node."""
        if self.registry is None or not ({"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} & os.environ.keys()):
            return {}
        there = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
        exceptions = ",".join(filter(None, [there, self.registry.partition(":")[0]]))
        return {"NO_PROXY": exceptions, "no_proxy": exceptions}


def named_context() -> str | None:
    """The context of a cluster that the user brings along: then nothing is started and nothing is stopped."""
    return os.environ.get("CONTEXT") or None


def write_context_kubeconfig(context: str, path: Path) -> Path:
    """A kubeconfig that holds this one context of the user's, so that no test can reach another cluster by mistake."""
    done = subprocess.run(
        [str(ensure_binary("kubectl")), "config", "view", "--raw", "--minify", "--flatten", f"--context={context}"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise ClusterError(f"CONTEXT={context}: {done.stderr.strip()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(done.stdout)
    return path
