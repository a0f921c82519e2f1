"""Rows of the draft's KV pool that wait to be written together.

Nothing in a zero phase reads the draft's K and V, so a round only keeps what they are computed from, and many rounds' rows are
written at once: most of a write is the reading of its weights, 134 MB for an 8B model's draft, whether for one row or for 256.
Row by row that was 1.6 % of a round at ten requests.

What must hold is an order on the forward's stream. The rows of a cache slot are written

- before anyone reads or writes the draft's pool: a prompt, the bridge, a round that SGLang runs (`join`);
- before another request can own the slot. Slots change hands when a request leaves, so rows of other requests than the round's
  are written first. Whatever SGLang does with a slot in between (it goes to the prefix cache, or is freed) reads nothing in it.

In a pool that SGLang copies to the host by a stream of its own (hierarchical cache and its kind) nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from specserver.plugin.zero.dialect import Dialect
from specserver.plugin.zero.draft_kv import write_draft_kv

_EAGER_ROWS = 256


class Rows:
    """What the KV-only write of up to `capacity` rows reads: the same memory all the time, as graphs want it."""

    def __init__(self, capacity: int, hidden: Any) -> None:
        """`hidden`: any hidden states of the target, for their width and type."""
        import torch

        self.tokens, self.positions, self.locations = (
            torch.zeros(capacity, dtype=torch.int64, device=hidden.device) for _ in range(3)
        )
        self.hidden = torch.zeros((capacity, hidden.shape[-1]), dtype=hidden.dtype, device=hidden.device)

    def keep(self, at: int, tokens: Any, positions: Any, hidden: Any, locations: Any) -> int:
        """Copies a round's rows behind the first `at`; returns how many there are then."""
        import torch

        count: int = tokens.shape[0]
        end = at + count
        torch._foreach_copy_(  # one kernel
            [self.tokens[at:end], self.positions[at:end], self.locations[at:end]], [tokens, positions, locations]
        )
        self.hidden[at:end].copy_(hidden[:count])
        return end


class Writer(Protocol):
    """Writes rows on the forward's stream or beside it."""

    capacity: int

    def make_rows(self, hidden: Any) -> Rows: ...

    def write(self, rows: Rows, count: int) -> None:
        """The first `count`. They may be read later than this returns."""

    def join(self) -> None:
        """What is queued on the forward's stream from now on runs after all writes."""


class EagerWriter:
    """Without graphs: on a CPU, and where the engine has none."""

    capacity = _EAGER_ROWS

    def __init__(self, draft_worker: Any, dialect: Dialect) -> None:
        self._draft_worker, self._dialect = draft_worker, dialect

    def make_rows(self, hidden: Any) -> Rows:
        return Rows(self.capacity, hidden)

    def write(self, rows: Rows, count: int) -> None:
        self.write_now(rows.tokens[:count], rows.positions[:count], rows.hidden[:count], rows.locations[:count])

    def write_now(self, tokens: Any, positions: Any, hidden: Any, locations: Any) -> None:
        with self._dialect.draft_context(self._draft_worker):
            write_draft_kv(self._draft_worker.draft_runner, tokens, positions, hidden, locations)

    def join(self) -> None:
        pass


class DraftKvQueue:
    """`waits`: whether rows may wait for those of later rounds."""

    def __init__(self, writer: Writer, eager: EagerWriter, *, waits: bool) -> None:
        self._writer, self._eager, self._waits = writer, eager, waits
        self._rows: Rows | None = None
        self._count = 0
        self._requests: list[Any] = []

    def add(self, requests: Sequence[Any], tokens: Any, positions: Any, hidden: Any, locations: Any) -> None:
        """A round's rows. The parameters behind `requests` are those of `write_draft_kv`; they are not read after this."""
        count, capacity = tokens.shape[0], self._writer.capacity
        # 1. What must be written before these.
        if self._count + count > capacity or self._requests != requests:
            self.flush()
            self._requests = list(requests)
        self._writer.join()  # rows of a write under way are overwritten here: it began a round ago
        # 2. A round larger than any graph is written as it is.
        if count > capacity:
            self._eager.write_now(tokens, positions, hidden, locations)
            return
        # 3. These wait as long as another round's fit behind them.
        if self._rows is None:
            self._rows = self._writer.make_rows(hidden)
        self._count = self._rows.keep(self._count, tokens, positions, hidden, locations)
        if not self._waits or self._count + count > capacity:
            self.flush()

    def flush(self) -> None:
        """Queues the write of what waits."""
        count, self._count = self._count, 0  # first: what can't be written now can't be later
        if self._rows is not None and count:
            self._writer.write(self._rows, count)

    def join(self) -> None:
        """What is queued from now on runs after the write of all rows."""
        self._requests = []  # an idle engine's are not kept alive
        try:
            self.flush()
        finally:
            self._writer.join()
