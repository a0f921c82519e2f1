"""Rows of the draft's K and V that wait to be written together: when, and before whom. (Real tensors: tests/engine.)"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from specserver.plugin.zero import draft_kv_queue, step
from specserver.plugin.zero.dialect import Dialect
from specserver.plugin.zero.draft_kv_queue import DraftKvQueue, EagerWriter, Rows
from specserver.plugin.zero.step import Outcome
from specserver.plugin.zero.wrap import ZeroHooks

CAPACITY = 8


class KeptRows(list[str]):
    """A row is the name of its request and the number of its round."""

    def keep(self, at: int, tokens: Any, *_: Any) -> int:
        self[at:] = tokens
        return len(self)


class Writer:
    capacity = CAPACITY

    def __init__(self) -> None:
        self.done: list[str] = []
        self.error: Exception | None = None

    def make_rows(self, hidden: Any) -> Any:
        return KeptRows()

    def write(self, rows: Any, count: int) -> None:
        if self.error is not None:
            raise self.error
        self.done.append("write " + " ".join(rows[:count]))

    def write_now(self, tokens: Any, *_: Any) -> None:
        self.done.append("write now " + " ".join(tokens))

    def join(self) -> None:
        self.done.append("join")


class Tokens(list[str]):
    @property
    def shape(self) -> tuple[int]:
        return (len(self),)


class Rounds:
    """Rounds of a queue. Requests are letters; `done` is what the writer was told, without the waiting before each round."""

    def __init__(self, *, waits: bool = True) -> None:
        self.writer = Writer()
        writer: Any = self.writer
        self.queue = DraftKvQueue(writer, writer, waits=waits)
        self._requests = {name: object() for name in "abcdefghijkl"}
        self._numbers = itertools.count(1)

    def run(self, requests: str) -> None:
        number = next(self._numbers)
        tokens = Tokens(f"{name}{number}" for name in requests)
        self.queue.add([self._requests[name] for name in requests], tokens, None, None, None)

    @property
    def written(self) -> list[str]:
        return [what for what in self.writer.done if what != "join"]


def test_rows_wait_until_another_round_s_would_not_fit() -> None:
    rounds = Rounds()
    rounds.run("abc")
    assert rounds.written == []
    rounds.run("abc")
    assert rounds.written == ["write a1 b1 c1 a2 b2 c2"]
    rounds.run("abc")
    rounds.run("abc")
    assert rounds.written[1:] == ["write a3 b3 c3 a4 b4 c4"]


def test_a_single_request_fills_all_rows() -> None:
    rounds = Rounds()
    for _ in range(CAPACITY):
        rounds.run("a")
    assert rounds.written == ["write " + " ".join(f"a{number}" for number in range(1, CAPACITY + 1))]


@pytest.mark.parametrize("others", ["a", "abc", "ac", "ba"], ids=["one left", "one came", "one for another", "other order"])
def test_rows_of_other_requests_are_written_first_since_a_slot_may_have_changed_hands(others: str) -> None:
    rounds = Rounds()
    rounds.run("ab")
    rounds.run(others)
    assert rounds.written == ["write a1 b1"]
    rounds.queue.join()
    assert rounds.written[1:] == ["write " + " ".join(f"{name}2" for name in others)]


def test_requests_are_remembered_as_they_were() -> None:
    """SGLang changes the list that a batch holds."""
    rounds = Rounds()
    names = [object(), object()]
    rounds.queue.add(names, Tokens(["a1", "b1"]), None, None, None)
    del names[1]
    rounds.queue.add(names, Tokens(["a2"]), None, None, None)
    assert rounds.written == ["write a1 b1"]


def test_whoever_reads_the_pool_comes_behind_all_rows_and_writes_them_once() -> None:
    rounds = Rounds()
    rounds.run("ab")
    rounds.writer.done.clear()
    rounds.queue.join()
    rounds.queue.join()
    assert rounds.writer.done == ["write a1 b1", "join", "join"]


def test_rows_are_overwritten_when_the_write_under_way_has_read_them() -> None:
    rounds = Rounds()
    rounds.run("abcdefgh")
    rounds.run("abcdefgh")
    assert rounds.writer.done == ["join", "write a1 b1 c1 d1 e1 f1 g1 h1", "join", "write a2 b2 c2 d2 e2 f2 g2 h2"]


def test_a_round_larger_than_any_graph_is_written_as_it_is_behind_what_waited() -> None:
    rounds = Rounds()
    rounds.run("ab")
    rounds.run("abcdefghi")
    rounds.queue.join()
    assert rounds.written == ["write a1 b1", "write now a2 b2 c2 d2 e2 f2 g2 h2 i2"]


def test_nothing_waits_where_sglang_copies_the_pool_beside_the_forward() -> None:
    rounds = Rounds(waits=False)
    rounds.run("ab")
    rounds.run("ab")
    assert rounds.written == ["write a1 b1", "write a2 b2"]


# ---- in the zero step ---------------------------------------------------------------------------------------------------------


def zero_step(rounds: Rounds) -> tuple[SimpleNamespace, step.ZeroStep]:
    worker = SimpleNamespace(adaptive_controller=None)
    zero = step.zero_step_of(worker, "0.5.23")
    zero._prepared, zero._draft_kv = True, rounds.queue
    return worker, zero


def test_before_sglang_reads_the_draft_s_pool_all_is_written() -> None:
    rounds = Rounds()
    worker, _ = zero_step(rounds)
    rounds.run("ab")
    hooks = ZeroHooks("0.5.23", lambda _worker: None, lambda: True)
    hooks.round(lambda *_: rounds.writer.done.append("SGLang's round"), worker, SimpleNamespace())
    assert rounds.writer.done[-3:] == ["write a1 b1", "join", "SGLang's round"]


def test_a_write_that_fails_is_counted_and_not_tried_again() -> None:
    rounds = Rounds()
    _, zero = zero_step(rounds)
    rounds.run("ab")
    rounds.writer.error = RuntimeError("out of memory")
    zero.prepare_stock_round()
    assert zero.outcomes == {Outcome.ERROR: 1}
    assert rounds.writer.done[-1] == "join", "what is under way is waited for all the same"
    rounds.writer.error = None
    zero.prepare_stock_round()
    assert rounds.written == []


# ---- without graphs -----------------------------------------------------------------------------------------------------------


def test_without_graphs_the_first_rows_are_written_in_the_draft_s_context(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Context:
        def __init__(self, worker: Any) -> None:
            self._worker = worker

        def __enter__(self) -> None:
            calls.append(f"context of {self._worker.name}")

        def __exit__(self, *_: object) -> None:
            calls.append("left")

    monkeypatch.setattr(Dialect, "draft_context", lambda _self, worker: Context(worker))
    monkeypatch.setattr(draft_kv_queue, "write_draft_kv", lambda *arguments: calls.append(arguments))
    rows = object.__new__(Rows)
    rows.tokens, rows.positions, rows.hidden, rows.locations = ([kind + 1, kind + 2, kind + 3] for kind in (10, 20, 30, 40))
    worker: Any = SimpleNamespace(name="draft", draft_runner="runner")
    EagerWriter(worker, Dialect("0.5.23")).write(rows, 2)
    assert calls == ["context of draft", ("runner", [11, 12], [21, 22], [31, 32], [41, 42]), "left"]
