"""Finishes FlashInfer kernels whose compilation an earlier run began and could not end: beside the imports of the servers that
will want them, instead of inside their first request.

    python3 -m benchmarks.gpu.kernels FOLDER

Under FlashInfer's own lock of each kernel, so that a server that wants it meanwhile waits and then finds it done.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from filelock import FileLock


def find_unfinished(folder: Path) -> list[Path]:
    """Build directories without their library."""
    plans = folder.glob("**/cached_ops/*/build.ninja")
    return [plan.parent for plan in plans if not (plan.parent / f"{plan.parent.name}.so").exists()]


def finish(build: Path) -> int:
    lock = build.parent / "tmp" / f"{build.name}.lock"
    lock.parent.mkdir(exist_ok=True)
    with FileLock(lock):
        return subprocess.run(["ninja", "-C", str(build)], stdout=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    for unfinished in find_unfinished(Path(sys.argv[1])):
        print(f"{unfinished.name}: {finish(unfinished)}", flush=True)
