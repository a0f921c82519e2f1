"""The policy document: what the operator tells an engine, over HTTP and in the file that the engine starts with.

    {"revision": 7, "mode": "Auto", "strategy": "Threshold", "steps": [0, 1, 2, 3],
     "disableAbove": 64, "enableBelow": 48, "minDwellSeconds": 0.25}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

MODES = ("Auto", "Always", "Never", "Observe")
STRATEGIES = ("Measured", "Threshold", "Table")


class DocumentInvalid(ValueError):
    """A document can't be used. `field` is its JSON name, or empty where the document as a whole is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field, self.message = field, message


class PolicyInvalid(DocumentInvalid):
    """A policy document can't be used."""


@dataclass(frozen=True)
class Probe:
    """How strategy Measured tries step counts that it knows too little of.

    max_duty              most of the decode time that probes may take; 0 turns them off
    rounds                decode rounds of one probe; one that looks well goes on longer
    min_interval_seconds  wait after the first probe of a step count that failed; doubles with each further one
    max_interval_seconds  longest such wait
    """

    max_duty: float = 0.01
    rounds: int = 8
    min_interval_seconds: float = 2.0
    max_interval_seconds: float = 20.0


@dataclass(frozen=True)
class Policy:
    """Rule and bounds in force in an engine.

    revision          generation of the resource that the policy was made from; an engine refuses a lower one than its own
    mode              Auto, Always, Never, Observe
    strategy          Measured, Threshold, Table
    steps             the ladder, rising, starting at 0
    disable_above     running requests above which the engine decodes plainly, whatever the strategy
    enable_below      running requests below which it speculates again
    min_dwell_seconds least time between two switches
    margin_up         predicted gain, as a fraction, that is left alone before more steps are chosen (Measured)
    margin_down       the same before fewer are (Measured)
    min_accept_length tokens a request and round below which a step count is not used at all (Measured)
    probe             (Measured)
    table             (from this many running requests, steps), rising (Table)
    """

    revision: int
    mode: str
    strategy: str
    steps: tuple[int, ...]
    disable_above: int
    enable_below: int
    min_dwell_seconds: float
    margin_up: float = 0.05
    margin_down: float = 0.02
    min_accept_length: float = 1.1
    probe: Probe = Probe()
    table: tuple[tuple[int, int], ...] = ()

    @property
    def max_steps(self) -> int:
        return self.steps[-1]

    def to_document(self) -> dict[str, Any]:
        """The JSON document. A later field that has its default is left out, so that an older engine takes it too."""
        document: dict[str, Any] = {
            "revision": self.revision,
            "mode": self.mode,
            "strategy": self.strategy,
            "steps": list(self.steps),
            "disableAbove": self.disable_above,
            "enableBelow": self.enable_below,
            "minDwellSeconds": self.min_dwell_seconds,
        }
        optional = {
            "marginUp": (self.margin_up, Policy.margin_up),
            "marginDown": (self.margin_down, Policy.margin_down),
            "minAcceptLength": (self.min_accept_length, Policy.min_accept_length),
        }
        document |= {field: value for field, (value, default) in optional.items() if value != default}
        if self.probe != Probe():
            document["probe"] = {_PROBE_FIELDS[field.name]: getattr(self.probe, field.name) for field in fields(Probe)}
        if self.table:
            document["table"] = [{"running": running, "steps": steps} for running, steps in self.table]
        return document


_PROBE_FIELDS = {
    "max_duty": "maxDuty",
    "rounds": "rounds",
    "min_interval_seconds": "minIntervalSeconds",
    "max_interval_seconds": "maxIntervalSeconds",
}
_REQUIRED = ("revision", "mode", "strategy", "steps", "disableAbove", "enableBelow", "minDwellSeconds")
_OPTIONAL = ("marginUp", "marginDown", "minAcceptLength", "probe", "table")


