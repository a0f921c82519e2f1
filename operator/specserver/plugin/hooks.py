"""Every function of SGLang that the plugin wraps, and the guard around each hook.

| hook      | wrapped                                         | what it does there                                             |
|-----------|-------------------------------------------------|----------------------------------------------------------------|
| arm       | Scheduler.run_event_loop                        | before the first turn: arms, or says why not                   |
| turn      | SchedulerRequestReceiver._pull_raw_reqs         | every turn: takes the load, puts an order before the requests  |
| message   | Scheduler.handle_dumper_control                 | our messages: orders, policies, read-back                      |
| route     | AdaptiveController.activate_step_by_batch       | keeps SGLang's own choice by batch size away while in control  |
| feedback  | AdaptiveController.on_verify_complete           | the same for its choice by acceptance                          |
| result    | SchedulerBatchResultProcessor._resolve_spec_v2… | takes in a round under the step count that it ran with         |
| retract   | ScheduleBatch.retract_decode                    | counts requests put back for want of KV                        |
| zero      | four functions, see zero/wrap.py                | zero steps as plain decode                                     |
| http      | http_server._setup_and_run_http_server          | in the HTTP process: adds the control routes                   |

An exception in a scheduler's hook would kill the whole server. Each hook therefore runs inside a guard that counts the
exception and goes on as if the hook were not there, while what SGLang itself raises passes through untouched and the
wrapped function runs exactly once. A hook is told apart from what it wraps by its kind: it runs before, after, or
decides whether the original runs at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specserver.plugin import arming, channel, control, support, worker
from specserver.plugin.state import Rank
from specserver.plugin.support import Target
from specserver.plugin.zero import wrap
from specserver.plugin.zero.step import is_bridge, is_cold

logger = logging.getLogger(__name__)

Hook = Callable[..., Any]

_SCHEDULER = "sglang.srt.managers.scheduler"
_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver"
_RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor"
_ADAPTIVE = "sglang.srt.speculative.adaptive_runtime_state"
_HTTP = "sglang.srt.entrypoints.http_server"

ARM = Target(_SCHEDULER, "Scheduler.run_event_loop", ("self",))
MESSAGE = Target(_SCHEDULER, "Scheduler.handle_dumper_control", ("self", "recv_req"))
TURN = Target(_RECEIVER, "SchedulerRequestReceiver._pull_raw_reqs", ("self",))
RESULT = Target(_RESULTS, "SchedulerBatchResultProcessor._resolve_spec_v2_tokens", ("self", "result", "batch"))
RETRACT = Target(
    "sglang.srt.managers.schedule_batch",
    "ScheduleBatch.retract_decode",
    ("self",),
    variants=(("0.5.17", ("self", "server_args")),),
)
ROUTE = Target(_ADAPTIVE, "AdaptiveController.activate_step_by_batch", ("self", "batch_size"))
FEEDBACK = Target(
    _ADAPTIVE, "AdaptiveController.on_verify_complete", ("self", "num_correct_drafts_per_req", "batch_size")
)
ACTIVATE = Target(_ADAPTIVE, "AdaptiveController._activate", ("self", "speculative_num_steps"))
HTTP = Target(
    _HTTP,
    "_setup_and_run_http_server",
    (
        "server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos", "subprocess_watchdog",
        "execute_warmup_func", "launch_callback",
    ),
)  # fmt: skip

SCHEDULER_TARGETS = (ARM, MESSAGE, TURN, RESULT, RETRACT, ROUTE, FEEDBACK, ACTIVATE, *wrap.WRAPPED)
"""All that must fit for the plugin to arm. ACTIVATE is called, not wrapped."""


# ---- guards ---------------------------------------------------------------------------------------------------------------


class Guard:
    """Wraps hooks for SGLang's registry. `note_error` takes the hook's name and what it raised."""

    def __init__(self, note_error: Callable[[str, Exception], None]) -> None:
        self._note_error = note_error

    def before(self, name: str, hook: Hook) -> Hook:
        def around(original: Hook, *args: Any, **kwargs: Any) -> Any:
            try:
                hook(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 — the boundary that this module is about
                self._note_error(name, error)
            return original(*args, **kwargs)

        return around

    def after(self, name: str, hook: Hook) -> Hook:
        """The hook takes the original's result first. What it returns is ignored: it may change the result in place."""

        def around(original: Hook, *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                hook(result, *args, **kwargs)
            except Exception as error:  # noqa: BLE001
                self._note_error(name, error)
            return result

        return around

    def instead(self, name: str, hook: Hook) -> Hook:
        """The original runs only where the hook returns False or raises. For originals whose result is None."""

        def around(original: Hook, *args: Any, **kwargs: Any) -> Any:
            try:
                handled = hook(*args, **kwargs)
            except Exception as error:  # noqa: BLE001
                self._note_error(name, error)
                handled = False
            return None if handled else original(*args, **kwargs)

        return around


# ---- the scheduler process ------------------------------------------------------------------------------------------------


@dataclass
class SchedulerHooks:
    """The hooks of one scheduler process. `rank` is there from the first turn on."""

    target_problems: list[str]
    rank: Rank | None = None

    def register(self, register: Callable[[Target, Hook], None]) -> None:
        """Hands each fitting target and its guarded hook to SGLang's registry.

        Where something does not fit, what is needed for saying so (arm and message) is still wrapped if it can be.
        """
        guard = Guard(self.note_error)
        version = support.engine_version()
        zero = wrap.ZeroHooks(version, lambda worker: arming.find_worker_obstacle(worker, version), self.keep_still)
        unfit = {problem.split(" ", 1)[0] for problem in self.target_problems}
        reporting = [(ARM, guard.before("arm", self.arm)), (MESSAGE, guard.instead("message", self.message))]
        controlling = [
            (TURN, guard.after("turn", self.turn)),
            (ROUTE, guard.instead("route", self.keep_still)),
            (FEEDBACK, guard.instead("feedback", self.keep_still)),
            (RESULT, guard.after("result", self.result)),
            (RETRACT, guard.after("retract", self.retract)),
            (wrap.GRAPHS, guard.after("zero", zero.prepare)),
            (wrap.ROUND, zero.round),
            (wrap.PROMPT, zero.prompt),
            (wrap.STASH, guard.instead("zero", zero.stash)),
        ]
        for target, hook in reporting if self.target_problems else reporting + controlling:
            if target.path not in unfit:
                register(target, hook)

    def note_error(self, name: str, error: Exception) -> None:
        if self.rank is None:
            logger.error("hook %s failed; the engine goes on stock", name, exc_info=error)
        else:
            self.rank.note_error(name, error)

    def arm(self, scheduler: Any) -> None:
        self.rank = rank = arming.arm(scheduler, self.target_problems)
        if rank.armed:
            logger.info("armed on rank %s: ladder %s; %s", rank.name, rank.ladder, rank.policy or rank.policy_problem)
        else:
            logger.warning("not armed on rank %s: %s", rank.name, rank.reason)

    def turn(self, requests: list[Any] | None, receiver: Any) -> None:
        """`requests` is None on the ranks that receive by broadcast."""
        rank = self.rank
        if rank is None:
            return
        order = rank.take_turn()
        if order is not None and requests is not None:
            # In front, so that whoever asks for the state in this turn sees the order followed.
            requests.insert(0, channel.make_order_request(order))

    def message(self, scheduler: Any, recv_req: Any) -> bool:
        return self.rank is not None and channel.handle_request(scheduler, self.rank, recv_req)

    def keep_still(self, *args: Any, **kwargs: Any) -> bool:
        return self.rank is not None and self.rank.in_control

    def result(self, tokens: Any, processor: Any, result: Any, batch: Any) -> None:
        """Under overlap the result is of an earlier batch: it says itself how many tokens a request was given to verify.

        A request that has ended or was retracted since then was computed, so it counts in the batch size; what its drafts
        were worth is not known. Nor are drafts from a stale proposal evidence. A bridge back from zero steps costs neither what a
        zero round does nor what one with drafts does, and its time is left out like a grammar's.
        """
        if self.rank is None:
            return
        rows = () if is_cold(result) else zip(result.num_correct_drafts_per_req_cpu, batch.reqs, strict=True)
        correct = [drafts for drafts, request in rows if not (request.is_retracted or request.finished())]
        self.rank.record_round(
            result.speculative_num_draft_tokens,
            correct,
            iteration=batch.forward_iter,
            running=len(batch.reqs),
            grammar=is_bridge(result) or any(request.grammar is not None for request in batch.reqs),
        )

    def retract(self, retracted: Any, batch: Any, *args: Any) -> None:
        """The function returns the requests that it put back, the new ratio, and those that it gave up."""
        if self.rank is not None:
            self.rank.note_retractions(len(retracted[0]))


# ---- the HTTP process -----------------------------------------------------------------------------------------------------


def add_control_routes(server_args: Any, *args: Any, **kwargs: Any) -> None:
    """In 0.5.17 this process has no run-time context, so keys come from the arguments, in every version."""
    if server_args.tokenizer_worker_num > 1:
        if server_args.enable_http2:
            logger.warning("no control routes: with --enable-http2 they need --tokenizer-worker-num 1")
        worker.serve_routes_from_workers()
        return
    from sglang.srt.entrypoints import http_server

    keys = control.Keys(server_args.admin_api_key, server_args.api_key)
    control.add_routes(http_server.app, control.SchedulerClient(http_server.get_global_state), lambda: keys)


def note_http_error(name: str, error: Exception) -> None:
    logger.error("hook %s failed; the server goes on without control routes", name, exc_info=error)
