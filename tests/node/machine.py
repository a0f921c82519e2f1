"""What a node could leave behind on its machine, as comparable text."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.localcluster.cgroups import hierarchies
from tests.localcluster.layout import Instance

_SYSCTLS = re.compile(r"vm\.(overcommit|panic)|kernel\.(panic|keys)|net\.(ipv4\.(ip_forward|conf)|bridge|netfilter)")
# Mounts of image builds, which may run at the same time and have nothing to do with a node.
_IMAGE_BUILDERS = re.compile(r"/storage/(overlay|vfs)|/mmdebstrap\.|/buildah")
# Directories of the machine in which container programs like to leave things.
_LITTERED = (
    "/etc/cni", "/opt", "/run", "/run/containerd", "/run/netns", "/usr/libexec", "/var/lib", "/var/lib/cni", "/var/lib/kubelet",
    "/var/log",
)  # fmt: skip


def observe_machine(instance: Instance) -> dict[str, set[str]]:
    """Kind -> lines. Links, routes and cgroups of other instances are left out: they may come and go meanwhile."""
    return {
        "routes": _foreign_left_out(_lines("ip", "route", "show", "table", "all"), instance),
        "links": _foreign_left_out((line.split(":")[1] for line in _lines("ip", "-o", "link")), instance),
        "iptables": {line for line in _lines("iptables-save") if not line.startswith("#")},
        "sysctls": _foreign_left_out(filter(_SYSCTLS.match, _lines("sysctl", "--all", "--ignore")), instance),
        "mounts": {line for line in Path("/proc/mounts").read_text().splitlines() if not _IMAGE_BUILDERS.search(line)},
        "cgroups": _foreign_left_out(_cgroups(), instance),
        "files": {str(path) for directory in map(Path, _LITTERED) if directory.is_dir() for path in directory.iterdir()},
        "processes": set(_processes(instance)),
    }


def _cgroups() -> Iterator[str]:
    """Those at the top of a hierarchy, and all that bear a node's names wherever they are. The others are groups of the
    machine's own sessions and services, which come and go."""
    for hierarchy in map(str, hierarchies()):
        for path, _, _ in os.walk(hierarchy):
            if os.path.dirname(path) == hierarchy or re.search(r"kubepods|k8s\.io|cri-containerd|specserver-", path):
                yield path


def _lines(*argv: str) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def _foreign_left_out(lines: Iterable[str], instance: Instance) -> set[str]:
    mine = instance.identity
    foreign = re.compile(rf"\bssv(?!{mine})[0-9a-f]{{8}}|/specserver-[a-z0-9-]+-(?!{mine})[0-9a-f]{{8}}(/|$)")
    return {line.strip() for line in lines if not foreign.search(line)}


def _processes(instance: Instance) -> list[str]:
    """Processes that name the instance's directory or live in its cgroup: programs, shims, containers."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(instance.directory) in command or instance.cgroup in (entry / "cgroup").read_text():
                found.append(f"{entry.name} {command}")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
