"""Machines on which no node can run are told why, before anything is touched, and what to do instead."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.localcluster import ClusterError, node, node_down, node_up


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("CONTEXT", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_a_user_who_is_not_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(node, "missing_packages", lambda tools: ["runc", "iptables"])
    with pytest.raises(ClusterError, match=r"takes root.*missing: runc iptables\..*CONTEXT="):
        node_up()
    assert not list(tmp_path.iterdir())


def test_another_system_than_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ClusterError, match=r"takes Linux, and this is darwin.*CONTEXT="):
        node_up()


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_CACHE_HOME"])
def test_a_directory_that_the_node_would_not_see(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "/var/lib/somebody")
    with pytest.raises(ClusterError, match=r"/var/lib/somebody/specserver.*own and would not see it.*XDG_STATE_HOME"):
        node_up()


def test_a_path_too_long_for_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/tmp/" + "long/" * 20)
    with pytest.raises(ClusterError, match=r"too long for a socket.*XDG_STATE_HOME"):
        node_up()


def test_down_where_nothing_was_ever_up_is_harmless(tmp_path: Path) -> None:
    node_down("never")
    assert not list(tmp_path.iterdir())
