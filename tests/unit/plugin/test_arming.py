"""Which engines are controlled, and why others are not; the policy file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specserver.plugin.arming import Facts, find_obstacle, load_policy_file
from tests.unit.plugin.fakes import document, make_rank

GOOD = Facts(
    algorithm="EAGLE3",
    topk=1,
    attention_data_parallel=False,
    pipeline_ranks=1,
    disaggregation="null",
    ladder=(0, 1, 2, 3),
)


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3"])
def test_controlled(algorithm: str) -> None:
    assert find_obstacle(replace(GOOD, algorithm=algorithm)) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (replace(GOOD, algorithm=None, topk=None, ladder=None), "speculation is off"),
        (replace(GOOD, algorithm="STANDALONE"), "speculative algorithm STANDALONE is not supported"),
        (replace(GOOD, algorithm="NGRAM"), "speculative algorithm NGRAM is not supported"),
        (replace(GOOD, topk=4), "--speculative-eagle-topk 4 is not supported"),
        (replace(GOOD, attention_data_parallel=True), "data-parallel attention is not supported"),
        (replace(GOOD, pipeline_ranks=2), "pipeline parallelism is not supported"),
        (replace(GOOD, disaggregation="decode"), "disaggregation mode decode is not supported"),
        (replace(GOOD, ladder=None), "start it with --speculative-adaptive"),
        (replace(GOOD, ladder=(1, 3)), "the ladder (1, 3) needs 0"),
        (replace(GOOD, ladder=(0,)), "the ladder (0) needs 0 and another"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_not_controlled_and_why(facts: Facts, reason: str) -> None:
    assert reason in str(find_obstacle(facts))


def test_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(document(revision=7)))
    rank = make_rank()
    load_policy_file(rank, str(path))
    assert rank.report()["revision"] == 7
    assert rank.in_control


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("{", "Expecting property name"),
        ("[]", "must be a JSON object"),
        (json.dumps(document(mode="Sometimes")), "mode: must be one of"),
        (json.dumps(document(steps=[0, 5])), "steps: the engine started with steps 0, 1, 2, 3"),
        ("\udcff", "can't decode"),
    ],
    ids=["absent", "no JSON", "no object", "invalid", "other ladder", "no text"],
)
def test_broken_policy_file_is_a_reason(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "policy.json"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    rank = make_rank()
    load_policy_file(rank, str(path))
    assert not rank.in_control
    reason = rank.report()["reason"]
    assert problem in reason
    assert str(path) in reason


def test_no_policy_file_named() -> None:
    rank = make_rank()
    load_policy_file(rank, "")
    assert rank.report()["reason"] == "no policy yet"
