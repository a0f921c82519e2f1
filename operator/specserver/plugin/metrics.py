"""`specserver_*` on the engine's own /metrics.

SGLang runs prometheus_client in its multi-process mode: the scheduler writes values into files of a directory that the
HTTP process reads at each scrape. prometheus_client looks for the directory when it is imported, so it is imported here
only once the scheduler process runs. Of a tensor-parallel group the deciding rank alone writes; with several
data-parallel schedulers, each mode below says how their values become one.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from specserver.plugin.obstacles import Obstacle
from specserver.policy.decision import Observation, Reason

logger = logging.getLogger(__name__)

FILES = ("counter", "histogram", "gauge_livemin", "gauge_livemax", "gauge_livesum", "gauge_livemostrecent")
"""Of prometheus_client's multi-process mode, a file a process for each; see `multiprocess_mode` below."""
RESERVED_BYTES = 256 * 1024
STEP_SECONDS_BUCKETS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0)


class Metrics(Protocol):
    """`survivors` is what `Tally.add` returns."""

    def set_armed(self, obstacle: Obstacle | None) -> None: ...
    def set_steps(self, steps: int) -> None: ...
    def set_load(self, load: Observation) -> None: ...
    def set_accept_length(self, tokens: float | None) -> None: ...
    def set_policy_revision(self, revision: int) -> None: ...
    def set_goodput(self, predicted: float | None, realised: float | None) -> None: ...
    def count_round(self, steps: int, seconds: float | None, survivors: Sequence[int]) -> None: ...
    def count_zero_round(self, outcome: str) -> None: ...
    def count_switch(self, reason: Reason) -> None: ...
    def count_retractions(self, requests: int) -> None: ...
    def count_hook_error(self, hook: str) -> None: ...


class NoMetrics:
    """For an engine that started without --enable-metrics, and for ranks that leave the writing to another."""

    def set_armed(self, obstacle: Obstacle | None) -> None: ...
    def set_steps(self, steps: int) -> None: ...
    def set_load(self, load: Observation) -> None: ...
    def set_accept_length(self, tokens: float | None) -> None: ...
    def set_policy_revision(self, revision: int) -> None: ...
    def set_goodput(self, predicted: float | None, realised: float | None) -> None: ...
    def count_round(self, steps: int, seconds: float | None, survivors: Sequence[int]) -> None: ...
    def count_zero_round(self, outcome: str) -> None: ...
    def count_switch(self, reason: Reason) -> None: ...
    def count_retractions(self, requests: int) -> None: ...
    def count_hook_error(self, hook: str) -> None: ...


def make_metrics(*, write: bool) -> Metrics:
    """Values are written where that is wanted and there is a place for them: no engine ends for want of metrics."""
    if not write:
        return NoMetrics()
    try:
        reserve_files(os.environ.get("PROMETHEUS_MULTIPROC_DIR", ""), os.getpid())
        return PrometheusMetrics()
    except OSError as error:
        logger.error("no metrics: %s", error)
        return NoMetrics()


def reserve_files(directory: str, process: int) -> None:
    """Gives the files that values are written to their blocks, now. OSError where the disk has none left.

    prometheus_client maps sparse files into memory. On a full disk the first write into a new page of one is no exception but a
    SIGBUS, which ends the scheduler and with it the engine.
    """
    if not directory:
        return  # a single process keeps its values in memory
    for name in FILES:
        path = Path(directory, f"{name}_{process}.db")
        with path.open("ab") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, RESERVED_BYTES)
            except OSError:
                if os.fstat(file.fileno()).st_size == 0:
                    path.unlink()  # an empty file breaks every scrape
                raise


