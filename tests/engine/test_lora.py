"""Zero steps on an engine with LoRA: each request goes on wearing its own adapter, or none, whatever kind of round it is in.

The draft wears none, so an adapter's text is drafted worse; what is drafted after zero rounds is compared all the same.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from specserver.plugin.zero.step import Outcome
from tests.engine.conftest import PROMPTS, TOKENS, StartServer, policy_json
from tests.engine.environment import IMAGE
from tests.engine.server import Config, Server
from tests.engine.zero import PROBE, Probe, Record, ask, compare, count_zero_rounds, flush

UNPINNED = Path(__file__).parent / "unpinned"
ADAPTERS = (None, "one", "two")
LOAD = tuple(zip(PROMPTS[:12], itertools.cycle(ADAPTERS)))
SAME_PROMPT = tuple((PROMPTS[0], adapter) for adapter in ADAPTERS)
Outputs = list[list[int]]


@pytest.fixture(scope="module")
def lora(python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Arguments of a server with two adapters, of different rank."""
    directory = tmp_path_factory.mktemp("adapters")
    target = models / "random" / "target"
    subprocess.run([str(python), str(IMAGE / "adapters.py"), str(target), str(directory), "one=4", "two=8"], check=True)
    return ("--lora-backend", "torch_native", "--lora-paths", f"one={directory / 'one'}", f"two={directory / 'two'}")


def ask_all(server: Server) -> Outputs:
    """All at once, so that batches hold requests with and without adapters."""

    def one(number: int) -> list[int]:
        prompt, adapter = LOAD[number]
        reply = ask(server, f"request-{number}", prompt, TOKENS, lora_path=adapter)
        assert reply.status == 200, reply
        output: list[int] = reply.body["output_ids"]
        return output

    with ThreadPoolExecutor(len(LOAD)) as pool:
        return list(pool.map(one, range(len(LOAD))))


@dataclass(frozen=True)
class Plain:
    outputs: Outputs
    same_prompt: Outputs


@pytest.fixture(scope="module")
def plain(make_server: StartServer, models: Path, lora: tuple[str, ...]) -> Plain:
    with make_server(Config(models / "random", algorithm=None, arguments=lora, python_path=(UNPINNED,))) as server:
        same = [ask(server, str(i), prompt, TOKENS, lora_path=adapter) for i, (prompt, adapter) in enumerate(SAME_PROMPT)]
        return Plain(ask_all(server), [reply.body["output_ids"] for reply in same])


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(tmp_path_factory.mktemp("zero"))


@pytest.fixture(scope="module")
def server(
    make_server: StartServer, models: Path, lora: tuple[str, ...], plain: Plain, probe: Probe
) -> Iterator[Server]:
    """One step count beside 0: SGLang has LoRA without its adaptive controller alone."""
    config = Config(
        models / "random",
        adaptive=False,
        policy=policy_json(steps=[0, 3]),
        arguments=lora,
        variables=probe.variables,
        python_path=(PROBE, UNPINNED),
    )
    with make_server(config) as server:
        yield server


def test_the_adapters_change_what_is_said(plain: Plain) -> None:
    assert len({tuple(output) for output in plain.same_prompt}) == len(ADAPTERS)


def test_armed(server: Server) -> None:
    state = server.state()
    assert (state["armed"], state["reason"], state["ladder"]) == (True, "", [0, 3])
    assert state["zero"]["plainDecode"], state["zero"]


def test_a_zero_phase_is_plain_decode_for_every_adapter(server: Server, plain: Plain) -> None:
    server.set_policy(mode="Never", steps=[0, 3])
    flush(server)
    with count_zero_rounds(server) as rounds:
        outputs = ask_all(server)
    assert outputs == plain.outputs
    assert set(rounds) == {Outcome.KV_ONLY, Outcome.PROMPT}, rounds


def test_outputs_and_drafts_while_steps_come_and_go(server: Server, plain: Plain, probe: Probe) -> None:
    server.set_policy(mode="Always", steps=[0, 3])
    always = record(server, plain, probe)
    with count_zero_rounds(server) as rounds:
        toggled = record(server, plain, probe, every=3)
    assert set(rounds) <= {Outcome.KV_ONLY, Outcome.BRIDGE, Outcome.PROMPT}, rounds
    assert min(rounds[Outcome.KV_ONLY], rounds[Outcome.BRIDGE]) >= 8, rounds
    after, other = compare(toggled, always)
    assert after[True] > 20, (after, other)
    assert (after[False], other[False]) == (0, 0), (after, other)
    cold = record(server, plain, probe, every=3, cold="rounds")
    after, other = compare(cold, always)
    assert after[False] > after[True], f"the test can't tell a cold draft: {after}, {other}"


def record(server: Server, plain: Plain, probe: Probe, **plan: object) -> Record:
    flush(server)
    with probe.recording(**plan) as made:
        assert ask_all(server) == plain.outputs
    return made
