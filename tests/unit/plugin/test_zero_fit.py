"""Engines, drafts and versions: what the zero step fits, and the reason where it does not."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specserver.plugin.zero.dialect import Dialect
from specserver.plugin.zero.fit import find_kv_misfit, find_obstacle


def named(name: str, *bases: type, **attributes: Any) -> Any:
    """An object of a class of that name: SGLang's classes are told by their names."""
    made = type(name, bases, {})()
    for attribute, value in attributes.items():
        setattr(made, attribute, value)
    return made


def projection(method: str = "UnquantizedLinearMethod", rows: int = 6144) -> SimpleNamespace:
    return SimpleNamespace(quant_method=named(method), weight=SimpleNamespace(shape=(rows, 8192)))


def worker() -> Any:
    """An EAGLE-3 engine on a GPU: 32 query and 8 KV heads of 128 in the draft's one layer."""
    attention = SimpleNamespace(qkv_proj=projection(), q_size=4096, kv_size=1024)
    model = SimpleNamespace(layers=[SimpleNamespace(self_attn=attention)], is_mrope_enabled=False)
    draft = SimpleNamespace(
        model=named("LlamaForCausalLMEagle3", model=model),
        token_to_kv_pool=named("MHATokenToKVPool", dtype="bf16", store_dtype="bf16"),
        dtype="bf16",
        lora_manager=None,
    )
    target = SimpleNamespace(
        device="cuda:0",
        req_to_token_pool=named("ReqToTokenPool"),
        model_config=SimpleNamespace(is_encoder_decoder=False),
        hisparse_coordinator=None,
        lora_manager=None,
    )
    return named(
        "EAGLEWorkerV2",
        _target_worker=SimpleNamespace(model_runner=target),
        _draft_worker=SimpleNamespace(draft_runner=draft, seed_dsa_topk_from_draft_extend=False),
    )


def target_of(engine: Any) -> Any:
    return engine._target_worker.model_runner


def draft_of(engine: Any) -> Any:
    return engine._draft_worker.draft_runner


def attention_of(engine: Any) -> Any:
    return draft_of(engine).model.model.layers[0].self_attn


Change = Callable[[Any], None]


def setting(of: Callable[[Any], Any], name: str, value: Any) -> Change:
    return lambda engine: setattr(of(engine), name, value)


def lora_of(*, experts: bool) -> Any:
    return SimpleNamespace(lora_backend=SimpleNamespace(is_moe_lora=experts))


HybridPool = type("HybridReqToTokenPool", (), {})

OBSTACLES: list[tuple[Change, str]] = [
    (setting(target_of, "device", "npu:1"), "device npu is not supported (supported: cuda, cpu)"),
    (setting(target_of, "req_to_token_pool", named("HybridMambaPool", HybridPool)), "recurrent layers"),
    (setting(target_of, "model_config", SimpleNamespace(is_encoder_decoder=True)), "encoder-decoder"),
    (setting(target_of, "hisparse_coordinator", object()), "hierarchical sparse attention"),
    (setting(target_of, "lora_manager", lora_of(experts=True)), "LoRA on experts"),
    (setting(lambda engine: engine._draft_worker, "seed_dsa_topk_from_draft_extend", True), "indexer's choice"),
]

MISFITS: list[tuple[Change, str]] = [
    (setting(draft_of, "model", named("DeepseekV3ForCausalLMNextN")), "draft model DeepseekV3ForCausalLMNextN (fits: Llama"),
    (lambda engine: draft_of(engine).model.model.layers.append(None), "draft of 2 layers"),
    (setting(lambda engine: draft_of(engine).model.model, "is_mrope_enabled", True), "multi-dimensional positions"),
    (setting(attention_of, "qkv_proj", projection("Fp8LinearMethod")), "is quantised (Fp8LinearMethod)"),
    (setting(attention_of, "qkv_proj", projection(rows=4096)), "has 4096 rows, not 6144"),
    (setting(draft_of, "token_to_kv_pool", named("MLATokenToKVPool")), "KV pool is MLATokenToKVPool (fits: MHATokenToKVPool)"),
    (
        setting(draft_of, "token_to_kv_pool", named("MHATokenToKVPool", dtype="fp8", store_dtype="uint8")),
        "KV cache holds fp8, its layers compute bf16",
    ),
    (
        setting(draft_of, "token_to_kv_pool", named("MHATokenToKVPool", dtype="fp16", store_dtype="fp16")),
        "KV cache holds fp16, its layers compute bf16",
    ),
    (setting(draft_of, "lora_manager", object()), "draft with LoRA"),
]


@pytest.mark.parametrize("draft", ["LlamaForCausalLMEagle3", "LlamaForCausalLMEagle"])
def test_fits(draft: str) -> None:
    engine = worker()
    draft_of(engine).model = named(draft, model=draft_of(engine).model.model)
    assert (find_obstacle(engine), find_kv_misfit(engine)) == (None, None)


@pytest.mark.parametrize(("change", "reason"), OBSTACLES, ids=[reason for _, reason in OBSTACLES])
def test_engines_that_do_not_fit(change: Change, reason: str) -> None:
    engine = worker()
    change(engine)
    assert reason in str(find_obstacle(engine))


def test_another_worker_does_not_fit() -> None:
    assert find_obstacle(named("StandaloneWorkerV2")) == (
        "speculative worker StandaloneWorkerV2 is not supported (supported: EAGLEWorkerV2)"
    )


@pytest.mark.parametrize(("device", "experts"), [("cuda", False), ("cpu", False), ("cpu", True)])
def test_other_lora_is_no_obstacle(device: str, experts: bool) -> None:
    engine = worker()
    target_of(engine).device, target_of(engine).lora_manager = device, lora_of(experts=experts)
    assert find_obstacle(engine) is None


@pytest.mark.parametrize(("change", "reason"), MISFITS, ids=[reason for _, reason in MISFITS])
def test_drafts_that_kv_only_does_not_fit(change: Change, reason: str) -> None:
    engine = worker()
    change(engine)
    assert find_obstacle(engine) is None
    assert reason in str(find_kv_misfit(engine))


@pytest.mark.parametrize(
    ("version", "read_done", "relay_needs_drafts"),
    [
        ("0.5.17", "war_fastpath_read_done_event", True),
        ("0.5.20", "shared_read_done_event", True),
        ("0.5.22", "shared_read_done_event", False),
        ("0.5.23", "shared_read_done_event", False),
        ("0.6.0", "shared_read_done_event", False),
    ],
)
def test_dialects(version: str, read_done: str, relay_needs_drafts: bool) -> None:
    dialect = Dialect(version)
    assert (dialect.read_done, dialect.relay_needs_drafts) == (read_done, relay_needs_drafts)
