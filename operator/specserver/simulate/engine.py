"""The engine: a scheduler's turns, its decode rounds and prefills, and the clock.

As in SGLang with overlap: in each turn the controller is asked, a batch is launched, and then the result of the batch before
is processed. So a result is known one batch late, a request that is done stays in one more batch, and what is measured is
the time between two results. Prefill goes first, whenever a request waits and has a place. A request is retracted when KV
runs out, newest first, and starts anew.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from specserver.policy.decision import Observation, Round
from specserver.simulate import costs as tables
from specserver.simulate.controllers import Controller
from specserver.simulate.costs import StepCosts
from specserver.simulate.traffic import Request, Source


@dataclass(frozen=True)
class Engine:
    costs: StepCosts
    max_running: int = 256
    pool_tokens: int = 868_589
    prefill_chunk_tokens: int = 8192
    prefill_seconds_per_token: float = tables.PREFILL_SECONDS_PER_TOKEN_WITH_DRAFT
    reserve_tokens: int = 8
    """KV slots that a request needs for its next round."""


@dataclass(frozen=True)
class Noise:
    """Of the engine's clock, as relative jitter (one sigma) and the share of rounds that seem ten times as long; and of the
    rounds themselves."""

    clock: float = 0.0
    outliers: float = 0.0
    rounds: float = 0.02


@dataclass
class Outcome:
    """tokens_by_bin: tokens produced in each `bin_seconds`; steps_by_bin: seconds spent with each step count."""

    seconds: float
    bin_seconds: float
    tokens_by_bin: list[float]
    steps_by_bin: list[dict[int, float]]
    switch_times: list[float] = field(default_factory=list)
    finished: int = 0
    latencies: list[float] = field(default_factory=list)
    retractions: int = 0
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0

    @property
    def tokens(self) -> float:
        return sum(self.tokens_by_bin)

    def tokens_between(self, begin: float, end: float) -> float:
        return sum(self.tokens_by_bin[round(begin / self.bin_seconds) : round(end / self.bin_seconds)])


def simulate(
    engine: Engine,
    source: Source,
    controller: Controller,
    seconds: float,
    *,
    seed: int = 1,
    noise: Noise = Noise(),
    bin_seconds: float = 0.1,
) -> Outcome:
    """Runs for so many seconds of simulated time."""
    return _Run(engine, source, controller, seconds, seed, noise, bin_seconds).run()


class _Run:
    def __init__(
        self, engine: Engine, source: Source, controller: Controller, seconds: float, seed: int, noise: Noise, bin_seconds: float
    ) -> None:
        self.engine, self.source, self.controller, self.noise = engine, source, controller, noise
        self.rng, self.clock_rng = random.Random(seed), random.Random(seed + 1)
        self.seed, self.end = seed, seconds
        self.now = 0.0
        self.running: list[Request] = []
        self.kv_tokens = 0
        self.queue: deque[Request] = deque()
        self.next_arrival = 0
        self.steps: int | None = None
        self.waiting_result: tuple[int, list[Request], int, float | None, list[int]] | None = None
        self.last_timed: tuple[int, int] | None = None
        self.retracted = 0
        bins = int(seconds / bin_seconds) + 1
        self.outcome = Outcome(seconds, bin_seconds, [0.0] * bins, [{} for _ in range(bins)])

    def run(self) -> Outcome:
        while self.now < self.end:
            self._admit_arrivals()
            if not self.running and not self.queue:
                self._process_result()
                self.last_timed = None
                if not self._wait():
                    break
                continue
            steps = self._choose()
            if self.queue and len(self.running) < self.engine.max_running and self._fits(self.queue[0]):
                self._prefill()
            elif self.running:
                self._decode(steps)
            else:
                self.queue.popleft()  # longer than the whole pool
        return self.outcome

    # ---- traffic ------------------------------------------------------------------------------------------------------

    def _admit_arrivals(self) -> None:
        source = self.source
        if source.clients is None:
            arrivals = source.arrivals
            while self.next_arrival < len(arrivals) and arrivals[self.next_arrival][0] <= self.now:
                at, prompt, output = arrivals[self.next_arrival]
                self.queue.append(source.make(self.next_arrival, self.seed, at, prompt, output))
                self.next_arrival += 1
            return
        wanted = source.clients(self.now)
        while len(self.running) + len(self.queue) < wanted:
            self.queue.append(source.make(self.next_arrival, self.seed, self.now))
            self.next_arrival += 1
        while len(self.running) + len(self.queue) > wanted:
            if self.queue:
                self.queue.pop()
            else:
                self._leave(self.running.pop()).gone = True

    def _wait(self) -> bool:
        """Until something comes; False where nothing will."""
        if self.source.clients is not None:
            self.now += 0.01
            return True
        if self.next_arrival >= len(self.source.arrivals):
            return False
        self.now = max(self.now, self.source.arrivals[self.next_arrival][0])
        return True

    # ---- turns ----------------------------------------------------------------------------------------------------------

    def _choose(self) -> int:
        tokens = self.kv_tokens
        observation = Observation(
            running=len(self.running),
            queued=len(self.queue),
            kv_tokens=tokens,
            kv_usage=min(tokens / self.engine.pool_tokens, 1.0),
            retractions=self.retracted,
            max_running=self.engine.max_running,
        )
        self.retracted = 0
        steps = self.controller.choose(observation, self.now, self.now)
        if steps != self.steps:
            if self.steps is not None:
                self.outcome.switch_times.append(self.now)
                self.now += tables.SWITCH_SECONDS
            self.steps = steps
        return steps

    def _leave(self, request: Request) -> Request:
        request.running = False
        self.kv_tokens -= request.kv_tokens
        return request

    def _fits(self, request: Request) -> bool:
        needed = request.kv_tokens + (len(self.running) + 1) * self.engine.reserve_tokens
        return self.kv_tokens + needed <= self.engine.pool_tokens

    def _prefill(self) -> None:
        tokens = 0
        taken: list[Request] = []
        while self.queue and len(self.running) + len(taken) < self.engine.max_running and self._fits(self.queue[0]):
            if taken and tokens + self.queue[0].kv_tokens > self.engine.prefill_chunk_tokens:
                break
            request = self.queue.popleft()
            tokens += request.kv_tokens
            taken.append(request)
        seconds = tables.PREFILL_SECONDS + tokens * self.engine.prefill_seconds_per_token
        self.now += seconds
        self.outcome.prefill_seconds += seconds
        self.running.extend(taken)
        for request in taken:
            request.produced += 1
            request.running = True
            self.kv_tokens += request.kv_tokens
        self._count_tokens(len(taken))
        self._process_result()
        self.last_timed = None

    def _decode(self, steps: int) -> None:
        # 1. Room for the round.
        while len(self.running) > 1 and (
            self.kv_tokens + len(self.running) * self.engine.reserve_tokens > self.engine.pool_tokens
        ):
            self.queue.appendleft(self._leave(self.running.pop()))
            self.retracted += 1
            self.outcome.retractions += 1
        # 2. The round itself.
        batch = list(self.running)
        size, tokens = len(batch), self.kv_tokens
        seconds = self.engine.costs.seconds(steps, size, tokens)
        if self.noise.rounds:
            seconds *= max(0.5, 1.0 + self.clock_rng.gauss(0.0, self.noise.rounds))
        self.now += seconds
        self.outcome.decode_seconds += seconds
        spent = self.outcome.steps_by_bin[self._bin()]
        spent[steps] = spent.get(steps, 0.0) + seconds
        # 3. What is measured of it: only between two rounds of the same kind, as the plugin does.
        timed = self._measure(seconds) if self.last_timed == (steps, size) else None
        self.last_timed = (steps, size)
        # 4. Its drafts.
        correct = [0] * size
        if steps:
            draw = self.rng.random
            for row, request in enumerate(batch):
                chance, accepted = draw(), 0
                for survival in request.survival[:steps]:
                    if chance >= survival:
                        break
                    accepted += 1
                correct[row] = accepted
        # 5. The result of the round before is processed while this one runs.
        self._process_result()
        self.waiting_result = (steps, batch, tokens, timed, correct)

    def _process_result(self) -> None:
        if self.waiting_result is None:
            return
        steps, batch, tokens, timed, correct = self.waiting_result
        self.waiting_result = None
        alive, produced, done = [], 0, False
        for request, accepted in zip(batch, correct, strict=True):
            if request.gone or request.produced >= request.output_tokens:
                continue
            alive.append(accepted)
            gained = min(1 + accepted, request.output_tokens - request.produced)
            request.produced += gained
            produced += gained
            if request.running:
                self.kv_tokens += gained
            if request.produced >= request.output_tokens:
                done = True
                self.outcome.finished += 1
                self.outcome.latencies.append(self.now - request.arrived_at)
        self._count_tokens(produced)
        self.controller.record(Round(steps, len(batch), tokens, timed, alive if steps else []), self.now)
        if done:
            still = []
            for request in self.running:
                if request.produced < request.output_tokens:
                    still.append(request)
                else:
                    self._leave(request)
            self.running = still

    def _measure(self, seconds: float) -> float:
        noise = self.noise
        if noise.outliers and self.clock_rng.random() < noise.outliers:
            return 10.0 * seconds
        if noise.clock:
            return max(0.05 * seconds, seconds * (1.0 + self.clock_rng.gauss(0.0, noise.clock)))
        return seconds

    def _count_tokens(self, tokens: int) -> None:
        self.outcome.tokens_by_bin[self._bin()] += tokens

    def _bin(self) -> int:
        return min(int(self.now / self.outcome.bin_seconds), len(self.outcome.tokens_by_bin) - 1)
