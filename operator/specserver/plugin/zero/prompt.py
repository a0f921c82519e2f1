"""A prompt in a zero phase: the draft's K and V of its tokens, without running the draft.

After the target has read a prompt, SGLang runs the whole draft over it, samples from the last position and leaves a proposal
to draft from. In a zero phase nobody drafts from it, and the bridge at the phase's end makes new proposals for all. What must
be there is K and V, and those the KV-only write computes for a thousand positions as for one. That saves the draft's
attention, MLP, head and the planning of its forward: 1.7 ms of host time a prompt against 0.4, which at 32 requests of 256
tokens is 2 % of the server's throughput.
"""

from __future__ import annotations

from typing import Any

from specserver.plugin.zero.draft_kv import write_draft_kv


def fits(batch: Any, image_embeddings: Any) -> bool:
    """Text alone: positions and embeddings of anything else are the model's own business."""
    from sglang.srt.runtime_context import get_spec

    return (
        image_embeddings is None
        and bool(batch.forward_mode.is_extend())
        and isinstance(batch.extend_lens, list)
        and isinstance(batch.prefix_lens, list)
        and all(request.multimodal_inputs is None for request in batch.reqs)
        and not get_spec().speculative_use_rejection_sampling  # wants the draft's distribution beside its proposal
    )


def write_prompt_kv(draft_worker: Any, batch: Any, hidden: Any, next_tokens: Any) -> Any:
    """Writes K and V of all tokens of an extend batch; returns an EagleDraftInput whose proposal is empty.

    hidden       the target's hidden states, a row for each token
    next_tokens  what was sampled for each request
    """
    import torch
    from sglang.srt.speculative.eagle_info import EagleDraftInput
    from sglang.srt.speculative.eagle_utils import _eagle_prefill_tail_tokens, get_draft_recurrent_hidden_state_spec

    runner, lengths, device = draft_worker.draft_runner, batch.extend_lens, batch.input_ids.device
    if hidden.shape[0] != batch.input_ids.shape[0]:
        raise ValueError(f"{hidden.shape[0]} hidden states of {batch.input_ids.shape[0]} tokens")
    # 1. The token after each position: the prompt shifted by one, each request's last being what was sampled for it, or the
    #    prompt's own next where it is read in chunks.
    tokens = torch.empty_like(batch.input_ids)
    tokens[:-1] = batch.input_ids[1:]
    ends = torch.tensor(lengths).cumsum(0) - 1
    tokens[ends.to(device, non_blocking=True)] = _eagle_prefill_tail_tokens(batch, next_tokens)
    # 2. Positions behind what is cached.
    spans = [torch.arange(before, before + length) for before, length in zip(batch.prefix_lens, lengths, strict=True)]
    positions = torch.cat(spans).to(device, non_blocking=True)
    write_draft_kv(runner, tokens, positions, hidden, batch.out_cache_loc)
    # 3. The shapes that the next rounds expect. The relay between rounds makes its rows after the first ones it sees.
    requests = len(lengths)
    width, dtype = get_draft_recurrent_hidden_state_spec(runner)
    return EagleDraftInput(
        topk_p=torch.zeros((requests, draft_worker.topk), dtype=torch.float32, device=device),
        topk_index=torch.zeros((requests, draft_worker.topk), dtype=torch.int64, device=device),
        hidden_states=torch.zeros((requests, width), dtype=dtype, device=device),
        bonus_tokens=next_tokens,
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )
