"""When a round is plain, a bridge or SGLang's; what falls through; what is counted; what is put back when a round fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from specserver.plugin.zero import fit, graphs, step
from specserver.plugin.zero.dialect import Dialect
from specserver.plugin.zero.fit import Cause
from specserver.plugin.zero.lora import LoraBuffers
from specserver.plugin.zero.round import BATCH_FIELDS, Draft, PlainDecode
from specserver.plugin.zero.step import MAX_ERRORS, Outcome, ZeroStep, is_bridge, is_cold
from specserver.plugin.zero.wrap import ZeroHooks


def mode(name: str) -> SimpleNamespace:
    return SimpleNamespace(is_extend=lambda: name == "extend", is_idle=lambda: name == "idle")


def batch(name: str = "decode", **changes: Any) -> SimpleNamespace:
    """A batch in the convention of speculative rounds; each field that a round changes holds its own name."""
    fields: dict[str, Any] = dict.fromkeys(BATCH_FIELDS)
    fields |= {name: name for name in BATCH_FIELDS}
    fields |= {
        "forward_mode": mode(name), "is_extend_in_batch": False, "has_grammar": False, "return_logprob": False,
        "return_hidden_states": False, "spec_info": SimpleNamespace(is_draft_input=lambda: True),
    }  # fmt: skip
    return SimpleNamespace(**(fields | changes))


def worker(states: tuple[int, ...] | None = (1, 2, 3)) -> SimpleNamespace:
    made = SimpleNamespace(speculative_num_steps=3, adaptive_controller=None)
    if states is not None:
        activate: Callable[[int], None] = lambda steps: setattr(made, "speculative_num_steps", steps)  # noqa: E731
        made.adaptive_controller = SimpleNamespace(_states=dict.fromkeys(states), _activate=activate)
    return made


class Rounds:
    """Stands for `PlainDecode.run`: remembers what was asked of it; raises where told to."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.error: Exception | None = None
        self.callbacks: tuple[Any, Any] = None, None

    def run(self, parts: PlainDecode, batch: Any, on_publish: Any, grammar_barrier: Any, draft: Draft) -> Any:
        if self.error is not None:
            raise self.error
        self.drafts.append(draft)
        self.callbacks = on_publish, grammar_barrier
        return SimpleNamespace()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    made = Rounds()
    monkeypatch.setattr(PlainDecode, "run", lambda *args: made.run(*args))
    return made


def prepared(made: SimpleNamespace | None = None, *, kv_misfit: str = "", problem: str = "") -> ZeroStep:
    zero = ZeroStep(made or worker(), Dialect("0.5.23"))
    zero.problem, zero.kv_misfit, zero._prepared = problem, kv_misfit, True
    return zero


# ---- plain rounds and bridges ----------------------------------------------------------------------------------------------


def test_rounds_are_plain_while_zero_is_asked_for_and_a_bridge_leads_back(rounds: Rounds) -> None:
    zero = prepared()
    assert zero.run_round(batch(), None) is None
    zero.ask(wanted=True)
    assert [is_bridge(zero.run_round(batch(), None)) for _ in range(3)] == [False] * 3
    zero.ask(wanted=False)
    assert is_bridge(zero.run_round(batch(), None))
    assert zero.run_round(batch(), None) is None
    assert rounds.drafts == [Draft.KV_ONLY] * 3 + [Draft.EXTEND]
    assert zero.outcomes == {Outcome.KV_ONLY: 3, Outcome.BRIDGE: 1}


def test_without_a_zero_round_there_is_nothing_to_bridge(rounds: Rounds) -> None:
    zero = prepared()
    zero.ask(wanted=True)
    zero.ask(wanted=False)
    assert zero.run_round(batch(), None) is None
    assert rounds.drafts == []


def test_a_draft_that_kv_only_does_not_fit_is_extended_each_round_and_needs_no_bridge(rounds: Rounds) -> None:
    zero = prepared(kv_misfit="draft of 2 layers")
    zero.ask(wanted=True)
    zero.run_round(batch(), None)
    zero.run_round(batch(), None)
    zero.ask(wanted=False)
    assert zero.run_round(batch(), None) is None
    assert rounds.drafts == [Draft.EXTEND] * 2
    assert zero.outcomes == {Outcome.EXTEND: 2}


