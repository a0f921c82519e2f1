"""Builds `.gpu/`: all that a GPU machine without a network lacks for running SGLang with our plugin from this repository.

    benchmarks/gpu/make_carry [--sglang 0.5.23] [--kernels JIT.tar.xz]

The machine has Python 3.12, torch 2.11 for CUDA 13.0, Triton 3.6 and nvcc. Everything else comes from the Python package index,
pinned by hash (requirements-<release>.txt), and is packed so small that it travels with the repository in one 64 MiB transfer:

    site.tar.xz     site-packages
    attention.tar.xz   FlashAttention-3, trimmed (attention.py)
    kernels.tar.xz  kernels compiled by an earlier run, from its output: saves the next run a minute or more. Optional.

0.5.17 is the last release for the machine's torch. 0.5.20 and 0.5.23, which have LoRA beside speculation, want others but run on
it with 0.5.17's kernel library: what they call there for such models is in it (machine.sh skips the comparison of versions).

Models are two config files (models/) with random weights, so nothing else is carried.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.attention import trim_attention

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CARRY = REPOSITORY / ".gpu"
LIMIT_BYTES = 64 * 2**20

RELEASES = ("0.5.17", "0.5.20", "0.5.23")
PYTHON_VERSION, PLATFORM = "3.12", "x86_64-manylinux_2_39"

UNUSED = (
    "bin", "share",
    "sglang/multimodal_gen", "sglang/test", "sglang/eval", "sglang/benchmark",
    "sglang/srt/server/_core*.so", "sglang/srt/grpc/_core*.so", "sglang/srt/multimodal/_core*.so",
    "sglang/srt/rust_extensions/*.so", "sglang/srt/mem_cache/rust_tree_core/*.so",
    "sgl_kernel/flash_ops*", "sgl_kernel/sm100", "sgl_kernel/infllm_ops*", "sgl_kernel/flashmla_ops*",
    "flashinfer/data/cutlass/python", "flashinfer/data/cutlass/examples", "flashinfer/data/cutlass/test",
    "flashinfer/data/cccl/python", "flashinfer/data/cccl/benchmarks", "flashinfer/data/cccl/ci", "flashinfer/data/cccl/docs",
)  # fmt: skip
"""What a text server never imports, and most of the size. FlashAttention-3 travels apart, trimmed. The prefix cache in Rust is
built for a later torch; without it SGLang takes its own in Python."""

MODIFIED = "2020-01-01"
"""Of all files. Kernels that an earlier run compiled are newer than their sources then, whenever those were installed."""

STAND_INS = {
    "deep_gemm.py": '"""Empty: EAGLE\'s graphs import a backend that imports this. Run with SGLANG_ENABLE_JIT_DEEPGEMM=0."""\n',
    "flash_mla/__init__.py": "fused_norm_rope_attn_rope_cast = None\n",
    "flash_mla/flash_mla_interface.py": "class FlashMLASchedMeta:\n    pass\n",
    "sglang/kernels/ops/gemm/cutedsl_dual_gemm.py": (HERE / "no_dual_gemm.py").read_text(),
}
"""Of libraries that SGLang imports for other models or other GPUs, and never calls for a Llama on this one."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make_carry", description="build .gpu/ for a GPU machine without a network")
    parser.add_argument("--sglang", choices=RELEASES, default=RELEASES[0], help="release to carry; %(default)s if left out")
    parser.add_argument("--kernels", type=Path, help="kernels.tar.xz from the output of an earlier run")
    options = parser.parse_args(arguments)
    missing = [tool for tool in ("xz", "tar") if shutil.which(tool) is None]
    if missing:
        print(f"make_carry: {', '.join(missing)} not found: install xz-utils and tar", file=sys.stderr)
        return 2
    began = time.monotonic()
    CARRY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="carry-", dir=CARRY) as scratch:
        # 1. The packages, for the other machine's Python.
        site = Path(scratch) / "site"
        install_packages(site, HERE / f"requirements-{options.sglang}.txt")
        # 2. The one library that is too large as it is.
        kept = pack_attention(site, Path(scratch) / "attention")
        print(f"FlashAttention-3: kept {kept / 2**20:.0f} MiB of kernels", flush=True)
        # 3. All else, without what a text server never imports.
        remove_unused(site)
        for name, text in STAND_INS.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        pack(site, CARRY / "site.tar.xz")
    # 4. Compiled kernels, if there are any.
    if options.kernels is not None:
        shutil.copyfile(options.kernels, CARRY / "kernels.tar.xz")
    return report_size(time.monotonic() - began)


def install_packages(site: Path, requirements: Path) -> None:
    """uv installs for another Python and platform than its own, so neither is needed here."""
    command = [
        sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes",
        "--python-version", PYTHON_VERSION, "--python-platform", PLATFORM, "--target", str(site),
        "--requirement", str(requirements),
    ]  # fmt: skip
    subprocess.run(command, check=True)


def pack_attention(site: Path, scratch: Path) -> int:
    library = site / "sgl_kernel" / "flash_ops.abi3.so"
    trimmed = scratch / "sgl_kernel" / library.name
    trimmed.parent.mkdir(parents=True)
    kept = trim_attention(library, trimmed)
    pack(scratch, CARRY / "attention.tar.xz")
    return kept


def remove_unused(site: Path) -> None:
    for pattern in UNUSED:
        for path in site.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def pack(directory: Path, archive: Path) -> None:
    with archive.open("wb") as out:
        command = ["tar", "--sparse", "--sort=name", f"--mtime={MODIFIED}", "-C", str(directory), "-c", "."]
        tar = subprocess.Popen(command, stdout=subprocess.PIPE)
        subprocess.run(["xz", "-6", "-T0"], stdin=tar.stdout, stdout=out, check=True)
        if tar.wait() != 0:
            raise RuntimeError(f"tar could not pack {directory}")


def report_size(seconds: float) -> int:
    """Says what travels, and fails where it is more than one transfer takes."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    sources = sum(path.stat().st_size for name in listed.split("\0") if name and (path := REPOSITORY / name).is_file())
    carried = {path.name: path.stat().st_size for path in sorted(CARRY.iterdir()) if path.is_file()}
    for name, size in {**carried, "the repository": sources}.items():
        print(f"{size / 2**20:8.1f} MiB  {name}")
    total = sources + sum(carried.values())
    print(f"{total / 2**20:8.1f} MiB  in all, of {LIMIT_BYTES / 2**20:.0f}; built in {seconds:.0f} s")
    return int(total > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
