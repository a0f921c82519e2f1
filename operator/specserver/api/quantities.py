"""Durations and resource quantities as Kubernetes writes them."""

from __future__ import annotations

import re

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
"""Go's duration syntax, without signs and without units under a millisecond: `250ms`, `15s`, `1h30m`."""

QUANTITY_PATTERN = (
    r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+))?$"
)
"""Kubernetes' own, as it stands in its custom resource definitions."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([EPTGM]i?|k|Ki|m|u|n)?")
_FACTORS = {
    None: 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def seconds(duration: str) -> float:
    """Seconds of a Kubernetes duration. ValueError where it is none."""
    if not re.fullmatch(DURATION_PATTERN.strip("^$"), duration):
        raise ValueError(f"{duration!r} is not a duration: write for example 250ms, 15s or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))


def amount(quantity: str | int | float) -> float:
    """Number behind a Kubernetes quantity such as `500m`, `8Gi` or `2`. ValueError where it is none."""
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None:
        raise ValueError(f"{quantity!r} is not a Kubernetes quantity: write for example 500m, 2 or 8Gi")
    return float(match.group(1)) * _FACTORS[match.group(2)]
