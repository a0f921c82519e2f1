"""Which engines are controlled, and why others are not; the policy file."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from specserver.plugin import support
from specserver.plugin.arming import Facts, SglangEngine, arm, find_obstacle, load_policy_file
from specserver.plugin.zero.step import zero_step_of
from specserver.policy.decision import Observation
from tests.unit.plugin.fakes import document, make_rank, policy

GOOD = Facts(
    algorithm="EAGLE3",
    attention_data_parallel=False,
    pipeline_ranks=1,
    disaggregation="null",
    multiplexing=False,
    two_batch_overlap=False,
    multi_layer_draft=False,
    states=(1, 2, 3),
    zero_problem="",
)


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
def test_controlled(algorithm: str) -> None:
    assert find_obstacle(replace(GOOD, algorithm=algorithm)) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(GOOD, algorithm=None, states=()), "speculation is off"),
        (replace(GOOD, algorithm="STANDALONE"), "speculative algorithm STANDALONE is not supported"),
        (replace(GOOD, algorithm="NGRAM"), "speculative algorithm NGRAM is not supported"),
        (replace(GOOD, attention_data_parallel=True), "data-parallel attention is not supported"),
        (replace(GOOD, pipeline_ranks=2), "pipeline parallelism is not supported"),
        (replace(GOOD, disaggregation="decode"), "disaggregation mode decode is not supported"),
        (replace(GOOD, multiplexing=True), "--enable-pdmux is not supported"),
        (replace(GOOD, two_batch_overlap=True), "--enable-two-batch-overlap is not supported"),
        (replace(GOOD, multi_layer_draft=True), "--enable-multi-layer-eagle is not supported"),
        (replace(GOOD, states=(1, 3), zero_problem="not on a toaster"), "the ladder (1, 3) needs 0"),
        (replace(GOOD, states=(1, 3), zero_problem="not on a toaster"), "not on a toaster"),
        (replace(GOOD, states=()), "the ladder (0) needs 0 and another"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_not_controlled_and_why(facts: Facts, reason: str) -> None:
    assert reason in str(find_obstacle(facts))


def test_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(document(revision=7)))
    rank = make_rank()
    load_policy_file(rank, str(path))
    assert rank.report()["revision"] == 7
    assert rank.in_control


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("{", "Expecting property name"),
        ("[]", "must be a JSON object"),
        (json.dumps(document(mode="Sometimes")), "mode: must be one of"),
        (json.dumps(document(steps=[0, 5])), "steps: the engine started with steps 0, 1, 2, 3"),
        ("\udcff", "can't decode"),
    ],
    ids=["absent", "no JSON", "no object", "invalid", "other ladder", "no text"],
)
def test_broken_policy_file_is_a_reason(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "policy.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    rank = make_rank()
    load_policy_file(rank, str(path))
    assert not rank.in_control
    reason = rank.report()["reason"]
    assert problem in reason
    assert str(path) in reason


KEY = {
    "model": "target",
    "draft": "draft",
    "gpu": "NVIDIA H200",
    "parallelism": "tp1",
    "attentionBackend": "fa3",
    "engineVersion": "0.5.23",
}


def profile_document(**key: str) -> dict[str, object]:
    return {"version": 1, "key": {**KEY, **key}, "stepSeconds": {"0": [[1, 0.005]], "3": [[1, 0.006]]}}


@pytest.mark.usefixtures("context")
def test_profile_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_document()))
    monkeypatch.setenv("SPECSERVER_PROFILE_FILE", str(path))
    rank = arm(scheduler(), [])
    assert rank.profile is not None
    assert rank.report()["profile"] == {"used": True, "problem": "", "key": KEY}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("{", "Expecting property name"),
        ("[]", "must be a JSON object"),
        (json.dumps(profile_document() | {"stepSeconds": {}}), "stepSeconds"),
        (json.dumps(profile_document(gpu="NVIDIA H100")), "it was measured on another engine; here gpu is NVIDIA H200"),
    ],
    ids=["absent", "no JSON", "no object", "invalid", "another GPU"],
)
@pytest.mark.usefixtures("context")
def test_a_profile_that_does_not_fit_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "profile.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("SPECSERVER_PROFILE_FILE", str(path))
    rank = arm(scheduler(), [])
    assert (rank.armed, rank.profile) == (True, None)
    assert problem in rank.report()["profile"]["problem"]


def test_no_policy_file_named() -> None:
    rank = make_rank()
    load_policy_file(rank, "")
    assert rank.report()["reason"] == "no policy yet"


# ---- on SGLang's objects ------------------------------------------------------------------------------------------------


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """SGLang's run-time context, with what arming reads of it."""
    values = SimpleNamespace(
        parallel=SimpleNamespace(tp_rank=0, tp_size=1, dp_rank=None, dp_size=1, pp_size=1, attn_dp_enabled=False),
        spec=SimpleNamespace(
            speculative_algorithm="EAGLE3", speculative_draft_model_path="draft", enable_multi_layer_eagle=False
        ),
        observability=SimpleNamespace(enable_metrics=False),
        disagg=SimpleNamespace(disaggregation_mode="null", enable_pdmux=False),
        exec=SimpleNamespace(
            overlap=SimpleNamespace(enable_two_batch_overlap=False), kernel=SimpleNamespace(attention_backend="fa3")
        ),
        model=SimpleNamespace(model_path="target"),
        version="0.5.23",
    )
    module = ModuleType("sglang.srt.runtime_context")
    for name in ("parallel", "spec", "observability", "disagg", "exec", "model"):
        setattr(module, f"get_{name}", lambda name=name: getattr(values, name))
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "NVIDIA H200")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(support, "engine_version", lambda: values.version)
    for name in ("SPECSERVER_POLICY_FILE", "SPECSERVER_PROFILE_FILE"):
        monkeypatch.delenv(name, raising=False)
    return values