@pytest.mark.parametrize(
    "other", [batch("extend"), batch("idle"), batch(is_extend_in_batch=True)], ids=["prefill", "idle", "mixed"]
)
def test_what_is_no_decode_round_is_sglang_s_and_changes_nothing(rounds: Rounds, other: SimpleNamespace) -> None:
    zero = prepared()
    zero.ask(wanted=True)
    zero.run_round(batch(), None)
    assert zero.run_round(other, None) is None
    result = SimpleNamespace()
    zero.note_stock_round(other, result)
    assert not is_cold(result)
    zero.ask(wanted=False)
    assert zero.run_round(batch(), None) is not None, "the proposals are still behind"
    assert zero.outcomes == {Outcome.KV_ONLY: 1, Outcome.BRIDGE: 1}


# ---- falling through --------------------------------------------------------------------------------------------------------

FALLS = [
    ({"return_logprob": True}, Cause.LOGPROBS),
    ({"return_hidden_states": True}, Cause.HIDDEN_STATES),
    ({"spec_info": None}, Cause.NO_DRAFT_INPUT),
    ({"spec_info": SimpleNamespace(is_draft_input=lambda: False)}, Cause.NO_DRAFT_INPUT),
]


@pytest.mark.parametrize(("changes", "cause"), FALLS)
def test_falls_through_and_is_counted_by_its_cause(rounds: Rounds, changes: dict[str, Any], cause: Cause) -> None:
    told: list[str] = []
    zero = prepared()
    zero.on_outcome = told.append
    zero.ask(wanted=True)
    assert zero.run_round(batch(**changes), None) is None
    assert (rounds.drafts, zero.outcomes, told) == ([], {cause: 1}, [cause])


def test_every_cause_is_in_the_table() -> None:
    assert {cause for _, cause in FALLS} == set(Cause)


@pytest.mark.parametrize(
    ("states", "steps"), [((1, 2, 3), 1), ((0, 2, 3), 0), (None, 3)], ids=["adaptive", "with SGLang's own zero", "static"]
)
@pytest.mark.usefixtures("rounds")
def test_a_round_that_falls_through_has_the_fewest_steps(states: tuple[int, ...] | None, steps: int) -> None:
    made = worker(states)
    zero = prepared(made)
    zero.ask(wanted=True)
    zero.run_round(batch(return_logprob=True), None)
    assert made.speculative_num_steps == steps


@pytest.mark.usefixtures("rounds")
def test_on_the_way_back_a_round_that_falls_through_keeps_its_steps_and_is_cold_once() -> None:
    made = worker()
    zero = prepared(made)
    zero.ask(wanted=True)
    zero.run_round(batch(), None)
    zero.ask(wanted=False)
    results = []
    for _ in range(2):
        falling, result = batch(return_logprob=True), SimpleNamespace()
        assert zero.run_round(falling, None) is None
        zero.note_stock_round(falling, result)
        results.append(is_cold(result))
    assert results == [True, False], "its own extend makes the proposals fresh"
    assert made.speculative_num_steps == 3
    assert zero.run_round(batch(), None) is None, "no bridge is needed any more"


# ---- trouble ------------------------------------------------------------------------------------------------------------------


def test_a_round_that_fails_is_sglang_s_and_several_end_the_mechanism(rounds: Rounds) -> None:
    made = worker()
    zero = prepared(made)
    zero.ask(wanted=True)
    rounds.error = ValueError("no memory")
    for _ in range(MAX_ERRORS):
        assert zero.usable
        assert zero.run_round(batch(), None) is None
    assert not zero.usable
    assert not zero.asked
    assert zero.outcomes == {Outcome.ERROR: MAX_ERRORS}
    assert zero.report()["reason"] == f"{MAX_ERRORS} rounds failed, the last with ValueError: no memory"
    assert made.speculative_num_steps == 1, "the fewest steps that SGLang can do"
    rounds.error = None
    assert zero.run_round(batch(), None) is None
    assert rounds.drafts == []


