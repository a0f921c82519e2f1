"""Pins every dependency anew, with hashes: the project's own (requirements/), those of the images
(images/), and what a GPU benchmark takes along (benchmarks/gpu/).

The development set is resolved under the operator's, so that tests run with the versions that the image has.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COMPILE = (
    "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url",
)  # fmt: skip
_OPERATOR = "requirements/operator.txt"
_OURS = ("--python-version", "3.11")
_GPU = (
    "--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39", "--no-deps",
    "benchmarks/gpu/requirements-common.in",
)  # fmt: skip
_LOCKS: dict[str, tuple[str, ...]] = {
    _OPERATOR: (*_OURS, "--universal", "pyproject.toml", "--extra", "operator"),
    "requirements/dev.txt": (*_OURS, "--universal", "pyproject.toml", "--extra", "operator", "--extra", "dev", "-c", _OPERATOR),
    "images/wheel-requirements.txt": (*_OURS, "images/wheel-requirements.in"),
    "images/sglang-cpu/requirements.txt": (*_OURS, "images/sglang-cpu/requirements.in"),
    "images/sglang-cpu/requirements-nodeps.txt": (*_OURS, "images/sglang-cpu/requirements-nodeps.in", "--no-deps"),
    "benchmarks/gpu/requirements-0.5.17.txt": (*_GPU, "benchmarks/gpu/requirements-0.5.17.in"),
    "benchmarks/gpu/requirements-0.5.20.txt": (*_GPU, "benchmarks/gpu/requirements-0.5.20.in"),
    "benchmarks/gpu/requirements-0.5.23.txt": (*_GPU, "benchmarks/gpu/requirements-0.5.23.in"),
}
"""What is written -> what it is compiled from."""


def main(names: list[str]) -> int:
    """`names`: which of the files to write; all, where none is named."""
    unknown = [name for name in names if name not in _LOCKS]
    if unknown:
        print(f"lock: no such file: {', '.join(unknown)}. There are: {', '.join(_LOCKS)}", file=sys.stderr)
        return 2
    for name in names or _LOCKS:
        print(name, flush=True)
        subprocess.run([sys.executable, "-m", "uv", *_COMPILE, *_LOCKS[name], "-o", name], cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