def batch(requests: int, *, extend: bool = False) -> SimpleNamespace:
    return SimpleNamespace(reqs=[None] * requests, forward_mode=SimpleNamespace(is_extend=lambda: extend))


def scheduler(*, topk: int = 1) -> SimpleNamespace:
    controller = SimpleNamespace(_states=dict.fromkeys((3, 0, 1, 2)), _activate=lambda steps: None)
    worker = SimpleNamespace(adaptive_controller=controller, speculative_num_steps=3, topk=topk)
    return SimpleNamespace(
        draft_worker=worker,
        running_batch=batch(0),
        last_batch=None,
        waiting_queue=[],
        is_hybrid_swa=False,
        is_hybrid_ssm=False,
        max_total_num_tokens=1000,
        max_running_requests=48,
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: 600),
        tree_cache=SimpleNamespace(evictable_size=lambda: 150),
    )


def engine_of(scheduler: SimpleNamespace) -> SglangEngine:
    return SglangEngine(scheduler, zero_step_of(scheduler.draft_worker, "0.5.23"))


@pytest.mark.usefixtures("context")
def test_arms_with_the_captured_ladder() -> None:
    rank = arm(scheduler(), [])
    assert (rank.armed, rank.name, rank.ladder, rank.report()["steps"]) == (True, "tp0", (0, 1, 2, 3), 3)


def test_an_unknown_version_is_not_armed(context: SimpleNamespace) -> None:
    context.version = "0.5.24"
    rank = arm(scheduler(), [])
    assert (rank.armed, rank.reason) == (
        False,
        "SGLang 0.5.24 is not supported (supported: 0.5.17, 0.5.20, 0.5.22, 0.5.23)",
    )


@pytest.mark.usefixtures("context")
def test_a_function_that_does_not_fit_is_not_armed() -> None:
    rank = arm(scheduler(), ["a.b is missing", "c.d takes (x), not (y)"])
    assert (rank.armed, rank.reason) == (False, "a.b is missing; c.d takes (x), not (y)")


def test_an_unarmed_engine_reads_no_policy_file(
    context: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(document()))
    monkeypatch.setenv("SPECSERVER_POLICY_FILE", str(path))
    assert arm(scheduler(), []).policy is not None
    context.disagg.disaggregation_mode = "prefill"
    assert arm(scheduler(), []).policy is None


def test_of_a_group_the_first_rank_decides(context: SimpleNamespace) -> None:
    context.parallel.tp_size = 2
    first = arm(scheduler(), [])
    context.parallel.tp_rank = 1
    second = arm(scheduler(), [])
    for rank in (first, second):
        rank.set_policy(policy())
        rank.observe()
    assert (second.name, first.next_order() is not None, second.next_order()) == ("tp1", True, None)


def test_a_data_parallel_scheduler_decides_for_itself(context: SimpleNamespace) -> None:
    context.parallel.dp_size, context.parallel.dp_rank = 2, 1
    rank = arm(scheduler(), [])
    rank.set_policy(policy())
    rank.observe()
    assert (rank.name, rank.next_order() is not None) == ("dp1-tp0", True)


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20"])
def test_older_versions_keep_ranks_in_other_places(context: SimpleNamespace, version: str) -> None:
    context.version = version
    context.parallel = SimpleNamespace(tp_rank=0, tp_size=2, dp_size=2, pp_size=1, enable_dp_attention=False)
    older = scheduler()
    older.ps = SimpleNamespace(dp_rank=1)
    rank = arm(older, [])
    assert (rank.armed, rank.name) == (True, "dp1-tp0")
    context.parallel.enable_dp_attention = True
    assert "data-parallel attention" in arm(older, []).reason


@pytest.mark.parametrize(
    ("running", "last", "expected"),
    [
        (batch(3), None, 3),
        (batch(3), batch(3), 3),
        (batch(3), batch(2, extend=True), 5),
        (batch(0), batch(2, extend=True), 2),
    ],
    ids=["running", "decoded last", "prefilled last: they join now", "the first ones"],
)
def test_load(running: SimpleNamespace, last: SimpleNamespace | None, expected: int) -> None:
    busy = scheduler()
    busy.running_batch, busy.last_batch, busy.waiting_queue = running, last, [None] * 4
    load = engine_of(busy).load()
    assert load == Observation(running=expected, queued=4, kv_tokens=250, kv_usage=0.25, max_running=48)


@pytest.mark.parametrize("kind", ["is_hybrid_swa", "is_hybrid_ssm"])
def test_pools_of_several_kinds_have_no_single_usage(kind: str) -> None:
    hybrid = scheduler()
    setattr(hybrid, kind, True)
    load = engine_of(hybrid).load()
    assert (load.kv_tokens, load.kv_usage) == (0, 0.0)


@pytest.mark.parametrize(("topk", "tokens", "steps"), [(1, 4, 3), (1, 1, 0), (1, 3, 2), (2, 6, 3)])
def test_steps_of_a_round(topk: int, tokens: int, steps: int) -> None:
    assert engine_of(scheduler(topk=topk)).steps_of_round(tokens) == steps
