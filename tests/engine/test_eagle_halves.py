"""EAGLE on the half predictable models: drafts that are accepted on one half of the prompts and not on the other."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.engine import scenarios
from tests.engine.conftest import PROMPTS, TOKENS, Speculating
from tests.engine.scenarios import TOP
from tests.engine.server import Server, wait_until

PREDICTABLE, UNPREDICTABLE = slice(0, None, 2), slice(1, None, 2)
PROBE = {"maxDuty": 0.1, "rounds": 8, "minIntervalSeconds": 0.2, "maxIntervalSeconds": 1.0}
PATIENCE_SECONDS = 90.0


def test_outputs_while_load_switches(eagle_halves: Speculating) -> None:
    scenarios.check_outputs_while_load_switches(eagle_halves)
    assert eagle_halves.server.state()["acceptLength"] > 1.5


def test_outputs_while_policy_switches(eagle_halves: Speculating) -> None:
    scenarios.check_outputs_while_policy_switches(eagle_halves)


def test_measured_goes_by_what_drafts_are_worth(eagle_halves: Speculating) -> None:
    """With a GPU's step costs: drafts that are accepted pay, others do not, and the rule finds out by itself each time."""
    server = eagle_halves.server
    server.set_policy(mode="Auto", strategy="Measured", disableAbove=64, enableBelow=48, probe=PROBE)
    for prompts, steps in ((PREDICTABLE, TOP), (UNPREDICTABLE, 0), (PREDICTABLE, TOP)):
        with traffic(eagle_halves, prompts) as wrong:
            wait_until(
                lambda steps=steps: settled(server, steps),  # type: ignore[misc]
                PATIENCE_SECONDS,
                lambda: json.dumps(server.state()["estimates"]),
                poll_seconds=0.2,
            )
        assert wrong == []
    last = server.state()["decisions"][-1]
    assert last["inputs"]["running"] > 0
    assert [rung["steps"] for rung in last["estimates"]["rungs"]] == [0, 1, 2, 3]


def settled(server: Server, steps: int) -> bool:
    """At these steps, and for the right reason: a probe of more steps is no opinion yet."""
    state = server.state()
    first = state["estimates"]["survival"][:1]  # empty before the rule's first turn
    return state["steps"] == steps and bool(first) and (first[0] > 0.5) == (steps > 0)


@contextlib.contextmanager
def traffic(speculating: Speculating, of: slice) -> Iterator[list[int]]:
    """Two users who ask these prompts again and again; the yielded list holds those that were answered wrongly."""
    server, over, wrong = speculating.server, threading.Event(), list[int]()
    numbers = range(len(PROMPTS))[of]

    def user(order: Sequence[int]) -> None:
        while not over.is_set():
            for number in order:
                if server.generate(PROMPTS[number], TOKENS) != speculating.plain.outputs[number]:
                    wrong.append(number)

    with ThreadPoolExecutor(2) as pool:
        users = [pool.submit(user, order) for order in (numbers, numbers[::-1])]
        try:
            yield wrong
        finally:
            over.set()
    for each in users:
        each.result()
