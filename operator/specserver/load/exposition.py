"""Prometheus' text format (0.0.4), as much of it as is needed, and for the names that are asked for alone.

https://github.com/prometheus/docs/blob/main/docs/instrumenting/exposition_formats.md

Rejected: `prometheus_client.parser`. It builds families of all lines (an engine has thousands, mostly histogram buckets)
and gives up on a whole page for one broken line of a metric that nobody asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

ACCEPT = "text/plain; version=0.0.4"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_REST = re.compile(r"\s*(?:\{(?P<labels>.*)\})?\s*(?P<value>[^\s{]\S*)(?:\s+(?P<timestamp>-?\d+))?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class ExpositionInvalid(ValueError):
    """A line of a wanted metric can't be read. The text has its number and name."""


@dataclass(frozen=True)
class Sample:
    """One sample of one series. `text` is the value as written; `at` its own time in seconds, where it has one."""

    name: str
    labels: Mapping[str, str]
    text: str
    at: float | None = None

    @property
    def value(self) -> float | None:
        """The number: finite and at least 0, as all that we read must be. None where it is anything else."""
        if not _DECIMAL.fullmatch(self.text):
            return None
        number = float(self.text)
        return number if math.isfinite(number) and number >= 0 else None


def parse_exposition(page: str, names: Collection[str]) -> list[Sample]:
    """The samples of these metrics on a page."""
    samples = []
    for number, line in enumerate(page.split("\n"), start=1):
        name = _NAME.match(line.lstrip())
        if name is None or name.group() not in names:
            continue
        rest = _REST.fullmatch(line.lstrip()[name.end() :])
        labels = _parse_labels(rest.group("labels") or "") if rest else None
        if rest is None or labels is None:
            raise ExpositionInvalid(f"line {number}, {name.group()}: not in Prometheus' text format")
        timestamp = rest.group("timestamp")
        samples.append(
            Sample(name.group(), labels, rest.group("value"), int(timestamp) / 1000 if timestamp else None)
        )
    return samples


def _parse_labels(text: str) -> dict[str, str] | None:
    labels, position = {}, 0
    while position < len(text.rstrip()):
        label = _LABEL.match(text, position)
        if label is None:
            return None
        labels[label.group(1)] = _ESCAPE.sub(
            lambda escape: "\n" if escape.group(1) == "n" else escape.group(1), label.group(2)
        )
        position = label.end()
    return labels
