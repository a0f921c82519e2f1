"""SGLang servers of a benchmark, side by side on one GPU: started together, measured one after another.

A start takes about a minute, nearly all of it imports on a CPU core, so servers that start together cost one start. Their KV
pools are capped to the same size, and the ones that are not being measured sleep.

Three machines can run them: `gpu_machine` is the real one. Before a second of its time is spent, a benchmark is rehearsed from
the first command to the last: against real SGLang with tiny models and the engine tests' stand-ins (`cpu_machine`), and in the
real plan's real time against servers that only answer as if (`fake_machine`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import probe
from benchmarks.gpu.rounds import read_rounds

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ADMIN_KEY = "benchmark"
UNPINNED = REPOSITORY / "tests" / "engine" / "unpinned"
POLL_SECONDS = 0.3
STAGGER_SECONDS = 2.0
FLUSH_ATTEMPTS = 20
LOG_TAIL_LINES = 40
LOG_LINE_CHARACTERS = 300


@dataclass(frozen=True)
class Machine:
    """How SGLang runs here.

    name         gpu, cpu or fake
    python       interpreter of the engines
    variables    environment of every engine
    arguments    command line of every engine, without the models
    target       path of the target model; `drafts` by algorithm
    vocabulary   token numbers that prompts are drawn from
    modules      what starts a stock server, and one with our plugin
    """

    name: str
    python: str
    variables: Mapping[str, str]
    arguments: tuple[str, ...]
    target: Path
    draft: Path
    vocabulary: tuple[int, int]
    modules: tuple[str, str] = ("sglang.launch_server", "specserver.plugin.launcher")


@dataclass(frozen=True)
class Server:
    """One server to start.

    name       its name in the results
    steps      largest step count; 0: it does not speculate
    ladder     table of SGLang's adaptive controller (batch size -> step counts), or None for a fixed step count
    product    with our plugin
    arguments  further arguments; a later one wins over an earlier one
    """

    name: str
    steps: int = 0
    ladder: Mapping[str, Sequence[int]] | None = None
    product: bool = False
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    target: Path | None = None
    draft: Path | None = None


class Running:
    """A started server."""

    def __init__(self, machine: Machine, server: Server, directory: Path) -> None:
        self.server = server
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.directory = directory / server.name
        self.controls = probe.ControlFile(self.directory)
        self.started_at = time.monotonic()
        self.start_seconds: float | None = None
        self.policy_revision = 0
        self.log = self.directory / "engine.log"
        self.command = build_command(machine, server, self.port, self.directory)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, env=build_variables(machine, server, self.directory), cwd=self.directory,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def name(self) -> str:
        return self.server.name

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
            return bool(response.status == 200)
        return False

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # SGLang's scheduler may have made a process group of its own; the session is still the server's.
        for pid in processes_of_session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(line[:LOG_LINE_CHARACTERS] for line in lines)

    def rounds(self) -> Any:
        return read_rounds(self.directory / "rounds.bin")

    def call(self, method: str, path: str, body: object = None, seconds: float = 10) -> Any:
        """JSON of an answer, or None where it has none. Raises with the server's words on an error status."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {ADMIN_KEY}"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{self.name}: {method} {path}: {error.code} {error.read().decode()[:300]}") from error
        with contextlib.suppress(ValueError):
            return json.loads(text)
        return None

    def flush_cache(self) -> None:
        """SGLang refuses while a batch is under way, and one still is for a moment after the last answer."""
        for attempt in range(FLUSH_ATTEMPTS):
            try:
                self.call("POST", "/flush_cache")
            except RuntimeError:
                if attempt == FLUSH_ATTEMPTS - 1:
                    raise
                time.sleep(0.1)
            else:
                return


