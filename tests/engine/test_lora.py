"""Zero steps on an engine with LoRA: each request goes on wearing its own adapter, or none, whatever kind of round it is in.

On a CPU there are no graphs, and so none of the buffers that zero/lora.py keeps apart: those are a GPU's to show.

The draft wears none, so an adapter's text is drafted worse; what is drafted after zero rounds is compared all the same.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from specserver.plugin.zero.step import Outcome
from tests.engine.conftest import PROMPTS, TOKENS, StartServer, policy_json
from tests.engine.environment import IMAGE
from tests.engine.server import Config, Server
from tests.engine.zero import PROBE, Probe, Record, ask, ask_all, check_drafts, count_zero_rounds, flush

UNPINNED = Path(__file__).parent / "unpinned"
ADAPTERS = (None, "one", "two")
LOAD = PROMPTS[:12]


@pytest.fixture(scope="module")
def lora(python: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Arguments of a server with two adapters, of different rank."""
    directory = tmp_path_factory.mktemp("adapters")
    target = models / "random" / "target"
    subprocess.run([str(python), str(IMAGE / "adapters.py"), str(target), str(directory), "one=4", "two=8"], check=True)
    return ("--lora-backend", "torch_native", "--lora-paths", f"one={directory / 'one'}", f"two={directory / 'two'}")


def ask_mixed(server: Server) -> list[list[int]]:
    """All at once, so that batches hold requests with and without adapters."""
    return ask_all(server, LOAD, TOKENS, len(LOAD), ADAPTERS)


@dataclass(frozen=True)
class Plain:
    outputs: list[list[int]]
    same_prompt: list[list[int]]


@dataclass(frozen=True)
class Engines:
    """Ours, and what a plain one with the same adapters gave before it ended."""

    ours: Server
    plain: Plain
    probe: Probe


@pytest.fixture(scope="module")
def engines(
    make_server: StartServer, models: Path, lora: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engines]:
    """One step count beside 0: SGLang has LoRA without its adaptive controller alone."""
    probe = Probe(tmp_path_factory.mktemp("zero"))
    stock = Config(models / "random", algorithm=None, arguments=lora, python_path=(UNPINNED,))
    speculating = Config(
        models / "random",
        adaptive=False,
        policy=policy_json(steps=[0, 3]),
        arguments=lora,
        variables=probe.variables,
        python_path=(PROBE, UNPINNED),
    )
    with contextlib.ExitStack() as stack:
        plain, ours = servers = make_server(stock), make_server(speculating)  # they start side by side
        for server in servers:
            stack.push(server)
        for server in servers:
            server.__enter__()
        same = [ask(plain, str(adapter), PROMPTS[0], TOKENS, lora_path=adapter).body["output_ids"] for adapter in ADAPTERS]
        given = Plain(ask_mixed(plain), same)
        plain.__exit__()
        yield Engines(ours, given, probe)


def test_the_adapters_change_what_is_said(engines: Engines) -> None:
    assert len({tuple(output) for output in engines.plain.same_prompt}) == len(ADAPTERS)


def test_armed(engines: Engines) -> None:
    state = engines.ours.state()
    assert (state["armed"], state["reason"], state["ladder"]) == (True, "", [0, 3])
    assert state["zero"]["plainDecode"], state["zero"]


def test_a_zero_phase_is_plain_decode_for_every_adapter(engines: Engines) -> None:
    engines.ours.set_policy(mode="Never", steps=[0, 3])
    flush(engines.ours)
    with count_zero_rounds(engines.ours) as rounds:
        outputs = ask_mixed(engines.ours)
    assert outputs == engines.plain.outputs
    assert set(rounds) == {Outcome.KV_ONLY, Outcome.PROMPT}, rounds


def test_outputs_and_drafts_while_steps_come_and_go(engines: Engines) -> None:
    engines.ours.set_policy(mode="Always", steps=[0, 3])
    always = record(engines)
    with count_zero_rounds(engines.ours) as rounds:
        toggled = record(engines, every=3)
    assert set(rounds) <= {Outcome.KV_ONLY, Outcome.BRIDGE, Outcome.PROMPT}, rounds
    assert min(rounds[Outcome.KV_ONLY], rounds[Outcome.BRIDGE]) >= 8, rounds
    check_drafts(always, toggled, cold=record(engines, every=3, cold="rounds"))


def record(engines: Engines, **plan: object) -> Record:
    flush(engines.ours)
    with engines.probe.recording(**plan) as made:
        assert ask_mixed(engines.ours) == engines.plain.outputs
    return made
