"""The PromQL texts.

One query reads all signals of all pods of a server: the samples of one scrape belong together, and only within one query
does Prometheus promise that a scrape is there whole or not at all. One query a signal was tried on paper and rejected: a
scrape that lands between two of them mixes two moments, at five times the requests.

It asks for raw samples over a window, not for an instant vector: an instant vector says when it was evaluated and hides
how old its samples are, and aggregating in PromQL hides NaN (`max`) or spreads it over healthy pods (`sum`).

Every query is bound to the namespace and to the pods' names; nothing is ever widened to get an answer. `misplaced` looks
further, for a message alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from specserver.load.metric_names import ENGINE_NAMES, QUEUED, RUNNING, TARGET_UP

MIN_WINDOW_SECONDS = 300.0
"""Reaches further back than staleness, to tell samples that are old from samples that never were."""


def load(namespace: str, pods: Iterable[str], labels: Mapping[str, str], *, staleness_seconds: float) -> str:
    """All samples of the load's metrics, and of `up`, of these pods in the last minutes."""
    window_seconds = math.ceil(max(MIN_WINDOW_SECONDS, 2 * staleness_seconds))
    matchers = [
        _any("__name__", sorted({*ENGINE_NAMES, TARGET_UP})),
        _equal("namespace", namespace),
        _any("pod", sorted(pods)),
        *_further(labels),
    ]
    return f"{{{','.join(matchers)}}}[{window_seconds}s]"


def misplaced(namespace: str, labels: Mapping[str, str]) -> str:
    """One series of the load's metrics that carries the namespace, if under other labels or of another pod."""
    names = _any("__name__", sorted({*RUNNING.all_names, *QUEUED.all_names}))
    alike = [
        f"{{{','.join([names, _equal(label, namespace), *_further(labels)])}}}"
        for label in ("exported_namespace", "namespace")
    ]
    return f"topk(1, {' or '.join(alike)})"


def _further(labels: Mapping[str, str]) -> list[str]:
    return [_equal(name, value) for name, value in sorted(labels.items())]


def _equal(label: str, value: str) -> str:
    return f'{label}="{_escape(value)}"'


def _any(label: str, values: Iterable[str]) -> str:
    """Matches one of these, literally: `.` is a letter of pod names and a wildcard of RE2."""
    return f'{label}=~"{_escape("|".join(re.escape(value) for value in values))}"'


def _escape(value: str) -> str:
    """The inside of a PromQL string in double quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