class PrometheusMetrics:
    """Labels are bounded: step counts and positions by the ladder, reasons, causes and hooks by what is written in this package.

    What is not known yet is absent, never 0: a gauge without a label shows 0 from its creation, so some are made when first set.
    """

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def gauge(
            name: str, text: str, mode: Literal["livemin", "livemax", "livesum", "livemostrecent"], labels: Sequence[str] = ()
        ) -> Gauge:
            return Gauge(f"specserver_{name}", text, labels, multiprocess_mode=mode)

        @cache
        def load() -> tuple[Gauge, Gauge]:
            running = gauge("running_requests", "Requests being decoded.", "livesum")
            return running, gauge("queued_requests", "Requests waiting for a place.", "livesum")

        @cache
        def revision() -> Gauge:
            return gauge("policy_revision", "Revision of the policy in force.", "livemin")

        @cache
        def accept_length() -> Gauge:
            text = "Tokens gained per request and round with drafts, over the newest rounds."
            return gauge("accept_length", text, "livemostrecent")

        @cache
        def round_metrics(steps: int) -> tuple[Counter, Histogram]:
            return rounds.labels(steps=str(steps)), seconds.labels(steps=str(steps))

        @cache
        def drafts(position: int) -> tuple[Counter, Counter]:
            return reached.labels(position=str(position)), accepted.labels(position=str(position))

        self._load, self._revision, self._accept_length = load, revision, accept_length
        self._round, self._drafts = round_metrics, drafts
        self._armed = gauge("armed", "1 where the plugin is in control, 0 where the engine runs stock.", "livemin")
        self._unarmed = gauge("unarmed", "1 with the cause for which the engine runs stock.", "livemax", ["cause"])
        self._steps = gauge("steps", "Step count in force; 0 is plain decode.", "livemostrecent")
        rounds = Counter("specserver_rounds", "Decode rounds by the step count that they ran with.", ["steps"])
        text = "What a decode round took, by its step count, where nothing else lay between two results."
        seconds = Histogram("specserver_step_seconds", text, ["steps"], buckets=STEP_SECONDS_BUCKETS)
        text = "Drafts whose predecessors in the chain were all accepted, by position from 1."
        reached = Counter("specserver_drafts_reached", text, ["position"])
        accepted = Counter("specserver_drafts_accepted", "Those of them that were accepted.", ["position"])
        self._zero_rounds = Counter("specserver_zero_rounds", "Rounds in and out of zero steps by how they ran.", ["outcome"])
        self._switches = Counter("specserver_switches", "Changes of the step count by cause.", ["reason"])
        self._errors = Counter("specserver_hook_errors", "Exceptions in hooks; the engine went on without them.", ["hook"])
        self._retractions = Counter("specserver_retractions", "Requests put back into the queue for want of KV.")
        self._goodput = gauge("goodput", "Output tokens a second of the steps in force.", "livesum", ["kind"])

    def set_armed(self, obstacle: Obstacle | None) -> None:
        self._armed.set(int(obstacle is None))
        if obstacle is not None:
            self._unarmed.labels(cause=obstacle.cause.value).set(1)

    def set_steps(self, steps: int) -> None:
        self._steps.set(steps)

    def set_load(self, load: Observation) -> None:
        running, queued = self._load()
        running.set(load.running)
        queued.set(load.queued)

    def set_accept_length(self, tokens: float | None) -> None:
        if tokens is not None:
            self._accept_length().set(tokens)

    def set_policy_revision(self, revision: int) -> None:
        self._revision().set(revision)

    def set_goodput(self, predicted: float | None, realised: float | None) -> None:
        for kind, tokens_per_second in (("predicted", predicted), ("realised", realised)):
            if tokens_per_second is not None:
                self._goodput.labels(kind=kind).set(tokens_per_second)

    def count_round(self, steps: int, seconds: float | None, survivors: Sequence[int]) -> None:
        rounds, histogram = self._round(steps)
        rounds.inc()
        if seconds is not None:
            histogram.observe(seconds)
        for position, (reached, accepted) in enumerate(itertools.pairwise(survivors), start=1):
            if reached:
                counters = self._drafts(position)
                counters[0].inc(reached)
                counters[1].inc(accepted)

    def count_zero_round(self, outcome: str) -> None:
        self._zero_rounds.labels(outcome=outcome).inc()

    def count_switch(self, reason: Reason) -> None:
        self._switches.labels(reason=reason.value).inc()

    def count_retractions(self, requests: int) -> None:
        self._retractions.inc(requests)

    def count_hook_error(self, hook: str) -> None:
        self._errors.labels(hook=hook).inc()
