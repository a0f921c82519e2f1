"""Names of instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.localcluster import paths
from tests.localcluster.layout import Instance

LONGEST_LINK_NAME = 15


def test_two_clones_of_one_name_are_two_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for clone in ("/home/a/specserver", "/home/b/specserver"):
        monkeypatch.setattr(paths, "REPOSITORY", Path(clone))
        names.append(paths.default_instance())
    assert len(set(names)) == 2
    assert all(name.startswith("specserver-") for name in names)
    links = {Instance(name).link for name in names}
    assert len(links) == 2
    assert all(len(link) <= LONGEST_LINK_NAME for link in links)


def test_one_name_used_by_two_users_is_two_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for state in ("/home/a/state", "/home/b/state"):
        monkeypatch.setenv("XDG_STATE_HOME", state)
        seen.append((Instance("mine").link, Instance("mine").cgroup))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


@pytest.mark.parametrize("directory", ["/x/Spec Server", "/x/-", "/x/" + "long" * 30, "/x/ünïcode"])
def test_any_directory_gives_a_good_name(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "REPOSITORY", Path(directory))
    paths.check_instance(paths.default_instance())


@pytest.mark.parametrize("name", ["", "-a", "a-", "a/b", "A", "a" * 41, "a b", "../a"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 40 lower-case letters"):
        paths.check_instance(name)
