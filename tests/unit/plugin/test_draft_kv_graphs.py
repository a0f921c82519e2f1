"""The KV-only write's graphs beside the next round: who waits for whom, and which rows are written. Streams are stand-ins; a
GPU shows the rest (benchmarks/zero-step: what the draft proposes after zero phases)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specserver.plugin.zero import graphs
from specserver.plugin.zero.draft_kv_graphs import DraftKvGraphs, _other_stream, is_copied


class Streams:
    """Stands for torch.cuda: what is queued, in order, and on which stream."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.current = "forward"

    def note(self, what: str) -> None:
        self.queue.append(f"{self.current}: {what}")

    def stream_of(self, name: str) -> SimpleNamespace:
        def wait(what: str) -> None:
            self.queue.append(f"{name}: waits for {what}")

        return SimpleNamespace(
            name=name, wait_stream=lambda other: wait(other.name), wait_event=lambda _event: wait("the writes")
        )

    @contextmanager
    def on(self, stream: SimpleNamespace) -> Iterator[None]:
        self.current = stream.name
        yield
        self.current = "forward"


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    torch: Any = ModuleType("torch")
    torch.cuda = SimpleNamespace(current_stream=lambda: made.stream_of(made.current), stream=made.on)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made


def graphs_of(streams: Streams, *, aside: bool = True) -> tuple[DraftKvGraphs, Any]:
    """Of 2, 4 and 8 rows; the slots of the rows are 1 to 8."""
    rows: Any = SimpleNamespace(locations=Locations([1, 2, 3, 4, 5, 6, 7, 8]))
    captured = {size: SimpleNamespace(replay=partial(streams.note, f"write {size}")) for size in (8, 2, 4)}
    done = SimpleNamespace(record=lambda: streams.note("done"))
    return DraftKvGraphs(captured, rows, streams.stream_of("aside") if aside else None, done), rows


class Locations(list[int]):
    def __getitem__(self, rows: Any) -> Any:
        return SimpleNamespace(zero_=lambda: super(Locations, self).__setitem__(rows, [0] * (rows.stop - rows.start)))


def test_the_next_round_does_not_wait_and_whoever_comes_after_it_waits_once(streams: Streams) -> None:
    written, rows = graphs_of(streams)
    written.write(rows, 4)
    assert streams.queue == ["aside: waits for forward", "aside: write 4", "aside: done"]
    written.join()
    written.join()
    assert streams.queue[3:] == ["forward: waits for the writes"]


def test_in_order_nothing_is_waited_for(streams: Streams) -> None:
    written, rows = graphs_of(streams, aside=False)
    written.write(rows, 2)
    written.join()
    assert streams.queue == ["forward: write 2"]


@pytest.mark.parametrize(("count", "size"), [(1, 2), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_the_smallest_graph_that_holds_them_and_its_other_rows_go_to_the_slot_that_nobody_reads(
    streams: Streams, count: int, size: int
) -> None:
    written, rows = graphs_of(streams)
    written.write(rows, count)
    assert streams.queue[1] == f"aside: write {size}"
    assert list(rows.locations) == [*range(1, count + 1), *[0] * (size - count), *range(size + 1, 9)]
    assert written.capacity == 8


def test_its_stream_is_none_that_the_decode_graphs_use(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch hands out the same few streams again and again."""
    drawn = iter(["captured on", "named", "the draft's", "the target's", "free"])
    monkeypatch.setattr(sys.modules["torch"].cuda, "Stream", lambda: next(drawn), raising=False)
    context: Any = ModuleType("sglang.srt.runtime_context")
    context.get_resources = lambda: SimpleNamespace(streams={"alt": "named"})
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)

    def runner(alt: str) -> SimpleNamespace:
        return SimpleNamespace(token_to_kv_pool=SimpleNamespace(alt_stream=alt))

    decode = SimpleNamespace(stream="captured on", model_runner=runner("the target's"))
    assert _other_stream(runner("the draft's"), decode) == "free"


@pytest.mark.parametrize(
    ("set_options", "copied"),
    [
        ((), False), (("enable_hierarchical_cache",), True), (("enable_lmcache",), True),
        (("enable_unified_cache_external_linker",), True),
    ],
    ids=["none", "hierarchical", "LMCache", "linked"],
)  # fmt: skip
def test_pools_that_sglang_copies_to_the_host_are_known(
    monkeypatch: pytest.MonkeyPatch, set_options: tuple[str, ...], copied: bool
) -> None:
    memory = SimpleNamespace(enable_hierarchical_cache=False, enable_lmcache=False)  # as in 0.5.17
    for name in set_options:
        setattr(memory, name, True)
    context: Any = ModuleType("sglang.srt.runtime_context")
    context.get_memory = lambda: memory
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    assert is_copied() is copied


def test_without_its_graphs_zero_rounds_are_plain_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("not currently recording")

    @contextmanager
    def context(_worker: Any) -> Iterator[None]:
        yield

    decode = SimpleNamespace(backend=FullCudaGraphBackend(), capture_bs=[1, 2])
    monkeypatch.setattr(graphs, "_free_bytes", lambda: 0)
    monkeypatch.setattr(graphs, "_build_attention", lambda _target: "attention")
    monkeypatch.setattr(graphs, "_build_decode_runner", lambda *_: decode)
    monkeypatch.setattr(graphs, "capture_draft_kv", fail)
    target = SimpleNamespace(decode_cuda_graph_runner=object())
    worker = SimpleNamespace(
        _target_worker=SimpleNamespace(model_runner=target), _draft_worker=SimpleNamespace(draft_runner=None)
    )
    dialect: Any = SimpleNamespace(draft_context=context)
    built = graphs.build_graphs(worker, dialect, draft_kv=True)
    assert (built.runner, built.draft_kv, built.report()["draftKvGraphs"]) == (decode, None, 0)


class FullCudaGraphBackend:
    """Known by its name."""