def test_a_bridge_that_fails_leaves_a_cold_round(rounds: Rounds) -> None:
    zero = prepared()
    zero.ask(wanted=True)
    zero.run_round(batch(), None)
    zero.ask(wanted=False)
    rounds.error = ValueError()
    decode, result = batch(), SimpleNamespace()
    assert zero.run_round(decode, None) is None
    zero.note_stock_round(decode, result)
    assert is_cold(result)


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("y")])
def test_a_round_puts_back_every_field_whatever_happened(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    decode = batch()
    before = {name: getattr(decode, name) for name in BATCH_FIELDS}

    def fail(parts: PlainDecode, batch: Any, *args: Any) -> None:
        for name in BATCH_FIELDS:
            setattr(batch, name, "changed")
        raise error

    monkeypatch.setattr(PlainDecode, "_run", fail)
    with pytest.raises(type(error)):
        PlainDecode(worker(), Dialect("0.5.23"), None, None).run(decode, None, None, Draft.KV_ONLY)
    assert {name: getattr(decode, name) for name in BATCH_FIELDS} == before


def test_a_runner_gets_its_backend_and_graphs_back() -> None:
    backend = SimpleNamespace(cuda_graph_batch_info="verify's adapters")
    manager = SimpleNamespace(lora_backend=backend, max_bs_in_cuda_graph=256)
    target = SimpleNamespace(attn_backend="verify", decode_cuda_graph_runner="verify graphs", lora_manager=manager)
    lora = LoraBuffers(target)
    with lora.capturing():
        backend.cuda_graph_batch_info = "plain's adapters"
    own = graphs.Graphs("plain", "plain graphs", lora, None, decode_graphs=1, seconds=0, gigabytes=0)

    def fail() -> None:
        with PlainDecode(worker(), Dialect("0.5.23"), own, None)._plain(target):
            assert (target.attn_backend, target.decode_cuda_graph_runner) == ("plain", "plain graphs")
            assert backend.cuda_graph_batch_info == "plain's adapters"
            raise ValueError("forward")

    with pytest.raises(ValueError, match="forward"):
        fail()
    assert (target.attn_backend, target.decode_cuda_graph_runner) == ("verify", "verify graphs")
    assert backend.cuda_graph_batch_info == "verify's adapters"


def test_capturing_leaves_sglangs_lora_buffers_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimpleNamespace(cuda_graph_batch_info="verify's adapters")
    made = worker()
    made._target_worker = SimpleNamespace(
        model_runner=SimpleNamespace(
            decode_cuda_graph_runner="verify graphs", lora_manager=SimpleNamespace(lora_backend=backend)
        )
    )

    def capture(target: Any, attention: Any) -> Any:
        backend.cuda_graph_batch_info = "plain's adapters"
        return SimpleNamespace(backend=None, capture_bs=[1, 2])

    monkeypatch.setattr(graphs, "_build_attention", lambda target: "plain")
    monkeypatch.setattr(graphs, "_build_decode_runner", capture)
    monkeypatch.setattr(graphs, "_free_bytes", lambda: 0)
    built = graphs.build_graphs(made, Dialect("0.5.23"), draft_kv=False)
    assert backend.cuda_graph_batch_info == "verify's adapters"
    with built.lora.in_place():
        assert backend.cuda_graph_batch_info == "plain's adapters"


@pytest.mark.parametrize("version", ["0.5.17", "0.5.20", "0.5.22", "0.5.23"])
@pytest.mark.parametrize(("follows", "handed"), [(False, "read"), (True, "earlier")], ids=["KV-only", "extend"])
def test_the_end_of_shared_reads_is_handed_on_unless_a_draft_forward_follows(version: str, follows: bool, handed: str) -> None:
    name = "war_fastpath_read_done_event" if version == "0.5.17" else "shared_read_done_event"
    target, draft = SimpleNamespace(**{name: "an earlier round's"}), SimpleNamespace(**{name: "earlier"})
    made = worker()
    made._draft_worker = SimpleNamespace(draft_runner=draft)
    with PlainDecode(made, Dialect(version), None, None)._hand_on_read_done(target, follows=follows):
        assert getattr(target, name) is None, "an eager forward sets none, and must not pass an earlier one on"
        setattr(target, name, "read")
    assert (getattr(draft, name), getattr(target, name)) == (handed, None)


def test_what_can_t_be_prepared_is_a_reason() -> None:
    zero = ZeroStep(SimpleNamespace(), Dialect("0.5.23"))
    assert (zero.usable, zero.reason) == (False, "not prepared")
    zero.prepare()
    assert zero.reason == "speculative worker SimpleNamespace is not supported (supported: EAGLEWorkerV2)"


def test_a_failing_capture_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "find_obstacle", lambda worker: None)
    monkeypatch.setattr(fit, "find_kv_misfit", lambda worker: None)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(step.graphs, "build_graphs", fail)
    made = worker()
    made._target_worker = SimpleNamespace(model_runner=SimpleNamespace(device="cuda:0"))
    made._draft_worker = SimpleNamespace()
    zero = ZeroStep(made, Dialect("0.5.23"))
    zero.prepare()
    assert zero.reason == "could not be prepared: RuntimeError: out of memory"


