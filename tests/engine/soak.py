"""Many kinds of requests at once for a while, some given up half-way; then nothing must be left behind.

CI soaks for 20 s. `SPECSERVER_SOAK_SECONDS=600 python -m pytest tests/engine -k soak` is the long one.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

from tests.engine.server import Server, wait_until
from tests.engine.zero import ask, flush

SECONDS = float(os.environ.get("SPECSERVER_SOAK_SECONDS", "20"))
CLIENTS = 8
ABORTED = 0.15

_SAMPLING: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.1, "min_p": 0.1},
    {"frequency_penalty": 0.7},
)


def run(server: Server, disturb: Callable[[int], None]) -> int:
    """Number of requests that were answered. `disturb` is called again and again with rising numbers."""
    until, answered, failures = time.monotonic() + SECONDS, [0] * CLIENTS, list[str]()

    def client(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < until:
            prefix = [2 + (17 * j) % 500 for j in range(rng.choice((0, 40, 90)))]  # shared by those of its length
            prompt = [*prefix, *(rng.randrange(2, 512) for _ in range(rng.randrange(2, 12)))]
            request = f"soak-{number}-{answered[number]}-{rng.random()}"
            aborted = rng.random() < ABORTED
            if aborted:
                delay = rng.random() / 2
                threading.Timer(delay, lambda name: server.call("POST", "/abort_request", {"rid": name}), [request]).start()
            reply = ask(server, request, prompt, rng.randrange(1, 120), sampling=rng.choice(_SAMPLING))
            if reply.status != 200 and not aborted:
                failures.append(reply.text)
            answered[number] += 1

    def disturber() -> None:
        number = 0
        while time.monotonic() < until:
            disturb(number)
            number += 1
            time.sleep(0.5)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    threads.append(threading.Thread(target=disturber))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert min(answered) > 0, answered
    return sum(answered)


def check_nothing_leaked(server: Server) -> None:
    """Idle, and with an empty prefix cache, no slot of the KV pool is in use. SGLang itself looks for leaks when it is idle."""
    wait_until(lambda: server.state()["running"] == 0, 60, "the engine is idle")
    flush(server)
    loads = server.call("GET", "/v1/loads", key=server.config.api_key).body
    used = [load["num_used_tokens"] for load in loads["loads"]]
    assert used == [0] * len(used), loads
    leaks = [line for line in server.log().splitlines() if "leak" in line.lower()]
    assert leaks == []
