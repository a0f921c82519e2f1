"""One replica's load from the samples of one scrape, and a server's load from its replicas'. Pure.

Rules, each from somebody's outage:
- Data-parallel ranks add up; all other copies of a number (tensor-parallel ranks, both spellings, the plugin's gauge beside
  SGLang's, a second scrape job) count once. A number per priority is part of the total.
- NaN, infinite, negative or no number at all: that replica is unknown, and the others still count.
- An engine that is up and shows no sign of ever having worked carries nothing; one that has worked and lacks a number has
  another name for it, and is unknown. An unknown load is never zero: zero scales down.
- Fewer data-parallel ranks than the server has: unknown, for the missing ones may be the busy ones.
- Counters are read as rates only; one that fell was reset, and gives no rate for that interval.
- An engine before which requests wait, of which none runs, and that counts no token of any kind for STALLED_AFTER_SECONDS is
  stalled, until one runs or a token is counted: that clients give up mends nothing. A long prompt is no stall: SGLang counts its
  tokens chunk by chunk, also while no request runs yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specserver.api.conditions import Reason
from specserver.core.observed import Load, LoadUnknown, Pod, PodLoad, PodLoadUnknown
from specserver.load.exposition import Sample
from specserver.load.metric_names import (
    DATA_PARALLEL_RANK,
    ENGINE_NAMES,
    FINISHED_TOKENS,
    GAUGES,
    PRIORITY,
    QUEUED,
    RUNNING,
    STEP_TOKENS,
    TOKEN_MODE,
    TOKEN_MODE_DECODE,
    TOKEN_USAGE,
    Gauge,
)

MIN_RATE_INTERVAL_SECONDS = 1.0
"""Looks closer together than this share one rate: a reconcile may follow another within milliseconds."""
STALLED_AFTER_SECONDS = 30.0
MOST_PER_LOOK_SECONDS = STALLED_AFTER_SECONDS / 2
"""What one look adds to a standstill at most. So two looks are never a stall, whatever a clock did between them."""
FORGET_AFTER_SECONDS = 900.0
FULL_WITH_ROUNDING = 1.01
MAX_PODS_IN_MESSAGE = 3


@dataclass(frozen=True)
class Unknown:
    """A replica's load that is not known. The message names no pod: who shows it has the name."""

    reason: Reason
    message: str


class _NotKnown(Exception):
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.unknown = Unknown(reason, message)


@dataclass(frozen=True)
class _Look:
    counter: str
    total: float
    at: float
    rate: float | None


@dataclass(frozen=True)
class _Standstill:
    tokens: float
    seconds: float
    at: float

    @property
    def is_stall(self) -> bool:
        return self.seconds >= STALLED_AFTER_SECONDS


class Looks:
    """Previous looks by pod UID: what rates and standstills follow from. The only memory in measuring."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}
        self._standstills: dict[str, _Standstill] = {}
        self._forgot_at = 0.0

    def stalled(self, uid: str, *, running: float, queued: float, tokens: float, at: float) -> bool:
        """Whether this pod is stalled. `tokens`: all its counters of them together."""
        before = self._standstills.pop(uid, None)
        if before is None or before.tokens != tokens:
            before = _Standstill(tokens, 0.0, at)
        if running > 0 or not (queued > 0 or before.is_stall):
            return False
        added = min(max(0.0, at - before.at), MOST_PER_LOOK_SECONDS)
        self._standstills[uid] = standstill = _Standstill(tokens, before.seconds + added, at)
        return standstill.is_stall

    def note_restarts(self, pods: Iterable[Pod]) -> None:
        """A pod that isn't ready may have a new engine when it is: what stood still was the old one."""
        for pod in pods:
            if not pod.ready:
                self._standstills.pop(pod.uid, None)

    def rate(self, uid: str, counter: str, total: float, at: float) -> float | None:
        """The rate since the previous look at this pod; None at its first and after a reset."""
        before = self._looks.get(uid)
        same = before is not None and before.counter == counter and before.at <= at
        if before is not None and same and at - before.at < MIN_RATE_INTERVAL_SECONDS:
            return before.rate
        rising = before is not None and same and total >= before.total
        rate = (total - before.total) / (at - before.at) if before is not None and rising else None
        self._looks[uid] = _Look(counter, total, at, rate)
        return rate

    def forget(self, now: float) -> None:
        """Drops pods that were not looked at for a while. Goes through all of them, so not at each look."""
        if now - self._forgot_at < FORGET_AFTER_SECONDS / 10:
            return
        self._forgot_at = now
        self._looks = {uid: look for uid, look in self._looks.items() if now - look.at < FORGET_AFTER_SECONDS}
        self._standstills = {uid: one for uid, one in self._standstills.items() if now - one.at < FORGET_AFTER_SECONDS}


