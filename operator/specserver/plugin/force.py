"""A step count by hand, for a while: `POST /specserver/v1/force`.

    {"steps": 0, "ttlSeconds": 600}

It has an end because whoever sets it may be gone when it should be taken back: an engine that is left alone returns to its
rule. It goes beyond the policy's mode and bounds, since it is for the hour in which those are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specserver.policy.document import DocumentInvalid

LONGEST_SECONDS = 24 * 3600.0
FIELDS = ("steps", "ttlSeconds")
OPTIONAL_FIELDS = ("costOnly",)


class ForceInvalid(DocumentInvalid):
    """A force document can't be used."""


@dataclass(frozen=True)
class Force:
    """cost_only  what drafts are worth meanwhile is no evidence: the requests are made up (see sweep.py)"""

    steps: int
    ttl_seconds: float
    cost_only: bool = False

    def to_document(self) -> dict[str, Any]:
        document = {"steps": self.steps, "ttlSeconds": self.ttl_seconds}
        return {**document, "costOnly": True} if self.cost_only else document


def parse_force(document: object) -> Force:
    """The force of a JSON document. ForceInvalid names the first field that is missing, unknown or wrong."""
    if not isinstance(document, Mapping):
        raise ForceInvalid("", f"must be a JSON object, not {type(document).__name__}")
    known = (*FIELDS, *OPTIONAL_FIELDS)
    for field in document:
        if field not in known:
            raise ForceInvalid(str(field), f"unknown field; known are {', '.join(known)}")
    for field in FIELDS:
        if field not in document:
            raise ForceInvalid(field, "missing")
    steps, seconds = document["steps"], document["ttlSeconds"]
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ForceInvalid("steps", f"must be a whole number of 0 or more, not {steps!r}")
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    if not number or not 0 < seconds <= LONGEST_SECONDS:
        raise ForceInvalid("ttlSeconds", f"must be a number of seconds above 0, {LONGEST_SECONDS:.0f} at most, not {seconds!r}")
    cost_only = document.get("costOnly", False)
    if not isinstance(cost_only, bool):
        raise ForceInvalid("costOnly", f"must be true or false, not {cost_only!r}")
    return Force(steps, float(seconds), cost_only)
