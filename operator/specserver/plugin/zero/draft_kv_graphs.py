"""CUDA graphs of the KV-only write, on a stream of their own: the target's next round does not wait for them.

Nothing in a zero phase reads what the write makes, so it runs beside the next round's forward, which leaves it room: a decode
step waits for memory, not for processors. On the forward's stream a round with it takes 1 to 2 % longer.

Running beside the next round forbids to share with it:

- the decode graph's outputs: the next replay overwrites them, so the hidden states are copied first (`Rows`; 6 MB for 256);
- SGLang's input buffers and its memory pool for graphs, whose graphs expect to run one after another. These have their own.
- the communication libraries' buffers. With tensor parallelism the embedding of a token is an all-reduce, and two at a time would
  mix: there the graphs run on the forward's stream, in order;
- cuBLAS' scratch memory, which belongs to the stream of capture.

In order, too, where SGLang copies the draft's KV pool to the host by a stream of its own (`is_copied`): that one waits for the
forward's stream alone.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Any

from specserver.plugin.zero.draft_kv import write_draft_kv
from specserver.plugin.zero.draft_kv_queue import Rows

_STREAMS_OF_TORCH = 64
"""More than it hands out before it begins again."""


class DraftKvGraphs:
    """A Writer: graphs by how many of `rows` they write. `aside`: the stream that they run on; None for the forward's."""

    def __init__(self, graphs: Mapping[int, Any], rows: Rows, aside: Any | None, done: Any) -> None:
        self._graphs, self._rows, self._aside, self._done = graphs, rows, aside, done
        self._sizes = sorted(graphs)
        self.capacity = self._sizes[-1]
        self._pending = False

    def make_rows(self, hidden: Any) -> Rows:  # made for the capture
        return self._rows

    def write(self, rows: Rows, count: int) -> None:
        import torch

        if self._aside is None:
            self._replay(rows, count)
            return
        self._pending = True
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            self._replay(rows, count)
            self._done.record()

    def _replay(self, rows: Rows, count: int) -> None:
        size = self._sizes[bisect.bisect_left(self._sizes, count)]
        if size > count:
            rows.locations[count:size].zero_()  # slot 0, which nobody reads
        self._graphs[size].replay()

    def join(self) -> None:
        import torch

        if self._pending:
            torch.cuda.current_stream().wait_event(self._done)
            self._pending = False


def capture_draft_kv(draft: Any, runner: Any) -> DraftKvGraphs:
    """Of the sizes of `runner`'s decode graphs. In the draft's tensor-parallel context."""
    import torch
    from sglang.srt.distributed.device_communicators.pynccl_allocator import set_graph_pool_id
    from sglang.srt.distributed.parallel_state import graph_capture
    from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode

    outputs = runner.backend._outputs
    rows = Rows(runner.max_bs, next(iter(outputs.values())).hidden_states)
    pool, graphs, stream = torch.cuda.graph_pool_handle(), {}, _other_stream(draft, runner)

    def write(count: int) -> None:
        write_draft_kv(draft, rows.tokens[:count], rows.positions[:count], rows.hidden[:count], rows.locations[:count])

    set_graph_pool_id(pool)  # symmetric memory leaves and enters the pool that is being recorded to
    try:
        with torch.no_grad(), model_capture_mode(), graph_capture(stream=stream):
            for size in sorted({key.size for key in outputs}, reverse=True):  # the others fit into the large ones' memory
                for _ in range(2):  # kernels are loaded and chosen before anything is recorded
                    write(size)
                graphs[size] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[size], pool=pool, stream=stream):
                    write(size)
    finally:
        set_graph_pool_id(runner.backend._pool)
    in_order = draft.model.model.embed_tokens.tp_size > 1 or is_copied()
    return DraftKvGraphs(graphs, rows, None if in_order else stream, torch.cuda.Event())


def is_copied() -> bool:
    """Whether SGLang copies KV pools to the host beside the forward."""
    from sglang.srt.runtime_context import get_memory

    memory = get_memory()
    linked = getattr(memory, "enable_unified_cache_external_linker", False)  # not in 0.5.17
    return bool(memory.enable_hierarchical_cache or memory.enable_lmcache or linked)


def _other_stream(draft: Any, runner: Any) -> Any:
    """None that the decode graphs were captured on, or fork to: torch hands out a few dozen streams in turn."""
    import torch
    from sglang.srt.runtime_context import get_resources

    taken = {runner.stream, *get_resources().streams.values()}
    for one in (draft, runner.model_runner):
        taken.add(getattr(one.token_to_kv_pool, "alt_stream", None))
    drawn = (torch.cuda.Stream() for _ in range(_STREAMS_OF_TORCH))
    return next(stream for stream in drawn if stream not in taken)