# ---- hooks --------------------------------------------------------------------------------------------------------------------


def hooks(version: str = "0.5.23", *, obstacle: str | None = None, in_control: bool = True) -> ZeroHooks:
    return ZeroHooks(version, lambda worker: obstacle, lambda: in_control)


def test_an_engine_that_can_t_be_controlled_is_not_prepared() -> None:
    made = worker()
    hooks(obstacle="pipeline parallelism").prepare(None, made)
    assert step.zero_step_of(made, "0.5.23").reason == "not prepared"
    hooks().prepare(None, made)
    assert step.zero_step_of(made, "0.5.23").reason != "not prepared"


def attach(made: SimpleNamespace) -> ZeroStep:
    zero = step.zero_step_of(made, "0.5.23")
    zero._prepared = True
    return zero


def test_a_plain_round_is_run_instead_of_sglang_s(rounds: Rounds) -> None:
    made = worker()
    attach(made).ask(wanted=True)
    hooks().round(pytest.fail, made, batch())
    assert rounds.drafts == [Draft.KV_ONLY]


@pytest.mark.parametrize(
    ("arguments", "keywords"), [((1, 2), {}), ((1,), {"grammar_barrier": 2}), ((), {"on_publish": 1, "grammar_barrier": 2})]
)
def test_a_plain_round_gets_the_scheduler_s_callbacks(
    rounds: Rounds, arguments: tuple[int, ...], keywords: dict[str, int]
) -> None:
    made = worker()
    attach(made).ask(wanted=True)
    hooks().round(pytest.fail, made, batch(), *arguments, **keywords)
    assert rounds.callbacks == (1, 2)


@pytest.mark.parametrize("keywords", [{}, {"grammar_barrier": 1, "on_publish": 2}])
def test_a_round_that_is_sglang_s_gets_its_arguments_as_they_came(keywords: dict[str, int]) -> None:
    made, decode = worker(), batch()
    called: list[Any] = []

    def original(*args: Any, **kwargs: Any) -> SimpleNamespace:
        called.append((args, kwargs))
        return SimpleNamespace()

    hooks().round(original, made, decode, **keywords)
    assert called == [((made, decode), keywords)]


def test_what_sglang_raises_passes_through_once() -> None:
    calls: list[int] = []

    def original(*args: Any) -> None:
        calls.append(1)
        raise ValueError("engine")

    with pytest.raises(ValueError, match="engine"):
        hooks().round(original, worker(), batch())
    assert len(calls) == 1


def test_an_engine_that_was_let_go_of_leaves_the_zero_step_by_a_bridge(rounds: Rounds) -> None:
    made = worker()
    attach(made).ask(wanted=True)
    hooks().round(pytest.fail, made, batch())
    hooks(in_control=False).round(pytest.fail, made, batch())
    assert rounds.drafts == [Draft.KV_ONLY, Draft.EXTEND]
    done: list[int] = []
    hooks(in_control=False).round(lambda *args: done.append(1), made, batch())
    assert done == [1]


class Rows:
    """Rows of the relay's buffer of tokens, by request slot."""

    dtype = "int64"

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}

    def __setitem__(self, index: Any, value: Any) -> None:
        self.rows[index] = value


