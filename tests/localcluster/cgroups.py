"""The node's own cgroup at the top of every hierarchy: the kubelet keeps its pods below it.

Works with cgroup v1 (one hierarchy a controller), the mixed layout, and v2 (one hierarchy).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tests.localcluster.processes import wait_until

_V2_CONTROLLERS = ("cpu", "cpuset", "hugetlb", "io", "memory", "pids")  # those the kubelet looks for


def hierarchies() -> list[Path]:
    """Where cgroup hierarchies are mounted, each once."""
    lines = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return sorted({Path(fields[1]) for fields in lines if fields[2] in ("cgroup", "cgroup2")})


def create_cgroup(name: str) -> dict[str, list[str]]:
    """Make it in every hierarchy. Answers which v2 controllers were switched on for it, by hierarchy, to be undone."""
    enabled: dict[str, list[str]] = {}
    for hierarchy in hierarchies():
        if (hierarchy / "cgroup.controllers").exists():
            enabled[str(hierarchy)] = _enable_controllers(hierarchy)
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if (group / "cgroup.subtree_control").exists():
            _enable_controllers(group)
        for setting in ("cpuset.mems", "cpuset.cpus"):  # v1 starts these empty, and a group without them takes no process
            if (group / setting).exists() and not (group / "cgroup.controllers").exists():
                (group / setting).write_text((hierarchy / setting).read_text())
    return enabled


def remove_cgroup(name: str, enabled: dict[str, list[str]]) -> None:
    """Remove it and all below. The kernel lets go of dead processes a moment late, hence the wait."""

    def removed() -> bool:
        for hierarchy in hierarchies():
            for directory, _, _ in os.walk(hierarchy / name, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        return not any((hierarchy / name).exists() for hierarchy in hierarchies())

    wait_until(removed, f"cgroup {name} is empty and removed", timeout_seconds=20)
    for hierarchy, controllers in enabled.items():
        for controller in controllers:
            with contextlib.suppress(OSError):  # somebody else has come to need it: theirs now
                (Path(hierarchy) / "cgroup.subtree_control").write_text(f"-{controller}")


def _enable_controllers(group: Path) -> list[str]:
    there = (group / "cgroup.controllers").read_text().split()
    on = (group / "cgroup.subtree_control").read_text().split()
    wanted = [controller for controller in _V2_CONTROLLERS if controller in there and controller not in on]
    for controller in wanted:
        (group / "cgroup.subtree_control").write_text(f"+{controller}")
    return wanted
