"""What the zero step fits: engines, drafts, rounds. Everything that is not known to work is refused with its reason.

| asked                | by                | where the answer is no                                                             |
|----------------------|-------------------|------------------------------------------------------------------------------------|
| `find_obstacle`      | engine, at start  | zero steps are SGLang's own, if it has a state for them                             |
| `find_kv_misfit`     | draft, at start   | each zero round runs the draft's ordinary extend, which keeps any draft warm        |
| `find_fall_through`  | round, each time  | SGLang runs this round, with the fewest steps that it has a state for               |

The KV-only write computes what a draft's layer would, so it fits those drafts alone whose layer is known: one Llama layer
of EAGLE or EAGLE-3 with unquantised projections, and a KV pool that holds them as they are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """Why a round falls through to SGLang: one word each, a label of the counter."""

    LOGPROBS = "logprobs"
    HIDDEN_STATES = "hidden_states"
    NO_DRAFT_INPUT = "no_draft_input"


_WORKER = "EAGLEWorkerV2"
_DEVICES = ("cuda", "cpu")
_DRAFTS = ("LlamaForCausalLMEagle3", "LlamaForCausalLMEagle")
_KV_POOL = "MHATokenToKVPool"
_LINEAR_METHOD = "UnquantizedLinearMethod"


def find_obstacle(worker: Any) -> str | None:
    """Why zero rounds can't be plain decode on this engine, or None."""
    name = type(worker).__name__
    if name != _WORKER:
        return f"speculative worker {name} is not supported (supported: {_WORKER})"
    target = worker._target_worker.model_runner
    device = str(target.device).split(":", 1)[0]
    if device not in _DEVICES:
        return f"device {device} is not supported (supported: {', '.join(_DEVICES)})"
    if any(base.__name__ == "HybridReqToTokenPool" for base in type(target.req_to_token_pool).__mro__):
        return "a model with recurrent layers is not supported: their state follows verified tokens"
    if target.model_config.is_encoder_decoder:
        return "an encoder-decoder model is not supported"
    if getattr(target, "hisparse_coordinator", None) is not None:
        return "hierarchical sparse attention is not supported"
    if getattr(worker._draft_worker, "seed_dsa_topk_from_draft_extend", False):
        return "a draft that reuses the indexer's choice of its last extend is not supported"
    lora = getattr(target, "lora_manager", None)
    if device == "cuda" and lora is not None and lora.lora_backend.is_moe_lora:
        return "LoRA on experts is not supported on a GPU: capturing plain decode would resize what verify graphs read"
    return None


def find_kv_misfit(worker: Any) -> str | None:
    """Why the KV-only write does not fit this draft, or None."""
    runner = worker._draft_worker.draft_runner
    name = type(runner.model).__name__
    if name not in _DRAFTS:
        return f"draft model {name} (fits: {', '.join(_DRAFTS)})"
    model = runner.model.model
    if len(model.layers) != 1:
        return f"draft of {len(model.layers)} layers: those above the first depend on attention"
    if getattr(model, "is_mrope_enabled", False):
        return "draft with multi-dimensional positions"
    attention = model.layers[0].self_attn
    projection = attention.qkv_proj
    method = type(getattr(projection, "quant_method", None)).__name__
    if method != _LINEAR_METHOD:
        return f"draft's attention projection is quantised ({method})"
    rows = attention.q_size + 2 * attention.kv_size
    if projection.weight.shape[0] != rows:
        return f"draft's attention projection has {projection.weight.shape[0]} rows, not {rows}"
    pool = runner.token_to_kv_pool
    if type(pool).__name__ != _KV_POOL:
        return f"draft's KV pool is {type(pool).__name__} (fits: {_KV_POOL})"
    if pool.dtype != pool.store_dtype or pool.dtype != runner.dtype:
        return f"draft's KV cache holds {pool.dtype}, its layers compute {runner.dtype}"
    if getattr(runner, "lora_manager", None) is not None:
        return "draft with LoRA"
    return None


def find_fall_through(batch: Any) -> Cause | None:
    """Why this decode round is not for us, or None."""
    if batch.spec_info is None or not batch.spec_info.is_draft_input():
        return Cause.NO_DRAFT_INPUT
    if batch.return_logprob:
        return Cause.LOGPROBS
    if batch.return_hidden_states:
        return Cause.HIDDEN_STATES
    return None
