"""The functions of SGLang that the zero step wraps and calls, with their parameters in each version.

| wrapped                                | in             | what happens there                                            |
|----------------------------------------|----------------|---------------------------------------------------------------|
| EAGLEWorkerV2.init_cuda_graphs         | all            | after it, the zero step's own graphs are captured             |
| EAGLEWorkerV2.forward_batch_generation | all            | a decode round is plain, or SGLang's                          |
| EagleDraftWorker._draft_extend_for_pr… | all            | a prompt in a zero phase: K and V alone                       |
| FutureMap.stash                        | 0.5.17, 0.5.20 | a result without drafts stores its tokens, as later ones do   |

`CALLED` is what the rounds call without wrapping it. It is checked against the sources of every supported version by the
tests; checking it at each start would parse 20,000 lines for nothing that the version does not say already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specserver.plugin.support import Target
from specserver.plugin.zero.dialect import Dialect
from specserver.plugin.zero.step import zero_step_of

_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_EAGLE_UTILS = "sglang.srt.speculative.eagle_utils"
_RELAY = "sglang.srt.managers.overlap_utils"
_MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
_GRAPH_RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner"

GRAPHS = Target(_WORKER, "EAGLEWorkerV2.init_cuda_graphs", ("self",))
ROUND = Target(
    _WORKER,
    "EAGLEWorkerV2.forward_batch_generation",
    ("self", "batch", "on_publish", "grammar_barrier", "pp_proxy_tensors"),
    (("0.5.17", ("self", "batch", "on_publish", "grammar_barrier")),),
)
PROMPT = Target(
    _WORKER,
    "EagleDraftWorker._draft_extend_for_prefill",
    ("self", "batch", "target_hidden_states", "next_token_ids", "mm_input_embeds", "kv_loc_plan"),
    tuple(
        (version, ("self", "batch", "target_hidden_states", "next_token_ids", "mm_input_embeds"))
        for version in ("0.5.17", "0.5.20")
    ),
)
STASH = Target(_RELAY, "FutureMap.stash", ("self", "future_indices", "payload"))

WRAPPED = (GRAPHS, ROUND, PROMPT, STASH)

_ROUND_FURTHER, _PROMPT_FURTHER = ROUND.parameters[2:], PROMPT.parameters[2:]
"""Parameters after the batch."""

_EXTEND_WITHOUT_PLAN = ("self", "batch", "batch_result")
_INIT_NEW_OLD = ("cls", "batch", "model_runner", "*", "capture_hidden_mode", "return_hidden_states_before_norm")
_CACHE_LOCS_OLD = ("req_pool_indices", "req_to_token", "start_offset", "batch_size", "draft_token_num", "device")
_CACHE_LOCS_NEW = (
    *_CACHE_LOCS_OLD, "*", "full_v2p", "swa_v2p", "full_out", "swa_out", "page_size", "positions_out", "anchor_src", "anchor_out",
)  # fmt: skip
_RUNNER_OLD = ("self", "model_runner", "*", "attn_backend", "speculative_num_steps", "speculative_num_draft_tokens")

CALLED = (
    Target(
        _WORKER,
        "EagleDraftWorker._draft_extend_for_decode",
        (*_EXTEND_WITHOUT_PLAN, "*", "kv_loc_plan"),
        (("0.5.17", _EXTEND_WITHOUT_PLAN), ("0.5.20", _EXTEND_WITHOUT_PLAN)),
    ),
    Target(
        "sglang.kernels.ops.speculative.cache_locs",
        "assign_extend_cache_locs_uniform_func",
        _CACHE_LOCS_NEW,
        tuple((version, _CACHE_LOCS_OLD) for version in ("0.5.17", "0.5.20", "0.5.22")),
    ),
    Target(
        "sglang.srt.model_executor.forward_batch_info",
        "ForwardBatch.init_new",
        (*_INIT_NEW_OLD, "extend_position_info", "spec_mrope_positions", "kv_loc_plan", "write_cols"),
        (("0.5.17", _INIT_NEW_OLD), ("0.5.20", _INIT_NEW_OLD)),
    ),
    Target(
        _MODEL_RUNNER,
        "ModelRunner.forward",
        ("self", "forward_batch", "skip_attn_backend_init", "pp_proxy_tensors", "reinit_attn_backend", "split_forward_count"),
    ),
    Target(_MODEL_RUNNER, "ModelRunner.sample", ("self", "logits_output", "forward_batch")),
    Target(_MODEL_RUNNER, "ModelRunner._get_attention_backend", ("self", "init_new_workspace")),
    Target(
        _GRAPH_RUNNER,
        "DecodeCudaGraphRunner.__init__",
        (*_RUNNER_OLD, "record_nolora_graph"),
        (("0.5.17", _RUNNER_OLD),),
    ),
    Target(_GRAPH_RUNNER, "DecodeCudaGraphRunner.get_spec_info", ("self", "num_tokens")),
    Target(_GRAPH_RUNNER, "DecodeCudaGraphRunner.capture_prepare", ("self", "size", "stream_idx", "num_tokens")),
    Target("sglang.srt.distributed.parallel_state", "graph_capture", ("stream",)),
    Target("sglang.srt.distributed.device_communicators.pynccl_allocator", "set_graph_pool_id", ("graph_pool_id",)),
    Target("sglang.srt.runtime_context", "get_memory", ()),
    Target("sglang.srt.runtime_context", "get_resources", ()),
    Target("sglang.srt.runtime_context", "get_spec", ()),
    Target(_EAGLE_UTILS, "_eagle_prefill_tail_tokens", ("batch", "next_token_ids")),
    Target(_EAGLE_UTILS, "get_draft_recurrent_hidden_state_spec", ("model_runner",)),
    Target(
        "sglang.srt.mem_cache.memory_pool",
        "MHATokenToKVPool.set_kv_buffer",
        ("self", "layer", "loc_info", "cache_k", "cache_v", "k_scale", "v_scale", "layer_id_override", "dcp_kv_mask"),
    ),
)


@dataclass(frozen=True)
class ZeroHooks:
    """Hooks of one scheduler process.

    find_obstacle  why the plugin can't control this worker's engine, or None; if so, nothing is captured
    in_control     whether the plugin decides; an engine that was let go of leaves the zero step by a bridge
    """

    version: str
    find_obstacle: Callable[[Any], str | None]
    in_control: Callable[[], bool]

    def prepare(self, result: Any, worker: Any) -> None:
        """After `init_cuda_graphs`."""
        if self.find_obstacle(worker) is None:
            zero_step_of(worker, self.version).prepare()

    def round(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `forward_batch_generation`. The zero step's own calls never raise; the original runs at most once."""
        step = zero_step_of(worker, self.version)
        if step.asked and not self.in_control():
            step.ask(wanted=False)
        named = {**dict(zip(_ROUND_FURTHER, args, strict=False)), **kwargs}
        result = step.run_round(batch, named.get("on_publish"), named.get("grammar_barrier"))
        if result is None:
            step.prepare_stock_round()
            result = original(worker, batch, *args, **kwargs)
            step.note_stock_round(batch, result)
        return result

    def prompt(self, original: Callable[..., Any], draft_worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `_draft_extend_for_prefill`."""
        named = {**dict(zip(_PROMPT_FURTHER, args, strict=False)), **kwargs}
        result = zero_step_of(draft_worker, self.version).run_prompt(
            draft_worker, batch, named.get("target_hidden_states"), named.get("next_token_ids"), named.get("mm_input_embeds")
        )
        return original(draft_worker, batch, *args, **kwargs) if result is None else result

    def stash(self, relay: Any, future_indices: Any, payload: Any) -> bool:
        """Instead of `stash`, for a result without drafts: the rows of the last drafts stay as they are."""
        if not Dialect(self.version).relay_needs_drafts or payload.topk_p is not None or not getattr(relay, "need_topk", False):
            return False
        if future_indices.shape[0]:
            relay.output_tokens_buf[future_indices] = payload.bonus_tokens.to(relay.output_tokens_buf.dtype)
        return True
