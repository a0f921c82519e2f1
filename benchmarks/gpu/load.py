"""Load on one engine: a closed loop of so many requests at a time, or bursts that come and go.

A closed loop starts with requests of unequal length, so that from the first moment on some request is always about to end, as
in a server that has been busy for long: a measuring window can then be short and begin anywhere. Prompts are random token
numbers, so nothing is found in the prefix cache.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

REQUEST_SECONDS = 60.0
ABORT_ATTEMPTS = 20
SPREAD = 0.25
"""Of the lengths of answers in a closed loop, to both sides."""
KEEP_ALIVE_SECONDS = 2.0
"""Shorter than the server's: a request on a connection that it is just closing is lost."""


@dataclass(frozen=True)
class Shape:
    """Tokens of a request: in the prompt, and generated."""

    prompt: int
    output: int


class Aborted(Exception):
    """A request ended because the load was told to fall."""


@dataclass
class Client:
    """Sends requests to one engine. Errors are counted and kept, never raised into a measurement."""

    url: str
    vocabulary: tuple[int, int]
    headers: dict[str, str] = field(default_factory=dict)
    done: int = 0
    errors: list[str] = field(default_factory=list)
    seed: int = 1

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            headers=self.headers,
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    def prompt(self, tokens: int) -> list[int]:
        low, high = self.vocabulary
        return [self._random.randrange(low, high) for _ in range(tokens)]

    async def generate(self, prompt: Sequence[int] | list[list[int]], output: int, **fields: Any) -> Any:
        body = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": output, "ignore_eos": True},
            **fields,
        }
        async with self._session.post(f"{self.url}/generate", json=body) as response:
            answer = await response.json()
            if response.status != 200:
                raise (Aborted if "abort" in str(answer).lower() else RuntimeError)(str(answer)[:300])
            return answer

    async def post(self, path: str, body: object = None) -> None:
        async with self._session.post(f"{self.url}{path}", json=body) as response:
            await response.read()

    async def abort_all(self) -> None:
        await self.post("/abort_request", {"rid": "", "abort_all": True})


class ClosedLoop:
    """`concurrency` requests at any time between `start` and `stop`, from the first moment as far along as later on: of the first
    ones a share counts as generated already and stands in their prompts. Began they all with short contexts, a server that is
    measured right behind its start would have an easier time (at 250 requests: 15 %) than one that has run for ten seconds.

    Answers are of unequal length, shape.output in the mean. Were they equal, requests that are sent together would end together
    on a server that does not speculate, and wait for nobody; where drafts are accepted by chance a group's last request lets
    the others wait (at 250 requests: 3 % fewer are running).

    group  so many finished requests are replaced together. One by one, a busy server would prefill in nearly every round; the
           prefill of one short prompt takes longer than a decode round of all the others, and would drown what is measured
    """

    def __init__(self, client: Client, concurrency: int, shape: Shape, *, group: int = 1) -> None:
        self._client, self._concurrency, self._shape, self._group = client, concurrency, shape, group
        self._stopping = False
        self._waiting = 0
        self._released = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._random = random.Random(client.seed)

    def start(self) -> None:
        for number in range(self._concurrency):
            self._workers.append(asyncio.create_task(self._work((number + 1) / self._concurrency)))

    async def _work(self, share: float) -> None:
        """`share`: what the first request has left."""
        while not self._stopping:
            output = round(self._shape.output * self._random.uniform(1 - SPREAD, 1 + SPREAD))
            left = max(4, round(output * share))
            try:
                await self._client.generate(self._client.prompt(self._shape.prompt + output - left), left)
                self._client.done += 1
            except Aborted:
                pass
            except Exception as error:  # noqa: BLE001 — counted; the other requests go on
                if not self._stopping:
                    self._client.errors.append(repr(error)[:300])
                    await asyncio.sleep(0.2)
            share = 1.0
            await self._wait_for_group()

    async def _wait_for_group(self) -> None:
        self._waiting += 1
        if self._waiting >= self._group or self._stopping:
            self._release()
        else:
            await self._released.wait()

    def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()
        self._waiting = 0

    async def stop(self, *, abort: bool = True) -> None:
        """Ends the load; with `abort` at once, else when the requests under way are done."""
        self._stopping = True
        self._release()
        for _ in range(ABORT_ATTEMPTS if abort else 0):
            if all(worker.done() for worker in self._workers):
                break
            await self._client.abort_all()
            await asyncio.wait(self._workers, timeout=0.5)
        else:
            for worker in self._workers if abort else ():
                worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)


class SquareWave:
    """Between two numbers of running requests, back and forth.

    A few requests run all the time; at the start of each high phase the others come in groups, and at its end they are aborted,
    so that the engine's load really falls at once. Groups that end within a phase are sent anew.
    """

    GROUPS = 6

    def __init__(self, client: Client, low: int, high: int, shape: Shape) -> None:
        self._client, self._low, self._high, self._shape = client, low, high, shape
        self._up = False
        self._base = ClosedLoop(client, low, shape)
        self._groups: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._base.start()

    def go_high(self) -> None:
        self._up = True
        extra = self._high - self._low
        sizes = [extra // self.GROUPS + (number < extra % self.GROUPS) for number in range(self.GROUPS)]
        self._groups = [
            asyncio.create_task(self._send(size, (number + 1) / self.GROUPS)) for number, size in enumerate(sizes) if size
        ]

    async def go_low(self) -> None:
        self._up = False
        await self._client.abort_all()  # the base requests too; their workers send new ones at once

    async def _send(self, size: int, share: float) -> None:
        """The first time with a share of the output, so that groups don't end together later."""
        output = max(4, round(self._shape.output * share))
        while self._up:
            try:
                await self._client.generate([self._client.prompt(self._shape.prompt) for _ in range(size)], output)
                output = self._shape.output
            except Aborted:
                pass
            except Exception as error:  # noqa: BLE001 — counted; the wave goes on
                self._client.errors.append(repr(error)[:300])
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        self._up = False
        await self._base.stop()
        for group in self._groups:
            group.cancel()
        await asyncio.gather(*self._groups, return_exceptions=True)
