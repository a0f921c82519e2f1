"""The trained pair: a target whose every token hangs on the line before, and an EAGLE-3 draft that predicts it by looking back.

The only models here whose drafts are both accepted and wrong once the draft's cache is: `random` has drafts that are never
accepted, and the drafts of `halves` look at the newest token alone. How it was made: benchmarks/draft_model/README.md.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.draft_model.language import LETTERS, continued, first_lines
from tests.engine.environment import IMAGE
from tests.engine.server import Server

MODELS = IMAGE / "trained"
TOKENS = 48
SECOND_TOKENS = 12  # about a line: beyond it, a draft lives on rows that the second turn wrote itself
SCRIBBLER = Path(__file__).parent / "scribble"


def prompts(count: int, *, lines: int = 2, letters: Sequence[int] = LETTERS, seed: int = 0) -> list[list[int]]:
    """The first lines of as many different texts, of 14 to 34 tokens if there are two."""
    return [first_lines(random.Random(f"{seed} {number}"), lines, letters) for number in range(count)]


def second_turn(prompt: Sequence[int], output: Sequence[int]) -> list[int]:
    """The conversation so far and three more tokens, as a user would go on: nearly all of it is in the prefix cache."""
    conversation = [*prompt, *output]
    return continued(conversation, len(conversation) + 3)


@dataclass(frozen=True)
class Answer:
    output: list[int]
    verify_rounds: int  # of whatever step count; the first token comes from the prefill

    @property
    def decoded(self) -> int:
        return len(self.output) - 1


def ask(server: Server, prompt: Sequence[int], tokens: int) -> Answer:
    parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": list(prompt), "sampling_params": parameters}
    reply = server.call("POST", "/generate", body, key=server.config.api_key)
    assert reply.status == 200, reply
    return Answer(reply.body["output_ids"], reply.body["meta_info"].get("spec_verify_ct", 0))


def ask_all(server: Server, prompts: Sequence[Sequence[int]], tokens: int, concurrency: int) -> list[Answer]:
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda prompt: ask(server, prompt, tokens), prompts))


def accept_length(answers: Sequence[Answer]) -> float:
    """Tokens for each decode round over all answers."""
    return sum(answer.decoded for answer in answers) / sum(answer.verify_rounds for answer in answers)


class Scribbler:
    """Overwrites the draft's KV pool of a server that was started with `python_path=(SCRIBBLER,)` and these `variables`."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "scribble"
        self._file.write_text("")
        self._numbers = itertools.count(1)

    @property
    def variables(self) -> dict[str, str]:
        return {"SPECSERVER_TEST_SCRIBBLE": str(self._file)}

    def scribble(self) -> None:
        """Before the next round of the engine, whatever it is."""
        self._file.write_text(f"scribble {next(self._numbers)}")
