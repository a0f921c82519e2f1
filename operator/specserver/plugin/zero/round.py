"""One zero round: the target's plain decode inside a worker that speculates.

SGLang hands the batch over in the convention of speculative rounds, and the result must come back in it:

- `batch.seq_lens` is the length *before* the round; plain decode counts the token in hand, so it wants one more;
- the cache slots of the round are reserved already (`eagle_prepare_for_decode`), several a request: the first is looked
  up, nothing is allocated;
- the token in hand is the draft input's `bonus_tokens`.

The order on the stream matters. The new lengths are published before the forward, not after it as in a verify round: one
token a request is certain. Backends whose planning needs lengths on the host (FlashInfer) wait for that publication each
round, and a late one costs 0.8 to 1.6 ms. The event that tells the scheduler that the forward has read what the scheduler
shares with it is handed from the target's runner to the draft's, where a speculative scheduler looks for it; no draft
forward follows that would set it. Where one does (the bridge), it is not handed on.

Whatever happens, `finally` puts back each field of the batch that the round and the draft's extend change. SGLang restores
a batch only after the worker returns: without this, a round that failed half-way would leave an extend's input behind, and
the stock round in its place would die of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from specserver.plugin.zero.dialect import Dialect
from specserver.plugin.zero.draft_kv_queue import DraftKvQueue
from specserver.plugin.zero.graphs import Graphs

BATCH_FIELDS = (
    "seq_lens", "seq_lens_cpu", "seq_lens_sum", "spec_info", "input_ids", "out_cache_loc", "forward_mode", "prefix_lens",
    "extend_lens", "extend_num_tokens",
)  # fmt: skip
"""What a round changes on the batch, the draft's extend included."""


class Draft(Enum):
    """What a round does for the draft."""

    KV_ONLY = auto()
    """Its K and V. Its last proposal becomes stale: drafts are possible again after a round with EXTEND."""
    EXTEND = auto()
    """SGLang's ordinary extend of one token: K, V and a fresh proposal."""


