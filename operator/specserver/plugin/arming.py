"""Whether the plugin can control this engine: SGLang's facts in, a rank out.

Everything that is not known to work is refused with a reason that a person can act on; the engine then serves on,
stock.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserver.plugin import support, versions
from specserver.plugin.metrics import make_metrics
from specserver.plugin.obstacles import Cause, Obstacle
from specserver.plugin.state import Rank
from specserver.plugin.zero.step import ZeroStep, zero_step_of
from specserver.policy.decision import Observation
from specserver.policy.document import parse_policy
from specserver.policy.profile import parse_profile

logger = logging.getLogger(__name__)

ENV_POLICY_FILE = "SPECSERVER_POLICY_FILE"
ENV_PROFILE_FILE = "SPECSERVER_PROFILE_FILE"
ALGORITHMS = ("EAGLE", "EAGLE3")


@dataclass(frozen=True)
class Facts:
    """How an engine was started, as far as arming depends on it.

    states        step counts that SGLang has a runtime state for: several with its adaptive controller, one without
    zero_problem  why zero steps are not plain decode here, or empty; SGLang's own then need a state for 0
    """

    algorithm: str | None
    attention_data_parallel: bool
    pipeline_ranks: int
    disaggregation: str
    multiplexing: bool
    two_batch_overlap: bool
    multi_layer_draft: bool
    states: tuple[int, ...]
    zero_problem: str

    @property
    def ladder(self) -> tuple[int, ...]:
        return tuple(sorted({*self.states, *(() if self.zero_problem else (0,))}))


def find_obstacle(facts: Facts) -> Obstacle | None:
    """Why this engine can't be controlled, or None."""
    return _find_start_obstacle(facts) or _find_ladder_obstacle(facts)


def find_worker_obstacle(worker: Any, version: str) -> str | None:
    """The same of this worker's engine, as far as it is known while the engine is being built."""
    facts = _read_facts(worker, versions.read_parallel(None, version), zero_problem="")
    obstacle = _find_misfit(version, []) or _find_start_obstacle(facts)
    return None if obstacle is None else obstacle.message


def _find_start_obstacle(facts: Facts) -> Obstacle | None:
    if facts.algorithm is None:
        return Obstacle(Cause.SPECULATION_OFF, "speculation is off")
    if facts.algorithm not in ALGORITHMS:
        supported = ", ".join(ALGORITHMS)
        message = f"speculative algorithm {facts.algorithm} is not supported (supported: {supported})"
        return Obstacle(Cause.ALGORITHM, message)
    if facts.attention_data_parallel:
        message = "data-parallel attention is not supported: its ranks would choose different step counts"
        return Obstacle(Cause.DATA_PARALLEL_ATTENTION, message)
    if facts.pipeline_ranks > 1:
        return Obstacle(Cause.PIPELINE, "pipeline parallelism is not supported")
    if facts.disaggregation != "null":
        return Obstacle(Cause.DISAGGREGATION, f"disaggregation mode {facts.disaggregation} is not supported")
    if facts.multiplexing:
        message = "--enable-pdmux is not supported: its decode streams have attention backends that a switch would not reach"
        return Obstacle(Cause.MULTIPLEXING, message)
    if facts.two_batch_overlap:
        message = "--enable-two-batch-overlap is not supported: a switch would replace the attention backend that splits batches"
        return Obstacle(Cause.TWO_BATCH_OVERLAP, message)
    if facts.multi_layer_draft:
        message = "--enable-multi-layer-eagle is not supported: its worker drafts a fixed number of steps"
        return Obstacle(Cause.MULTI_LAYER_DRAFT, message)
    return None


def _find_ladder_obstacle(facts: Facts) -> Obstacle | None:
    if 0 not in facts.ladder or len(facts.ladder) < 2:
        steps = ", ".join(str(k) for k in facts.ladder)
        why = f"; zero steps are not plain decode here: {facts.zero_problem}" if facts.zero_problem else ""
        message = f"the ladder ({steps}) needs 0 and another step count: see --speculative-adaptive-config{why}"
        return Obstacle(Cause.LADDER, message)
    return None


