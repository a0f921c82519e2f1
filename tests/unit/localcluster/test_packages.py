"""What is missing is named, and only root on a Debian gets it installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

import pytest

from tests.localcluster import packages
from tests.localcluster.errors import ClusterError
from tests.localcluster.packages import Tool, ensure_packages, missing_packages

THERE = Tool("sh", "dash")
ABSENT = Tool("no-such-program", "some-package")
ABSENT_FILE = Tool("/no/such/file", "another-package")


def test_missing_packages_are_found_by_what_they_bring() -> None:
    assert missing_packages([THERE, ABSENT, ABSENT, ABSENT_FILE]) == ["another-package", "some-package"]


def test_nothing_missing_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("ran something"))
    ensure_packages([THERE])


def test_a_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match=r"apt-get install another-package some-package.*CONTEXT="):
        ensure_packages([ABSENT, ABSENT_FILE])


def test_elsewhere_than_on_debian_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_tool", lambda name: None)
    with pytest.raises(ClusterError, match=r"no Debian.*some-package.*CONTEXT="):
        ensure_packages([ABSENT])


def test_root_installs_without_a_question_and_starts_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Sequence[str]] = []
    installed: set[str] = set()

    def run(argv: Sequence[str], *, env: dict[str, str], **options: object) -> subprocess.CompletedProcess[str]:
        assert env["DEBIAN_FRONTEND"] == "noninteractive"
        assert env["SYSTEMD_OFFLINE"] == "1"
        ran.append(argv)
        installed.add(argv[-1])
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(packages, "missing_packages", lambda tools: [] if "some-package" in installed else ["some-package"])
    ensure_packages([ABSENT])
    assert [argv[1] for argv in ran] == ["update", "install"]
    assert {"--yes", "--no-install-recommends", "some-package"} <= set(ran[1])


def test_a_failing_installation_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", lambda argv, **options: subprocess.CompletedProcess(argv, 100))
    with pytest.raises(ClusterError, match="apt-get update failed with code 100"):
        ensure_packages([ABSENT])