def observe_replica(
    pod: Pod, samples: Sequence[Sample], *, at: float, data_parallel: int, looks: Looks
) -> PodLoad | Unknown:
    """The replica's load from all wanted samples of one scrape, taken at `at`."""
    try:
        # 1. Is it an engine's page at all?
        if not any(sample.name in ENGINE_NAMES for sample in samples):
            raise _NotKnown(
                Reason.METRICS_MISSING,
                f"it is up, but exports neither {', nor '.join(str(gauge) for gauge in GAUGES)}: is this SGLang 0.5.17 to"
                " 0.5.23 with --enable-metrics?",
            )
        # 2. Do all data-parallel ranks report?
        ranks = _data_parallel_ranks(samples)
        if len(ranks) < data_parallel:
            raise _NotKnown(
                Reason.METRICS_MISSING, f"only {len(ranks)} of {data_parallel} data-parallel ranks report their metrics"
            )
        # 3. The replica's numbers.
        usage = max(_by_rank(samples, TOKEN_USAGE, ranks).values(), default=0.0)
        if usage > FULL_WITH_ROUNDING:
            raise _NotKnown(Reason.METRICS_MISSING, f"{TOKEN_USAGE} is above 1, so it is no fraction")
        tokens = _tokens(samples)
        running, queued = _requests(samples, RUNNING, ranks), _requests(samples, QUEUED, ranks)
        return PodLoad(
            pod=pod.name,
            running=running,
            queued=queued,
            token_usage=min(usage, 1.0),
            tokens_per_second=looks.rate(pod.uid, *tokens, at) if tokens else None,
            observed_at=at,
            stalled=looks.stalled(pod.uid, running=running, queued=queued, tokens=_all_tokens(samples), at=at),
            skewed=_is_skewed(samples, ranks),
        )
    except _NotKnown as error:
        return error.unknown


def replicas_to_observe(pods: Sequence[Pod]) -> list[Pod]:
    """Those that take requests or finish some: ready ones, draining ones too, and none that is on its way out."""
    return [pod for pod in pods if pod.ready and not pod.terminating]


NO_READY_REPLICAS = LoadUnknown(Reason.NO_READY_REPLICAS, "no replica is ready, so there is no load to read")


def assemble_load(replicas: Sequence[tuple[Pod, PodLoad | Unknown]]) -> Load | LoadUnknown:
    """The server's load: known where at least one replica's is. One replica or more is given."""
    known = tuple(seen for _, seen in replicas if isinstance(seen, PodLoad))
    unknown = [(pod, seen) for pod, seen in replicas if isinstance(seen, Unknown)]
    if known:
        return Load(known, tuple(PodLoadUnknown(pod.name, seen.message) for pod, seen in unknown))
    reasons = {seen.reason for _, seen in unknown}
    gravity = (Reason.SCRAPE_ERROR, Reason.METRICS_STALE, Reason.METRICS_MISSING)
    messages = [f"pod {pod.name}: {seen.message}" for pod, seen in unknown[:MAX_PODS_IN_MESSAGE]]
    if len(unknown) > MAX_PODS_IN_MESSAGE:
        messages.append(f"and {len(unknown) - MAX_PODS_IN_MESSAGE} pods more")
    return LoadUnknown(next(reason for reason in gravity if reason in reasons), "; ".join(messages))


