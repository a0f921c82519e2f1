"""What happened, second by second: the resource's status as Kubernetes gives it out, and what the clients saw."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from demo.manifests import NAMESPACE, SERVER
from tests.localcluster import LocalCluster

SHOWN = (
    "{clock}  {ready:5} {reason:18} {mode:6} steps {steps:4} running {running:>3} queued {queued:>3} {rate:>6} tok/s"
    "  accept {accept:4} replicas {replicas}"
)


@dataclass(frozen=True)
class Sample:
    """time: seconds since the epoch; status: as it was then; generation: of the resource."""

    time: float
    status: dict[str, Any]

    def condition(self, kind: str) -> dict[str, Any]:
        return next((one for one in self.status.get("conditions", []) if one["type"] == kind), {})


@dataclass
class Record:
    """Everything that the report is drawn from."""

    samples: list[Sample] = field(default_factory=list)
    traffic: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Something that the demo did, or saw for the first time."""
        self.notes.append((time.time(), text))
        print(f"          ▶ {text}", flush=True)


class Watcher:
    """Follows the resource in a thread of its own and prints a line where something that is shown changed."""

    def __init__(self, cluster: LocalCluster, record: Record) -> None:
        self._record = record
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [
                str(cluster.kubectl_path), f"--kubeconfig={cluster.kubeconfig}", "--namespace", NAMESPACE,
                "get", "ssv", SERVER, "--watch", "--output=json",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self._shown = ""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def wait_for(self, what: str, seen: Callable[[Sample], bool], *, seconds: float) -> Sample:
        """The first sample for which `seen` holds. TimeoutError names what did not come, and what was there instead."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                if self._record.samples and seen(self._record.samples[-1]):
                    return self._record.samples[-1]
                left = deadline - time.monotonic()
                if left <= 0 or self._process.poll() is not None:
                    last = self._record.samples[-1].condition("Ready") if self._record.samples else {}
                    raise TimeoutError(
                        f"{what} did not come within {seconds:.0f} s. Ready is {last.get('status')},"
                        f" {last.get('reason')}: {last.get('message')}"
                    )
                self._changed.wait(min(left, 1.0))

    def _follow(self) -> None:
        assert self._process.stdout is not None
        decoder, text = json.JSONDecoder(), ""
        for line in self._process.stdout:
            text += line
            if not line.startswith("}"):
                continue
            body, _ = decoder.raw_decode(text.lstrip())
            text = ""
            sample = Sample(time.time(), body.get("status") or {})
            with self._changed:
                self._record.samples.append(sample)
                self._changed.notify_all()
            self._show(body, sample)

    def _show(self, body: dict[str, Any], sample: Sample) -> None:
        speculation, load = sample.status.get("speculation", {}), sample.status.get("load", {})
        ready = sample.condition("Ready")
        values = {
            "ready": ready.get("status", ""), "reason": ready.get("reason", ""),
            "mode": body["spec"]["speculation"].get("mode", ""), "steps": speculation.get("steps", "-"),
            "running": load.get("running", "-"), "queued": load.get("queued", "-"),
            "rate": load.get("tokensPerSecond", "-"), "accept": speculation.get("acceptLength", "-"),
            "replicas": f"{sample.status.get('readyReplicas', 0)}/{sample.status.get('replicas', 0)}",
        }  # fmt: skip
        line = SHOWN.format(clock="{clock}", **values)
        if line != self._shown:
            self._shown = line
            print(line.replace("{clock}", time.strftime("%H:%M:%S")), flush=True)


def follow_traffic(cluster: LocalCluster, record: Record, on_phase: Callable[[str], None]) -> int:
    """Reads the clients' report until they end, and returns how many requests failed."""
    process = subprocess.Popen(
        [
            str(cluster.kubectl_path),
            f"--kubeconfig={cluster.kubeconfig}",
            "--namespace",
            NAMESPACE,
            "logs",
            "--follow",
            "traffic",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    phase = ""
    assert process.stdout is not None
    for text in process.stdout:
        line = json.loads(text)
        if "failure" in line:
            record.failures.append(line["failure"])
            print(f"          ✗ {line['failure']}", flush=True)
            continue
        record.traffic.append(line)
        if line["phase"] != phase:
            phase = line["phase"]
            on_phase(phase)
    process.wait()
    if phase != "end":
        raise RuntimeError("the clients' report broke off")
    return int(record.traffic[-1]["failed"])
