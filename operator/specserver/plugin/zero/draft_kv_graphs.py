"""CUDA graphs of the KV-only write, on a stream of their own: the target's next round does not wait for them.

Nothing in a zero phase reads what the write makes, so it runs beside the next round's forward, which leaves it room: a decode
step waits for memory, not for processors. On the forward's stream a round takes 1 to 2 % longer by it.

Running beside the next round forbids to share with it:

- the decode graph's outputs: the next replay overwrites them, so the hidden states are copied first (6 MB at 256 requests);
- SGLang's input buffers and its memory pool for graphs, whose graphs expect to run one after another. These have their own.
- the communication libraries' buffers. With tensor parallelism the embedding of a token is an all-reduce, and two at a time would
  mix: there the graphs run on the forward's stream, in order;
- cuBLAS' scratch memory, which belongs to the stream of capture.

In order, too, where SGLang copies the draft's KV pool to the host by a stream of its own (hierarchical cache and its kind): that
one waits for the forward's stream alone.

Whoever reads or writes the draft's KV pool on the forward's stream calls `join` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserver.plugin.zero.draft_kv import write_draft_kv

_STREAMS_OF_TORCH = 64
"""More than it hands out before it begins again."""


class DraftKvGraphs:
    """One graph for each decode graph, by its key; all read the same static inputs. `aside`: the stream that they run on; None
    for the forward's."""

    def __init__(self, graphs: Mapping[Any, Any], inputs: Inputs, aside: Any | None, done: Any) -> None:
        self._graphs, self._inputs, self._aside, self._done = graphs, inputs, aside, done
        self._pending = False

    def replay(self, key: Any, tokens: Any, positions: Any, hidden: Any, locations: Any) -> None:
        """Queues the write of one round. The parameters are those of `write_draft_kv`."""
        import torch

        self.join()  # of the round before, which has been done for long: its hidden states are overwritten here
        self._inputs.hidden[: hidden.shape[0]].copy_(hidden)
        if self._aside is None:
            self._inputs.load(tokens, positions, locations, padded=key.size)
            self._graphs[key].replay()
            return
        for used in (tokens, positions, locations):
            used.record_stream(self._aside)  # else their memory could be given to the next round while it is read here
        self._pending = True
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            self._inputs.load(tokens, positions, locations, padded=key.size)
            self._graphs[key].replay()
            self._done.record()

    def join(self) -> None:
        """What is queued from now on runs after all writes."""
        import torch

        if self._pending:
            torch.cuda.current_stream().wait_event(self._done)
            self._pending = False


class Inputs:
    """Static inputs of the graphs, of `rows` requests each."""

    def __init__(self, rows: int, hidden: Any) -> None:
        import torch

        self.tokens, self.positions, self.locations = (
            torch.zeros(rows, dtype=torch.int64, device=hidden.device) for _ in range(3)
        )
        self.hidden = torch.zeros((rows, hidden.shape[-1]), dtype=hidden.dtype, device=hidden.device)

    def load(self, tokens: Any, positions: Any, locations: Any, *, padded: int) -> None:
        """`padded`: rows of the graph. Those beyond the round's requests go to slot 0, which nobody reads."""
        rows = tokens.shape[0]
        self.tokens[:rows].copy_(tokens)
        self.positions[:rows].copy_(positions)
        self.locations[:rows].copy_(locations)
        if padded > rows:
            self.locations[rows:padded].zero_()


def capture_draft_kv(draft: Any, runner: Any) -> DraftKvGraphs:
    """For each decode graph of `runner`. In the draft's tensor-parallel context."""
    import torch
    from sglang.srt.distributed.device_communicators.pynccl_allocator import set_graph_pool_id
    from sglang.srt.distributed.parallel_state import graph_capture
    from sglang.srt.model_executor.runner_utils.capture_mode import model_capture_mode

    outputs = runner.backend._outputs
    inputs = Inputs(runner.max_bs, next(iter(outputs.values())).hidden_states)
    pool, graphs, stream = torch.cuda.graph_pool_handle(), {}, _other_stream(draft, runner)

    def write(rows: int) -> None:
        write_draft_kv(
            draft, inputs.tokens[:rows], inputs.positions[:rows], inputs.hidden[:rows], inputs.locations[:rows]
        )

    set_graph_pool_id(pool)  # symmetric memory leaves and enters the pool that is being recorded to
    try:
        with torch.no_grad(), model_capture_mode(), graph_capture(stream=stream):
            for key in sorted(outputs, key=lambda key: -key.size):  # large ones first: the others fit into their memory
                for _ in range(2):  # kernels are loaded and chosen before anything is recorded
                    write(key.size)
                graphs[key] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[key], pool=pool, stream=stream):
                    write(key.size)
    finally:
        set_graph_pool_id(runner.backend._pool)
    return DraftKvGraphs(graphs, inputs, None if _must_keep_order(draft) else stream, torch.cuda.Event())


def _must_keep_order(draft: Any) -> bool:
    from sglang.srt.runtime_context import get_memory

    memory = get_memory()
    copied = memory.enable_hierarchical_cache or memory.enable_lmcache
    linked = getattr(memory, "enable_unified_cache_external_linker", False)  # not in 0.5.17
    return bool(draft.model.model.embed_tokens.tp_size > 1 or copied or linked)


def _other_stream(draft: Any, runner: Any) -> Any:
    """None that the decode graphs were captured on, or fork to: torch hands out a few dozen streams in turn."""
    import torch
    from sglang.srt.runtime_context import get_resources

    taken = {runner.stream, *get_resources().streams.values()}
    for one in (draft, runner.model_runner):
        taken.add(getattr(one.token_to_kv_pool, "alt_stream", None))
    drawn = (torch.cuda.Stream() for _ in range(_STREAMS_OF_TORCH))
    return next(stream for stream in drawn if stream not in taken)