class Fleet:
    """The servers that are up. One that fails is reported and left out; the others go on."""

    def __init__(self, machine: Machine, directory: Path, say: Any) -> None:
        self._machine, self._directory, self._say = machine, directory, say
        self._starting: dict[str, Running] = {}
        self.running: dict[str, Running] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def start(self, servers: Sequence[Server], deadline: float) -> None:
        """Starts all and waits until each is ready, has ended, or the deadline (monotonic) is reached."""
        self.launch(servers)
        self.wait_for([server.name for server in servers], deadline)
        if not self.running:
            raise RuntimeError("no server is up: nothing can be measured")

    def launch(self, servers: Iterable[Server]) -> None:
        for server in servers:
            running = Running(self._machine, server, self._directory)
            self.facts[server.name] = {"command": as_told(running.command), "product": server.product, "ready": False}
            self._starting[server.name] = running
            time.sleep(STAGGER_SECONDS)

    def wait_for(self, names: Iterable[str], deadline: float) -> None:
        """A server that is not ready at the deadline is stopped."""
        waiting = [name for name in names if name in self._starting]
        while waiting and time.monotonic() < deadline:
            for name in list(waiting):
                if self._has_settled(self._starting[name]):
                    del self._starting[name]
                    waiting.remove(name)
            time.sleep(POLL_SECONDS)
        for name in waiting:
            running = self._starting.pop(name)
            self._give_up(running, "was not ready in time")
            running.stop()

    def _has_settled(self, running: Running) -> bool:
        if running.is_ready():
            running.start_seconds = time.monotonic() - running.started_at
            self.running[running.name] = running
            self.facts[running.name].update(ready=True, startSeconds=round(running.start_seconds, 1))
            self._say(f"{running.name}: ready after {running.start_seconds:.0f} s, {gpu_memory_mib()} MiB in use")
            return True
        if not running.is_alive():
            self._give_up(running, f"ended with {running.process.returncode} at start")
            return True
        return False

    def _give_up(self, running: Running, why: str) -> None:
        self.facts[running.name].update(failed=why, logTail=running.log_tail())
        self._say(f"{running.name}: {why}\n{running.log_tail()}")

    def stop(self, names: Iterable[str]) -> None:
        for name in list(names):
            running = self.running.pop(name, None)
            if running is not None:
                self.facts[name].update(aliveAtEnd=running.is_alive(), log=summarise_log(running.log))
                running.stop()
        wait_for_free_gpu()

    def drop_dead(self) -> None:
        """Stops servers that have ended or don't answer."""
        for name, running in list(self.running.items()):
            if not running.is_alive() or not running.is_ready():
                self._give_up(running, "died or hangs")
                self.stop([name])

    def stop_all(self) -> None:
        for running in self._starting.values():
            running.stop()
        self._starting.clear()
        self.stop(list(self.running))


# ---- command line and environment ------------------------------------------------------------------------------------------


def build_command(machine: Machine, server: Server, port: int, directory: Path) -> list[str]:
    module = machine.modules[server.product]
    command = [
        machine.python, "-m", module, "--model-path", str(server.target or machine.target), "--host", "127.0.0.1",
        "--port", str(port), *machine.arguments,
    ]  # fmt: skip
    if server.steps:
        command += [
            "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(server.draft or machine.draft),
            "--speculative-num-steps", str(server.steps), "--speculative-eagle-topk", "1",
            "--speculative-num-draft-tokens", str(server.steps + 1),
        ]  # fmt: skip
    if server.ladder is not None:
        table = directory / "ladder.json"
        write_table(table, server.ladder)
        command += ["--speculative-adaptive", "--speculative-adaptive-config", str(table)]
    return [*command, *server.arguments]


def as_told(command: Sequence[str]) -> list[str]:
    """A command line as results keep it: without where things lie on the machine."""
    return [argument.replace(f"{REPOSITORY}/", "") for argument in command[1:]]


