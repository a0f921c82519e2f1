"""Attention over the paged KV cache, one request at a time: slow, exact, readable."""

# ruff: noqa: FBT001, FBT002 — SGLang passes everything by position

import torch
from torch import Tensor


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, logit_cap: float) -> Tensor:
    """Softmax attention of query [Q, H, D] over key and value [K, H_kv, D]; the mask [Q, K] is True where a query may look."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1).float(), value.repeat_interleave(groups, 1).float()
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)


def decode_attention_cpu(
    query: Tensor, key_buffer: Tensor, value_buffer: Tensor, key_scale: float, value_scale: float, output: Tensor,
    key: Tensor | None, value: Tensor | None, location: Tensor, attention_logits: Tensor, req_to_token: Tensor,
    req_pool_indices: Tensor, seq_lens: Tensor, scale: float, logit_cap: float, is_cross_attention: bool,
    sliding_window: int, encoder_lens: Tensor | None = None, sinks: Tensor | None = None,
) -> None:  # fmt: skip
    """One new token a request: writes its K/V where given, attends over the whole sequence, fills `output`."""
    _require_none(sinks, encoder_lens)
    if key is not None and value is not None:
        key_buffer[location] = key.view(-1, *key_buffer.shape[1:]).to(key_buffer.dtype)
        value_buffer[location] = value.view(-1, *value_buffer.shape[1:]).to(value_buffer.dtype)
    for row, length in enumerate(seq_lens.tolist()):
        slots = req_to_token[req_pool_indices[row], :length].long()
        if sliding_window > 0:
            slots = slots[-sliding_window:]
        one = slice(row, row + 1)
        attended = _attend(query[one], key_buffer[slots], value_buffer[slots], scale, None, logit_cap)
        output[one] = attended.to(output.dtype)


def extend_attention_cpu(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, key_buffer: Tensor, value_buffer: Tensor,
    key_scale: float, value_scale: float, req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor,
    extend_seq_lens: Tensor, extend_start_loc: Tensor, max_extend: int, scale: float, logit_cap: float,
    is_cross_attention: bool, sliding_window: int, encoder_lens: Tensor | None = None, sinks: Tensor | None = None,
    tree_mask: Tensor | None = None, is_causal: bool = True,
) -> None:  # fmt: skip
    """Several new tokens a request (prefill, verify, draft extend). Their K/V are in the buffers already.

    `tree_mask` holds, request after request, a square of extend x extend flags: which new token sees which.
    """
    _require_none(sinks, encoder_lens)
    mask_start = 0
    rows = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), seq_lens.tolist(), strict=True)
    for row, (start, new, length) in enumerate(rows):
        if new == 0:
            continue
        slots = req_to_token[req_pool_indices[row], :length].long()
        query_at, key_at = torch.arange(length - new, length)[:, None], torch.arange(length)[None, :]
        mask = key_at <= query_at if is_causal else torch.ones(new, length, dtype=torch.bool)
        if tree_mask is not None:
            mask = mask.clone()
            square = tree_mask.view(-1)[mask_start : mask_start + new * new]
            mask[:, length - new :] = square.view(new, new).bool()
            mask_start += new * new
        if sliding_window > 0:
            mask = mask & (key_at > query_at - sliding_window)
        span = slice(start, start + new)
        attended = _attend(query[span], key_buffer[slots], value_buffer[slots], scale, mask, logit_cap)
        output[span] = attended.to(output.dtype)


def _require_none(*unsupported: Tensor | None) -> None:
    if any(tensor is not None for tensor in unsupported):
        raise NotImplementedError("the CPU stand-in has no attention sinks and no cross attention")
