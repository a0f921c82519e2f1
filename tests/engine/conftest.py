"""Servers of the engine tests. One is up at a time: each keeps a core busy even when idle."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.engine import conversations
from tests.engine.environment import IMAGE, ensure_environment
from tests.engine.server import API_KEY, Config, Reply, Server, policy_document, prompts

PROMPTS = prompts(24)
TOKENS = 64


@pytest.fixture(scope="session")
def python() -> Path:
    return ensure_environment()


@pytest.fixture(scope="session")
def models(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    subprocess.run([str(python), str(IMAGE / "models.py"), str(directory)], check=True)
    return directory


StartServer = Callable[[Config], Server]


@pytest.fixture(scope="session")
def make_server(python: Path, tmp_path_factory: pytest.TempPathFactory) -> StartServer:
    """Starts a server; the caller uses it as a context manager."""
    return lambda config: Server(python, tmp_path_factory.mktemp("engine"), config)


@dataclass(frozen=True)
class PlainRun:
    """What a server that does not speculate gave, kept after it is gone."""

    outputs: list[list[int]]
    state: Reply
    policy: Reply
    put: Reply
    metrics: dict[str, float]
    conversations: list[conversations.Turns]


def run_plain(make_server: StartServer, config: Config) -> PlainRun:
    with make_server(config) as server:
        key = config.admin_key
        return PlainRun(
            outputs=server.generate_all(PROMPTS, TOKENS, concurrency=8),
            state=server.call("GET", "/specserver/v1/state", key=key),
            policy=server.call("GET", "/specserver/v1/policy", key=key),
            put=server.call("PUT", "/specserver/v1/policy", policy_document(), key=key),
            metrics=server.metrics(),
            conversations=conversations.converse_all(server),
        )


@pytest.fixture(scope="session")
def plain_random(make_server: StartServer, models: Path) -> PlainRun:
    """The reference of the attention-heavy models, with both of SGLang's keys set."""
    return run_plain(make_server, Config(models / "random", algorithm=None, api_key=API_KEY))


@pytest.fixture(scope="session")
def plain_halves(make_server: StartServer, models: Path) -> PlainRun:
    """The reference of the half predictable models, with an ordinary key and no admin key."""
    return run_plain(make_server, Config(models / "halves", algorithm=None, admin_key="", api_key=API_KEY))


@dataclass(frozen=True)
class Speculating:
    """A speculating server and what a plain one gives on the same prompts."""

    server: Server
    plain: PlainRun

    def wrong(self, outputs: list[list[int]], of: slice = slice(None)) -> list[int]:
        """Prompts, of those that the slice names, whose output differs from the plain server's."""
        expected = list(enumerate(self.plain.outputs))[of]
        assert len(outputs) == len(expected)
        return [i for (i, right), output in zip(expected, outputs, strict=True) if output != right]


def _speculating(server: Server, plain: PlainRun) -> Iterator[Speculating]:
    with server:
        yield Speculating(server, plain)


@pytest.fixture(scope="module")
def eagle3_random(make_server: StartServer, models: Path, plain_random: PlainRun) -> Iterator[Speculating]:
    """Admin key alone; starts with a policy file."""
    config = Config(models / "random", "EAGLE3", policy=policy_json())
    yield from _speculating(make_server(config), plain_random)


@pytest.fixture(scope="module")
def eagle3_halves(make_server: StartServer, models: Path, plain_halves: PlainRun) -> Iterator[Speculating]:
    """Both keys; starts with a policy file whose ladder is not a list."""
    config = Config(models / "halves", "EAGLE3", api_key=API_KEY, policy=policy_json(steps="all"))
    yield from _speculating(make_server(config), plain_halves)


@pytest.fixture(scope="module")
def faults_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server with the test plugin shall get wrong; see faults/specserver_faults.py."""
    path = tmp_path_factory.mktemp("faults") / "faults.json"
    path.write_text("{}")
    return path


def with_faults(config: Config, faults_file: Path) -> Config:
    variables = {**config.variables, "SPECSERVER_TEST_FAULTS": str(faults_file)}
    return replace(config, python_path=(Path(__file__).parent / "faults",), variables=variables)


GPU_STEP_SECONDS = {"0": 0.0100, "1": 0.0108, "2": 0.0116, "3": 0.0124}


@pytest.fixture(scope="module")
def eagle_halves(
    make_server: StartServer, models: Path, plain_halves: PlainRun, faults_file: Path
) -> Iterator[Speculating]:
    """With the test plugin, for rounds that cost what they would on a GPU, from the first one on."""
    faults_file.write_text(json.dumps({"stepSeconds": GPU_STEP_SECONDS}))
    config = with_faults(Config(models / "halves", "EAGLE", policy=policy_json()), faults_file)
    yield from _speculating(make_server(config), plain_halves)


@pytest.fixture(scope="module")
def eagle_random(
    make_server: StartServer, models: Path, plain_random: PlainRun, faults_file: Path
) -> Iterator[Speculating]:
    """With the test plugin, for faults, and with two HTTP processes."""
    workers = ("--tokenizer-worker-num", "2")
    config = with_faults(Config(models / "random", "EAGLE", policy=policy_json(), arguments=workers), faults_file)
    yield from _speculating(make_server(config), plain_random)


def policy_json(**changes: object) -> str:
    return json.dumps(policy_document(**changes))
