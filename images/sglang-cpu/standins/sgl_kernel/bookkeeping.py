"""Which KV slot belongs to which token of which request."""

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Enters freshly allocated slots for the tokens start..end of each request."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        count = last - first
        req_to_token[row, first:last] = out_cache_loc[taken : taken + count].to(req_to_token.dtype)
        taken += count


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """The reverse: reads the slots of the tokens start..end of each request."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        count = last - first
        out_cache_loc[taken : taken + count] = req_to_token[row, first:last].to(out_cache_loc.dtype)
        taken += count


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, out_cache_loc: Tensor, pool_len: int,
    topk: int, num_steps: int,
) -> None:  # fmt: skip
    """The slots right behind each sequence, where the draft puts its guesses."""
    count = topk * num_steps
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out_cache_loc[i * count : (i + 1) * count] = req_to_token[row, length : length + count]


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """A slot table with one row for each draft branch: the sequence, then the branch's own slots."""
    table = torch.zeros(seq_lens.numel() * topk, pool_len, dtype=req_to_token.dtype)
    for i, length in enumerate(seq_lens.tolist()):
        slots = req_to_token[req_pool_indices[i]]
        for branch in range(topk):
            row, first = table[i * topk + branch], length + branch * num_steps
            row[:length] = slots[:length]
            row[length : length + num_steps] = slots[first : first + num_steps]
    return table


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, target_loc: Tensor, source_loc: Tensor) -> None:
    """Moves KV rows in every layer. All sources are read before the first target is written: the ranges may overlap."""
    targets, sources = target_loc.tolist(), source_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * stride, row, stride)