class Slots:
    def __init__(self, count: int) -> None:
        self.shape = (count,)


@pytest.mark.parametrize(
    ("version", "topk", "handled"),
    [
        ("0.5.17", None, True),
        ("0.5.20", None, True),
        ("0.5.22", None, False),
        ("0.5.23", None, False),
        ("0.5.17", "drafts", False),
    ],
)
def test_stash_takes_a_result_without_drafts_where_sglang_would_not(version: str, topk: str | None, handled: bool) -> None:
    relay = SimpleNamespace(need_topk=True, output_tokens_buf=Rows())
    slots = Slots(2)
    payload = SimpleNamespace(topk_p=topk, bonus_tokens=SimpleNamespace(to=lambda dtype: f"tokens as {dtype}"))
    assert hooks(version).stash(relay, slots, payload) is handled
    assert relay.output_tokens_buf.rows == ({slots: "tokens as int64"} if handled else {})


# ---- prompts ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Prompts whose K and V were written."""
    written: list[Any] = []

    def write(draft_worker: Any, batch: Any, hidden: Any, next_tokens: Any) -> str:
        written.append(batch)
        return "empty proposal"

    monkeypatch.setattr(step.prompt, "fits", lambda batch, image_embeddings: image_embeddings is None)
    monkeypatch.setattr(step.prompt, "write_prompt_kv", write)
    return written


def test_a_prompt_in_a_zero_phase_needs_a_bridge_though_no_round_was_run(rounds: Rounds, prompts: list[Any]) -> None:
    zero = prepared()
    zero.ask(wanted=True)
    assert zero.run_prompt(None, extend := batch("extend"), "hidden", "tokens", None) == "empty proposal"
    zero.ask(wanted=False)
    assert zero.run_prompt(None, batch("extend"), "hidden", "tokens", None) is None
    assert prompts == [extend]
    assert is_bridge(zero.run_round(batch()))
    assert rounds.drafts == [Draft.EXTEND]
    assert zero.outcomes == {Outcome.PROMPT: 1, Outcome.BRIDGE: 1}


@pytest.mark.usefixtures("rounds")
def test_prompts_that_are_sglang_s(prompts: list[Any]) -> None:
    image, several_layers = prepared(), prepared(kv_misfit="draft of 2 layers")
    for zero, embeddings in ((image, "image"), (several_layers, None)):
        zero.ask(wanted=True)
        assert zero.run_prompt(None, batch("extend"), "hidden", "tokens", embeddings) is None
        zero.ask(wanted=False)
        assert zero.run_round(batch()) is None, "nothing is behind"
    assert prompts == []


def test_a_prompt_that_fails_is_sglang_s_and_so_are_all_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step.prompt, "fits", lambda *args: True)
    monkeypatch.setattr(step.prompt, "write_prompt_kv", lambda *args: 1 / 0)
    zero = prepared()
    zero.ask(wanted=True)
    assert zero.run_prompt(None, batch("extend"), "hidden", "tokens", None) is None
    assert zero.report()["promptsReadBecause"] == "ZeroDivisionError: division by zero"
    assert zero.run_prompt(None, batch("extend"), "hidden", "tokens", None) is None
    assert zero.outcomes == {Outcome.PROMPT_ERROR: 1}, "it is not tried again"
    assert zero.usable, "rounds are as they were"


@pytest.mark.usefixtures("prompts")
def test_the_draft_s_part_of_a_prefill_is_left_to_sglang_with_its_arguments() -> None:
    made, draft_worker = worker(), SimpleNamespace()
    draft_worker.specserver_zero = attach(made)
    called: list[Any] = []

    def original(*args: Any, **kwargs: Any) -> str:
        called.append((args, kwargs))
        return "proposal"

    arguments = draft_worker, batch("extend"), "hidden", "tokens"
    assert hooks().prompt(original, *arguments, None, kv_loc_plan=1) == "proposal"
    assert called == [((*arguments, None), {"kv_loc_plan": 1})]
    attach(made).ask(wanted=True)
    assert hooks().prompt(pytest.fail, *arguments) == "empty proposal"
    assert hooks().prompt(original, *arguments, mm_input_embeds="image") == "proposal"
