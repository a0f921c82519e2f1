"""Torch's CUDA build on a machine without a GPU, without 3 GB of CUDA libraries that would be loaded and never called.

    python lean.py split REQUIREMENTS DIRECTORY   writes torch.txt, to install first, and others.txt
    python lean.py trim SITE_PACKAGES             after torch.txt is installed there

`pip install torch` brings torch built for CUDA wherever no other index is configured. That build starts without a GPU, but its
shared libraries name cuBLAS, cuDNN, NCCL and others as needed, and Python resolves every symbol of an extension module when it
loads it. Two things make it start without them: each missing library is a link to a tiny one that torch has anyway (the loader
asks for the names of files first, and for functions only later), and Python is told to resolve functions when they are first
called, which on a CPU never happens. The CUDA runtime itself (2 MB) stays: torch asks it whether there is a GPU.

Rejected: installing everything (5.9 GB of image instead of 2.6, all of it built, pushed and pulled on each fresh machine), and a
package index with CPU builds of torch (a second source to trust and to reach).
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

TORCH_LAYER = ("torch", "triton", "nvidia-cuda-runtime")
LEFT_OUT = re.compile(r"nvidia-|cuda-")

# The sonames in torch's shared libraries that come from packages left out, of torch 2.13 for CUDA 13.
MISSING_LIBRARIES = (
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcufile.so.0",
    "libcupti.so.13",
    "libcurand.so.10",
    "libcusparse.so.12",
    "libcusparseLt.so.0",
    "libnccl.so.2",
    "libnvrtc.so.13",
    "libnvshmem_host.so.3",
)
STAND_IN = "libtorch_global_deps.so"  # no functions and no symbol versions of its own
LAZY_BINDING = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n"

# What only compiling, profiling or a GPU would open. `torch/lib/libtorch_cuda.so` has to stay: torch's Python module shares
# classes with it.
UNUSED = (
    "torch/bin/protoc",
    "torch/bin/protoc-3.13.0.0",
    "torch/include",
    "torch/lib/libtorch_cuda_linalg.so",
    "triton/FileCheck",
    "triton/_C/libproton.so",
    "triton/backends/nvidia/bin",
    "triton/backends/nvidia/include",
    "triton/backends/nvidia/lib",
    "triton/instrumentation",
    "triton/plugins",
)


def split(requirements: str) -> tuple[str, str]:
    """A locked requirements file -> the layer with torch, and the others; what this module replaces is in neither."""
    torch, others = [], []
    for entry in re.findall(r"^[A-Za-z].*(?:\n[ \t].*)*\n", requirements, re.MULTILINE):
        name = re.split(r"[^A-Za-z0-9._-]", entry, maxsplit=1)[0].lower()
        if name in TORCH_LAYER:
            torch.append(entry)
        elif not LEFT_OUT.match(name):
            others.append(entry)
    if len(torch) != len(TORCH_LAYER):
        raise ValueError(f"the requirements need one entry each for {', '.join(TORCH_LAYER)}; found {len(torch)}")
    return "".join(torch), "".join(others)


def trim(site_packages: Path) -> None:
    libraries = site_packages / "torch" / "lib"
    if not (libraries / STAND_IN).is_file():
        raise ValueError(f"{libraries}: no {STAND_IN} here: install torch.txt into this directory first")
    for name in MISSING_LIBRARIES:
        (libraries / name).unlink(missing_ok=True)
        (libraries / name).symlink_to(STAND_IN)
    (site_packages / "lazy_binding.pth").write_text(LAZY_BINDING)
    for name in UNUSED:
        path = site_packages / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["split", requirements, directory]:
            torch, others = split(Path(requirements).read_text())
            Path(directory).mkdir(parents=True, exist_ok=True)
            (Path(directory) / "torch.txt").write_text(torch)
            (Path(directory) / "others.txt").write_text(others)
        case ["trim", site_packages]:
            trim(Path(site_packages))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
