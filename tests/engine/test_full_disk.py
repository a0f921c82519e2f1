"""A full disk under the metrics directory: values are still written, or there are none, and the process lives."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.engine.server import Config, variables_of

SCRIPT = """
import os, sys
from pathlib import Path
directory = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])

def fill():
    with (directory / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"x" * 4096)
        except OSError:
            return

if sys.argv[1] == "before":
    fill()
from specserver.plugin.metrics import make_metrics
from specserver.policy.decision import Observation, Reason
metrics = make_metrics(write=True)
if sys.argv[1] == "after":
    fill()
metrics.set_armed(None)
metrics.set_load(Observation(1, 2))
metrics.set_accept_length(2.5)
metrics.set_policy_revision(3)
metrics.set_goodput(10.0, 9.0)
for steps in range(8):
    metrics.set_steps(steps)
    metrics.count_round(steps, 0.01, [3] * (steps + 1))
for reason in Reason:
    metrics.count_switch(reason)
metrics.count_retractions(1)
metrics.count_hook_error("turn")
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(type(metrics).__name__, registry.get_sample_value("specserver_rounds_total", {"steps": "7"}))
"""


@pytest.mark.parametrize(("filled", "said"), [("after", "PrometheusMetrics 1.0"), ("before", "NoMetrics None")])
def test_the_process_lives(python: Path, tmp_path: Path, filled: str, said: str) -> None:
    if os.geteuid() != 0:
        raise RuntimeError("a small file system needs root: run the engine tests as root")
    small = tmp_path / "small"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=4m tmpfs "{small}" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", str(python), "-c", SCRIPT, filled]
    variables = {**variables_of(Config(tmp_path), tmp_path), "PROMETHEUS_MULTIPROC_DIR": str(small)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
