"""The policy document: what the operator tells an engine, over HTTP and in the file that the engine starts with.

    {"revision": 7, "mode": "Auto", "strategy": "Threshold", "steps": [0, 1, 2, 3],
     "disableAbove": 64, "enableBelow": 48, "minDwellSeconds": 0.25}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODES = ("Auto", "Always", "Never", "Observe")
STRATEGIES = ("Threshold",)


class PolicyInvalid(ValueError):
    """The document can't be used. `field` is its JSON name, or empty where the document as a whole is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field, self.message = field, message


@dataclass(frozen=True)
class Policy:
    """Rule and bounds in force in an engine.

    revision          generation of the resource that the policy was made from; an engine refuses a lower one than its own
    mode              Auto, Always, Never, Observe
    strategy          Threshold
    steps             the ladder, rising, starting at 0
    disable_above     running requests above which the engine decodes plainly
    enable_below      running requests below which it speculates again
    min_dwell_seconds least time between two switches
    """

    revision: int
    mode: str
    strategy: str
    steps: tuple[int, ...]
    disable_above: int
    enable_below: int
    min_dwell_seconds: float

    @property
    def max_steps(self) -> int:
        return self.steps[-1]

    def to_document(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "mode": self.mode,
            "strategy": self.strategy,
            "steps": list(self.steps),
            "disableAbove": self.disable_above,
            "enableBelow": self.enable_below,
            "minDwellSeconds": self.min_dwell_seconds,
        }


def parse_policy(document: object) -> Policy:
    """The policy of a JSON document. PolicyInvalid names the first field that is missing, unknown or wrong."""
    if not isinstance(document, Mapping):
        raise PolicyInvalid("", f"the policy must be a JSON object, not {type(document).__name__}")
    known = ("revision", "mode", "strategy", "steps", "disableAbove", "enableBelow", "minDwellSeconds")
    for field in document:
        if field not in known:
            raise PolicyInvalid(str(field), f"unknown field; known are {', '.join(known)}")
    for field in known:
        if field not in document:
            raise PolicyInvalid(field, "missing")
    policy = Policy(
        revision=_integer(document, "revision"),
        mode=_choice(document, "mode", MODES),
        strategy=_choice(document, "strategy", STRATEGIES),
        steps=_ladder(document["steps"]),
        disable_above=_integer(document, "disableAbove"),
        enable_below=_integer(document, "enableBelow"),
        min_dwell_seconds=_seconds(document, "minDwellSeconds"),
    )
    if policy.enable_below >= policy.disable_above:
        raise PolicyInvalid("enableBelow", f"must be less than disableAbove ({policy.disable_above})")
    return policy


def _integer(document: Mapping[str, Any], field: str) -> int:
    value = document[field]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PolicyInvalid(field, f"must be a whole number of 0 or more, not {value!r}")
    return value


def _choice(document: Mapping[str, Any], field: str, choices: tuple[str, ...]) -> str:
    value = document[field]
    if value not in choices:
        raise PolicyInvalid(field, f"must be one of {', '.join(choices)}, not {value!r}")
    return str(value)


def _seconds(document: Mapping[str, Any], field: str) -> float:
    value = document[field]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise PolicyInvalid(field, f"must be a number of seconds of 0 or more, not {value!r}")
    return float(value)


def _ladder(value: object) -> tuple[int, ...]:
    whole = isinstance(value, list | tuple) and all(isinstance(k, int) and not isinstance(k, bool) for k in value)
    if not whole or not isinstance(value, list | tuple) or len(value) < 2 or value[0] != 0:
        raise PolicyInvalid("steps", f"must be a list of two or more step counts starting at 0, not {value!r}")
    if any(later <= earlier for earlier, later in itertools.pairwise(value)):
        raise PolicyInvalid("steps", f"must rise strictly, not {value!r}")
    return tuple(value)
