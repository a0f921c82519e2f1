"""What every speculating server is put through: step counts that change while requests run, and outputs that must not."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator

from specserver.plugin.zero.step import Outcome
from tests.engine.conftest import PROMPTS, TOKENS, Speculating
from tests.engine.server import LADDER, Server
from tests.engine.zero import count_zero_rounds

TOP = LADDER[-1]


@contextlib.contextmanager
def count_rounds(server: Server) -> Iterator[Counter[int]]:
    """Decode rounds by step count during the block, as the scheduler itself counted them."""
    before = rounds_of(server)
    counted: Counter[int] = Counter()
    yield counted
    counted.update(rounds_of(server))
    counted.subtract(before)


def rounds_of(server: Server) -> Counter[int]:
    return Counter({int(steps): count for steps, count in server.state()["rounds"].items()})


def check_outputs_while_load_switches(speculating: Speculating) -> None:
    """Quiet, busy, quiet again: the rule speculates, stops, starts."""
    server = speculating.server
    server.set_policy(mode="Auto")
    with count_rounds(server) as rounds:
        quiet = server.generate_all(PROMPTS[:6], TOKENS, concurrency=2)
        busy = server.generate_all(PROMPTS[6:], TOKENS, concurrency=12)
        again = server.generate_all(PROMPTS[:6], TOKENS, concurrency=2)
    assert (speculating.wrong(quiet + busy), speculating.wrong(again, of=slice(6))) == ([], [])
    assert rounds[0] > 0, f"never plain: {rounds}"
    assert rounds[TOP] > 0, f"never speculating: {rounds}"


def check_outputs_while_policy_switches(speculating: Speculating) -> None:
    """Plain and speculating in turn, every few rounds, in the middle of requests."""
    server = speculating.server
    server.set_policy(mode="Always")
    switches = server.state()["switches"]
    done = threading.Event()

    def alternate() -> None:
        while not done.is_set():
            for mode in ("Never", "Always"):
                server.set_policy(mode=mode)

    changing = threading.Thread(target=alternate)
    with count_rounds(server) as rounds, count_zero_rounds(server) as zero:
        changing.start()
        try:
            outputs = server.generate_all(PROMPTS, TOKENS, concurrency=4)
        finally:
            done.set()
            changing.join()
    switches = server.state()["switches"] - switches
    assert speculating.wrong(outputs) == []
    assert rounds[0] > 20, f"hardly plain: {rounds}"
    assert rounds[TOP] > 20, f"hardly speculating: {rounds}"
    assert set(zero) <= {Outcome.KV_ONLY, Outcome.BRIDGE, Outcome.PROMPT}, f"zero rounds that were not plain decode: {zero}"
    assert min(zero[Outcome.KV_ONLY], zero[Outcome.BRIDGE]) > 0, f"no zero rounds, or no way back: {zero}"
    assert switches > 20, f"only {switches} switches over {sum(rounds.values())} rounds"
