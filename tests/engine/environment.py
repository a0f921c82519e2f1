"""A virtual environment with real SGLang on a CPU, built once and shared by every clone on the machine.

It lies in the user's cache under the hash of what was installed, so that a changed requirement makes another environment and two
checkouts with the same requirements share one. The plugin is not installed into it: each run finds this checkout's sources and
their entry point through PYTHONPATH (`python_path`), so a change of the plugin needs no installation.

By hand: `python -m tests.engine.environment` builds it and prints its Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
IMAGE = REPOSITORY / "images" / "sglang-cpu"
REQUIREMENTS = IMAGE / "requirements.txt"
REQUIREMENTS_WITHOUT_DEPENDENCIES = IMAGE / "requirements-nodeps.txt"
LEAN = IMAGE / "lean.py"
STANDINS = IMAGE / "standins"
COMPLETE = "specserver-complete"
DISK_BYTES = 8 * 2**30


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "specserver" / "engine"


def ensure_environment() -> Path:
    """Path of the engine's Python. The first call downloads and installs for a few minutes; others wait for it."""
    root = cache_directory()
    root.mkdir(parents=True, exist_ok=True)
    name = _requirements_hash()
    environment = root / name
    python = environment / "bin" / "python"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (environment / COMPLETE).exists():
            _build(environment, python)
    return python


def python_path(run_directory: Path) -> str:
    """PYTHONPATH of an engine process: the stand-ins, this checkout's plugin, and the plugin's entry point.

    SGLang finds plugins by installed metadata, so a directory of this run holds a `dist-info` that a real installation would
    have written. The stand-ins come first: Python takes the first `sitecustomize` it finds.
    """
    metadata = run_directory / "specserver-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: specserver\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[sglang.srt.plugins]\nspecserver = specserver.plugin.entry:load\n")
    return os.pathsep.join(str(path) for path in (STANDINS, REPOSITORY / "operator", run_directory))


def engine_variables(run_directory: Path) -> dict[str, str]:
    """Environment in which SGLang runs on a CPU. The same variables stand in the image's Dockerfile."""
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",  # on two cores, threads that fight for them are ten times slower
        "TORCHDYNAMO_DISABLE": "1",  # compiling needs a C++ compiler and half a minute
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONPATH": python_path(run_directory),
    }


def _requirements_hash() -> str:
    digest = hashlib.sha256(f"python {sys.version_info[0]}.{sys.version_info[1]}\n".encode())
    for file in (REQUIREMENTS, REQUIREMENTS_WITHOUT_DEPENDENCIES, LEAN):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _build(environment: Path, python: Path) -> None:
    """Installs in place, since a virtual environment can't be moved. The marker comes last: without it, it is built anew."""
    free = shutil.disk_usage(environment.parent).free
    if free < DISK_BYTES:
        raise RuntimeError(f"{environment.parent} has {free / 2**30:.1f} GiB left; the engine needs {DISK_BYTES / 2**30:.0f} GiB")
    shutil.rmtree(environment, ignore_errors=True)
    quiet = ("--disable-pip-version-check", "--progress-bar", "off")
    pip = [str(python), "-m", "pip", "install", *quiet, "--require-hashes", "--no-deps"]
    _run("create the virtual environment", [sys.executable, "-m", "venv", str(environment)])
    _run("split the requirements", [str(python), str(LEAN), "split", str(REQUIREMENTS), str(environment)])
    _run("install torch", [*pip, "-r", str(environment / "torch.txt")])
    site_packages = next(environment.glob("lib/python*/site-packages"))
    _run("leave out what only a GPU would use", [str(python), str(LEAN), "trim", str(site_packages)])
    _run("install the other dependencies", [*pip, "-r", str(environment / "others.txt")])
    _run("install SGLang", [*pip, "-r", str(REQUIREMENTS_WITHOUT_DEPENDENCIES)])
    (environment / COMPLETE).touch()


def _run(what: str, command: list[str]) -> None:
    started = time.monotonic()
    print(f"engine environment: {what} …", file=sys.stderr, flush=True)
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        tail = "\n".join(result.stdout.splitlines()[-15:])
        raise RuntimeError(f"could not {what}: {' '.join(command)} ended with {result.returncode}\n{tail}")
    print(f"engine environment: {what}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(ensure_environment())
