"""LoRA beside captured graphs: which adapter each request of a replayed round wears.

A captured LoRA kernel reads that from buffers at fixed addresses, which SGLang's LoRA backend fills before each forward
(`ForwardBatch.init_new`). It keeps one set of them, of the width of the rounds that were captured last: a verify round's tokens
a request. Capturing plain decode makes another set in its place, and the verify graphs would go on reading one that nobody
fills. So the zero step keeps the set of its own graphs apart: SGLang's is back in its place after the capture, and the zero
step's stands there while a zero round is prepared and run.

Adapters and the scratch memory of their kernels are the engine's: a zero round and a verify round never run at the same time.
The draft wears no adapter (SGLang's own rule). Adapters of experts are refused (`fit.py`): their scratch buffers are resized by a
capture, under the verify graphs that read them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

GRAPH_BUFFERS = "cuda_graph"
"""Part of the name of what capturing replaces: buffers on the backend (`cuda_graph_batch_info`, `cuda_graph_sgemm_batch_info`,
`decode_cuda_graph_batch_info`), the number of requests that they hold on the manager (`max_bs_in_cuda_graph`)."""


class LoraBuffers:
    """The LoRA buffers of the zero step's decode graphs. On an engine without LoRA or without graphs there are none."""

    def __init__(self, model_runner: Any) -> None:
        manager = getattr(model_runner, "lora_manager", None)
        self._owners = () if manager is None else (manager, manager.lora_backend)
        self._own: tuple[dict[str, Any], ...] = tuple({} for _ in self._owners)

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Around the capture: what it replaces is the zero step's own, and SGLang's is put back."""
        earlier = [_read(owner) for owner in self._owners]
        try:
            yield
        finally:
            self._own = tuple(
                {name: value for name, value in _read(owner).items() if before.get(name) is not value}
                for owner, before in zip(self._owners, earlier, strict=True)
            )
            for owner, before in zip(self._owners, earlier, strict=True):
                vars(owner).update(before)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """While a zero round is prepared and run."""
        earlier = [{name: vars(owner)[name] for name in own} for owner, own in zip(self._owners, self._own, strict=True)]
        try:
            for owner, own in zip(self._owners, self._own, strict=True):
                vars(owner).update(own)
            yield
        finally:
            for owner, before in zip(self._owners, earlier, strict=True):
                vars(owner).update(before)


def _read(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if GRAPH_BUFFERS in name}
