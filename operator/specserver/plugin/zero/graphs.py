"""CUDA graphs of the zero step: the target's decode, and the draft's KV-only write. Captured once, after SGLang's own.

The decode graphs come from SGLang's own runner: constructed while the model runner says that it does not speculate, it
captures ordinary decode of one token a request. Two things make it right beside the verify graphs:

- an attention backend of its own. A captured backend must not be initialised again: that would move the buffers under the
  graphs that read them. Told that there are no draft tokens, this one makes no buffers for verify rounds.
- the hidden states that the draft wants are among its outputs (mode FULL). They cost no measurable time, so there is no
  second set of graphs without them.

With LoRA, a third: the buffers that its captured kernels read (`lora.py`).

The KV-only graphs run on a stream of their own (`draft_kv_graphs.py`): the next round does not wait for them.

On one H200 for an 8B model and 16 batch sizes up to 256: 0.24 GB and 1.8 s, a quarter of the memory for KV-only.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from specserver.plugin.zero.dialect import Dialect
from specserver.plugin.zero.draft_kv_graphs import DraftKvGraphs, capture_draft_kv
from specserver.plugin.zero.lora import LoraBuffers

logger = logging.getLogger(__name__)

_DRAFT_TOKEN_SIZES = ("speculative_num_draft_tokens", "num_draft_tokens")
_KV_GRAPH_BACKEND = "FullCudaGraphBackend"


@dataclass(frozen=True)
class Graphs:
    """What a GPU's zero rounds run on.

    attention  attention backend of plain decode, with or without graphs
    runner     decode graphs; None where the engine runs without graphs
    lora       what those graphs read of LoRA
    draft_kv   KV-only graphs; None where that write does not fit the draft, or runs eagerly
    """

    attention: Any
    runner: Any | None
    lora: LoraBuffers
    draft_kv: DraftKvGraphs | None
    decode_graphs: int
    seconds: float
    gigabytes: float

    def report(self) -> dict[str, Any]:
        return {
            "decodeGraphs": self.decode_graphs,
            "draftKvGraphs": self.decode_graphs if self.draft_kv is not None else 0,
            "seconds": round(self.seconds, 2),
            "gigabytes": round(self.gigabytes, 3),
        }


def build_graphs(worker: Any, dialect: Dialect, *, draft_kv: bool) -> Graphs:
    """For a GPU, after SGLang has captured its own graphs. `draft_kv`: the KV-only write fits the draft."""
    started, free_bytes = time.perf_counter(), _free_bytes()
    target = worker._target_worker.model_runner
    attention = _build_attention(target)
    runner, lora = None, LoraBuffers(target)
    if target.decode_cuda_graph_runner is not None:
        with lora.capturing():
            runner = _build_decode_runner(target, attention)
    kv_graphs = None
    if runner is not None and draft_kv and type(runner.backend).__name__ == _KV_GRAPH_BACKEND:
        try:
            with dialect.draft_context(worker._draft_worker):
                kv_graphs = capture_draft_kv(worker._draft_worker.draft_runner, runner)
        except Exception:
            logger.exception("the draft's K and V have no graphs: they are written without, which costs host time alone")
    return Graphs(
        attention=attention,
        runner=runner,
        lora=lora,
        draft_kv=kv_graphs,
        decode_graphs=0 if runner is None else len(runner.capture_bs),
        seconds=time.perf_counter() - started,
        gigabytes=(free_bytes - _free_bytes()) / 2**30,
    )


def _build_attention(target: Any) -> Any:
    """A backend of its own. Its scratch memory (FlashInfer: a gigabyte) is the one that the target's and the draft's share: a
    zero round and a verify round never run at the same time."""
    backend = target._get_attention_backend()
    for part in (backend, getattr(backend, "decode_backend", None), getattr(backend, "prefill_backend", None)):
        for name in _DRAFT_TOKEN_SIZES:
            if hasattr(part, name):
                setattr(part, name, None)
    return backend


def _build_decode_runner(target: Any, attention: Any) -> Any:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    class PlainDecodeGraphRunner(DecodeCudaGraphRunner):  # type: ignore[misc]
        def get_spec_info(self, num_tokens: int) -> None:
            return None

        def capture_prepare(self, *args: Any, **kwargs: Any) -> Any:
            self.capture_hidden_mode = CaptureHiddenMode.FULL
            return super().capture_prepare(*args, **kwargs)

    earlier = target.spec_algorithm
    try:
        target.spec_algorithm = SpeculativeAlgorithm.NONE  # selects DECODE instead of TARGET_VERIFY, and one token a request
        return PlainDecodeGraphRunner(target, attn_backend=attention)
    finally:
        target.spec_algorithm = earlier


def _free_bytes() -> int:
    import torch

    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    return int(free)
