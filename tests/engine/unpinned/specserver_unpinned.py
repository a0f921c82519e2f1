"""An SGLang plugin of the tests: LoRA pins the host memory that it copies from, which without a GPU's driver is an error.

Pinning changes where a tensor lies and nothing that is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

FACTORIES = ("tensor", "empty", "zeros", "arange")


def load() -> None:
    torch.Tensor.pin_memory = lambda tensor: tensor  # type: ignore[method-assign, assignment]
    for name in FACTORIES:
        setattr(torch, name, without_pinning(getattr(torch, name)))


def without_pinning(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return factory(*args, **kwargs)

    return unpinned
