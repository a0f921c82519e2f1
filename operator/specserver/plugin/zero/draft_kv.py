"""The KV-only write: K and V of the draft's layer for a token, without the rest of the draft.

The K and V of a one-layer EAGLE draft at position p depend on the token at p + 1 and on the target's hidden state at p, and
on nothing else: not on what the draft attended to. So a zero round, which has both, keeps the draft warm by an embedding,
`fc`, two norms, the K and V rows of one projection, the rotation and the write: 55 to 90 µs on an H200 for 1 to 256
requests, where the draft's extend (attention, MLP and head besides) takes 370 to 740. In fp32 the result is bitwise the
extend's; in bf16 it may differ in the last bit, as between two batch sizes.
"""

from __future__ import annotations

from typing import Any


def write_draft_kv(runner: Any, tokens: Any, positions: Any, hidden: Any, locations: Any) -> None:
    """Writes rows `locations` of the draft's KV pool.

    runner     the draft's model runner; `fit.find_kv_misfit` has no objection to it
    tokens     the token after each position
    hidden     the target's hidden states at the positions: three layers' side by side for EAGLE-3, the last one's for EAGLE
    """
    import torch
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    model = runner.model.model
    layer, attention = model.layers[0], model.layers[0].self_attn
    # 1. What the layer's attention reads.
    embeddings = model.embed_tokens(tokens)
    if hasattr(layer, "hidden_norm"):  # EAGLE-3
        inputs = torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(_reduce(model, hidden))], dim=-1)
    else:  # EAGLE has no norm in front of its attention
        inputs = model.fc(torch.cat([embeddings, hidden], dim=-1))
    # 2. The K and V rows of its projection.
    projection, first = attention.qkv_proj, attention.q_size
    bias = None if projection.bias is None else projection.bias[first:]
    key, value = torch.nn.functional.linear(inputs, projection.weight[first:], bias).split(
        [attention.kv_size, attention.kv_size], dim=-1
    )
    # 3. The rotation wants a query beside the key; any will do, and one head is the smallest.
    _, key = attention.rotary_emb(positions, inputs[:, : attention.head_dim].contiguous(), key.contiguous())
    # 4. The write.
    shape = (-1, attention.kv_size // attention.head_dim, attention.head_dim)
    runner.token_to_kv_pool.set_kv_buffer(
        attention.attn,
        KVWriteLoc(locations),
        key.view(shape),
        value.contiguous().view(shape),
        attention.attn.k_scale,
        attention.attn.v_scale,
    )


def _reduce(model: Any, hidden: Any) -> Any:
    """EAGLE-3's reduction of several layers' hidden states to one, as its model's forward does it."""
    import torch

    if hidden.shape[-1] == model.embed_tokens.embedding_dim:
        return hidden
    if getattr(model, "input_norm", None) is not None:
        hidden = model.input_norm(hidden)
    if getattr(model, "fc_norm", None) is not None:
        chunks = hidden.chunk(model.num_aux_hidden_states, dim=-1)
        hidden = torch.cat([norm(chunk) for norm, chunk in zip(model.fc_norm, chunks, strict=True)], dim=-1)
    return model.fc(hidden)
