"""The node's cgroup on the layouts that machines have, played by directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.localcluster import cgroups
from tests.localcluster.cgroups import create_cgroup, remove_cgroup


def test_v1_gets_one_group_a_controller_and_its_cpus_from_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for controller in ("memory", "cpuset"):
        (tmp_path / controller / "node").mkdir(parents=True)
    for setting, value in {"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"}.items():
        (tmp_path / "cpuset" / setting).write_text(value)
        (tmp_path / "cpuset" / "node" / setting).write_text("\n")  # the kernel makes these files with the group
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path / "cpuset", tmp_path / "memory"])
    assert create_cgroup("node") == {}
    assert (tmp_path / "cpuset" / "node" / "cpuset.cpus").read_text() == "0-1\n"
    assert (tmp_path / "cpuset" / "node" / "cpuset.mems").read_text() == "0\n"


def test_v2_switches_on_what_the_kubelet_needs_and_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory misc\n")
    control = tmp_path / "cgroup.subtree_control"
    control.write_text("cpu memory\n")
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path])
    enabled = create_cgroup("node")
    assert enabled == {str(tmp_path): ["cpuset"]}
    assert control.read_text() == "+cpuset"
    assert (tmp_path / "node").is_dir()
    (tmp_path / "node" / "kubepods" / "pod1").mkdir(parents=True)
    remove_cgroup("node", enabled)
    assert not (tmp_path / "node").exists()
    assert control.read_text() == "-cpuset"
    remove_cgroup("node", enabled)  # twice is once


def test_v2_leaves_on_what_was_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path])
    assert create_cgroup("node") == {str(tmp_path): []}
    remove_cgroup("node", {str(tmp_path): []})
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory\n"
