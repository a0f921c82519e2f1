"""EAGLE on the half predictable models."""

from __future__ import annotations

from tests.engine import scenarios
from tests.engine.conftest import Speculating


def test_outputs_while_load_switches(eagle_halves: Speculating) -> None:
    scenarios.check_outputs_while_load_switches(eagle_halves)
    assert eagle_halves.server.state()["acceptLength"] > 1.5


def test_outputs_while_policy_switches(eagle_halves: Speculating) -> None:
    scenarios.check_outputs_while_policy_switches(eagle_halves)
