"""FlashAttention-3 small enough to carry: of SGLang's kernel library, the code for one GPU, one head size, one type.

The library is 1.1 GB of code objects for every GPU generation, head size and number type; a benchmark of one model on one GPU
runs a few of them. All others lose their code (the copy is sparse, so it costs neither disk nor transfer) and are relabelled
for a GPU that is not there, so that the CUDA runtime never picks one. Compiling the kernel from its sources on the machine
instead takes longer than the whole benchmark.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

ARCHITECTURE = 90
NOWHERE = 80
"""An architecture whose code a GPU of ARCHITECTURE does not run."""

_FATBIN_MAGIC = 0xBA55ED50
_ARCHITECTURE_AT = 28
_FORWARD = re.compile(
    rb"CollectiveMainloopFwdSm90ILi\d+EN4cute5tuple.{0,60}?IJNS7_ILi\d+EEENS7_ILi\d+EEES[A-Z0-9]+_?EEELi128ENS_10bfloat16_t"
)
"""The forward kernels for head size 128 in bfloat16, by their mangled names."""
_SHARED = re.compile(rb"FlashAttnFwdCombine|prepare_varlen_num_blocks")


@dataclass(frozen=True)
class CodeObject:
    """One kernel image in a fat binary: where its header starts, where its code is, and for which GPU."""

    header: int
    start: int
    end: int
    architecture: int


def trim_attention(source: Path, target: Path) -> int:
    """Writes the trimmed library and returns how many bytes of kernel code it kept."""
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        dropped, kept = [], 0
        for code in find_code_objects(data):
            if code.architecture == ARCHITECTURE and _is_wanted(data[code.start : code.end]):
                kept += code.end - code.start
            else:
                dropped.append(code)
        if kept == 0:
            raise ValueError(f"{source} holds no kernel that the benchmarks need: another version of it names them otherwise")
        with target.open("wb") as out:
            out.truncate(len(data))
            at = 0
            for code in dropped:
                _copy(data, out, at, code.start)
                out.seek(code.header + _ARCHITECTURE_AT)
                out.write(struct.pack("<I", NOWHERE))
                at = code.end
            _copy(data, out, at, len(data))
        return kept


def find_code_objects(data: mmap.mmap) -> Iterator[CodeObject]:
    """Every code object in the section `.nv_fatbin`: containers of 8-byte alignment, each with entries one after another."""
    at, section_end = _find_section(data, b".nv_fatbin")
    while at < section_end:
        magic, _, header_size, size = struct.unpack_from("<IHHQ", data, at)
        if magic != _FATBIN_MAGIC:
            at += 8
            continue
        entry, end = at + header_size, at + header_size + size
        while entry < end:
            _, _, entry_header, payload = struct.unpack_from("<HHIQ", data, entry)
            architecture = struct.unpack_from("<I", data, entry + _ARCHITECTURE_AT)[0]
            start = entry + entry_header
            yield CodeObject(entry, start, start + payload, architecture)
            entry = start + payload
        at = (end + 7) // 8 * 8


def _find_section(data: mmap.mmap, name: bytes) -> tuple[int, int]:
    """Start and end of a section of a 64-bit ELF file."""
    table, entry_size, count, names = (
        struct.unpack_from("<Q", data, 0x28)[0],
        *struct.unpack_from("<HHH", data, 0x3A),
    )
    sections = [struct.unpack_from("<IIQQQQ", data, table + i * entry_size) for i in range(count)]
    names_at = sections[names][4]
    for name_offset, _, _, _, offset, size in sections:
        start = names_at + name_offset
        if data[start : start + len(name) + 1] == name + b"\0":
            return offset, offset + size
    raise ValueError(f"no section {name.decode()}")


def _is_wanted(code: bytes) -> bool:
    return bool(_SHARED.search(code) or _FORWARD.search(code))


def _copy(data: mmap.mmap, out: BinaryIO, start: int, end: int) -> None:
    out.seek(start)
    out.write(data[start:end])
