"""Whose LoRA buffers stand where SGLang's backend looks for them: while graphs are captured, in a zero round, and otherwise."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from specserver.plugin.zero.lora import LoraBuffers

RELEASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "0.5.20 csgmv": ("max_bs_in_cuda_graph", ("cuda_graph_batch_info",)),
    "0.5.20 triton": ("max_bs_in_cuda_graph", ("cuda_graph_batch_info", "cuda_graph_sgemm_batch_info")),
    "0.5.23 triton_v2": ("max_bs_in_decode_cuda_graph", ("decode_cuda_graph_batch_info",)),
}


@pytest.fixture(params=RELEASES.values(), ids=RELEASES.keys())
def names(request: pytest.FixtureRequest) -> tuple[str, tuple[str, ...]]:
    result: tuple[str, tuple[str, ...]] = request.param
    return result


def engine_of(names: tuple[str, tuple[str, ...]]) -> Any:
    """A model runner whose verify graphs were captured for 256 requests, and its prompts' graphs."""
    maximum, buffers = names
    backend = SimpleNamespace(batch_info="of the last batch", prefill_cuda_graph_batch_info="prompts'")
    vars(backend).update({name: f"verify's {name}" for name in buffers})
    return SimpleNamespace(lora_manager=SimpleNamespace(lora_backend=backend, **{maximum: 256}))


def state_of(engine: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    manager = dict(vars(engine.lora_manager))
    return manager, dict(vars(manager.pop("lora_backend")))


def capture(engine: Any, names: tuple[str, tuple[str, ...]]) -> None:
    """What SGLang's graph runner does."""
    maximum, buffers = names
    setattr(engine.lora_manager, maximum, 384)
    for name in buffers:
        setattr(engine.lora_manager.lora_backend, name, f"plain's {name}")
    engine.lora_manager.lora_backend.batch_info = "of the capture"


def test_each_kind_of_graph_has_its_own(names: tuple[str, tuple[str, ...]]) -> None:
    engine = engine_of(names)
    verify, lora = state_of(engine), LoraBuffers(engine)
    with lora.capturing():
        capture(engine, names)
    after = (verify[0], {**verify[1], "batch_info": "of the capture"})
    assert state_of(engine) == after, "what is of a batch is the next batch's to set, and stays as it is"
    with lora.in_place():
        maximum, buffers = names
        manager, backend = state_of(engine)
        assert manager == {maximum: 384}
        assert {name: backend[name] for name in buffers} == {name: f"plain's {name}" for name in buffers}
        assert backend["prefill_cuda_graph_batch_info"] == "prompts'"
    assert state_of(engine) == after


def test_a_capture_or_a_round_that_fails_leaves_sglangs(names: tuple[str, tuple[str, ...]]) -> None:
    engine = engine_of(names)
    lora, verify = LoraBuffers(engine), state_of(engine)[0]
    for use in (lora.capturing, lora.in_place):
        with contextlib.suppress(RuntimeError), use():
            capture(engine, names)
            raise RuntimeError("out of memory")
        manager, backend = state_of(engine)
        assert manager == verify
        assert all(backend[name] == f"verify's {name}" for name in names[1])


def test_graphs_that_are_not_captured_and_engines_without_lora_have_none(names: tuple[str, tuple[str, ...]]) -> None:
    engine = engine_of(names)
    for each in (LoraBuffers(engine), LoraBuffers(SimpleNamespace(lora_manager=None)), LoraBuffers(SimpleNamespace())):
        before = state_of(engine)
        with each.capturing(), each.in_place():
            assert state_of(engine) == before
