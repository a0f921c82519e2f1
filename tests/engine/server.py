"""One real SGLang server on a CPU, started as in a pod: by our launcher, with keys from the environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.engine.environment import engine_variables

START_SECONDS = 180.0
ADMIN_KEY = "admin-key-7f3a"
API_KEY = "api-key-91c2"
LADDER = (0, 1, 2, 3)


@dataclass(frozen=True)
class Config:
    """How to start a server. `algorithm` is None for one that does not speculate; one that is not adaptive has the largest step
    count alone."""

    models: Path
    algorithm: str | None = "EAGLE3"
    admin_key: str = ADMIN_KEY
    api_key: str = ""
    policy: str | None = None
    adaptive: bool = True
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    python_path: tuple[Path, ...] = ()


def arguments_of(config: Config, run: Path, port: int) -> list[str]:
    arguments = [
        "--model-path", str(config.models / "target"), "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1",
        "--port", str(port), "--mem-fraction-static", "0.5", "--max-total-tokens", "16384", "--max-running-requests", "16",
        "--context-length", "1024", "--disable-cuda-graph", "--skip-server-warmup", "--enable-metrics",
    ]  # fmt: skip
    if config.algorithm is not None:
        arguments += [
            "--speculative-algorithm", config.algorithm,
            "--speculative-draft-model-path", str(config.models / config.algorithm.lower()),
            "--speculative-num-steps", str(LADDER[-1]), "--speculative-eagle-topk", "1",
            "--speculative-num-draft-tokens", str(LADDER[-1] + 1),
        ]  # fmt: skip
    if config.algorithm is not None and config.adaptive:
        ladder = run / "ladder.json"
        ladder.write_text(json.dumps({"1": {"candidate_steps": [steps for steps in LADDER if steps > 0]}}))
        arguments += ["--speculative-adaptive", "--speculative-adaptive-config", str(ladder)]
    return [*arguments, *config.arguments]


def variables_of(config: Config, run: Path) -> dict[str, str]:
    variables = {**os.environ, **engine_variables(run)}
    for name in ("SPECSERVER_ADMIN_KEY", "SPECSERVER_API_KEY", "SPECSERVER_POLICY_FILE"):
        variables.pop(name, None)
    if config.admin_key:
        variables["SPECSERVER_ADMIN_KEY"] = config.admin_key
    if config.api_key:
        variables["SPECSERVER_API_KEY"] = config.api_key
    if config.policy is not None:
        (run / "policy.json").write_text(config.policy)
        variables["SPECSERVER_POLICY_FILE"] = str(run / "policy.json")
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], *(str(path) for path in config.python_path)])
    return {**variables, **config.variables}


@dataclass(frozen=True)
class Reply:
    status: int
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


class Server:
    """Use as a context manager: at its end every process of the server is gone."""

    def __init__(self, python: Path, run: Path, config: Config) -> None:
        self.config = config
        self.run = run
        self.port = free_port()
        self.log_path = run / "engine.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [str(python), "-m", "specserver.plugin.launcher", *arguments_of(config, run, self.port)],
                env=variables_of(config, run), cwd=run, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        try:
            wait_until(self._is_up, START_SECONDS, lambda: f"the engine is up\n{self.log_tail()}", poll_seconds=0.25)
        except BaseException:
            self.__exit__()  # Python calls it only for what was entered
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the engine ended with {self.process.returncode} at start\n{self.log_tail()}")
        with contextlib.suppress(OSError):
            return self.call("GET", "/ready").status == 200
        return False

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-30:])

    def processes(self) -> list[int]:
        """All processes of the server's session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if os.getsid(int(entry.name)) == self.process.pid:
                        found.append(int(entry.name))
        return found

    # ---- HTTP ----------------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: object = None, *, key: str | None = None, seconds: float = 120) -> Reply:
        """`key` None means none. A body that is bytes goes as it is."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                return Reply(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.read().decode())

    def states(self) -> list[dict[str, Any]]:
        """Every rank's state, as of the same scheduler turn."""
        reply = self.call("GET", "/specserver/v1/state", key=self.config.admin_key)
        assert reply.status == 200, reply
        ranks: list[dict[str, Any]] = reply.body["ranks"]
        return ranks

    def state(self) -> dict[str, Any]:
        return self.states()[0]

    def put_policy(self, **changes: object) -> Reply:
        """Puts a policy with the next revision, the defaults below and these changes."""
        document = {**policy_document(revision=(self.state()["revision"] or 0) + 1), **changes}
        return self.call("PUT", "/specserver/v1/policy", document, key=self.config.admin_key)

    def set_policy(self, **changes: object) -> None:
        reply = self.put_policy(**changes)
        assert reply.status == 200, reply

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name with labels, as the text has them."""
        lines = [line for line in self.call("GET", "/metrics").text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def generate(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Greedy continuation of a prompt, as token numbers."""
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": list(prompt), "sampling_params": parameters}
        reply = self.call("POST", "/generate", body, key=self.config.api_key)
        assert reply.status == 200, reply
        output: list[int] = reply.body["output_ids"]
        return output

    def generate_all(self, prompts: Sequence[Sequence[int]], tokens: int, concurrency: int) -> list[list[int]]:
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda prompt: self.generate(prompt, tokens), prompts))

    @contextlib.contextmanager
    def background_load(self, prompts: Sequence[Sequence[int]], tokens: int) -> Iterator[list[list[int]]]:
        """All prompts at once while the block runs; the yielded list holds their outputs after it."""
        outputs: list[list[int]] = []
        thread = threading.Thread(target=lambda: outputs.extend(self.generate_all(prompts, tokens, len(prompts))))
        thread.start()
        try:
            yield outputs
        finally:
            thread.join()


def policy_document(**changes: object) -> dict[str, Any]:
    document = {
        "revision": 1, "mode": "Auto", "strategy": "Threshold", "steps": list(LADDER), "disableAbove": 6, "enableBelow": 4,
        "minDwellSeconds": 0.02,
    }  # fmt: skip
    return {**document, **changes}


def prompts(count: int) -> list[list[int]]:
    """Half from the predictable tokens of the model set `halves`, half from the others; of different lengths."""
    chosen = []
    for i in range(count):
        low, high = ((2, 256), (256, 512))[i % 2]
        chosen.append([low + (i * 37 + j * 11) % (high - low) for j in range(3 + i % 9)])
    return chosen


def wait_until(
    holds: Callable[[], object], seconds: float, what: Callable[[], str] | str, *, poll_seconds: float = 0.02
) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what if isinstance(what, str) else what()}")
        time.sleep(poll_seconds)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