@dataclass(frozen=True)
class PlainDecode:
    """The parts of an engine that zero rounds use.

    graphs    None on a CPU: the target's own backend decodes plainly too
    draft_kv  None where the KV-only write does not fit the draft
    """

    worker: Any
    dialect: Dialect
    graphs: Graphs | None
    draft_kv: DraftKvQueue | None

    def run(self, batch: Any, on_publish: Any, grammar_barrier: Any, draft: Draft) -> Any:
        """SGLang's GenerationBatchResult of the round. What it raises leaves batch and runners as they were.

        on_publish       takes the new lengths; None without overlap
        grammar_barrier  advances the requests' grammars by the tokens of the round before; None without overlap
        """
        saved = {name: getattr(batch, name) for name in BATCH_FIELDS}
        try:
            return self._run(batch, on_publish, grammar_barrier, draft, saved)
        finally:
            for name, value in saved.items():
                setattr(batch, name, value)

    def _run(self, batch: Any, on_publish: Any, grammar_barrier: Any, draft: Draft, saved: dict[str, Any]) -> Any:
        from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_uniform_func
        from sglang.srt.managers.utils import GenerationBatchResult
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        target = self.worker._target_worker.model_runner
        requests, before, draft_input = saved["seq_lens"].shape[0], saved["seq_lens"], saved["spec_info"]
        # 1. The slot of this round's token.
        locations = assign_extend_cache_locs_uniform_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=target.req_to_token_pool.req_to_token,
            start_offset=before,
            batch_size=requests,
            draft_token_num=1,
            device=batch.device,
        )
        # 2. The new lengths, known already.
        after = before + 1
        if on_publish is not None:
            on_publish(after)
        # 3. The batch as an engine without speculation would have it.
        batch.forward_mode, batch.spec_info = ForwardMode.DECODE, None
        batch.input_ids, batch.out_cache_loc, batch.seq_lens = draft_input.bonus_tokens, locations, after
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu, batch.seq_lens_sum = batch.seq_lens_cpu + 1, None
        # 4. Forward and sample. The sampler asks each request's grammar which tokens may come; where rounds overlap, the tokens
        #    of the round before are taken into account only now, while the forward runs.
        with self._plain(target), self._hand_on_read_done(target, follows=draft is Draft.EXTEND):
            forward_batch = ForwardBatch.init_new(
                batch, target, capture_hidden_mode=CaptureHiddenMode.FULL, return_hidden_states_before_norm=False
            )
            forward_batch.spec_algorithm = SpeculativeAlgorithm.NONE
            output = target.forward(forward_batch)
        if batch.has_grammar and grammar_barrier is not None:
            grammar_barrier()
        tokens = target.sample(output.logits_output, forward_batch)
        result = GenerationBatchResult(
            logits_output=output.logits_output,
            next_token_ids=tokens,
            can_run_cuda_graph=output.can_run_graph,
            speculative_num_draft_tokens=1,
            accept_lens=_ones(requests, "cpu"),
            new_seq_lens=after,
            next_draft_input=_next_draft_input(batch, draft_input, tokens),
            extra_keep_alive_refs=[forward_batch],
            routed_experts_output=output.routed_experts_output,
            indexer_topk_output=output.indexer_topk_output,
            expert_distribution_metrics=output.expert_distribution_metrics,
        )
        # 5. The draft.
        if draft is Draft.KV_ONLY:
            self._keep_draft_kv(batch.reqs, tokens, forward_batch, output)
        else:
            for name in ("seq_lens", "seq_lens_cpu", "seq_lens_sum"):  # an extend wants the lengths before, and the new slots
                setattr(batch, name, saved[name])
            result.accept_lens = _ones(requests, batch.device)
            if self.draft_kv is not None:
                self.draft_kv.join()
            self._extend_draft(batch, result)
        return result

    def _keep_draft_kv(self, requests: Any, tokens: Any, forward_batch: Any, output: Any) -> None:
        assert self.draft_kv is not None
        hidden = output.logits_output.hidden_states
        self.draft_kv.add(requests, tokens, forward_batch.positions, hidden, forward_batch.out_cache_loc)

    def _extend_draft(self, batch: Any, result: Any) -> None:
        """SGLang's extend after a verify round, for one token a request instead of the draft's width, and without its graph."""
        import torch

        draft_worker = self.worker._draft_worker
        earlier = draft_worker.speculative_num_draft_tokens, draft_worker.cuda_graph_runner_for_draft_extend
        if draft_worker.plan_stream:
            device = torch.get_device_module(batch.device)
            draft_worker.plan_stream.wait_stream(device.current_stream())
        draft_worker.speculative_num_draft_tokens, draft_worker.cuda_graph_runner_for_draft_extend = 1, None
        try:
            with self.dialect.draft_context(draft_worker):
                draft_worker._draft_extend_for_decode(batch, result)
        finally:
            draft_worker.speculative_num_draft_tokens, draft_worker.cuda_graph_runner_for_draft_extend = earlier

    @contextlib.contextmanager
    def _plain(self, target: Any) -> Iterator[None]:
        """The target decodes on the zero step's own backend, graphs and LoRA buffers (which are filled as the forward's batch is
        made), in the eager fall-back beyond the largest graph too."""
        if self.graphs is None:
            yield
            return
        earlier = target.attn_backend, target.decode_cuda_graph_runner
        target.attn_backend, target.decode_cuda_graph_runner = self.graphs.attention, self.graphs.runner
        try:
            with self.graphs.lora.in_place():
                yield
        finally:
            target.attn_backend, target.decode_cuda_graph_runner = earlier

    @contextlib.contextmanager
    def _hand_on_read_done(self, target: Any, *, follows: bool) -> Iterator[None]:
        """`follows`: a draft forward follows, and it is the one whose reads the scheduler must wait for."""
        name, draft = self.dialect.read_done, self.worker._draft_worker.draft_runner
        setattr(target, name, None)  # an eager forward sets none, and an earlier verify round's must not stand for it
        yield
        if not follows:
            setattr(draft, name, getattr(target, name))
        setattr(target, name, None)


_ones_by_device: dict[str, Any] = {}


def _ones(count: int, device: Any) -> Any:
    """`count` ones that live on: made each round, those on a GPU would be a kernel and those on the CPU a copy."""
    import torch

    kept = _ones_by_device.get(str(device))
    if kept is None or kept.shape[0] < count:
        kept = _ones_by_device[str(device)] = torch.ones(max(count, 1024), dtype=torch.int32, device=device)
    return kept[:count]


def _next_draft_input(batch: Any, draft_input: Any, tokens: Any) -> Any:
    """The draft's last proposal is carried along, stale as it is: with overlap in the relay's rows, which are left alone;
    without it in the batch, whose next filter and merge want tensors there."""
    if batch.enable_overlap:
        return type(draft_input)(bonus_tokens=tokens)
    return dataclasses.replace(draft_input, bonus_tokens=tokens)
