"""The demo's clients. Runs in a pod, standard library and aiohttp only: it is mounted as a file and knows nothing of the rest.

Keeps a given number of requests in flight, phase after phase, and prints one JSON line a second:

    {"time": 1.7e9, "phase": "busy", "wanted": 24, "in_flight": 24, "completed": 87, "failed": 0, "tokens": 11136}

Counts are totals. A request fails when the answer is no 200, or has not the tokens that were asked for: each failure is printed.
Every request opens its own connection, as many clients would, so that the Service spreads them over the replicas.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

TOKENS_PER_REQUEST = (200, 500)
"""Shortest and longest answer. They differ so that requests don't end in step with each other."""
PREDICTABLE_TOKENS = (2, 256)
"""Token ids that the tiny draft model predicts well."""


@dataclass
class Totals:
    in_flight: int = 0
    completed: int = 0
    failed: int = 0
    tokens: int = 0


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


async def ask(session: aiohttp.ClientSession, url: str, totals: Totals) -> None:
    low, high = PREDICTABLE_TOKENS
    start, length = random.randrange(low, high), random.randrange(3, 12)
    prompt = [low + (start + 11 * position) % (high - low) for position in range(length)]
    tokens = random.randrange(*TOKENS_PER_REQUEST)
    request = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    totals.in_flight += 1
    try:
        async with session.post(url, json=request) as answer:
            if answer.status != 200:
                raise ValueError(f"HTTP {answer.status}: {(await answer.text())[:200]}")
            got = (await answer.json())["meta_info"]["completion_tokens"]
        if got != tokens:
            raise ValueError(f"the answer has {got} tokens, not {tokens}")
        totals.tokens += tokens
        totals.completed += 1
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        totals.failed += 1
        say({"time": time.time(), "failure": f"{type(error).__name__}: {error}"})
    finally:
        totals.in_flight -= 1


async def client(number: int, wanted: list[int], session: aiohttp.ClientSession, url: str, totals: Totals) -> None:
    """One client: asks again and again while its number is among the wanted."""
    while wanted[0] >= 0:
        if number < wanted[0]:
            await ask(session, url, totals)
        else:
            await asyncio.sleep(0.1)


async def main() -> int:
    url, phases = os.environ["URL"], json.loads(os.environ["PHASES"])
    headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
    totals, wanted = Totals(), [0]
    async with aiohttp.ClientSession(
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=300),
    ) as session:
        clients = [
            asyncio.create_task(client(number, wanted, session, url, totals))
            for number in range(max(concurrency for _, concurrency, _ in phases))
        ]
        for phase, concurrency, seconds in phases:
            wanted[0] = concurrency
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                say({"time": time.time(), "phase": phase, "wanted": concurrency, **vars(totals)})
                await asyncio.sleep(1.0)
        wanted[0] = -1
        await asyncio.gather(*clients)
        say({"time": time.time(), "phase": "end", "wanted": 0, **vars(totals)})
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
