"""Clients that stream, run as a script in a pod: a new connection for each request, until /tmp/stop is there.

Each second a line of JSON: requests completed and failed so far. A stream counts as completed when every token that was asked
for has come and the server has said that it is done.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter

import aiohttp

TOKENS = (8, 40)
TIMEOUT_SECONDS = 120.0


async def stream(session: aiohttp.ClientSession, url: str) -> None:
    """One request, to its end. ValueError where the stream is not whole."""
    tokens = random.randrange(*TOKENS)
    prompt = [2 + random.randrange(254) for _ in range(random.randrange(3, 12))]
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    request = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
    got, done = 0, False
    async with session.post(url, json=request) as answer:
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}: {(await answer.text())[:200]}")
        async for line in answer.content:
            data = line.decode().strip().removeprefix("data: ")
            if data == "[DONE]":
                done = True
            elif data:
                got = json.loads(data)["meta_info"]["completion_tokens"]
    if not done or got != tokens:
        raise ValueError(f"the stream ended after {got} of {tokens} tokens, done: {done}")


def stopped() -> bool:
    return os.path.exists("/tmp/stop")


async def client(session: aiohttp.ClientSession, url: str, counts: Counter[str]) -> None:
    while not stopped():
        try:
            await stream(session, url)
            counts["completed"] += 1
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            counts["failed"] += 1
            print(json.dumps({"time": time.time(), "failure": f"{type(error).__name__}: {error}"}), flush=True)
            await asyncio.sleep(0.5)


async def main() -> int:
    counts: Counter[str] = Counter(completed=0, failed=0)
    async with aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {os.environ['API_KEY']}"},
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
    ) as session:
        clients = [asyncio.create_task(client(session, os.environ["URL"], counts)) for _ in range(int(os.environ["CLIENTS"]))]
        while not all(one.done() for one in clients):
            print(json.dumps({"time": time.time(), **counts}), flush=True)
            await asyncio.sleep(1.0)
    print(json.dumps({"time": time.time(), "end": True, **counts}), flush=True)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
