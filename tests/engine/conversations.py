"""Conversations of two turns, again and again for a while, under step counts that change at random; some are given up half-way.

The KV pool is too small for all of them, so requests are retracted and start again; turns share a prefix with each other and
with the turn before, so cached KV is used again, the draft's included. Whatever happens, a conversation that ends has the very
tokens that a server without speculation gives.

CI does this for half a minute. `SPECSERVER_SOAK_SECONDS=600 python -m pytest tests/engine/test_soak.py` is the long one.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.engine.server import LADDER, Server

SECONDS = float(os.environ.get("SPECSERVER_SOAK_SECONDS", "30"))
CLIENTS = 12
CONVERSATIONS = 12
TOKENS = 48
ABORTED = 0.2
PREFIX = [2 + (17 * j) % 500 for j in range(60)]

Turns = tuple[list[int], list[int]]
"""Outputs of the first and of the second turn."""


def first_prompt(number: int) -> list[int]:
    """A common beginning of different lengths, and an end of its own."""
    return PREFIX[: 20 * (number % 4)] + [2 + (number * 37 + j * 11) % 500 for j in range(4 + number % 5)]


def second_prompt(number: int, first: Sequence[int]) -> list[int]:
    return [*first_prompt(number), *first, 7 + number, 11 + number]


def converse(server: Server, number: int) -> Turns:
    first = server.generate(first_prompt(number), TOKENS)
    return first, server.generate(second_prompt(number, first), TOKENS)


def converse_all(server: Server) -> list[Turns]:
    """The right outputs, from a server that does not speculate."""
    return [converse(server, number) for number in range(CONVERSATIONS)]


def soak(server: Server, right: Sequence[Turns], seconds: float = SECONDS) -> Counter[str]:
    """What happened how often: `right` and `wrong` conversations, `aborted` requests, `forced` step counts."""
    until, counted, lock = time.monotonic() + seconds, Counter[str](), threading.Lock()

    def count(what: str) -> None:
        with lock:
            counted[what] += 1

    def client(seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            number = chance.randrange(CONVERSATIONS)
            if chance.random() < ABORTED:
                give_up(server, first_prompt(number), after_events=chance.randrange(1, 12))
                count("aborted")
            else:
                count("right" if converse(server, number) == right[number] else "wrong")

    def force() -> None:
        chance = random.Random(99)
        while time.monotonic() < until:
            body = {"steps": chance.choice(LADDER), "ttlSeconds": 30}
            reply = server.call("POST", "/specserver/v1/force", body, key=server.config.admin_key)
            assert reply.status == 200, reply
            count("forced")
            time.sleep(chance.random() / 20)

    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        work = [pool.submit(force), *(pool.submit(client, seed) for seed in range(CLIENTS))]
    for each in work:
        each.result()
    return counted


def give_up(server: Server, prompt: Sequence[int], after_events: int) -> None:
    """Reads the beginning of an answer and hangs up, as a user does who closes the page."""
    parameters = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}
    body = json.dumps({"input_ids": list(prompt), "sampling_params": parameters, "stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {server.config.api_key}"}
        connection.request("POST", "/generate", body, headers)
        response = connection.getresponse()
        for _ in range(2 * after_events):  # an event is a line and an empty one
            response.readline()
    finally:
        connection.close()
