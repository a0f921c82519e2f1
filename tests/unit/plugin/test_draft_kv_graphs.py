"""The KV-only write beside the next round: who waits for whom, and which rows it writes. Streams are stand-ins; a GPU shows the
rest (benchmarks/zero-step: what the draft proposes after zero phases)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specserver.plugin.zero import graphs, step
from specserver.plugin.zero.draft_kv_graphs import DraftKvGraphs, Inputs, _other_stream
from specserver.plugin.zero.wrap import ZeroHooks


@dataclass(frozen=True)
class Key:
    size: int


KEY = Key(4)


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


class Rows(list[int]):
    """A tensor's rows, as far as they are copied."""

    def __init__(self, *values: int) -> None:
        super().__init__(values)
        self.shape = (len(values),)
        self.used_on: list[str] = []

    def __getitem__(self, rows: Any) -> Any:
        whole, start, stop = self, *rows.indices(len(self))[:2]

        def copy(values: Rows) -> None:
            whole[start:stop] = list(values)

        return SimpleNamespace(copy_=copy, zero_=lambda: copy(Rows(*[0] * (stop - start))))

    def record_stream(self, stream: SimpleNamespace) -> None:
        self.used_on.append(stream.name)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    torch: Any = ModuleType("torch")
    torch.cuda = SimpleNamespace(current_stream=lambda: made.stream_of(made.current), stream=made.on)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made


def inputs() -> Inputs:
    made = object.__new__(Inputs)
    made.tokens, made.positions, made.locations, made.hidden = (Rows(9, 9, 9, 9) for _ in range(4))
    return made


def draft_kv(streams: Streams, static: Inputs, *, aside: bool) -> DraftKvGraphs:
    graph = SimpleNamespace(replay=lambda: streams.note("write"))
    done = SimpleNamespace(record=lambda: streams.note("done"))
    return DraftKvGraphs({KEY: graph}, static, streams.stream_of("aside") if aside else None, done)


def test_the_next_round_does_not_wait_and_whoever_comes_after_it_waits_once(streams: Streams) -> None:
    written = draft_kv(streams, inputs(), aside=True)
    tokens, positions, hidden, locations = (Rows(1, 2, 3) for _ in range(4))
    written.replay(KEY, tokens, positions, hidden, locations)
    assert streams.queue == ["aside: waits for forward", "aside: write", "aside: done"]
    assert [rows.used_on for rows in (tokens, positions, locations)] == [["aside"]] * 3
    written.join()
    written.join()
    assert streams.queue[3:] == ["forward: waits for the writes"]


def test_hidden_states_are_overwritten_when_the_round_before_has_read_them(streams: Streams) -> None:
    written = draft_kv(streams, inputs(), aside=True)
    rounds = [Rows(1), Rows(2)]
    for rows in rounds:
        written.replay(KEY, rows, rows, rows, rows)
    assert streams.queue[3:5] == ["forward: waits for the writes", "aside: waits for forward"]


def test_in_order_nothing_is_waited_for(streams: Streams) -> None:
    written = draft_kv(streams, inputs(), aside=False)
    rows = Rows(1, 2)
    written.replay(KEY, rows, rows, rows, rows)
    written.join()
    assert streams.queue == ["forward: write"]
    assert rows.used_on == []


def test_rows_of_no_request_go_to_the_slot_that_nobody_reads(streams: Streams) -> None:
    static = inputs()
    draft_kv(streams, static, aside=True).replay(KEY, Rows(5, 6), Rows(7, 8), Rows(1, 1), Rows(30, 31))
    assert (list(static.tokens)[:2], list(static.positions)[:2], list(static.locations)) == ([5, 6], [7, 8], [30, 31, 0, 0])


def test_before_sglang_reads_the_draft_s_pool_all_is_written(streams: Streams) -> None:
    worker = SimpleNamespace()
    zero = step.zero_step_of(worker, "0.5.23")
    zero._prepared = True
    written = draft_kv(streams, inputs(), aside=True)
    zero._graphs = graphs.Graphs(None, None, written, 0, 0.0, 0.0)
    rows = Rows(1)
    written.replay(KEY, rows, rows, rows, rows)
    hooks = ZeroHooks("0.5.23", lambda _worker: None, lambda: True)
    hooks.round(lambda *_: streams.note("SGLang's round"), worker, SimpleNamespace())
    assert streams.queue[-2:] == ["forward: waits for the writes", "forward: SGLang's round"]


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
