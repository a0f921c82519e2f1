"""One scheduler rank under the plugin: the policy in force, what is run, what was counted. Knows nothing of SGLang.

All ranks of a tensor-parallel group must run the same step count in the same round, or they wait for each other for
ever. Ranks have clocks of their own, so only one of them decides, and what it decides travels to all of them, itself
included, in the list of requests that SGLang broadcasts at the start of each scheduler turn: everyone applies it in the
same turn. Counting the dwell in decode rounds on every rank would need no message, but then every later input of a rule
(measured times above all) would have to be the same everywhere too.

A rank that meets trouble with others beside it never changes its step count alone: the deciding rank sends word to all,
and the others hold still.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from specserver.plugin.metrics import Metrics
from specserver.plugin.obstacles import Cause, Obstacle
from specserver.plugin.rounds import Result, RoundTimer
from specserver.plugin.tally import Tally
from specserver.policy.decider import Decider
from specserver.policy.decision import Observation, Reason, Round
from specserver.policy.document import Policy
from specserver.policy.profile import Profile

logger = logging.getLogger(__name__)

MAX_ERRORS_A_HOOK = 5
MAX_REMEMBERED_SWITCHES = 20_000
MAX_REMEMBERED_DECISIONS = 100
JOURNAL_KEYS = ("ahead", "rungs", "survival", "realisedGoodput", "plain", "probe")
"""Of `Decider.explain()`, what a decision is kept with: a hundred whole ones would be a long answer for whoever polls it."""
HOUR_SECONDS = 3600.0
GOODPUT_SECONDS = 1.0

Order = dict[str, Any]
"""What the deciding rank tells all: `steps`, `decidedSteps`, `reason`; or `disarm` with the cause. JSON values alone."""


class Engine(Protocol):
    """What a rank needs of its engine."""

    def steps(self) -> int:
        """Step count in force."""

    def activate(self, steps: int) -> None:
        """Runs from the next round on with `steps`."""

    def steps_of_round(self, verified_tokens: int) -> int:
        """Step count of a round that verified so many tokens a request."""

    def load(self) -> Observation: ...

    def report(self) -> dict[str, Any]:
        """Further keys of the rank's report: how the engine does what it is told. JSON values alone."""


