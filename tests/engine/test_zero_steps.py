"""Zero steps as plain decode: outputs, the draft's state afterwards, what falls through, what fails, and a soak.

Equal outputs alone would also come from rounds that silently fall through, so each test looks at the counters too. The
attention-heavy random models serve here: a row of K or V that is missing changes what their draft proposes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserver.plugin.zero.fit import Cause
from specserver.plugin.zero.step import MAX_ERRORS, Outcome
from tests.engine import scenarios, soak
from tests.engine.conftest import PROMPTS, TOKENS, PlainRun, Speculating, StartServer, policy_json
from tests.engine.server import Config, Server, wait_until
from tests.engine.zero import PROBE, Probe, Record, ask, ask_all, compare, count_zero_rounds, flush, zero_rounds

FEW = 8
LONG = [[token for other in PROMPTS[i::FEW] for token in other] for i in range(FEW)]
"""Prompts of about twenty tokens."""

ZERO_PHASE = {Outcome.KV_ONLY, Outcome.PROMPT}
"""How all goes in a zero phase; a bridge leads out of it."""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(tmp_path_factory.mktemp("zero"))


@pytest.fixture(scope="module")
def probed(make_server: StartServer, models: Path, plain_random: PlainRun, probe: Probe) -> Iterator[Speculating]:
    config = Config(
        models / "random",
        "EAGLE3",
        policy=policy_json(),
        arguments=("--enable-return-hidden-states",),
        python_path=(PROBE,),
        variables=probe.variables,
    )
    with make_server(config) as server:
        yield Speculating(server, plain_random)


@pytest.fixture
def server(probed: Speculating, probe: Probe) -> Server:
    probe.plan()
    return probed.server


def test_the_report_says_that_zero_steps_are_plain_decode(server: Server) -> None:
    zero = server.state()["zero"]
    assert zero["plainDecode"]
    assert (zero["reason"], zero["draftExtendedBecause"], zero["promptsReadBecause"]) == ("", "", "")


def test_a_zero_phase_is_plain_decode_and_nothing_else(probed: Speculating, server: Server) -> None:
    server.set_policy(mode="Never")
    with count_zero_rounds(server) as rounds, scenarios.count_rounds(server) as steps:
        outputs = server.generate_all(PROMPTS, TOKENS, concurrency=8)
    assert probed.wrong(outputs) == []
    assert set(rounds) == ZERO_PHASE, rounds
    assert rounds[Outcome.KV_ONLY] >= steps[0] > 0
    assert {k for k, count in steps.items() if count} == {0}
    assert server.metrics()['specserver_zero_rounds_total{outcome="kv_only"}'] == zero_rounds(server)[Outcome.KV_ONLY]


@pytest.mark.parametrize("every", [1, 3])
def test_outputs_while_steps_come_and_go_every_few_rounds(
    probed: Speculating, server: Server, probe: Probe, every: int
) -> None:
    server.set_policy(mode="Always")
    probe.plan(every=every)
    with count_zero_rounds(server) as rounds:
        outputs = server.generate_all(PROMPTS, TOKENS, concurrency=8)
    assert probed.wrong(outputs) == []
    assert rounds[Outcome.KV_ONLY] > 20, rounds
    assert rounds[Outcome.BRIDGE] > 20, rounds
    assert set(rounds) <= ZERO_PHASE | {Outcome.BRIDGE}, rounds


# ---- the draft after zero rounds ---------------------------------------------------------------------------------------------


def record_toggled(server: Server, probe: Probe, **plan: object) -> Record:
    flush(server)
    with probe.recording(**plan) as record:
        ask_all(server, PROMPTS[:FEW], TOKENS, concurrency=3)
    return record


def test_drafts_after_zero_rounds_are_those_of_a_server_that_always_speculates(server: Server, probe: Probe) -> None:
    server.set_policy(mode="Always")
    always = record_toggled(server, probe)
    toggled = record_toggled(server, probe, every=3)
    cold = record_toggled(server, probe, every=3, cold="rounds")
    after, other = compare(toggled, always)
    assert after[True] > 30, (after, other)
    assert (after[False], other[False]) == (0, 0), (after, other)
    after, other = compare(cold, always)
    assert after[False] > after[True], f"the test can't tell a cold draft: {after}, {other}"


def test_a_draft_that_kv_only_does_not_fit_stays_warm_by_its_own_extend(server: Server, probe: Probe) -> None:
    server.set_policy(mode="Always")
    always = record_toggled(server, probe)
    with count_zero_rounds(server) as rounds:
        toggled = record_toggled(server, probe, every=3, misfit="draft of several layers")
    assert set(rounds) == {Outcome.EXTEND}, rounds
    after, other = compare(toggled, always)
    assert after[True] > 20, (after, other)
    assert (after[False], other[False]) == (0, 0), (after, other)


def record_second_turn(server: Server, probe: Probe, first_mode: str, **plan: object) -> tuple[Record, list[list[int]]]:
    """What is drafted in the second turn of conversations whose first turn ran in a mode."""
    flush(server)
    server.set_policy(mode=first_mode)
    with probe.recording(**plan):
        first = ask_all(server, LONG, TOKENS, concurrency=3)
    conversations = [[*prompt, *output, 7, 300, 11] for prompt, output in zip(LONG, first, strict=True)]
    server.set_policy(mode="Always")
    with probe.recording_on() as record:
        outputs = ask_all(server, conversations, 12, concurrency=3)
    return record, outputs


def test_the_second_turn_of_a_cached_conversation_drafts_as_if_zero_steps_had_never_been(server: Server, probe: Probe) -> None:
    always, outputs = record_second_turn(server, probe, "Always")
    plain, same_outputs = record_second_turn(server, probe, "Never")
    assert outputs == same_outputs
    right, wrong = count_equal(plain, always)
    assert right > 30
    assert wrong == 0, f"{wrong} of {right + wrong} rounds differ"
    for part in ("rounds", "prompts"):
        cold, _ = record_second_turn(server, probe, "Never", cold=part)
        right, wrong = count_equal(cold, always)
        assert wrong > right, f"the test can't tell {part} without K and V: {wrong} of {right + wrong} rounds differ"


def count_equal(record: Record, reference: Record) -> tuple[int, int]:
    after, other = compare(record, reference)
    total: Counter[bool] = after + other
    return total[True], total[False]


# ---- what is asked of a round besides tokens -----------------------------------------------------------------------------


INTEGERS = '{"type": "array", "items": {"type": "integer"}}'


@pytest.mark.parametrize("sampling", [{"regex": "[a-m]{1,30}"}, {"json_schema": INTEGERS}], ids=["regex", "JSON schema"])
def test_a_grammar_holds_in_zero_rounds_as_in_sglang_s(server: Server, probe: Probe, sampling: dict[str, object]) -> None:
    texts = []
    for every in (None, 2, 0):
        server.set_policy(mode="Never" if every == 0 else "Always")
        probe.plan(**({"every": every} if every else {}))
        with count_zero_rounds(server) as rounds, server.background_load(PROMPTS[:2], TOKENS):
            reply = ask(server, f"grammar-{every}", PROMPTS[4], 40, sampling={**sampling, "ignore_eos": False})
        assert reply.status == 200, reply
        texts.append(reply.body["text"])
        assert (rounds[Outcome.KV_ONLY] > 0) is (every is not None)
        assert set(rounds) <= ZERO_PHASE | {Outcome.BRIDGE}, rounds
    assert texts[0] == texts[1] == texts[2]
    if "regex" in sampling:
        assert re.fullmatch("[a-m]+", texts[0])


# ---- what falls through ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "request_body"),
    [
        (Cause.LOGPROBS, {"return_logprob": True}),
        (Cause.HIDDEN_STATES, {"return_hidden_states": True}),
    ],
    ids=lambda value: str(value) if isinstance(value, Cause) else "",
)
def test_what_falls_through_is_sglang_s_and_the_others_go_on(
    probed: Speculating, server: Server, cause: Cause, request_body: dict[str, object]
) -> None:
    server.set_policy(mode="Never")
    with count_zero_rounds(server) as rounds, server.background_load(PROMPTS[:4], TOKENS) as outputs:
        wait_until(lambda: server.state()["running"] > 0, 30, "requests run")
        reply = ask(server, str(cause), PROMPTS[0], 16, **request_body)
    assert reply.status == 200, reply
    assert reply.body["output_ids"] == probed.plain.outputs[0][:16]
    assert probed.wrong(outputs, of=slice(4)) == []
    assert rounds[cause] > 0, rounds
    assert set(rounds) <= ZERO_PHASE | {cause}, rounds
    steps = server.metrics()
    assert steps[f'specserver_zero_rounds_total{{outcome="{cause}"}}'] > 0


# ---- soak, and then trouble --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(soak.SECONDS + 300)
def test_soak(probed: Speculating, server: Server, probe: Probe) -> None:
    server.set_policy(mode="Always")
    with count_zero_rounds(server) as rounds:
        soak.run(server, lambda number: probe.plan(every=1 + number % 4))
    probe.plan()
    assert min(rounds[Outcome.KV_ONLY], rounds[Outcome.BRIDGE]) > 0, rounds
    assert Outcome.ERROR not in rounds
    soak.check_nothing_leaked(server)
    assert probed.wrong(server.generate_all(PROMPTS, TOKENS, concurrency=8)) == []


def test_a_round_that_fails_half_way_is_run_by_sglang(probed: Speculating, server: Server, probe: Probe) -> None:
    server.set_policy(mode="Never")
    probe.plan(fail=MAX_ERRORS - 1)
    with count_zero_rounds(server) as rounds:
        outputs = server.generate_all(PROMPTS[:FEW], TOKENS, concurrency=4)
    assert probed.wrong(outputs, of=slice(FEW)) == []
    assert rounds[Outcome.ERROR] == MAX_ERRORS - 1
    assert rounds[Outcome.KV_ONLY] > 0
    state = server.state()
    assert (state["armed"], state["zero"]["plainDecode"]) == (True, True)


def test_after_one_more_zero_steps_are_sglang_s_own(probed: Speculating, server: Server, probe: Probe) -> None:
    """Last: the mechanism does not come back. One is enough after the test above; alone it takes all of them."""
    server.set_policy(mode="Never")
    probe.plan(fail=MAX_ERRORS)
    with scenarios.count_rounds(server) as steps:
        outputs = server.generate_all(PROMPTS, TOKENS, concurrency=8)
    assert probed.wrong(outputs) == []
    zero = server.state()["zero"]
    assert not zero["plainDecode"]
    assert "5 rounds failed, the last with InjectedFault" in zero["reason"]
    assert steps[1] > 0, f"not with the fewest steps that SGLang can do: {steps}"