class SglangEngine:
    """The scheduler of SGLang as a rank sees it."""

    def __init__(self, scheduler: Any, zero: ZeroStep) -> None:
        self._scheduler = scheduler
        self._worker = scheduler.draft_worker
        self._controller = getattr(self._worker, "adaptive_controller", None)
        self._zero = zero
        # Pools for sliding windows or recurrent states are several in one; what is left of them is no single number.
        self._kv_tokens = 0 if scheduler.is_hybrid_swa or scheduler.is_hybrid_ssm else int(scheduler.max_total_num_tokens)

    def steps(self) -> int:
        return 0 if self._zero.asked else self._worker_steps()

    def _worker_steps(self) -> int:
        return int(getattr(self._worker, "speculative_num_steps", None) or 0)

    def activate(self, steps: int) -> None:
        """To 0 and back to the state in force is a branch of the next round. Another state is SGLang's to put in place.

        Where zero steps turned out not to be plain decode, they are SGLang's own, or else the fewest steps that it can do.
        """
        self._zero.ask(wanted=steps == 0)
        if self._zero.asked or self._controller is None:
            return
        states = self._controller._states
        steps = steps if steps in states else min(states)
        if steps != self._worker_steps():
            self._controller._activate(steps)

    def steps_of_round(self, verified_tokens: int) -> int:
        """A chain verifies the last token and one for each step. A tree's number of tokens says nothing of its depth, but
        that never changes, and a zero round verifies one token."""
        if self._worker.topk == 1 or verified_tokens == 1:
            return verified_tokens - 1
        return self._worker_steps()

    def load(self) -> Observation:
        """Requests in the running batch, and those whose prefill is done and who join it in this turn.

        KV in use is what neither is free nor could be freed: the prefix cache's unused part counts as free. A prefix that
        several requests share is counted once, and slots that are reserved for drafts are counted in.
        """
        scheduler = self._scheduler
        running = len(scheduler.running_batch.reqs)
        last = scheduler.last_batch
        if last is not None and last.forward_mode.is_extend():
            running += len(last.reqs)
        used = 0
        if self._kv_tokens:
            free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
            used = max(0, self._kv_tokens - int(free))
        return Observation(
            running=running,
            queued=len(scheduler.waiting_queue),
            kv_tokens=used,
            kv_usage=used / self._kv_tokens if self._kv_tokens else 0.0,
            max_running=int(scheduler.max_running_requests),
        )

    def report(self) -> dict[str, Any]:
        return {"zero": self._zero.report()}


def arm(scheduler: Any, target_problems: list[str]) -> Rank:
    """The rank of this scheduler process. Called once, when the scheduler is built and before its first turn."""
    from sglang.srt.runtime_context import get_observability

    version = support.engine_version()
    parallel = versions.read_parallel(scheduler, version)
    zero = zero_step_of(scheduler.draft_worker, version)
    facts = _read_facts(scheduler.draft_worker, parallel, zero.reason)
    obstacle = _find_misfit(version, target_problems) or find_obstacle(facts)
    deciding = parallel.tensor_rank == 0
    name = f"tp{parallel.tensor_rank}"
    metrics = make_metrics(write=deciding and bool(get_observability().enable_metrics))
    zero.on_outcome = metrics.count_zero_round
    rank = Rank(
        name if parallel.data_parallel_ranks == 1 else f"dp{parallel.data_parallel_rank}-{name}",
        SglangEngine(scheduler, zero),
        metrics,
        ladder=facts.ladder,
        obstacle=obstacle,
        deciding=deciding,
        alone=parallel.tensor_ranks == 1,
    )
    if rank.armed:
        rank.profile_key = versions.read_profile_key(parallel, version)
        load_profile_file(rank, os.environ.get(ENV_PROFILE_FILE, ""))
        load_policy_file(rank, os.environ.get(ENV_POLICY_FILE, ""))
    return rank


def _find_misfit(version: str, target_problems: list[str]) -> Obstacle | None:
    problem = support.find_version_problem(version)
    if problem is not None:
        return Obstacle(Cause.VERSION, problem)
    return Obstacle(Cause.FUNCTION, "; ".join(target_problems)) if target_problems else None


def load_profile_file(rank: Rank, path: str) -> None:
    """Lets the rule start from a file's step costs. Where it can't, they are measured on the traffic, as without a file."""
    if not path:
        return
    try:
        profile = parse_profile(json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:  # ProfileInvalid and JSON's errors are ValueErrors
        rank.profile_problem = f"no profile: {path}: {error}"
    else:
        if profile.matches(rank.profile_key):
            rank.profile = profile
        else:
            differing = [f"{name} is {own}" for name, own in rank.profile_key.items() if profile.key.get(name) != own]
            rank.profile_problem = f"no profile: {path}: it was measured on another engine; here {', '.join(differing)}"
    if rank.profile_problem:
        logger.warning("%s; step costs are measured on the traffic", rank.profile_problem)


def load_policy_file(rank: Rank, path: str) -> None:
    """Puts the policy of a file in force. A broken file is the rank's `policy_problem`; the engine starts all the same."""
    if not path:
        return
    try:
        policy = parse_policy(json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:  # PolicyInvalid and JSON's errors are ValueErrors
        rank.policy_problem = f"no policy: {path}: {error}"
        return
    problem = rank.find_policy_problem(policy)
    if problem is None:
        rank.set_policy(policy)
    else:
        rank.policy_problem = f"no policy: {path}: {problem[0]}: {problem[1]}"


def _read_facts(worker: Any, parallel: versions.Parallel, zero_problem: str) -> Facts:
    from sglang.srt.runtime_context import get_disagg, get_exec, get_spec

    controller = getattr(worker, "adaptive_controller", None)
    steps = getattr(worker, "speculative_num_steps", None)
    static = () if steps is None else (int(steps),)
    return Facts(
        algorithm=get_spec().speculative_algorithm,
        attention_data_parallel=parallel.attention_data_parallel,
        pipeline_ranks=parallel.pipeline_ranks,
        disaggregation=get_disagg().disaggregation_mode,
        multiplexing=bool(get_disagg().enable_pdmux),
        two_batch_overlap=bool(get_exec().overlap.enable_two_batch_overlap),
        multi_layer_draft=bool(get_spec().enable_multi_layer_eagle),
        states=static if controller is None else tuple(sorted(controller._states)),
        zero_problem=zero_problem,
    )