def parse_policy(document: object) -> Policy:
    """The policy of a JSON document. PolicyInvalid names the first field that is missing, unknown or wrong."""
    if not isinstance(document, Mapping):
        raise PolicyInvalid("", f"the policy must be a JSON object, not {type(document).__name__}")
    known = (*_REQUIRED, *_OPTIONAL)
    for field in document:
        if field not in known:
            raise PolicyInvalid(str(field), f"unknown field; known are {', '.join(known)}")
    for field in _REQUIRED:
        if field not in document:
            raise PolicyInvalid(field, "missing")
    policy = Policy(
        revision=_integer(document, "revision"),
        mode=_choice(document, "mode", MODES),
        strategy=_choice(document, "strategy", STRATEGIES),
        steps=_ladder(document["steps"]),
        disable_above=_integer(document, "disableAbove"),
        enable_below=_integer(document, "enableBelow"),
        min_dwell_seconds=_number(document, "minDwellSeconds"),
        margin_up=_number(document, "marginUp", Policy.margin_up, most=1.0),
        margin_down=_number(document, "marginDown", Policy.margin_down, most=1.0),
        min_accept_length=_number(document, "minAcceptLength", Policy.min_accept_length, least=1.0),
        probe=_probe(document.get("probe", {})),
        table=_table(document.get("table", ())),
    )
    if policy.enable_below >= policy.disable_above:
        raise PolicyInvalid("enableBelow", f"must be less than disableAbove ({policy.disable_above})")
    if policy.strategy == "Table" and not policy.table:
        raise PolicyInvalid("table", "strategy Table needs it: a list such as [{\"running\": 0, \"steps\": 3}]")
    strange = [steps for _, steps in policy.table if steps not in policy.steps]
    if strange:
        raise PolicyInvalid("table", f"holds steps {strange[0]}, which the ladder {list(policy.steps)} lacks")
    return policy


def _probe(value: object) -> Probe:
    if not isinstance(value, Mapping):
        raise PolicyInvalid("probe", f"must be an object, not {value!r}")
    for field in value:
        if field not in _PROBE_FIELDS.values():
            raise PolicyInvalid(f"probe.{field}", f"unknown field; known are {', '.join(_PROBE_FIELDS.values())}")
    try:
        rounds = _integer(value, "rounds") if "rounds" in value else Probe.rounds
        if rounds < 1:
            raise PolicyInvalid("rounds", "must be 1 or more; maxDuty 0 turns probes off")
        probe = Probe(
            max_duty=_number(value, "maxDuty", Probe.max_duty, most=1.0),
            rounds=rounds,
            min_interval_seconds=_number(value, "minIntervalSeconds", Probe.min_interval_seconds),
            max_interval_seconds=_number(value, "maxIntervalSeconds", Probe.max_interval_seconds),
        )
        if probe.max_interval_seconds < probe.min_interval_seconds:
            raise PolicyInvalid("maxIntervalSeconds", f"must be minIntervalSeconds ({probe.min_interval_seconds}) or more")
    except PolicyInvalid as error:
        raise PolicyInvalid(f"probe.{error.field}", error.message) from None
    return probe


def _table(value: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list | tuple):
        raise PolicyInvalid("table", f"must be a list, not {value!r}")
    rows = []
    for entry in value:
        if not isinstance(entry, Mapping) or set(entry) != {"running", "steps"}:
            raise PolicyInvalid("table", f"each entry needs running and steps, and nothing else, not {entry!r}")
        try:
            rows.append((_integer(entry, "running"), _integer(entry, "steps")))
        except PolicyInvalid as error:
            raise PolicyInvalid("table", f"{error.field} {error.message}") from None
    if any(later[0] <= earlier[0] for earlier, later in itertools.pairwise(rows)):
        raise PolicyInvalid("table", "running must rise from entry to entry")
    return tuple(rows)


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


def _number(
    document: Mapping[str, Any], field: str, default: float = 0.0, *, least: float = 0.0, most: float = math.inf
) -> float:
    value = document.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not least <= value <= most:
        bound = f"of {least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
        raise PolicyInvalid(field, f"must be a number {bound}, not {value!r}")
    return float(value)


def _ladder(value: object) -> tuple[int, ...]:
    whole = isinstance(value, list | tuple) and all(isinstance(k, int) and not isinstance(k, bool) for k in value)
    if not whole or not isinstance(value, list | tuple) or len(value) < 2 or value[0] != 0:
        raise PolicyInvalid("steps", f"must be a list of two or more step counts starting at 0, not {value!r}")
    if any(later <= earlier for earlier, later in itertools.pairwise(value)):
        raise PolicyInvalid("steps", f"must rise strictly, not {value!r}")
    return tuple(value)
