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
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from specserver.plugin.metrics import Metrics
from specserver.policy.decision import Decision, Observation, Reason, decide
from specserver.policy.document import Policy

logger = logging.getLogger(__name__)

MAX_ERRORS_A_HOOK = 5
ACCEPTANCE_WINDOW_ROUNDS = 256
MAX_REMEMBERED_SWITCHES = 20_000
HOUR_SECONDS = 3600.0

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


class Rank:
    """State of one scheduler rank. Lives on the scheduler's thread and is touched by no other."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        metrics: Metrics,
        *,
        ladder: tuple[int, ...] = (),
        unarmed_reason: str = "",
        deciding: bool = True,
        alone: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`alone`: no other rank must run the same steps. `unarmed_reason`: why this engine can't be controlled, or empty."""
        self.name = name
        self.ladder = ladder
        self.armed = not unarmed_reason
        self.reason = unarmed_reason
        self.policy: Policy | None = None
        self.policy_problem = "no policy yet"
        self.load: Observation | None = None
        """As of the present turn; None before the first, and where the turns are not seen."""
        self.rounds: Counter[int] = Counter()
        self.switches = 0
        self.errors: Counter[str] = Counter()
        self._engine, self._metrics = engine, metrics
        self._deciding, self._alone = deciding, alone
        self._monotonic, self._wall = monotonic, wall
        self._decision: Decision | None = None
        self._shown_steps: int | None = None
        self._order: Order | None = None
        self._disarm_order: Order | None = None
        self._switch_times: deque[float] = deque(maxlen=MAX_REMEMBERED_SWITCHES)
        self._acceptance: deque[tuple[int, int]] = deque()
        self._accepted_tokens, self._accepted_rows = 0, 0
        self._metrics.set_armed(self.armed)

    @property
    def in_control(self) -> bool:
        """The engine's own adaptive logic must keep still."""
        return self.armed and self.policy is not None

    # ---- each scheduler turn ----------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Takes load and steps of this turn. Metrics are written only where they changed: an idle scheduler never pauses."""
        load, steps = self._engine.load(), self._engine.steps()
        if load != self.load:
            self.load = load
            self._metrics.set_load(load)
        if steps != self._shown_steps:  # also where SGLang's own logic changes them
            self._shown_steps = steps
            self._metrics.set_steps(steps)

    def next_order(self) -> Order | None:
        """What all ranks shall do from this turn on, where it differs from what they do. None on ranks that do not decide."""
        if not self._deciding or not self.armed:
            return None
        if self._disarm_order is not None:
            return self._disarm_order
        if self.policy is None or self.load is None:
            return None
        self._decision = decide(self.policy, self._decision, self.load, self._monotonic())
        order: Order = {
            "steps": self._decision.steps,
            "decidedSteps": self._decision.decided_steps,
            "reason": self._decision.reason.value,
        }
        return None if order == self._order else order

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

    def record_round(self, verified_tokens: int, correct_drafts: Sequence[int]) -> None:
        """Counts a decode round under the step count that it ran with, which may not be the present one.

        `verified_tokens` is what each request was given to verify; `correct_drafts` holds, for each request still alive, how
        many of its drafts were right.
        """
        steps = self._engine.steps_of_round(verified_tokens)
        self.rounds[steps] += 1
        self._metrics.count_round(steps)
        if steps > 0 and correct_drafts:
            self._add_acceptance(sum(correct_drafts) + len(correct_drafts), len(correct_drafts))
            self._metrics.set_accept_length(self.accept_length)

    @property
    def accept_length(self) -> float | None:
        """Tokens that a request gained per round with drafts, over the newest such rounds."""
        return self._accepted_tokens / self._accepted_rows if self._accepted_rows else None

    def _add_acceptance(self, tokens: int, rows: int) -> None:
        """Keeps the sums over the window beside it: they are wanted each round."""
        self._acceptance.append((tokens, rows))
        if len(self._acceptance) > ACCEPTANCE_WINDOW_ROUNDS:
            old_tokens, old_rows = self._acceptance.popleft()
            tokens, rows = tokens - old_tokens, rows - old_rows
        self._accepted_tokens += tokens
        self._accepted_rows += rows

    # ---- policy ---------------------------------------------------------------------------------------------------------

    def find_policy_problem(self, policy: Policy) -> tuple[str, str] | None:
        """Field and message of what stands against this policy here, or None."""
        missing = [steps for steps in policy.steps if steps not in self.ladder]
        if missing:
            captured = ", ".join(str(steps) for steps in self.ladder)
            return "steps", f"the engine started with steps {captured}; others need a restart with another ladder"
        return None

    def set_policy(self, policy: Policy) -> None:
        """Puts a checked policy in force. The next turn decides by it."""
        self.policy, self.policy_problem = policy, ""
        self._metrics.set_policy_revision(policy.revision)

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
        logger.error("not armed any more: %s", cause)
        self.armed, self.reason = False, cause
        self._metrics.set_armed(False)

    # ---- read-back -----------------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """The rank's part of `GET /specserver/v1/state`. JSON values alone."""
        steps, load = self._engine.steps(), self._engine.load()
        hour_ago = self._wall() - HOUR_SECONDS
        order: Mapping[str, Any] = self._order or {}
        return {
            "rank": self.name,
            "armed": self.armed,
            "reason": self.reason or ("" if self.policy else self.policy_problem),
            "revision": self.policy.revision if self.policy else None,
            "policy": self.policy.to_document() if self.policy else None,
            "steps": steps,
            "decidedSteps": order.get("decidedSteps", steps) if self.in_control else steps,
            "running": load.running,
            "queued": load.queued,
            "acceptLength": self.accept_length,
            "rounds": {str(key): count for key, count in sorted(self.rounds.items())},
            "switches": self.switches,
            "switchesLastHour": sum(at > hour_ago for at in self._switch_times),
            "lastSwitchAt": self._switch_times[-1] if self._switch_times else None,
            "hookErrors": sum(self.errors.values()),
        }
