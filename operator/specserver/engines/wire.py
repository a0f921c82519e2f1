"""What an engine says, checked field by field.

The engine may run another version of the plugin, or something else altogether on the same port. Whatever it sends, the
result is either a value of the right types or `AnswerInvalid` with the field and what is wrong with it. Unknown fields are
let through: a newer plugin may say more.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from specserver.core.observed import EngineState, RankState
from specserver.engines.http import excerpt

MAX_RANKS = 1024
MAX_TEXT_CHARACTERS = 500


class AnswerInvalid(ValueError):
    """The answer is not what the control API promises."""


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in an answer's body."""
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise AnswerInvalid("the body can't be read as JSON") from error
    if not isinstance(document, dict):
        raise AnswerInvalid(f"the body is a JSON {_kind(document)}, not an object")
    return document


def parse_state(pod: str, document: dict[str, Any]) -> EngineState:
    """The answer to `GET /specserver/v1/state`."""
    ranks = tuple(_parse_rank(item, f"ranks[{index}]") for index, item in enumerate(_ranks(document)))
    names = [rank.rank for rank in ranks]
    if len(set(names)) < len(names):
        raise AnswerInvalid(f"ranks: names are not unique: {excerpt(', '.join(names))}")
    return EngineState(
        pod=pod,
        plugin_version=_text(document, "pluginVersion"),
        engine_version=_text(document, "engineVersion"),
        ranks=ranks,
    )


def parse_applied(document: dict[str, Any]) -> tuple[int, dict[str, int]]:
    """The answer to an accepted `PUT /specserver/v1/policy`: the revision, and the revision by rank."""
    ranks: dict[str, int] = {}
    for index, item in enumerate(_ranks(document)):
        if not isinstance(item, dict):
            raise AnswerInvalid(f"ranks[{index}]: must be an object, not {_kind(item)}")
        ranks[_text(item, "rank", f"ranks[{index}].")] = _count(item, "revision", f"ranks[{index}].")
    return _count(document, "revision"), ranks


def parse_refusal(body: bytes) -> tuple[str, str]:
    """Field and text of a refusal; the body's own beginning where it is not in the promised form."""
    try:
        document = parse_object(body)
    except AnswerInvalid:
        return "", excerpt(body.decode(errors="replace"))
    field, error = document.get("field"), document.get("error")
    return (
        excerpt(field) if isinstance(field, str) else "",
        excerpt(error) if isinstance(error, str) else excerpt(json.dumps(document)),
    )


def _parse_rank(item: object, path: str) -> RankState:
    if not isinstance(item, dict):
        raise AnswerInvalid(f"{path}: must be an object, not {_kind(item)}")
    at = f"{path}."
    policy = _present(item, "policy", at)
    if policy is not None and not isinstance(policy, dict):
        raise AnswerInvalid(f"{at}policy: must be an object or null, not {_kind(policy)}")
    return RankState(
        rank=_text(item, "rank", at),
        armed=_flag(item, "armed", at),
        reason=_text(item, "reason", at),
        revision=None if _present(item, "revision", at) is None else _count(item, "revision", at),
        policy=policy,
        steps=_count(item, "steps", at),
        decided_steps=_count(item, "decidedSteps", at),
        running=_count(item, "running", at),
        queued=_count(item, "queued", at),
        accept_length=_number_or_null(item, "acceptLength", at),
        rounds=_rounds(item, at),
        switches=_count(item, "switches", at),
        switches_last_hour=_count(item, "switchesLastHour", at),
        last_switch_at=_number_or_null(item, "lastSwitchAt", at),
        hook_errors=_count(item, "hookErrors", at),
    )


def _ranks(document: dict[str, Any]) -> list[Any]:
    ranks = _present(document, "ranks", "")
    if not isinstance(ranks, list) or not 1 <= len(ranks) <= MAX_RANKS:
        raise AnswerInvalid(f"ranks: must be a list of 1 to {MAX_RANKS} ranks")
    return ranks


def _rounds(item: dict[str, Any], at: str) -> dict[int, int]:
    rounds = _present(item, "rounds", at)
    if not isinstance(rounds, dict):
        raise AnswerInvalid(f"{at}rounds: must be an object, not {_kind(rounds)}")
    counts = {}
    for steps in rounds:
        if not (steps.isascii() and steps.isdigit() and len(steps) <= 3):
            raise AnswerInvalid(f"{at}rounds: {excerpt(steps)!r} is not a step count")
        counts[int(steps)] = _count(rounds, steps, f"{at}rounds.")
    return counts


def _present(item: dict[str, Any], field: str, at: str) -> Any:
    if field not in item:
        raise AnswerInvalid(f"{at}{field}: missing")
    return item[field]


def _text(item: dict[str, Any], field: str, at: str = "") -> str:
    value = _present(item, field, at)
    if not isinstance(value, str):
        raise AnswerInvalid(f"{at}{field}: must be a string, not {_kind(value)}")
    return excerpt(value, MAX_TEXT_CHARACTERS)


def _flag(item: dict[str, Any], field: str, at: str) -> bool:
    value = _present(item, field, at)
    if not isinstance(value, bool):
        raise AnswerInvalid(f"{at}{field}: must be true or false, not {_kind(value)}")
    return value


def _count(item: dict[str, Any], field: str, at: str = "") -> int:
    value = _present(item, field, at)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise AnswerInvalid(f"{at}{field}: must be a whole number of 0 or more, not {excerpt(repr(value), 40)}")
    return value


def _number_or_null(item: dict[str, Any], field: str, at: str) -> float | None:
    value = _present(item, field, at)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15 or math.isnan(value):
        raise AnswerInvalid(f"{at}{field}: must be a number of 0 or more or null, not {excerpt(repr(value), 40)}")
    return float(value)


def _kind(value: object) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
