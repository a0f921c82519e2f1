"""Zero steps on engines of other kinds: a chain without SGLang's adaptive controller, and a tree, which it can't adapt at all.

Between them: EAGLE and EAGLE-3, prompts in chunks, pages of several tokens, requests that are retracted, no prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from specserver.plugin.zero.step import Outcome
from tests.engine.conftest import PROMPTS, TOKENS, PlainRun, Speculating, StartServer, policy_json
from tests.engine.server import Config, Server
from tests.engine.zero import PROBE, Probe, Record, ask_all, check_drafts, count_zero_rounds, flush

FEW = 8


@dataclass(frozen=True)
class Variant:
    speculating: Speculating
    probe: Probe

    @property
    def server(self) -> Server:
        return self.speculating.server


CONFIGS = {
    "static chain": Config(
        Path(),
        "EAGLE",
        adaptive=False,
        arguments=("--chunked-prefill-size", "8", "--page-size", "4"),
        variables={"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "40"},
    ),
    "tree": Config(
        Path(),
        "EAGLE3",
        adaptive=False,
        arguments=("--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "6", "--disable-radix-cache"),
    ),
}


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS.keys())
def variant(
    request: pytest.FixtureRequest,
    make_server: StartServer,
    models: Path,
    plain_random: PlainRun,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Variant]:
    probe, config = Probe(tmp_path_factory.mktemp("zero")), request.param
    config = Config(
        models / "random",
        config.algorithm,
        adaptive=config.adaptive,
        policy=policy_json(steps=[0, 3]),
        arguments=config.arguments,
        variables={**config.variables, **probe.variables},
        python_path=(PROBE,),
    )
    with make_server(config) as server:
        yield Variant(Speculating(server, plain_random), probe)


def test_armed_with_its_one_step_count_and_zero(variant: Variant) -> None:
    state = variant.server.state()
    assert (state["armed"], state["reason"], state["revision"]) == (True, "", 1)
    assert state["zero"]["plainDecode"], state["zero"]
    assert variant.server.put_policy(steps=[0, 1, 3]).body["field"] == "steps"


def test_outputs_and_drafts_while_steps_come_and_go(variant: Variant) -> None:
    server, probe = variant.server, variant.probe
    server.set_policy(mode="Always", steps=[0, 3])
    always = record(variant)
    with count_zero_rounds(server) as rounds:
        toggled = record(variant, every=3)
        probe.plan(every=2)
        outputs = server.generate_all(PROMPTS, TOKENS, concurrency=12)
        probe.plan()
    assert variant.speculating.wrong(outputs) == []
    assert set(rounds) <= {Outcome.KV_ONLY, Outcome.BRIDGE, Outcome.PROMPT}, rounds
    assert min(rounds[Outcome.KV_ONLY], rounds[Outcome.BRIDGE]) > 20, rounds
    check_drafts(always, toggled, cold=record(variant, every=3, cold="rounds"))


def record(variant: Variant, **plan: object) -> Record:
    flush(variant.server)
    with variant.probe.recording(**plan) as made:
        outputs = ask_all(variant.server, PROMPTS[:FEW], TOKENS, concurrency=4)
    assert variant.speculating.wrong(outputs, of=slice(FEW)) == []
    return made


def test_a_zero_phase_is_plain_decode_and_nothing_else(variant: Variant) -> None:
    server = variant.server
    server.set_policy(mode="Never", steps=[0, 3])
    with count_zero_rounds(server) as rounds:
        outputs = server.generate_all(PROMPTS, TOKENS, concurrency=12)
    assert variant.speculating.wrong(outputs) == []
    assert set(rounds) == {Outcome.KV_ONLY, Outcome.PROMPT}, rounds


def test_requests_were_retracted_where_that_was_asked_for(variant: Variant) -> None:
    if "SGLANG_TEST_RETRACT" in variant.server.config.variables:
        assert variant.server.state()["retractions"] > 0
    else:
        assert variant.server.state()["retractions"] == 0
