"""EAGLE3 on the trained pair: drafts that are accepted because they look back, and outputs that don't change by them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine import trained
from tests.engine.conftest import StartServer, policy_json
from tests.engine.server import Config, Server

PROMPTS = trained.prompts(12)


@pytest.fixture(scope="module")
def plain(make_server: StartServer) -> list[trained.Answer]:
    """What a server that does not speculate answers."""
    with make_server(Config(trained.MODELS, algorithm=None)) as server:
        return trained.ask_all(server, PROMPTS, trained.TOKENS, concurrency=4)


@pytest.fixture(scope="module")
def scribbler(tmp_path_factory: pytest.TempPathFactory) -> trained.Scribbler:
    return trained.Scribbler(tmp_path_factory.mktemp("scribbler"))


@pytest.fixture(scope="module")
def server(plain: list[trained.Answer], make_server: StartServer, scribbler: trained.Scribbler) -> Iterator[Server]:
    """Speculates three steps, always. It starts after the plain server has ended."""
    config = Config(
        trained.MODELS,
        policy=policy_json(mode="Always"),
        python_path=(trained.SCRIBBLER,),
        variables=scribbler.variables,
    )
    with make_server(config) as server:
        yield server


@pytest.mark.parametrize("concurrency", [1, 6])
def test_drafts_are_accepted_and_outputs_are_the_plain_server_s(
    server: Server, plain: list[trained.Answer], concurrency: int
) -> None:
    answers = trained.ask_all(server, PROMPTS, trained.TOKENS, concurrency)
    assert [answer.output for answer in answers] == [answer.output for answer in plain]
    assert trained.accept_length(answers) > 2


def test_second_turn_speculates_on_the_cached_first_one(server: Server, scribbler: trained.Scribbler) -> None:
    """And with the first turn's rows of the draft lost, it can't: this is how damage to a cached conversation shows."""

    def second_turns(prompts: list[list[int]], *, scribbled: bool) -> list[trained.Answer]:
        answers = []
        for prompt in prompts:
            first = trained.ask(server, prompt, trained.TOKENS)
            if scribbled:
                scribbler.scribble()
            answers.append(trained.ask(server, trained.second_turn(prompt, first.output), trained.SECOND_TOKENS))
        return answers

    prompts = trained.prompts(12, seed=1)
    whole = second_turns(prompts, scribbled=False)
    damaged = second_turns(prompts, scribbled=True)
    assert [answer.output for answer in damaged] == [answer.output for answer in whole]
    gain, left = trained.accept_length(whole) - 1, trained.accept_length(damaged) - 1
    assert gain > 1
    assert left < 0.6 * gain
