"""Pins the dependencies of pyproject.toml anew, with hashes: requirements/operator.txt and requirements/dev.txt.

The development set is resolved under the operator's, so that tests run with the versions that the image has.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COMPILE = (
    "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url",
    "--python-version", "3.11", "pyproject.toml",
)  # fmt: skip


def main() -> int:
    operator, dev = "requirements/operator.txt", "requirements/dev.txt"
    for arguments in (
        ("--extra", "operator", "-o", operator),
        ("--extra", "operator", "--extra", "dev", "-c", operator, "-o", dev),
    ):
        subprocess.run([sys.executable, "-m", "uv", *_COMPILE, *arguments], cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
