"""Two tensor-parallel ranks, in two processes: they choose alike, or the first difference would leave both waiting for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import scenarios
from tests.engine.conftest import PlainRun, Speculating, StartServer, policy_json
from tests.engine.server import Config


@pytest.fixture(scope="module")
def two_ranks(make_server: StartServer, models: Path, plain_random: PlainRun) -> Iterator[Speculating]:
    variables = {
        "SGLANG_CPU_OMP_THREADS_BIND": "0|1",  # a core a rank; SGLang wants a NUMA node a rank otherwise
        "SGLANG_NCCL_SO_PATH": "/nonexistent",  # torch's CUDA build would bring NCCL; without it SGLang takes gloo
    }
    config = Config(models / "random", "EAGLE3", policy=policy_json(), arguments=("--tp", "2"), variables=variables)
    with make_server(config) as server:
        yield Speculating(server, plain_random)


def test_both_ranks_take_a_policy_and_are_read_back(two_ranks: Speculating) -> None:
    revision = two_ranks.server.state()["revision"] + 1
    reply = two_ranks.server.put_policy(revision=revision)
    expected = [{"rank": "tp0", "revision": revision}, {"rank": "tp1", "revision": revision}]
    assert (reply.status, reply.body) == (200, {"revision": revision, "ranks": expected})


def test_outputs_while_load_switches(two_ranks: Speculating) -> None:
    scenarios.check_outputs_while_load_switches(two_ranks)
    check_ranks_agree(two_ranks)


def test_outputs_while_policy_switches(two_ranks: Speculating) -> None:
    scenarios.check_outputs_while_policy_switches(two_ranks)
    check_ranks_agree(two_ranks)


def check_ranks_agree(two_ranks: Speculating) -> None:
    """What each rank counted for itself, and the hash over the steps and batch size of every round that it ran.

    Times are its own clock's, and the rule is one rank's alone.
    """
    own = ("rank", "lastSwitchAt", "stepTime", "forced", "estimates", "decisions")
    first, second = ({k: v for k, v in state.items() if k not in own} for state in two_ranks.server.states())
    assert first["switches"] > 0
    assert sum(first["rounds"].values()) > 100
    assert first["decisionHash"] == second["decisionHash"]
    assert first == second