def write_table(path: Path, table: Mapping[str, Sequence[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({size: {"candidate_steps": list(steps)} for size, steps in table.items()}))


def build_variables(machine: Machine, server: Server, directory: Path) -> dict[str, str]:
    """The engine's environment. Plugins are found by the metadata that an installation would have written."""
    plugins = {"benchmark-probe": "benchmarks.gpu.probe:load"}
    if server.product:
        plugins["specserver"] = "specserver.plugin.entry:load"
    for name, entry in plugins.items():
        metadata = directory / "plugins" / f"{name.replace('-', '_')}-0.dist-info"
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        (metadata / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {entry}\n")
    path = [machine.variables["PYTHONPATH"], str(REPOSITORY / "operator"), str(REPOSITORY), str(directory / "plugins")]
    variables = {**os.environ, **machine.variables, **server.variables}
    variables["PYTHONPATH"] = os.pathsep.join(path)
    variables[probe.ENV_DIRECTORY] = str(directory)
    if server.product:
        variables["SPECSERVER_ADMIN_KEY"] = ADMIN_KEY
    return variables


GRAPH_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 72, 96, 128, 160, 192, 256)


def gpu_machine(max_running: int, kv_tokens: int) -> Machine:
    """One H200 with what `.gpu/` brought; machine.sh has unpacked it and set the environment."""
    sizes = [str(size) for size in GRAPH_SIZES]
    return Machine(
        name="gpu",
        python=sys.executable,
        variables={"PYTHONPATH": os.environ["PYTHONPATH"], probe.ENV_WEIGHTS: "1"},
        arguments=(
            "--load-format", "dummy", "--skip-tokenizer-init", "--attention-backend", "fa3", "--sampling-backend", "pytorch",
            "--grammar-backend", "none", "--context-length", "2048", "--cuda-graph-backend-prefill", "disabled",
            "--decode-log-interval", "100", "--mem-fraction-static", "0.95", "--schedule-conservativeness", "0.3",
            "--max-running-requests", str(max_running), "--max-total-tokens", str(kv_tokens), "--skip-server-warmup",
            "--sleep-on-idle",
            "--cuda-graph-bs-decode", *sizes,
        ),
        target=HERE / "models" / "target",
        draft=HERE / "models" / "eagle3",
        vocabulary=(1000, 120000),
    )  # fmt: skip


def cpu_machine(models: Path) -> Machine:
    """The rehearsal: SGLang 0.5.23 on the engine tests' stand-ins, with the tiny random models in `models`."""
    from tests.engine.environment import engine_variables, ensure_environment

    plugins = models / "no-plugin"
    plugins.mkdir(parents=True, exist_ok=True)
    variables = engine_variables(plugins)
    # The product's metadata must be there for servers with the product only: build_variables writes it.
    standins = variables["PYTHONPATH"].split(os.pathsep)[0]
    return Machine(
        name="cpu",
        python=str(ensure_environment()),
        variables={**variables, "PYTHONPATH": os.pathsep.join((standins, str(UNPINNED)))},
        arguments=(
            "--device", "cpu", "--dtype", "float32", "--mem-fraction-static", "0.3", "--max-total-tokens", "16384",
            "--max-running-requests", "16", "--context-length", "1024", "--disable-cuda-graph", "--skip-server-warmup",
        ),
        target=models / "random" / "target",
        draft=models / "random" / "eagle3",
        vocabulary=(2, 500),
    )  # fmt: skip


def fake_machine(max_running: int, kv_tokens: int) -> Machine:
    """No SGLang at all: fake.py, which answers as the GPU machine would in the same time."""
    os.environ.setdefault("PYTHONPATH", "")
    gpu = gpu_machine(max_running, kv_tokens)
    return replace(gpu, name="fake", modules=("benchmarks.gpu.fake", "benchmarks.gpu.fake"))


# ---- the machine -------------------------------------------------------------------------------------------------------------


def gpu_memory_mib() -> int | None:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


def wait_for_free_gpu(seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    before = None
    while time.monotonic() < deadline:
        used = gpu_memory_mib()
        if used is None or used < 2000 or used == before:
            return
        before = used
        time.sleep(POLL_SECONDS)


def visible_gpus() -> int:
    """How many GPUs a server that is started here can use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([each for each in chosen.split(",") if each])
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return len(listed.splitlines())


def free_port() -> int:
    with socket.socket() as candidate:
        candidate.bind(("127.0.0.1", 0))
        port: int = candidate.getsockname()[1]
        return port


def processes_of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
    return found


def summarise_log(log: Path) -> dict[str, Any]:
    text = log.read_text(errors="replace")
    telling = (
        "Capture", "Memory pool", "KV Cache is allocated", "adaptive runtime state", "max_total_num_tokens", "specserver",
        "armed",
    )  # fmt: skip
    lines = [line for line in text.splitlines() if any(word in line for word in telling)]
    return {
        "tracebacks": text.count("Traceback"),
        "leakWords": text.count("leak"),
        "retractions": text.count("etract"),
        "lines": [line[:400] for line in lines[:60]],
    }
