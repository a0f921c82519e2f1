"""A start with a file for step costs: the first one measures them before users come, the next one has them. The KV pool has room
for some of the requests that the engine would run, as on a GPU whose memory the model fills."""

from __future__ import annotations

import json
from pathlib import Path

from specserver.policy.profile import parse_profile
from tests.engine.conftest import StartServer, policy_json
from tests.engine.server import LADDER, Config, wait_until

ROOM = ("--max-total-tokens", "4096")


def test_the_first_start_measures_and_the_next_one_knows(make_server: StartServer, models: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    variables = {"SPECSERVER_SWEEP_FILE": str(file), "SPECSERVER_PROFILE_FILE": str(file)}
    config = Config(models / "random", "EAGLE3", policy=policy_json(), arguments=ROOM, variables=variables)
    with make_server(config) as server:
        assert not server.state()["profile"]["used"]
        wait_until(file.exists, 90, lambda: f"a profile\n{server.log_tail()}", poll_seconds=0.5)
        assert server.state()["forced"] is None
    measured = file.read_text()
    profile = parse_profile(json.loads(measured))
    assert profile.step_seconds.keys() == set(LADDER)
    assert 1 < max(running for points in profile.step_seconds.values() for running, _ in points) < 16
    with make_server(config) as server:
        used = server.state()["profile"]
        assert (used["used"], used["problem"]) == (True, "")
    assert file.read_text() == measured
