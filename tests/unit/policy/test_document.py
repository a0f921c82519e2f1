"""The policy document and the profile document: what is taken, what is refused and by which field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from specserver.policy.document import Policy, PolicyInvalid, Probe, parse_policy
from specserver.policy.profile import Profile, ProfileInvalid, parse_profile
from tests.unit.policy.support import MEASURED, TABLE

OLD = {
    "revision": 7, "mode": "Auto", "strategy": "Threshold", "steps": [0, 1, 3], "disableAbove": 8, "enableBelow": 4,
    "minDwellSeconds": 0.25,
}  # fmt: skip


def test_a_document_without_the_later_fields_is_taken_and_given_back() -> None:
    policy = parse_policy(OLD)
    assert (policy.margin_up, policy.margin_down, policy.min_accept_length, policy.probe, policy.table) == (
        0.05, 0.02, 1.1, Probe(), ()
    )  # fmt: skip
    assert policy.to_document() == OLD, "an older engine must take what this operator sends"


@pytest.mark.parametrize(
    "policy",
    [
        MEASURED,
        TABLE,
        replace(MEASURED, margin_up=0.1, margin_down=0.0, min_accept_length=1.3),
        replace(MEASURED, probe=Probe(max_duty=0.0, rounds=3, min_interval_seconds=1.0, max_interval_seconds=9.0)),
    ],
    ids=["measured", "table", "margins", "probe"],
)
def test_round_trip(policy: Policy) -> None:
    assert parse_policy(json.loads(json.dumps(policy.to_document()))) == policy


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"strategy": "Guess"}, "strategy"),
        ({"marginUp": -0.1}, "marginUp"),
        ({"marginUp": float("nan")}, "marginUp"),
        ({"marginDown": 1.5}, "marginDown"),
        ({"marginDown": "0.1"}, "marginDown"),
        ({"minAcceptLength": 0.9}, "minAcceptLength"),
        ({"minAcceptLength": True}, "minAcceptLength"),
        ({"probe": 3}, "probe"),
        ({"probe": {"duty": 0.1}}, "probe.duty"),
        ({"probe": {"maxDuty": 2}}, "probe.maxDuty"),
        ({"probe": {"rounds": 0}}, "probe.rounds"),
        ({"probe": {"rounds": 1.5}}, "probe.rounds"),
        ({"probe": {"minIntervalSeconds": 60}}, "probe.maxIntervalSeconds"),
        ({"strategy": "Table"}, "table"),
        ({"table": {"1": 3}}, "table"),
        ({"table": [[1, 3]]}, "table"),
        ({"table": [{"running": 1, "steps": 2}]}, "table"),
        ({"table": [{"running": 8, "steps": 3}, {"running": 8, "steps": 0}]}, "table"),
        ({"table": [{"running": -1, "steps": 3}]}, "table"),
        ({"minDwellSeconds": float("inf")}, "minDwellSeconds"),
        ({"colour": "red"}, "colour"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
def test_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(PolicyInvalid) as refused:
        parse_policy({**OLD, **change})
    assert refused.value.field == field


@pytest.mark.parametrize("field", OLD)
def test_what_must_be_there(field: str) -> None:
    with pytest.raises(PolicyInvalid, match="missing") as refused:
        parse_policy({key: value for key, value in OLD.items() if key != field})
    assert refused.value.field == field


KEY = {
    "model": "m", "draft": "d", "gpu": "NVIDIA H200", "parallelism": "tp1", "attentionBackend": "fa3",
    "engineVersion": "0.5.23",
}  # fmt: skip
PROFILE = Profile(KEY, {0: ((1, 0.005), (32, 0.0054)), 3: ((1, 0.0059),)}, 256.0, 2.7e-8)


def test_profile_round_trip() -> None:
    assert parse_profile(json.loads(json.dumps(PROFILE.to_document()))) == PROFILE
    unknown = replace(PROFILE, seconds_per_kv_token=None)
    assert parse_profile(json.loads(json.dumps(unknown.to_document()))) == unknown


@pytest.mark.parametrize("part", KEY)
def test_a_profile_matches_by_its_whole_key(part: str) -> None:
    assert PROFILE.matches(KEY)
    assert not PROFILE.matches({**KEY, part: "another"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version"),
        ({"key": {**KEY, "gpu": 3}}, "key"),
        ({"key": {"model": "m"}}, "key"),
        ({"stepSeconds": {}}, "stepSeconds"),
        ({"stepSeconds": {"-1": [[1, 0.1]]}}, "stepSeconds"),
        ({"stepSeconds": {"0": []}}, "stepSeconds.0"),
        ({"stepSeconds": {"0": [[1]]}}, "stepSeconds.0"),
        ({"stepSeconds": {"0": [[0, 0.1]]}}, "stepSeconds.0"),
        ({"stepSeconds": {"0": [[1, 0.0]]}}, "stepSeconds.0"),
        ({"stepSeconds": {"0": [[1, float("nan")]]}}, "stepSeconds.0"),
        ({"stepSeconds": {"0": [[4, 0.1], [4, 0.1]]}}, "stepSeconds.0"),
        ({"secondsPerKvToken": -1}, "secondsPerKvToken"),
        ({"kvTokensPerRequest": "many"}, "kvTokensPerRequest"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
def test_profile_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ProfileInvalid, match=f"^{said}"):
        parse_profile({**PROFILE.to_document(), **change})
