"""A plugin for the tests alone that overwrites the draft model's whole KV pool with noise.

It does so before the next round whenever the text of the file named by SPECSERVER_TEST_SCRIBBLE changes, and says so in the log.
A draft pool keeps the rows of requests that are gone, and in a test these are often the very rows that a round forgot to
write: without noise first, a test of the draft's cache proves nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

TARGET = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation"

_logger = logging.getLogger(__name__)


def load() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    file, done = Path(os.environ["SPECSERVER_TEST_SCRIBBLE"]), [""]

    def scribble_when_told(original: Callable[..., Any], worker: Any, *arguments: Any, **named: Any) -> Any:
        told = file.read_text()
        if told != done[0]:
            done[0] = told
            pool = worker._draft_worker.draft_runner.token_to_kv_pool
            for buffer in (*pool.k_buffer, *pool.v_buffer):
                buffer.normal_(0, 3)
            _logger.info("draft pool scribbled: %s", told)
        return original(worker, *arguments, **named)

    HookRegistry.register(TARGET, scribble_when_told, HookType.AROUND)
