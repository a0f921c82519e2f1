"""A second plugin, for the tests alone, that makes parts of ours raise on demand.

The file named by SPECSERVER_TEST_FAULTS holds JSON such as {"rule": 3}: three decisions raise. Another text starts anew.
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
    from specserver.plugin import state
    from specserver.policy import threshold

    threshold.next_steps = _failing("rule", threshold.next_steps)
    state.Rank.record_round = _failing("result", state.Rank.record_round)  # type: ignore[method-assign]


def _failing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    raised: Counter[str] = Counter()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        text = Path(os.environ["SPECSERVER_TEST_FAULTS"]).read_text()
        if raised[text] < json.loads(text or "{}").get(name, 0):
            raised[text] += 1
            raise InjectedFault(name)
        return original(*args, **kwargs)

    return wrapper
