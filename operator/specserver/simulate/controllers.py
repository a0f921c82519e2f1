"""Who chooses the steps: the product's decider, fixed counts, an oracle, and imitations of other rules."""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

from specserver.policy.decider import Decider
from specserver.policy.decision import Observation, Round
from specserver.simulate.costs import StepCosts
from specserver.simulate.traffic import Profile


class Controller(Protocol):
    def choose(self, observation: Observation, now: float, clock: float) -> int:
        """Steps from now on. `now` is the simulation's true time, `clock` what the engine's clock says."""

    def record(self, result: Round, clock: float) -> None: ...


class Product:
    def __init__(self, decider: Decider) -> None:
        self.decider = decider

    def choose(self, observation: Observation, now: float, clock: float) -> int:
        return self.decider.decide(observation, clock).steps

    def record(self, result: Round, clock: float) -> None:
        self.decider.record(result, clock)


class Fixed:
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def choose(self, observation: Observation, now: float, clock: float) -> int:
        return self.steps

    def record(self, result: Round, clock: float) -> None: ...


class Oracle:
    """Knows the true costs and the true mean acceptance, and changes without a wait."""

    def __init__(self, costs: StepCosts, acceptance: Profile, ladder: tuple[int, ...]) -> None:
        self._costs, self._acceptance, self._ladder = costs, acceptance, ladder

    def choose(self, observation: Observation, now: float, clock: float) -> int:
        survival, running = self._acceptance(now), max(observation.running, 1)

        def goodput(steps: int) -> float:
            return (1.0 + sum(survival[:steps])) / self._costs.seconds(steps, running, observation.kv_tokens)

        return max(self._ladder, key=goodput)

    def record(self, result: Round, clock: float) -> None: ...


class StockLike:
    """SGLang's adaptive mode in outline: a slot by batch size, and in it steps by the mean of accepted drafts, up above
    steps - 0.5, down below the step before - 0.75, looked at every 5 rounds; from 0 always up again."""

    SLOTS = ((1, (1, 3)), (8, (0, 1, 3)), (32, (0, 1)), (64, (0,)))

    def __init__(self) -> None:
        self._accepted = [0.0] * len(self.SLOTS)
        self._steps = [steps[-1] for _, steps in self.SLOTS]
        self._rounds = [0] * len(self.SLOTS)

    def _slot(self, running: int) -> int:
        return max(bisect_right([least for least, _ in self.SLOTS], running) - 1, 0)

    def choose(self, observation: Observation, now: float, clock: float) -> int:
        return self._steps[self._slot(max(observation.running, 1))]

    def record(self, result: Round, clock: float) -> None:
        slot = self._slot(result.running)
        candidates, steps = self.SLOTS[slot][1], self._steps[slot]
        if result.correct_drafts:
            mean = sum(result.correct_drafts) / len(result.correct_drafts)
            self._accepted[slot] += 0.2 * (mean - self._accepted[slot])
        self._rounds[slot] += 1
        if self._rounds[slot] < 10 or self._rounds[slot] % 5:
            return
        place, average = candidates.index(steps), self._accepted[slot]
        if place + 1 < len(candidates) and (steps == 0 or average > steps - 0.5):
            self._steps[slot] = candidates[place + 1]
        elif place > 0 and average <= candidates[place - 1] - 0.75 + (0.5 if candidates[place - 1] == 0 else 0.0):
            self._steps[slot] = candidates[place - 1]