class Rank:
    """State of one scheduler rank. Lives on the scheduler's thread and is touched by no other."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        metrics: Metrics,
        *,
        ladder: tuple[int, ...] = (),
        obstacle: Obstacle | None = None,
        deciding: bool = True,
        alone: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`alone`: no other rank must run the same steps. `obstacle`: why this engine can't be controlled, or None."""
        self.name = name
        self.ladder = ladder
        self.obstacle = obstacle
        self.policy: Policy | None = None
        self.policy_problem = "no policy yet"
        self.profile: Profile | None = None
        self.profile_key: dict[str, str] = {}
        """What a profile must have been measured on to be used here."""
        self.profile_problem = ""
        """Why a profile that was named is not used, or empty."""
        self.load: Observation | None = None
        """As of the present turn; None before the first, and where the turns are not seen."""
        self.tally = Tally()
        self.switches = 0
        self.retractions = 0
        self.errors: Counter[str] = Counter()
        self._engine, self._metrics = engine, metrics
        self._deciding, self._alone = deciding, alone
        self._monotonic, self._wall = monotonic, wall
        self._decider: Decider | None = None
        self._journal: deque[dict[str, Any]] = deque(maxlen=MAX_REMEMBERED_DECISIONS)
        self._timer = RoundTimer()
        self._new_retractions = 0
        self._forced: tuple[int, float, bool] | None = None
        self._goodput_shown_at = -math.inf
        self._shown_load: tuple[int, int] | None = None
        self._shown_steps: int | None = None
        self._said: Order | None = None
        self._order: Order | None = None
        self._disarm_order: Order | None = None
        self._switch_times: deque[float] = deque(maxlen=MAX_REMEMBERED_SWITCHES)
        self._metrics.set_armed(obstacle)

    @property
    def armed(self) -> bool:
        return self.obstacle is None

    @property
    def reason(self) -> str:
        """Why it is not in control, or empty."""
        if self.obstacle is not None:
            return self.obstacle.message
        return "" if self.policy else self.policy_problem

    @property
    def in_control(self) -> bool:
        """The engine's own adaptive logic must keep still."""
        return self.armed and self.policy is not None

    # ---- each scheduler turn ----------------------------------------------------------------------------------------

    def take_turn(self) -> Order | None:
        """The order of this turn, if there is one. To let go comes before all that may be the reason for it."""
        if self._disarm_order is not None and self.armed:
            return self._disarm_order
        self.observe()
        return self.next_order()

    def observe(self) -> None:
        """Takes load and steps of this turn. Metrics are written only where they changed: an idle scheduler never pauses."""
        self._timer.turn()
        load, steps = self._engine.load(), self._engine.steps()
        self.load = replace(load, retractions=self._new_retractions)
        self._new_retractions = 0
        if (load.running, load.queued) != self._shown_load:
            self._shown_load = load.running, load.queued
            self._metrics.set_load(load)
        if steps != self._shown_steps:  # also where SGLang's own logic changes them
            self._shown_steps = steps
            self._metrics.set_steps(steps)
        if self._decider is not None and not 0 <= (now := self._monotonic()) - self._goodput_shown_at < GOODPUT_SECONDS:
            self._goodput_shown_at = now
            why = self._decider.explain()
            predicted = next((rung["goodput"] for rung in why.get("rungs", ()) if rung["steps"] == steps), None)
            self._metrics.set_goodput(predicted, why.get("realisedGoodput"))

    def next_order(self) -> Order | None:
        """What all ranks shall do from this turn on, where it differs from what they do. None on ranks that do not decide."""
        if not self._deciding or not self.armed or self._decider is None or self.load is None:
            return None
        decision = self._decider.decide(self.load, self._monotonic())
        if decision.steps not in self.ladder:
            raise ValueError(f"the rule wants {decision.steps} steps, which the engine does not have")
        order: Order = {
            "steps": decision.steps,
            "decidedSteps": decision.decided_steps,
            "reason": decision.reason.value,
        }
        if order == self._order:
            return None
        if order != self._said:
            self._said = order
            self._note_decision(order, self.load)
        return order

    def _note_decision(self, order: Order, load: Observation) -> None:
        assert self._decider is not None
        why = self._decider.explain()
        self._journal.append(
            {
                "at": self._wall(),
                "from": self._engine.steps(),
                **order,
                "inputs": asdict(load),
                "estimates": {key: why.get(key) for key in JOURNAL_KEYS},
            }
        )

    def follow(self, order: Order) -> None:
        """Does what the deciding rank said. Not remembered where it fails, so that it is said again."""
        if "disarm" in order:
            self._disarm(str(order["disarm"]))
            return
        if not self.in_control:
            return
        steps = int(order["steps"])
        if steps != self._engine.steps():
            self._engine.activate(steps)
            self._count_switch(Reason(order["reason"]))
        self._order = order

    def _count_switch(self, reason: Reason) -> None:
        self.switches += 1
        self._switch_times.append(self._wall())
        self._metrics.count_switch(reason)

    # ---- each result --------------------------------------------------------------------------------------------------

    def record_round(
        self, verified_tokens: int, correct_drafts: Sequence[int], *, iteration: int, running: int, grammar: bool
    ) -> None:
        """Takes in a decode round under the step count that it ran with, which may not be the present one.

        `verified_tokens` is what each request was given to verify; `correct_drafts` holds, for each request still alive, how
        many of its drafts were right; the others as in `rounds.Result`.
        """
        now = self._monotonic()
        steps = self._engine.steps_of_round(verified_tokens)
        seconds = self._timer.measure(Result(iteration, steps, running, grammar, now))
        survivors = self.tally.add(steps, running, seconds, correct_drafts)
        self._metrics.count_round(steps, seconds, survivors)
        self._metrics.set_accept_length(self.tally.accept_length)
        if self._decider is not None:
            kv_tokens = 0 if self.load is None else self.load.kv_tokens
            cost_only = self._forced is not None and self._forced[2] and now < self._forced[1]
            evidence = () if cost_only else correct_drafts
            self._decider.record(Round(steps, running, kv_tokens, seconds, evidence), now)

    def note_retractions(self, requests: int) -> None:
        """Requests put back into the queue for want of KV."""
        self.retractions += requests
        self._new_retractions += requests
        self._metrics.count_retractions(requests)

    # ---- policy ---------------------------------------------------------------------------------------------------------

    def find_policy_problem(self, policy: Policy) -> tuple[str, str] | None:
        """Field and message of what stands against this policy here, or None."""
        return self.find_steps_problem(policy.steps)

    def find_steps_problem(self, wanted: Sequence[int]) -> tuple[str, str] | None:
        """The same of step counts."""
        if all(steps in self.ladder for steps in wanted):
            return None
        captured = ", ".join(str(steps) for steps in self.ladder)
        return "steps", f"the engine started with steps {captured}; others need a restart with another ladder"

    def set_policy(self, policy: Policy) -> None:
        """Puts a checked policy in force. The next turn decides by it."""
        self.policy, self.policy_problem = policy, ""
        if self._deciding and self._decider is None:
            self._decider = Decider(policy, self.profile)
        elif self._decider is not None:
            self._decider.set_policy(policy)
        self._metrics.set_policy_revision(policy.revision)

    # ---- force ----------------------------------------------------------------------------------------------------------

    def force(self, steps: int, seconds: float, *, cost_only: bool = False) -> None:
        """Runs checked `steps` whatever the rule says, for so long. The clock is the deciding rank's."""
        until = self._monotonic() + seconds
        self._forced = steps, until, cost_only
        if self._decider is not None:
            self._decider.force(steps, until)

    def clear_force(self) -> None:
        self._forced = None
        if self._decider is not None:
            self._decider.clear_force()

    def _report_force(self) -> dict[str, Any] | None:
        if self._forced is None:
            return None
        steps, until, _ = self._forced
        left = until - self._monotonic()
        return {"steps": steps, "secondsLeft": left} if left > 0 else None

    # ---- trouble ---------------------------------------------------------------------------------------------------------

    def note_error(self, hook: str, error: Exception) -> None:
        """Counts an exception that a hook's guard caught. After several in the same hook the plugin lets go of the engine."""
        self.errors[hook] += 1
        self._metrics.count_hook_error(hook)
        if self.errors[hook] == 1:
            logger.error("hook %s failed; the engine goes on as if it were not there", hook, exc_info=error)
        if self.errors[hook] == MAX_ERRORS_A_HOOK and self.armed:
            cause = f"hook {hook} failed {MAX_ERRORS_A_HOOK} times, at last with {type(error).__name__}: {error}"
            if self._alone:
                self._disarm(cause)
            elif self._deciding:
                self._disarm_order = {"disarm": cause}

    def _disarm(self, cause: str) -> None:
        """Lets go. The engine goes on as it started: with its largest step count, until SGLang's own logic changes that."""
        logger.error("not armed any more: %s", cause)
        self.obstacle = Obstacle(Cause.HOOK_ERRORS, cause)
        self._metrics.set_armed(self.obstacle)
        try:
            if self._engine.steps() != self.ladder[-1]:
                self._engine.activate(self.ladder[-1])
        except Exception:
            # It may be the very thing that failed before; letting go must end all the same.
            logger.exception("the engine stays at %s steps", self._engine.steps())

    def export_profile(self) -> dict[str, Any] | None:
        """Step costs as measured here, to start another such engine from; None on ranks that do not decide."""
        if self._decider is None:
            return None
        return self._decider.export_profile(self.profile_key).to_document()

    # ---- read-back -----------------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """The rank's part of `GET /specserver/v1/state`. JSON values alone."""
        steps, load = self._engine.steps(), self._engine.load()
        hour_ago = self._wall() - HOUR_SECONDS
        order: Mapping[str, Any] = self._order or {}
        tally = self.tally
        return {
            "rank": self.name,
            "armed": self.armed,
            "reason": self.reason,
            "cause": self.obstacle.cause.value if self.obstacle else "",
            **self.report_policy(),
            "ladder": list(self.ladder),
            "steps": steps,
            "decidedSteps": order.get("decidedSteps", steps) if self.in_control else steps,
            "running": load.running,
            "queued": load.queued,
            "maxRunning": load.max_running,
            "kvTokens": load.kv_tokens,
            "kvUsage": load.kv_usage,
            "acceptLength": tally.accept_length,
            "acceptance": [{"reached": each.reached, "accepted": each.accepted} for each in tally.positions],
            "rounds": {str(key): count for key, count in sorted(tally.rounds.items())},
            "decisionHash": f"{tally.digest:08x}",
            "switches": self.switches,
            "switchesLastHour": sum(at > hour_ago for at in self._switch_times),
            "retractions": self.retractions,
            "hookErrors": sum(self.errors.values()),
            **self._engine.report(),
            **self._report_own(),
        }

    def report_policy(self) -> dict[str, Any]:
        """The policy alone: the whole report is work that a scheduler need not do to confirm one."""
        if self.policy is None:
            return {"revision": None, "policy": None}
        return {"revision": self.policy.revision, "policy": self.policy.to_document()}

    def _report_own(self) -> dict[str, Any]:
        """What depends on this rank's clock, or is known to the deciding rank alone."""
        return {
            "lastSwitchAt": self._switch_times[-1] if self._switch_times else None,
            "stepTime": {
                str(steps): {"rounds": time.rounds, "seconds": time.seconds}
                for steps, time in sorted(self.tally.step_time.items())
            },
            "forced": self._report_force(),
            "profile": {"used": self.profile is not None, "problem": self.profile_problem, "key": self.profile_key},
            "estimates": self._decider.explain() if self._decider is not None else None,
            "decisions": list(self._journal),
        }
