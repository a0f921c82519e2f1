"""Servers whose zero rounds are looked at and disturbed: what the tests of the zero step share."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.server import Reply, Server

PROBE = Path(__file__).parent / "zero_probe"


@dataclass(frozen=True)
class Drafted:
    """Tokens that the draft proposed for a request at a length."""

    after_zero: bool
    tokens: tuple[int, ...]


Record = dict[tuple[str, int], Drafted]


class Probe:
    """Writes the plan of a server that was started with `python_path=(PROBE,)` and these `variables`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / "plan.json"
        self._numbers = itertools.count(1)
        self._scribbled = 0
        self.plan()

    @property
    def variables(self) -> dict[str, str]:
        return {"SPECSERVER_TEST_ZERO": str(self._file)}

    def plan(self, **plan: Any) -> None:
        """From the next round on. What is not named is as the product does it; a number makes equal plans differ."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps({**plan, "scribble": self._scribbled, "number": next(self._numbers)}))
        temporary.replace(self._file)

    @contextmanager
    def recording(self, **plan: Any) -> Iterator[Record]:
        """Scribbles over the draft's pool, then records what is drafted during the block."""
        self._scribbled = next(self._numbers)
        with self.recording_on(**plan) as record:
            yield record

    @contextmanager
    def recording_on(self, **plan: Any) -> Iterator[Record]:
        """The same without scribbling: on what the rounds before have left in the pool."""
        path = self._directory / f"record-{next(self._numbers)}"
        path.touch()
        self.plan(record=str(path), **plan)
        record: Record = {}
        yield record
        self.plan()
        for line in path.read_text().splitlines():
            request, length, after_zero, tokens = json.loads(line)
            record[request, length] = Drafted(after_zero, tuple(tokens))


def compare(record: Record, reference: Record) -> tuple[Counter[bool], Counter[bool]]:
    """Rounds by whether all their drafts are the reference's: those right after zero rounds, and the others."""
    after, other = Counter[bool](), Counter[bool]()
    for key, drafted in record.items():
        if key in reference:
            (after if drafted.after_zero else other)[drafted.tokens == reference[key].tokens] += 1
    return after, other


def check_drafts(always: Record, toggled: Record, cold: Record) -> None:
    """What is drafted after zero rounds is what a server drafts that always speculates, and a cold draft would show."""
    after, other = compare(toggled, always)
    assert after[True] > 20, (after, other)
    assert (after[False], other[False]) == (0, 0), (after, other)
    after, other = compare(cold, always)
    assert after[False] > after[True], f"the test can't tell a cold draft: {after}, {other}"


def zero_rounds(server: Server) -> Counter[str]:
    """How rounds in and out of zero steps ran so far."""
    return Counter(server.state()["zero"]["rounds"])


@contextmanager
def count_zero_rounds(server: Server) -> Iterator[Counter[str]]:
    before = zero_rounds(server)
    counted: Counter[str] = Counter()
    yield counted
    counted.update(zero_rounds(server) - before)


def ask(server: Server, request: str, prompt: Sequence[int], tokens: int, **further: Any) -> Reply:
    """`further` goes into the request's body; its sampling parameters add to greedy ones."""
    parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **further.pop("sampling", {})}
    body = {"rid": request, "input_ids": list(prompt), "sampling_params": parameters, **further}
    return server.call("POST", "/generate", body, key=server.config.api_key)


def ask_all(
    server: Server, prompts: Sequence[Sequence[int]], tokens: int, concurrency: int, adapters: Sequence[str | None] = (None,)
) -> list[list[int]]:
    """Requests named by their place, so that records of different runs can be compared. They wear the LoRA adapters by turns."""

    def one(number: int) -> list[int]:
        reply = ask(server, f"request-{number}", prompts[number], tokens, lora_path=adapters[number % len(adapters)])
        assert reply.status == 200, reply
        output: list[int] = reply.body["output_ids"]
        return output

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, range(len(prompts))))


def flush(server: Server) -> None:
    """Empties the prefix cache. The server must be idle."""
    reply = server.call("POST", "/flush_cache", key=server.config.admin_key)
    assert reply.status == 200, reply
