"""Measured step costs of one kind of engine, kept as a JSON document.

    {"version": 1,
     "key": {"model": "…", "draft": "…", "gpu": "NVIDIA H200", "parallelism": "tp1", "attentionBackend": "fa3",
             "engineVersion": "0.5.23"},
     "stepSeconds": {"0": [[1, 0.00476], [32, 0.00537]], "3": [[1, 0.00587], [32, 0.0071]]},
     "kvTokensPerRequest": 256, "secondsPerKvToken": 2.7e-08}

A cost depends on every part of the key, so a profile whose key differs from the engine's is not used: measuring anew takes
a minute of traffic, and a wrong table is believed for longer than that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION = 1
KEY_FIELDS = ("model", "draft", "gpu", "parallelism", "attentionBackend", "engineVersion")


class ProfileInvalid(ValueError):
    """The document can't be used; the message names the field."""


@dataclass(frozen=True)
class Profile:
    """Seconds of a decode round, by steps, as (running requests, seconds) with running rising.

    kv_tokens_per_request  KV tokens that a request held on average while this was measured
    seconds_per_kv_token   what a further KV token in the batch adds to a round; None where not measured
    """

    key: Mapping[str, str]
    step_seconds: Mapping[int, tuple[tuple[int, float], ...]]
    kv_tokens_per_request: float = 0.0
    seconds_per_kv_token: float | None = None

    def matches(self, key: Mapping[str, str]) -> bool:
        return dict(self.key) == dict(key)

    def to_document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "key": dict(self.key),
            "stepSeconds": {
                str(steps): [[running, seconds] for running, seconds in points]
                for steps, points in sorted(self.step_seconds.items())
            },
            "kvTokensPerRequest": self.kv_tokens_per_request,
            "secondsPerKvToken": self.seconds_per_kv_token,
        }


def parse_profile(document: object) -> Profile:
    """The profile of a JSON document. ProfileInvalid names the first field that is missing or wrong."""
    if not isinstance(document, Mapping):
        raise ProfileInvalid(f"the profile must be a JSON object, not {type(document).__name__}")
    if document.get("version") != VERSION:
        raise ProfileInvalid(f"version: must be {VERSION}, not {document.get('version')!r}: measure the profile anew")
    key = document.get("key")
    if not isinstance(key, Mapping) or set(key) != set(KEY_FIELDS) or not all(isinstance(v, str) for v in key.values()):
        raise ProfileInvalid(f"key: must be an object of strings with {', '.join(KEY_FIELDS)}, not {key!r}")
    table = document.get("stepSeconds")
    if not isinstance(table, Mapping) or not table:
        raise ProfileInvalid(f"stepSeconds: must be an object from steps to points, not {table!r}")
    per_token = document.get("secondsPerKvToken")
    return Profile(
        key=dict(key),
        step_seconds={_steps(steps): _points(f"stepSeconds.{steps}", points) for steps, points in table.items()},
        kv_tokens_per_request=_amount("kvTokensPerRequest", document.get("kvTokensPerRequest", 0.0)),
        seconds_per_kv_token=None if per_token is None else _amount("secondsPerKvToken", per_token),
    )


def _steps(text: object) -> int:
    if not isinstance(text, str) or not text.isascii() or not text.isdigit():
        raise ProfileInvalid(f"stepSeconds: {text!r} is no step count")
    return int(text)


def _points(field: str, value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ProfileInvalid(f"{field}: must be a list of [running, seconds], not {value!r}")
    points = []
    for entry in value:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise ProfileInvalid(f"{field}: each point must be [running, seconds], not {entry!r}")
        running, seconds = entry
        if isinstance(running, bool) or not isinstance(running, int) or running < 1:
            raise ProfileInvalid(f"{field}: running must be a whole number of 1 or more, not {running!r}")
        if _amount(field, seconds) == 0.0:
            raise ProfileInvalid(f"{field}: seconds must be more than 0")
        points.append((running, float(seconds)))
    if any(later[0] <= earlier[0] for earlier, later in itertools.pairwise(points)):
        raise ProfileInvalid(f"{field}: running must rise from point to point")
    return tuple(points)


def _amount(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ProfileInvalid(f"{field}: must be a number of 0 or more, not {value!r}")
    return float(value)
