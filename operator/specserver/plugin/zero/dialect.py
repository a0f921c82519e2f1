"""What differs between SGLang's versions, as far as the zero step is concerned: one table.

| what                                      | 0.5.17        | 0.5.20       | 0.5.22                 | 0.5.23            |
|-------------------------------------------|---------------|--------------|------------------------|-------------------|
| event that ends a forward's shared reads  | war_fastpath… | shared_read… | shared_read…           | shared_read…      |
| the draft's tensor-parallel context takes | its TP group  | its TP group | draft_owns_attention   | parallel_layout   |
| relay takes a result without drafts       | no            | no           | yes                    | yes               |

Everything else that is called has the same name, the same parameters and the same meaning in all four. An unknown version
is read as the newest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_WAR_FASTPATH = ("0.5.17",)
_CONTEXT_OF_GROUP = ("0.5.17", "0.5.20")
_CONTEXT_OF_OWNER = ("0.5.22",)
_RELAY_NEEDS_DRAFTS = ("0.5.17", "0.5.20")


@dataclass(frozen=True)
class Dialect:
    version: str

    @property
    def read_done(self) -> str:
        """Attribute of a model runner: the event that the scheduler waits for before it writes what a forward reads."""
        return "war_fastpath_read_done_event" if self.version in _WAR_FASTPATH else "shared_read_done_event"

    @property
    def relay_needs_drafts(self) -> bool:
        """FutureMap.stash would fail on a result whose top-k is None, instead of keeping the last one's."""
        return self.version in _RELAY_NEEDS_DRAFTS

    @contextlib.contextmanager
    def draft_context(self, draft_worker: Any) -> Iterator[None]:
        """What SGLang enters around every forward of the draft."""
        from sglang.srt.speculative import eagle_worker_v2

        if self.version in _CONTEXT_OF_GROUP:
            parallel = draft_worker.draft_tp_context(draft_worker.draft_runner.tp_group)
        elif self.version in _CONTEXT_OF_OWNER:
            parallel = eagle_worker_v2.draft_tp_context(draft_worker.draft_owns_attention)
        else:
            parallel = eagle_worker_v2.draft_tp_context(draft_worker.parallel_layout)
        with (
            parallel,
            eagle_worker_v2.speculative_moe_backend_context(),
            eagle_worker_v2.speculative_moe_a2a_backend_context(),
        ):
            yield