def stale(staleness_seconds: float) -> Unknown:
    """A replica whose newest sample is too old. The age itself is left out: it would change the message each time."""
    return Unknown(
        Reason.METRICS_STALE,
        f"its newest sample is older than {staleness_seconds:g} s (metrics.staleness), or the clocks differ",
    )


def _data_parallel_ranks(samples: Sequence[Sample]) -> set[str]:
    numbered = {rank for sample in samples if (rank := sample.labels.get(DATA_PARALLEL_RANK, ""))}
    return numbered or {""}


def _requests(samples: Sequence[Sample], gauge: Gauge, ranks: set[str]) -> float:
    """The plugin's number, which is the whole replica's, or the sum of SGLang's by rank."""
    live = _copies(samples, gauge.live) if gauge.live else {}
    return sum((live or _by_rank(samples, gauge, ranks)).values())


def _is_skewed(samples: Sequence[Sample], ranks: set[str]) -> bool:
    """By SGLang's gauges, since the plugin's are the whole replica's."""
    running, queued = _reported(samples, RUNNING), _reported(samples, QUEUED)
    idle = any(running.get(rank, 0.0) + queued.get(rank, 0.0) == 0 for rank in ranks)
    return idle and any(queued.get(rank, 0.0) > 0 for rank in ranks)


def _by_rank(samples: Sequence[Sample], gauge: Gauge, ranks: set[str]) -> dict[str, float]:
    """SGLang's gauge by data-parallel rank; 0 for ranks that were never asked to work."""
    values = _reported(samples, gauge)
    for rank in ranks - values.keys():
        if _has_worked(samples, rank):
            raise _NotKnown(
                Reason.METRICS_MISSING,
                f"no sample of {gauge}, although the engine has worked: this SGLang may have another name for it",
            )
    return {rank: values.get(rank, 0.0) for rank in ranks}


def _reported(samples: Sequence[Sample], gauge: Gauge) -> dict[str, float]:
    """SGLang's gauge by data-parallel rank under the first of its names that is there; empty where none is."""
    return next((found for name in gauge.names if (found := _copies(samples, name))), {})


def _copies(samples: Sequence[Sample], name: str) -> dict[str, float]:
    """The metric by data-parallel rank, each number once however many copies there are."""
    values: dict[str, float] = {}
    for sample in samples:
        if sample.name != name or sample.labels.get(PRIORITY):
            continue
        if sample.value is None:
            raise _NotKnown(Reason.METRICS_MISSING, f"{name} is {sample.text[:40]!r}, which is no load")
        rank = sample.labels.get(DATA_PARALLEL_RANK, "")
        values[rank] = max(values.get(rank, 0.0), sample.value)
    return values


def _has_worked(samples: Sequence[Sample], rank: str) -> bool:
    """SGLang writes its gauges together, and counts tokens from the first step on."""
    signs = {*(name for gauge in GAUGES for name in gauge.names), *STEP_TOKENS, *FINISHED_TOKENS}
    return any(sample.name in signs and sample.labels.get(DATA_PARALLEL_RANK, "") == rank for sample in samples)


def _all_tokens(samples: Sequence[Sample]) -> float:
    """All counters of tokens in one number, which moves whenever one of them does; it means nothing else."""
    counters = {*STEP_TOKENS, *FINISHED_TOKENS}
    return sum(sample.value or 0.0 for sample in samples if sample.name in counters)


def _tokens(samples: Sequence[Sample]) -> tuple[str, float] | None:
    """Name and total of the best token counter; None where none is there or one of its numbers is broken."""
    for name in (*STEP_TOKENS, *FINISHED_TOKENS):
        totals: dict[object, float] = {}
        for sample in samples:
            if sample.name != name:
                continue
            if sample.value is None:
                return None
            if name in FINISHED_TOKENS:
                # Counted once, in the front end: by streaming or not, priority and the user's own labels, which add up.
                series: object = frozenset(sample.labels.items())
            elif sample.labels.get(TOKEN_MODE) == TOKEN_MODE_DECODE:
                series = sample.labels.get(DATA_PARALLEL_RANK, "")
            else:
                continue
            totals[series] = max(totals.get(series, 0.0), sample.value)
        if totals:
            return name, sum(totals.values())
    return None

