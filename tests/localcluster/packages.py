"""Debian packages that the node needs: looked for by what they bring, installed by apt when something is missing.

Looking for programs, not package names, lets a machine with another vendor's containerd keep it. Nothing that gets
installed is started: a node runs its own copies in its own namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.errors import ClusterError
from tests.localcluster.progress import say


@dataclass(frozen=True)
class Tool:
    """A program (found on PATH or in a system directory) or a file (absolute path), and the package that brings it."""

    name: str
    package: str


NODE = (
    Tool("containerd", "containerd"),
    Tool("ctr", "containerd"),
    Tool("runc", "runc"),
    Tool("/usr/lib/cni/bridge", "containernetworking-plugins"),
    Tool("iptables", "iptables"),
    Tool("conntrack", "conntrack"),
    Tool("ip", "iproute2"),
    Tool("unshare", "util-linux"),
    Tool("openssl", "openssl"),
    Tool("docker-registry", "docker-registry"),
    Tool("/usr/share/doc/busybox-static", "busybox-static"),
)
IMAGES = (Tool("buildah", "buildah"), Tool("mmdebstrap", "mmdebstrap"))
PROMETHEUS = (Tool("prometheus", "prometheus"), Tool("promtool", "prometheus"))
ALL = (*NODE, *IMAGES, *PROMETHEUS)

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_tool(name: str) -> Path | None:
    """A program, also one in a system directory that an ordinary user's PATH lacks."""
    if name.startswith("/"):
        return Path(name) if Path(name).exists() else None
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":" + SYSTEM_PATH)
    return Path(found) if found else None


def missing_packages(tools: Iterable[Tool] = ALL) -> list[str]:
    return sorted({tool.package for tool in tools if find_tool(tool.name) is None})


def ensure_packages(tools: Iterable[Tool] = ALL) -> None:
    """Install what is missing. Without root or apt: an error that names it."""
    missing = missing_packages(tools)
    if not missing:
        return
    listed = " ".join(missing)
    if find_tool("apt-get") is None:
        raise ClusterError(f"missing, and this is no Debian (no apt-get): what the Debian packages {listed} bring. {OFFER}")
    if os.geteuid() != 0:
        raise ClusterError(f"missing Debian packages: {listed}. As root: apt-get install {listed}. {OFFER}")
    say(f"apt: installing {listed}")
    _apt("update", "--quiet")
    _apt("install", "--quiet", "--yes", "--no-install-recommends", *missing)
    if still := missing_packages(tools):
        raise ClusterError(f"apt installed {listed}, yet what {' '.join(still)} should bring is not there")


OFFER = "Or set CONTEXT= to a context of your kubeconfig: then that cluster is used and nothing is installed or started."


def _apt(*arguments: str) -> None:
    environment = os.environ | {
        "DEBIAN_FRONTEND": "noninteractive",
        "SYSTEMD_OFFLINE": "1",  # systemctl then starts none of the services that come along
    }
    done = subprocess.run(
        ["apt-get", *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        raise ClusterError(f"apt-get {arguments[0]} failed with code {done.returncode}: its output is above")
