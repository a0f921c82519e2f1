"""Quantities, durations, the parsed resource and its conditions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserver.api import quantities
from specserver.api.conditions import Condition, ConditionType, Reason, Status, merge_conditions
from specserver.api.v1alpha1 import InvalidResource, parse


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("15s", 15), ("1h30m", 5400), ("1.5m", 90), ("0s", 0), ("1m1s500ms", 61.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert quantities.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "1d", "-1s", "s", "1 s", "1s ", "1s\n"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        quantities.seconds(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2", 2), (2, 2), ("500m", 0.5), ("8Gi", 8 * 2**30), ("1e3", 1000), ("1.5k", 1500), ("1E", 1e18), ("2Ki", 2048),
        ("0.05", 0.05), (".5", 0.5), ("1.", 1),
    ],
)
def test_quantities(text: str | int, amount: float) -> None:
    assert quantities.amount(text) == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "much", "1.2.3", "1 Gi", "GiB", "1GiB", "e3", ".", "1ki"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        quantities.amount(text)


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_a_value_error(text: str) -> None:
    try:
        assert isinstance(quantities.amount(text), float)
    except ValueError as error:
        assert "is not a Kubernetes quantity" in str(error)  # noqa: PT017 - both outcomes are right


def body(**spec: Any) -> dict[str, Any]:
    base = {
        "model": {"uri": "hf://org/model"},
        "speculation": {"draftModel": {"uri": "hf://org/draft"}},
        "engine": {"image": "engine:1"},
    }
    return {"metadata": {"namespace": "ns", "name": "chat", "uid": "u", "generation": 3}, "spec": {**base, **spec}}


def test_a_resource_is_parsed_with_its_identity() -> None:
    server = parse(body(replicas=2))
    assert (server.namespace, server.name, server.uid, server.generation) == ("ns", "chat", "u", 3)
    assert (server.spec.replicas, server.spec.engine.max_running_requests) == (2, 256)
    assert server.spec.speculation.ladder == (0, 1, 2, 3)


def test_what_does_not_parse_is_named_field_by_field() -> None:
    """As an object stored under an older version of the definition could be."""
    with pytest.raises(InvalidResource) as caught:
        parse(body(replicas=-1, engine={"image": "e", "prot": 1}))
    problems = caught.value.problems
    assert any(problem.startswith("spec.replicas: ") for problem in problems)
    assert any(problem.startswith("spec.engine.prot: ") for problem in problems)


def test_the_time_of_a_condition_moves_with_its_status_alone() -> None:
    ready = Condition(ConditionType.READY, Status.FALSE, Reason.MODEL_LOADING, "a")
    (first,) = merge_conditions([ready], [], generation=1, now="T1")
    later = Condition(ConditionType.READY, Status.FALSE, Reason.CRASH_LOOP, "b")
    (second,) = merge_conditions([later], [first], generation=2, now="T2")
    assert second == {
        "type": "Ready", "status": "False", "reason": "CrashLoop", "message": "b", "observedGeneration": 2,
        "lastTransitionTime": "T1",
    }  # fmt: skip
    done = Condition(ConditionType.READY, Status.TRUE, Reason.ALL_REPLICAS_READY)
    (third,) = merge_conditions([done], [second], generation=2, now="T3")
    assert third["lastTransitionTime"] == "T3"
    assert merge_conditions([], [third], generation=2, now="T4") == [], "a condition that is told no more is gone"
