"""The cache of built programs: once, whole or not at all, and never by guessing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.localcluster import binaries
from tests.localcluster.errors import ClusterError
from tests.localcluster.paths import REPOSITORY, cache_root
from tests.localcluster.processes import wait_until

# Fills a cache directory slowly, telling of each time that it does; argv: log, seconds.
FILL = """
import sys, time
from pathlib import Path
from tests.localcluster.binaries import _ensure_directory
def fill(target):
    with open(sys.argv[1], "a") as log: log.write("fill\\n")
    (target / "half").write_text("")
    time.sleep(float(sys.argv[2]))
    (target / "whole").write_text("")
print(_ensure_directory("things", "key", fill), flush=True)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)


def start_fill(log: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", FILL, str(log), str(seconds)], stdout=subprocess.PIPE, text=True)


def test_two_that_start_together_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    runs = [start_fill(log, 0.5), start_fill(log, 0.5)]
    found = {Path(run.communicate()[0].strip()) for run in runs}
    assert found == {cache_root() / "things" / "key"}
    assert (found.pop() / "whole").exists()
    assert log.read_text() == "fill\n"


def test_a_build_that_was_killed_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = start_fill(log, 600)
    wait_until(lambda: any((cache_root() / "things").glob(".key.*/half")), "it is in the middle", timeout_seconds=20)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert not (cache_root() / "things" / "key").exists()
    start_fill(log, 0).communicate()
    assert (cache_root() / "things" / "key" / "whole").exists()
    assert not list((cache_root() / "things").glob(".key.*"))


def test_a_failing_build_leaves_nothing() -> None:
    def fill(target: Path) -> None:
        (target / "half").write_text("")
        raise ClusterError("no")

    with pytest.raises(ClusterError, match=r"^no$"):
        binaries._ensure_directory("things", "key", fill)
    assert [path.name for path in (cache_root() / "things").iterdir()] == ["key.lock"]


def test_ready_binaries_are_used_and_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setattr(binaries, "_build", lambda target: pytest.fail("built"))
    assert binaries.ensure_binaries(["etcd", "kube-apiserver"]) == {
        "etcd": tmp_path / "etcd",
        "kube-apiserver": tmp_path / "kube-apiserver",
    }


def test_what_ready_binaries_lack_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etcd").touch(mode=0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setattr(binaries, "_build", lambda target: (target / "kubectl").touch())
    found = binaries.ensure_binaries(["etcd", "kubectl"])
    assert found["etcd"] == tmp_path / "etcd"
    assert found["kubectl"].is_relative_to(cache_root())


def test_a_directory_of_ready_binaries_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/nowhere")
    with pytest.raises(ClusterError, match="KUBEBUILDER_ASSETS=/nowhere"):
        binaries.ensure_binary("etcd")


@pytest.mark.parametrize(
    ("says", "usable"),
    [("go1.26", True), ("go1.26.8", True), ("go1.27rc1", True), ("go2.0", True), ("go1.25.9", False), ("devel", False)],
)
def test_go_on_path_is_used_if_new_enough(says: str, usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho {says}\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert binaries.find_go() == (go if usable else None)


def test_the_key_changes_with_what_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = binaries.build_key()
    assert binaries.build_key() == before
    monkeypatch.setattr(binaries, "MODULES", (*binaries.MODULES[:-1], binaries.Module("pause", {"pause": "."}, "-s")))
    assert binaries.build_key() != before


def test_waiting_for_another_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    run = start_fill(log, 3.0)
    wait_until(log.exists, "the other run builds", timeout_seconds=20)
    began = time.monotonic()
    binaries._ensure_directory("things", "key", lambda target: pytest.fail("built twice"))
    assert time.monotonic() - began > 0.1
    assert "another run is at it" in capsys.readouterr().err
    run.communicate()
