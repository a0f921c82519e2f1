"""Whether the plugin can control this engine: SGLang's facts in, a rank out.

Everything that is not known to work is refused with a reason that a person can act on; the engine then serves on,
stock.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserver.plugin import support, versions
from specserver.plugin.metrics import Metrics, NoMetrics, PrometheusMetrics
from specserver.plugin.state import Rank
from specserver.policy.decision import Observation
from specserver.policy.document import PolicyInvalid, parse_policy

ENV_POLICY_FILE = "SPECSERVER_POLICY_FILE"
ALGORITHMS = ("EAGLE", "EAGLE3")


@dataclass(frozen=True)
class Facts:
    """How an engine was started, as far as arming depends on it.

    ladder  step counts with a runtime state; None without SGLang's adaptive controller
    """

    algorithm: str | None
    topk: int | None
    attention_data_parallel: bool
    pipeline_ranks: int
    disaggregation: str
    multiplexing: bool
    two_batch_overlap: bool
    multi_layer_draft: bool
    ladder: tuple[int, ...] | None


def find_obstacle(facts: Facts) -> str | None:
    """Why this engine can't be controlled, or None."""
    if facts.algorithm is None:
        return "speculation is off"
    if facts.algorithm not in ALGORITHMS:
        return f"speculative algorithm {facts.algorithm} is not supported (supported: {', '.join(ALGORITHMS)})"
    if facts.topk != 1:
        return f"--speculative-eagle-topk {facts.topk} is not supported (supported: 1)"
    if facts.attention_data_parallel:
        return "data-parallel attention is not supported: its ranks would choose different step counts"
    if facts.pipeline_ranks > 1:
        return "pipeline parallelism is not supported"
    if facts.disaggregation != "null":
        return f"disaggregation mode {facts.disaggregation} is not supported"
    if facts.multiplexing:
        return "--enable-pdmux is not supported: its decode streams have attention backends that a switch would not reach"
    if facts.two_batch_overlap:
        return "--enable-two-batch-overlap is not supported: a switch would replace the attention backend that splits batches"
    if facts.multi_layer_draft:
        return "--enable-multi-layer-eagle is not supported: its worker drafts a fixed number of steps"
    if facts.ladder is None:
        return "SGLang has no adaptive controller: start it with --speculative-adaptive"
    if 0 not in facts.ladder or len(facts.ladder) < 2:
        steps = ", ".join(str(k) for k in facts.ladder)
        return f"the ladder ({steps}) needs 0 and another step count: see --speculative-adaptive-config"
    return None


class SglangEngine:
    """The scheduler of SGLang as a rank sees it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._worker = scheduler.draft_worker
        self._controller = getattr(self._worker, "adaptive_controller", None)

    def steps(self) -> int:
        return int(getattr(self._worker, "speculative_num_steps", None) or 0)

    def activate(self, steps: int) -> None:
        if self._controller is None:
            raise RuntimeError("SGLang has no adaptive controller")
        self._controller._activate(steps)

    def steps_of_round(self, verified_tokens: int) -> int:
        """A chain verifies the last token and one for each step. A tree says nothing, but its step count never changes."""
        return verified_tokens - 1 if self._worker.topk == 1 else self.steps()

    def load(self) -> Observation:
        """Requests in the running batch, and those whose prefill is done and who join it in this turn."""
        scheduler = self._scheduler
        running = len(scheduler.running_batch.reqs)
        last = scheduler.last_batch
        if last is not None and last.forward_mode.is_extend():
            running += len(last.reqs)
        return Observation(running=running, queued=len(scheduler.waiting_queue))


def arm(scheduler: Any, target_problems: list[str]) -> Rank:
    """The rank of this scheduler process. Called once, when the scheduler is built and before its first turn."""
    from sglang.srt.runtime_context import get_observability

    version = support.engine_version()
    parallel = versions.read_parallel(scheduler, version)
    facts = _read_facts(scheduler, parallel)
    reason = support.find_version_problem(version) or "; ".join(target_problems) or find_obstacle(facts)
    deciding = parallel.tensor_rank == 0
    name = f"tp{parallel.tensor_rank}"
    rank = Rank(
        name if parallel.data_parallel_ranks == 1 else f"dp{parallel.data_parallel_rank}-{name}",
        SglangEngine(scheduler),
        _make_metrics(write=deciding and bool(get_observability().enable_metrics)),
        ladder=facts.ladder or (),
        unarmed_reason=reason or "",
        deciding=deciding,
        alone=parallel.tensor_ranks == 1,
    )
    if rank.armed:
        load_policy_file(rank, os.environ.get(ENV_POLICY_FILE, ""))
    return rank


def load_policy_file(rank: Rank, path: str) -> None:
    """Puts the policy of a file in force. A broken file is the rank's `policy_problem`; the engine starts all the same."""
    if not path:
        return
    try:
        policy = parse_policy(json.loads(Path(path).read_text()))
    except (OSError, ValueError) as error:  # PolicyInvalid and JSON's errors are ValueErrors
        field = f"{error.field}: " if isinstance(error, PolicyInvalid) and error.field else ""
        message = error.message if isinstance(error, PolicyInvalid) else str(error)
        rank.policy_problem = f"no policy: {path}: {field}{message}"
        return
    problem = rank.find_policy_problem(policy)
    if problem is None:
        rank.set_policy(policy)
    else:
        rank.policy_problem = f"no policy: {path}: {problem[0]}: {problem[1]}"


def _make_metrics(*, write: bool) -> Metrics:
    return PrometheusMetrics() if write else NoMetrics()


def _read_facts(scheduler: Any, parallel: versions.Parallel) -> Facts:
    from sglang.srt.runtime_context import get_disagg, get_exec, get_spec

    controller = getattr(scheduler.draft_worker, "adaptive_controller", None)
    return Facts(
        algorithm=get_spec().speculative_algorithm,
        topk=get_spec().speculative_eagle_topk,
        attention_data_parallel=parallel.attention_data_parallel,
        pipeline_ranks=parallel.pipeline_ranks,
        disaggregation=get_disagg().disaggregation_mode,
        multiplexing=bool(get_disagg().enable_pdmux),
        two_batch_overlap=bool(get_exec().overlap.enable_two_batch_overlap),
        multi_layer_draft=bool(get_spec().enable_multi_layer_eagle),
        ladder=None if controller is None else tuple(sorted(controller._states)),
    )
