"""`specserver_*` on the engine's own /metrics.

SGLang runs prometheus_client in its multi-process mode: the scheduler writes values into files of a directory that the
HTTP process reads at each scrape. prometheus_client looks for the directory when it is imported, so it is imported here
only once the scheduler process runs. Of a tensor-parallel group the deciding rank alone writes; with several
data-parallel schedulers, each mode below says how their values become one.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, Protocol

from specserver.policy.decision import Observation, Reason


class Metrics(Protocol):
    def set_armed(self, armed: bool) -> None: ...  # noqa: FBT001 — a gauge's value
    def set_steps(self, steps: int) -> None: ...
    def set_load(self, load: Observation) -> None: ...
    def set_accept_length(self, tokens: float | None) -> None: ...
    def set_policy_revision(self, revision: int) -> None: ...
    def count_round(self, steps: int) -> None: ...
    def count_switch(self, reason: Reason) -> None: ...
    def count_hook_error(self, hook: str) -> None: ...


class NoMetrics:
    """For an engine that started without --enable-metrics, and for ranks that leave the writing to another."""

    def set_armed(self, armed: bool) -> None: ...  # noqa: FBT001
    def set_steps(self, steps: int) -> None: ...
    def set_load(self, load: Observation) -> None: ...
    def set_accept_length(self, tokens: float | None) -> None: ...
    def set_policy_revision(self, revision: int) -> None: ...
    def count_round(self, steps: int) -> None: ...
    def count_switch(self, reason: Reason) -> None: ...
    def count_hook_error(self, hook: str) -> None: ...


class PrometheusMetrics:
    """Labels are bounded: step counts by the ladder, reasons and hooks by what is written in this package.

    What is not known yet is absent, never 0: a gauge without a label shows 0 from its creation, so some are made when first set.
    """

    def __init__(self) -> None:
        from prometheus_client import Counter, Gauge

        def gauge(name: str, text: str, mode: Literal["livemin", "livesum", "livemostrecent"]) -> Gauge:
            return Gauge(f"specserver_{name}", text, multiprocess_mode=mode)

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

        self._load, self._revision, self._accept_length = load, revision, accept_length
        self._armed = gauge("armed", "1 where the plugin is in control, 0 where the engine runs stock.", "livemin")
        self._steps = gauge("steps", "Step count in force; 0 is plain decode.", "livemostrecent")
        self._rounds = Counter("specserver_rounds", "Decode rounds by the step count that they ran with.", ["steps"])
        self._switches = Counter("specserver_switches", "Changes of the step count by cause.", ["reason"])
        self._errors = Counter("specserver_hook_errors", "Exceptions in hooks; the engine went on without them.", ["hook"])

    def set_armed(self, armed: bool) -> None:  # noqa: FBT001
        self._armed.set(int(armed))

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

    def count_round(self, steps: int) -> None:
        self._rounds.labels(steps=str(steps)).inc()

    def count_switch(self, reason: Reason) -> None:
        self._switches.labels(reason=reason.value).inc()

    def count_hook_error(self, hook: str) -> None:
        self._errors.labels(hook=hook).inc()
