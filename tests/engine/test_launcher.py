"""The launcher as process 1 of a PID namespace, as in a container: it ends, whatever becomes of SGLang."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.engine.server import Config, arguments_of, variables_of

REAPING = """
import os, sys, time
from specserver.plugin import launcher
launcher.SERVER = (sys.executable, "-c", '''
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    grandchild = os.fork()
    if grandchild:
        os.write(write, str(grandchild).encode())
    os._exit(0)
os.wait()
orphan = os.read(read, 20).decode()
deadline = time.monotonic() + 10
while os.path.exists("/proc/" + orphan):
    if time.monotonic() > deadline:
        sys.exit("nobody reaped the orphan")
    time.sleep(0.01)
''')
assert os.getpid() == 1
sys.exit(launcher.main([]))
"""


def run_as_process_1(command: list[str], variables: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        raise RuntimeError("a PID namespace of its own needs root: run the engine tests as root")
    isolated = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *command]
    return subprocess.run(
        isolated, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=seconds
    )


def test_reaps_orphans(python: Path, tmp_path: Path) -> None:
    result = run_as_process_1([str(python), "-c", REAPING], variables_of(Config(tmp_path), tmp_path), 30)
    assert result.returncode == 0, result.stdout


def test_an_argument_that_sglang_does_not_know_ends_it(python: Path, models: Path, tmp_path: Path) -> None:
    config = Config(models / "random", algorithm=None, arguments=("--no-such-flag",))
    command = [str(python), "-m", "specserver.plugin.launcher", *arguments_of(config, tmp_path, 1)]
    result = run_as_process_1(command, variables_of(config, tmp_path), 60)
    assert result.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in result.stdout


def test_a_scheduler_that_dies_at_start_ends_it(python: Path, models: Path, tmp_path: Path) -> None:
    """A draft of the wrong kind. SGLang then ends its own processes by SIGKILL, which process 1 would survive, and hang."""
    wrong = ("--speculative-draft-model-path", str(models / "random" / "eagle"))
    config = Config(models / "random", "EAGLE3", arguments=wrong)
    command = [str(python), "-m", "specserver.plugin.launcher", *arguments_of(config, tmp_path, 1)]
    started = time.monotonic()
    result = run_as_process_1(command, variables_of(config, tmp_path), 120)
    assert result.returncode not in (0, 2), result.stdout[-2000:]
    assert "Scheduler hit an exception" in result.stdout
    assert config.admin_key not in result.stdout
    print(f"ended with {result.returncode} after {time.monotonic() - started:.0f} s")
