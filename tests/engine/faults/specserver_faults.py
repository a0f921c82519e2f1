"""A second plugin, for the tests alone, that makes parts of ours raise on demand, and rounds cost what a test says.

The file named by SPECSERVER_TEST_FAULTS holds JSON. {"rule": 3}: three decisions raise; another text starts anew.
{"stepSeconds": {"0": 0.01, "3": 0.02}}: where the cost of a round can be told, it is what stands here by its steps. On a CPU
drafts of such small models never pay; with a GPU's costs, acceptance decides, as it does on one.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any


class InjectedFault(Exception):
    pass


def load() -> None:
    from specserver.plugin import rounds, state
    from specserver.policy import threshold

    threshold.next_steps = _failing("rule", threshold.next_steps)
    state.Rank.record_round = _failing("result", state.Rank.record_round)  # type: ignore[method-assign]
    rounds.RoundTimer.measure = _costing(rounds.RoundTimer.measure)  # type: ignore[method-assign]


def _faults() -> tuple[str, dict[str, Any]]:
    text = Path(os.environ["SPECSERVER_TEST_FAULTS"]).read_text()
    return text, json.loads(text or "{}")


def _costing(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(timer: Any, result: Any) -> Any:
        seconds = original(timer, result)
        costs = _faults()[1].get("stepSeconds", {})
        return seconds if seconds is None else costs.get(str(result.steps), seconds)

    return wrapper


def _failing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    raised: Counter[str] = Counter()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        text, faults = _faults()
        if raised[text] < faults.get(name, 0):
            raised[text] += 1
            raise InjectedFault(name)
        return original(*args, **kwargs)

    return wrapper
