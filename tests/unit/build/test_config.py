"""The policy and the ConfigMap that an engine starts from."""

from __future__ import annotations

import json

import pytest

from specserver.build.config import build_policy, build_policy_config, ladders_in
from specserver.policy.document import Policy, Probe, parse_policy
from tests.unit.build.support import make_server


def test_policy_is_what_the_resource_says() -> None:
    changes = {
        "speculation.mode": "Observe",
        "speculation.maxSteps": 4,
        "speculation.steps": [0, 2, 4],
        "speculation.policy": {
            "strategy": "Table", "disableAbove": 20, "enableBelow": 10, "minDwell": "1m500ms", "minAcceptLength": "1.25",
            "marginUp": "0.1", "marginDown": "0", "table": [{"running": 1, "steps": 4}, {"running": 9, "steps": 0}],
            "probe": {"maxDuty": "0.02", "rounds": 12, "minInterval": "1s", "maxInterval": "1m"},
        },
    }  # fmt: skip
    assert build_policy(make_server(changes, generation=12)) == Policy(
        revision=12,
        mode="Observe",
        strategy="Table",
        steps=(0, 2, 4),
        disable_above=20,
        enable_below=10,
        min_dwell_seconds=60.5,
        margin_up=0.1,
        margin_down=0.0,
        min_accept_length=1.25,
        probe=Probe(max_duty=0.02, rounds=12, min_interval_seconds=1.0, max_interval_seconds=60.0),
        table=((1, 4), (9, 0)),
    )


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [
        ({}, (200, 150)),
        ({"strategy": "Table", "table": [{"running": 0, "steps": 1}]}, (200, 150)),
        ({"strategy": "Threshold"}, (64, 48)),
        ({"strategy": "Threshold", "disableAbove": 10}, (10, 7)),
        ({"disableAbove": 1}, (1, 0)),
        ({"disableAbove": 30, "enableBelow": 2}, (30, 2)),
    ],
    ids=["none but what an engine can run", "none with a table", "threshold", "one given", "the least", "both given"],
)
def test_bounds(policy: dict[str, object], bounds: tuple[int, int]) -> None:
    built = build_policy(make_server({"speculation.policy": policy, "engine.maxRunningRequests": 200}))
    assert (built.disable_above, built.enable_below) == bounds


def test_the_defaults_of_the_resource_are_those_of_the_document() -> None:
    """So a policy of defaults stays a document that an older engine takes."""
    built = build_policy(make_server({"speculation.policy": {}}))
    assert set(built.to_document()) == {
        "revision", "mode", "strategy", "steps", "disableAbove", "enableBelow", "minDwellSeconds",
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["Auto", "Always", "Never", "Observe"])
def test_the_engine_can_read_the_file_it_starts_with(mode: str) -> None:
    server = make_server({"speculation.mode": mode})
    document = json.loads(build_policy_config(server)["data"]["policy.json"])
    assert parse_policy(document) == build_policy(server)


def test_ladder_file_is_one_slot_with_every_step_above_0() -> None:
    data = build_policy_config(make_server({"speculation.maxSteps": 5, "speculation.steps": [0, 1, 5]}))["data"]
    assert json.loads(data["ladder-1-5.json"]) == {"1": {"candidate_steps": [1, 5]}}


def test_a_single_step_count_above_0_needs_no_file() -> None:
    assert list(build_policy_config(make_server({"speculation.maxSteps": 1}))["data"]) == ["policy.json"]


def test_ladder_of_pods_not_yet_replaced_stays() -> None:
    before = build_policy_config(make_server({"speculation.maxSteps": 2}))
    after = build_policy_config(make_server({"speculation.maxSteps": 4}), ladders_in(before))
    assert after["data"]["ladder-1-2.json"] == before["data"]["ladder-1-2.json"]
    assert "ladder-1-2-3-4.json" in after["data"]


def test_a_file_that_lists_0_stays_as_it_is() -> None:
    """Of an operator that had SGLang prepare 0: its pods read it again when their container restarts."""
    data = build_policy_config(make_server(), [(0, 1, 2, 3)])["data"]
    assert json.loads(data["ladder-0-1-2-3.json"]) == {"1": {"candidate_steps": [0, 1, 2, 3]}}


def test_building_again_over_what_is_live_changes_nothing() -> None:
    server = make_server()
    live = build_policy_config(server, [(0, 1)])
    assert build_policy_config(server, ladders_in(live)) == live


@pytest.mark.parametrize(
    ("live", "ladders"),
    [
        (None, ()),
        ({}, ()),
        ({"data": None}, ()),
        ({"data": {"policy.json": "{}", "ladder-.json": "", "ladder-a.json": "", "ladder-0-1.json.bak": ""}}, ()),
        ({"data": {"ladder-0-10.json": "tampered"}}, ((0, 10),)),
    ],
    ids=["no object", "no data", "null data", "other files", "read from the name"],
)
def test_ladders_are_read_from_file_names(live: dict[str, object] | None, ladders: tuple[tuple[int, ...], ...]) -> None:
    assert ladders_in(live) == ladders
