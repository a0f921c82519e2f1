"""Strategy Measured: the step count with the highest predicted goodput, G(k) = b · E(k) / T(k, b, L).

At a given batch the same k gives most tokens a second and least time a token, so one rule serves throughput and latency.
b and L are looked at ahead: queued requests are about to run, as far as the engine and its KV pool have places for them.

What keeps it steady, and safe:

- Down after DOWN_TURNS turns on a gain of marginDown, to any rung; up after UP_TURNS on a gain of marginUp that is beyond the
  estimates' uncertainty, one rung at a time. A change of the load is a fact and no estimate, so a large gain from fewer
  steps right after the load rose waits for neither hold nor dwell.
- Margins shrink with the time since the last switch, to LEAST_MARGIN of themselves after CALM_SECONDS. With fixed margins
  a rung that is 4 % better is never taken, which alone would break a regret of 3 %; with small ones estimates that wobble
  switch all the time. The shrinking margin bounds both: a regret of about 1 %, and one switch in CALM_SECONDS.
- What is known too little to choose, and yet could be better, is probed: a few rounds, then a verdict. Probes pay from a
  budget that fills with maxDuty of the decode time; a probe that succeeds stays and is refunded. Every failed probe doubles the
  wait before the next one at this load; every step up that is soon taken back doubles the wait before the next such step.
  Either wait ends when drafts turn out clearly better or worse than they were when it began.
  Probing is driven by uncertainty alone, so where everything is known there is none. It needs no empty queue, as first
  planned: a saturated engine has one all day, and would never learn.
- Plain decode for a while, whatever the estimates, when KV runs short, requests were retracted, results stay away, or
  goodput is clearly below what plain decode would give.

KV pressure is counted in rounds of headroom and not as a percentage of the pool: speculating takes a handful of slots for
each request, nothing to a large pool. Long contexts fill pools and are where speculation gains most. Plain decode above a
fixed 92 %, as first planned, costs 7 to 12 % of the tokens of a replayed chat service at its capacity, doubles to quadruples
its median latency and saves no retraction: slower decode keeps requests, and so their KV, for longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from specserver.policy.acceptance import Acceptance
from specserver.policy.cost import Cost
from specserver.policy.decision import Observation, Reason, Round
from specserver.policy.document import Policy
from specserver.policy.profile import Profile

MOST_STEPS = 10
DOWN_TURNS, UP_TURNS = 4, 16
SURE_GAIN = 0.2
LOAD_ROSE = 1.25
CALM_SECONDS = 10.0
LEAST_MARGIN = 0.2
TAKEN_BACK_SECONDS = 5.0
EVALUATE_EVERY, LENGTHS_EVERY = 4, 8
KNOWN_TRIALS = 32.0

PROBE_SIGMAS = 1.5
PROBE_HOPELESS = 0.97
PROBE_ROWS = 64
PROBE_LONGEST = 4
OTHER_TRAFFIC = 0.1
"""Change of the tokens that a round gains, as a fraction, beyond which a probe that failed before says nothing any more."""
FIRST_CREDIT_SECONDS, MOST_CREDIT_SECONDS, LONGEST_ROUND_SECONDS = 1.0, 2.0, 1.0

KV_USAGE, KV_HEADROOM_ROUNDS = 0.92, 2
HOLD_SECONDS, LONGEST_HOLD_SECONDS = 0.5, 60.0
WATCHDOG_SECONDS, STANDSTILL_SECONDS = 5.0, 2.0
GUARD_ROUNDS, GUARD_RATIO, GUARD_RATE = 64, 0.9, 1.0 / 64.0
LONGEST_PAUSE_SECONDS = 3600.0


@dataclass
class _Trial:
    """A probe under way: of `steps`, from `home`. `key`: whose wait grows if it fails; `round_seconds`: what a round of it was
    predicted to take."""

    steps: int
    home: int
    key: tuple[int, int]
    round_seconds: float
    started_at: float
    deadline: float
    rounds: int = 0
    rows: int = 0


@dataclass
class _Wait:
    """It ends with the traffic that it was learnt from: `length` tokens a round with the steps that were in force then, whose
    place in the ladder is `home`."""

    seconds: float
    until: float
    home: int = 0
    length: float = 1.0


class Measured:
    """Remembers estimates, holds and probes. Times are of a clock of its own, which neither jumps nor goes back."""

    def __init__(self, profile: Profile | None = None) -> None:
        self.acceptance = Acceptance(MOST_STEPS)
        self.cost = Cost(profile)
        self._now = 0.0
        self._external: float | None = None
        self._decided, self._decided_at = 0, 0.0
        # the last evaluation
        self._ladder: tuple[int, ...] = ()
        self._goodput: list[float] = []
        self._sigma: list[float] = []
        self._hope: list[float] = []
        self._length: list[float] = []
        self._length_sigma: list[float] = []
        self._hopeful_length: list[float] = []
        self._length_records, self._length_at = 0, 0.0
        self._ahead, self._ahead_tokens = 0, 0.0
        self._stale = EVALUATE_EVERY
        # holds
        self._down_turns, self._up_turns = 0, 0
        self._switched_at, self._switched_ahead, self._switched_up = -CALM_SECONDS, 0, False
        # probes
        self._trial: _Trial | None = None
        self._credit, self._duty, self._round_seconds = FIRST_CREDIT_SECONDS, 0.0, 0.0
        self._probe_waits: dict[tuple[int, int], _Wait] = {}
        self._probed: set[tuple[int, int]] = set()
        self._up_waits: dict[tuple[int, int], _Wait] = {}
        self._band_ahead = 1
        self.probe_seconds = 0.0
        self.probes = 0
        # plain decode for a while
        self._plain_until, self._plain_reason = 0.0, Reason.KV_PRESSURE
        self._plain_waits: dict[Reason, _Wait] = {}
        self._progress_at, self._load = 0.0, (0, 0)
        self._has_new_result = False
        self._guard, self._guard_rounds = 1.0, 0
        self.realised_goodput, self.predicted_goodput = 0.0, 0.0

    # ---- results ----------------------------------------------------------------------------------------------------------

    def record(self, result: Round, now: float) -> None:
        now = self._tick(now)
        self._progress_at, self._has_new_result = now, True
        self._stale += 1
        trial = self._trial
        probing = trial is not None and trial.steps == result.steps
        if result.steps and result.correct_drafts:
            self.acceptance.record(result.steps, result.correct_drafts, now, probing=probing)
            self._length_records += 1
        if trial is not None and probing:
            trial.rounds += 1
            trial.rows += len(result.correct_drafts)
            self._stale, self._length_records = EVALUATE_EVERY, LENGTHS_EVERY
        seconds = result.seconds
        self._credit = min(self._credit + self._duty * self._round_seconds, MOST_CREDIT_SECONDS)
        if seconds is None or not seconds > 0.0 or not math.isfinite(seconds):
            return
        self._round_seconds = min(seconds, LONGEST_ROUND_SECONDS)
        self.cost.record(result.steps, result.running, result.kv_tokens, seconds, now)
        self._compare(result, seconds)

    def _compare(self, result: Round, seconds: float) -> None:
        """Realised goodput, beside what plain decode is predicted to give at this batch. What somebody else forces on the engine
        is not the rule's to answer for."""
        rows = len(result.correct_drafts)
        length = 1.0 + sum(result.correct_drafts) / rows if rows and result.steps else 1.0
        realised = result.running * length / seconds
        self.realised_goodput += GUARD_RATE * (realised - self.realised_goodput)
        near = self._goodput and abs(result.running - self._ahead) <= 0.1 * self._ahead
        own = result.steps == self._decided and self._now - self._decided_at <= STANDSTILL_SECONDS
        if not near or not own or not result.steps or result.steps not in self._ladder:
            self._guard, self._guard_rounds = 1.0, 0
            return
        plain = self._goodput[0] * result.running
        self._guard += GUARD_RATE * (min(realised / plain, 3.0) - self._guard)
        self._guard_rounds = self._guard_rounds + 1 if self._guard < GUARD_RATIO else 0

    # ---- the decision -----------------------------------------------------------------------------------------------------

    def next_steps(
        self, policy: Policy, steps: int | None, observation: Observation, now: float, *, controlling: bool
    ) -> tuple[int, Reason]:
        """Steps to go on with, and why if they differ from `steps`, the present ones (None at the start).

        controlling  what is said is also run; else nothing is probed
        """
        now = self._tick(now)
        ladder, self._duty = policy.steps, policy.probe.max_duty
        load = (observation.running, observation.queued)
        if now - self._decided_at > STANDSTILL_SECONDS or load != self._load:
            self._progress_at = now  # no turn at all is no turn without a result, and prefill is progress
        self._decided, self._decided_at, self._load = steps or 0, now, load
        # 1. Nothing runs: nothing to decide.
        if observation.running <= 0 and observation.queued <= 0 and steps is not None:
            self._progress_at = now
            return steps, Reason.INITIAL
        # 2. Trouble.
        reason = self._find_trouble(ladder, steps, observation, now)
        if reason is not None:
            self._end_trial()
            self._down_turns = self._up_turns = 0
            return 0, reason
        # 3. Nothing was measured yet: plain decode is never wrong by much.
        if not self.cost.known:
            return steps or 0, Reason.INITIAL
        self._evaluate(ladder, observation, now)
        if steps is None:
            return ladder[self._best(policy)], Reason.INITIAL
        # 4. A probe goes on to its verdict.
        if self._trial is not None:
            if controlling and steps == self._trial.steps:
                return self._continue_trial(policy, self._trial, now)
            self._end_trial()
        # 5. A switch, or else a probe.
        place = ladder.index(steps)
        decided = self._switch(policy, place, now)
        if decided is None and controlling and self._has_new_result:
            decided = self._start_trial(policy, place, now)
        self._has_new_result = False
        return decided or (steps, Reason.INITIAL)

    def _switch(self, policy: Policy, place: int, now: float) -> tuple[int, Reason] | None:
        ladder, goodput = policy.steps, self._goodput
        best = self._best(policy)
        calm = max(LEAST_MARGIN, 1.0 - (now - self._switched_at) / CALM_SECONDS)
        dwelling = now - self._switched_at < policy.min_dwell_seconds
        low = place > 0 and not self._is_long_enough(policy, place)
        if best < place:
            self._up_turns = 0
            gain = goodput[best] / goodput[place] - 1.0
            if not low and gain < policy.margin_down * calm:
                self._down_turns = 0
                return None
            self._down_turns += 1
            rose = self._ahead >= LOAD_ROSE * self._switched_ahead
            if gain >= SURE_GAIN and rose:
                return self._go(policy, place, best, now)
            if self._down_turns >= DOWN_TURNS and not dwelling:
                return self._go(policy, place, best, now, Reason.LOW_ACCEPTANCE if low else Reason.DOWN)
            return None
        self._down_turns = 0
        if best > place and self.acceptance.trials(1) >= KNOWN_TRIALS:
            sure = goodput[best] / goodput[place] * (1.0 - math.hypot(self._sigma[best], self._sigma[place])) - 1.0
            if sure >= policy.margin_up * calm and self._is_over(self._up_waits.get((ladder[place + 1], self._band)), now):
                self._up_turns += 1
                if self._up_turns >= UP_TURNS and not dwelling:
                    return self._go(policy, place, place + 1, now)
                return None
        self._up_turns = 0
        return None

    def _go(
        self, policy: Policy, place: int, to: int, now: float, reason: Reason = Reason.DOWN
    ) -> tuple[int, Reason]:
        up = to > place
        taken_back = self._switched_up and not up and now - self._switched_at < TAKEN_BACK_SECONDS
        if taken_back and self._ahead < LOAD_ROSE * self._switched_ahead:
            self._wait_longer(policy, self._up_waits, (policy.steps[place], self._band), to, now)
        self._note_switch(now, up=up)
        return policy.steps[to], Reason.UP if up else reason

    def _note_switch(self, now: float, *, up: bool) -> None:
        self._switched_at, self._switched_ahead, self._switched_up = now, self._ahead, up
        self._down_turns = self._up_turns = 0
        self._guard, self._guard_rounds = 1.0, 0

    # ---- estimates --------------------------------------------------------------------------------------------------------

    def _evaluate(self, ladder: tuple[int, ...], observation: Observation, now: float) -> None:
        """Goodput per request of each rung at the load that is coming."""
        # 1. That load: the queue fills the free places, as far as KV lasts for requests like those that run.
        running = max(1, observation.running)
        ahead = max(1, observation.running + observation.queued)
        if observation.max_running:
            ahead = min(ahead, max(observation.max_running, running))
        if observation.kv_usage > 0.0 and observation.running > 0:
            ahead = min(ahead, max(running, int(running / min(observation.kv_usage, 1.0))))
        tokens = observation.kv_tokens * (ahead / running)
        if (
            self._stale < EVALUATE_EVERY
            and ahead == self._ahead
            and ladder == self._ladder
            and abs(tokens - self._ahead_tokens) <= 0.02 * self._ahead_tokens
        ):
            return
        if ladder != self._ladder or self._length_records >= LENGTHS_EVERY or now - self._length_at > 1.0:
            self._ladder = ladder
            self._evaluate_lengths(ladder, now)
        self._stale = 0
        self._ahead, self._ahead_tokens = ahead, tokens
        # 2. What the rungs cost there.
        goodput, sigmas, hopes = [], [], []
        predict, lengths, length_sigmas, hopeful = self.cost.predict, self._length, self._length_sigma, self._hopeful_length
        for place, steps in enumerate(ladder):
            seconds, uncertainty = predict(steps, ahead, tokens, now)
            spread = length_sigmas[place]
            goodput.append(lengths[place] / seconds)
            sigmas.append(math.sqrt(spread * spread + uncertainty * uncertainty))
            hopes.append(hopeful[place] / seconds * (1.0 + PROBE_SIGMAS * uncertainty))
        self._goodput, self._sigma, self._hope = goodput, sigmas, hopes

    def _evaluate_lengths(self, ladder: tuple[int, ...], now: float) -> None:
        """E(k) of each rung, its relative uncertainty, and what it may be at best."""
        self._length_records, self._length_at = 0, now
        lengths, sigmas, hopes = [], [], []
        length, variance, position = 1.0, 0.0, 0
        survival, hopeful_length, hopeful_survival = 1.0, 1.0, 1.0
        for steps in ladder:
            while position < steps:
                position += 1
                rate, sigma, best = self.acceptance.read(position, now)
                variance += (survival * sigma) ** 2
                survival *= rate
                length += survival
                hopeful_survival *= best
                hopeful_length += hopeful_survival
            lengths.append(length)
            sigmas.append(math.sqrt(variance) / length)
            hopes.append(hopeful_length)
        self._length, self._length_sigma, self._hopeful_length = lengths, sigmas, hopes

    def _best(self, policy: Policy) -> int:
        best = 0
        for place in range(1, len(self._goodput)):
            if self._goodput[place] > self._goodput[best] and self._is_long_enough(policy, place):
                best = place
        return best

    def _is_long_enough(self, policy: Policy, place: int) -> bool:
        return self._length[place] >= policy.min_accept_length or self.acceptance.trials(1) < KNOWN_TRIALS

    # ---- probes -----------------------------------------------------------------------------------------------------------

    def _start_trial(self, policy: Policy, place: int, now: float) -> tuple[int, Reason] | None:
        probe, ladder, goodput = policy.probe, policy.steps, self._goodput
        if probe.max_duty <= 0.0 or self._credit <= 0.0 or now - self._switched_at < policy.min_dwell_seconds:
            return None
        # 1. Which could be better, at best?
        chosen, bar = -1, goodput[place] * (1.0 + policy.margin_up)
        for candidate in range(len(ladder)):
            if candidate != place:
                hope = self._hope[candidate]
                if hope > bar and self._is_over(self._probe_waits.get(self._probe_key(ladder[candidate])), now):
                    chosen, bar = candidate, hope
        if chosen < 0:
            return None
        # 2. Can it be paid? The first try at a load may run into debt, or an engine of long rounds would never get to know them.
        seconds, _ = self.cost.predict(ladder[chosen], self._ahead, self._ahead_tokens, now)
        price = probe.rounds * seconds
        if price > self._credit and (ladder[chosen], self._band) in self._probed:
            return None
        deadline = now + PROBE_LONGEST * 2.0 * price + 1.0
        self._probed.add((ladder[chosen], self._band))
        self._trial = _Trial(ladder[chosen], ladder[place], (-1, self._band), seconds, now, deadline)
        self.acceptance.start_probe()
        self.probes += 1
        self._up_turns = self._down_turns = 0
        return ladder[chosen], Reason.PROBE

    def _continue_trial(self, policy: Policy, trial: _Trial, now: float) -> tuple[int, Reason]:
        ladder = policy.steps
        if now > trial.deadline or trial.home not in ladder:
            self._end_trial()
            return (trial.home if trial.home in ladder else 0), Reason.PROBE_OVER
        place = ladder.index(trial.steps)
        here, home = self._goodput[place], self._goodput[ladder.index(trial.home)]
        if self._hope[place] < home and (trial.rounds == 0 or trial.rows >= PROBE_ROWS):
            self._end_trial()
            if trial.rounds:  # else only the load has changed
                self._wait_longer(policy, self._probe_waits, trial.key, ladder.index(trial.home), now)
            return trial.home, Reason.PROBE_OVER
        if trial.rounds < policy.probe.rounds:
            return trial.steps, Reason.PROBE
        hopeless = here < PROBE_HOPELESS * home
        enough = trial.rows >= PROBE_ROWS or trial.rounds >= PROBE_LONGEST * policy.probe.rounds
        if not hopeless and not enough:
            return trial.steps, Reason.PROBE
        if not hopeless and here > home * (1.0 + policy.margin_down):
            self._trial = None
            self._probe_waits.pop(trial.key, None)
            self._up_waits.pop((trial.steps, self._band), None)
            self._note_switch(now, up=trial.steps > trial.home)
            return trial.steps, Reason.UP if trial.steps > trial.home else Reason.DOWN
        self._end_trial()
        self._wait_longer(policy, self._probe_waits, trial.key, ladder.index(trial.home), now)
        return trial.home, Reason.PROBE_OVER

    def _end_trial(self) -> None:
        if self._trial is not None:
            spent = min(self._trial.rounds * self._trial.round_seconds, self._now - self._trial.started_at)
            self._credit -= spent
            self.probe_seconds += spent
            self._trial = None

    def _probe_key(self, steps: int) -> tuple[int, int]:
        """All step counts share one wait at a load; but the first probe of each waits for none."""
        first = (steps, self._band) not in self._probed and not self.cost.is_measured(steps, self._ahead)
        return (steps if first else -1), self._band

    @property
    def _band(self) -> int:
        """The load, coarsely: two bands to a doubling, left only by a clear change."""
        if not 0.75 * self._band_ahead <= self._ahead <= 1.33 * self._band_ahead:
            self._band_ahead = self._ahead
        return int(2.0 * math.log2(max(self._band_ahead, 1)))

    def _is_over(self, wait: _Wait | None, now: float) -> bool:
        return wait is None or now >= wait.until or self._is_of_other_traffic(wait)

    def _is_of_other_traffic(self, wait: _Wait) -> bool:
        if wait.home >= len(self._length):  # of a longer ladder
            return True
        return abs(self._length[wait.home] - wait.length) > OTHER_TRAFFIC * wait.length

    def _wait_longer(
        self, policy: Policy, waits: dict[tuple[int, int], _Wait], key: tuple[int, int], home: int, now: float
    ) -> None:
        wait, probe = waits.get(key), policy.probe
        if wait is None or self._is_of_other_traffic(wait):
            seconds = probe.min_interval_seconds
        else:
            seconds = min(2.0 * wait.seconds, probe.max_interval_seconds)
        waits[key] = _Wait(seconds, now + seconds, home, self._length[home])

    # ---- trouble ----------------------------------------------------------------------------------------------------------

    def _find_trouble(
        self, ladder: tuple[int, ...], steps: int | None, observation: Observation, now: float
    ) -> Reason | None:
        """Why plain decode now, whatever the estimates; None where nothing stands against speculating."""
        usage = observation.kv_usage
        if usage > KV_USAGE:
            free = observation.kv_tokens * (1.0 / min(usage, 1.0) - 1.0)
            needed = KV_HEADROOM_ROUNDS * observation.running * (ladder[-1] + 1)
            if observation.kv_tokens <= 0 or free < needed:
                self._go_plain(Reason.KV_PRESSURE, HOLD_SECONDS, now)
        if observation.retractions > 0:
            self._go_plain(Reason.RETRACTION, HOLD_SECONDS, now)
        if steps and now - self._progress_at > WATCHDOG_SECONDS:
            self._go_plain(Reason.WATCHDOG, HOLD_SECONDS, now)
        if self._guard_rounds >= GUARD_ROUNDS:
            self._guard, self._guard_rounds = 1.0, 0
            self._go_plain(Reason.BELOW_PREDICTION, self._longer_hold(Reason.BELOW_PREDICTION, now), now)
        return self._plain_reason if now < self._plain_until else None

    def _go_plain(self, reason: Reason, seconds: float, now: float) -> None:
        if now + seconds > self._plain_until:
            self._plain_until, self._plain_reason = now + seconds, reason

    def _longer_hold(self, reason: Reason, now: float) -> float:
        """Doubles while the same trouble comes back within twice its last hold."""
        wait = self._plain_waits.get(reason)
        fresh = wait is not None and now < wait.until + 2.0 * wait.seconds
        seconds = min(2.0 * wait.seconds, LONGEST_HOLD_SECONDS) if wait is not None and fresh else 2.0
        self._plain_waits[reason] = _Wait(seconds, now + seconds)
        return seconds

    # ---- its clock, and its reasons ----------------------------------------------------------------------------------------

    def _tick(self, external: float) -> float:
        if math.isfinite(external):
            if self._external is not None:
                self._now += min(max(external - self._external, 0.0), LONGEST_PAUSE_SECONDS)
            self._external = external
        return self._now

    def explain(self) -> dict[str, Any]:
        """Estimates and state, JSON values alone."""
        survival = self.acceptance.survival()
        top = self._ladder[-1] if self._ladder else 0
        return {
            "ahead": self._ahead,
            "rungs": [
                {
                    "steps": steps,
                    "goodput": round(self._goodput[place] * self._ahead, 3),
                    "acceptLength": round(self._length[place], 4),
                    "sigma": round(self._sigma[place], 4),
                    "measured": self.cost.is_measured(steps, self._ahead),
                }
                for place, steps in enumerate(self._ladder)
            ],
            "survival": [round(value, 4) for value in survival[1 : top + 1]],
            "acceptanceTrials": [round(self.acceptance.trials(position), 1) for position in range(1, top + 1)],
            "secondsPerKvToken": self.cost.seconds_per_kv_token(0),
            "realisedGoodput": round(self.realised_goodput, 3),
            "probe": None if self._trial is None else {"steps": self._trial.steps, "rounds": self._trial.rounds},
            "probes": self.probes,
            "probeSeconds": round(self.probe_seconds, 3),
            "probeCreditSeconds": round(self._credit, 3),
            "waits": [
                {"steps": steps, "band": band, "seconds": wait.seconds, "left": round(max(0.0, wait.until - self._now), 3)}
                for waits in (self._probe_waits, self._up_waits)
                for (steps, band), wait in sorted(waits.items())
            ],
            "plain": str(self._plain_reason) if self._now < self._plain_until else None,
            "droppedSamples": self.cost.dropped,
            "acceptanceChanges": self.acceptance.changes,
        }
