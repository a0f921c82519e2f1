"""A plugin for the tests alone that looks at zero rounds and disturbs them.

The file named by SPECSERVER_TEST_ZERO holds JSON, read before each round:

every     so many rounds with drafts, then so many zero rounds, and so on; absent: as the policy says
scribble  at another number than before, the draft's whole KV pool is overwritten with noise first
cold      "rounds" or "prompts": their KV-only write is left out, which is what the tests must notice
misfit    why the KV-only write shall not fit the draft; the draft's own extend is then run
fail      so many zero rounds raise, half-way, after they have changed the batch; another text of the file starts anew
record    path of a file that gets a line for each request and round with drafts: request, length, whether zero rounds lay
          just before, drafts
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

DRAFT = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker.draft"


class InjectedFault(Exception):
    pass


class Probe:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.policy_wants_zero = False
        self._text, self._plan = "", {}  # type: ignore[var-annotated]
        self._rounds, self._failed, self._scribbled = 0, 0, 0
        self._after_zero = False

    def before_round(self, step: Any, batch: Any) -> None:
        text = self._file.read_text()
        if text != self._text:
            if "every" in self._plan:
                step.ask(wanted=self.policy_wants_zero)
            self._text, self._plan, self._rounds, self._failed = text, json.loads(text), 0, 0
        if self._plan.get("scribble", 0) != self._scribbled:  # before the first prompt is read, too
            self._scribbled = self._plan["scribble"]
            pool = step._worker._draft_worker.draft_runner.token_to_kv_pool
            for buffer in (*pool.k_buffer, *pool.v_buffer):
                buffer.normal_(0, 3)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return
        step.kv_misfit = self._plan.get("misfit", "")
        every = self._plan.get("every")
        if every:
            step.ask(wanted=self._rounds % (2 * every) >= every)
            self._rounds += 1

    def after_round(self, result: Any) -> None:
        if result is not None:
            self._after_zero = True

    def leaves_cold(self, what: str) -> bool:
        return bool(self._plan.get("cold") == what)

    def fail_if_told(self) -> None:
        if self._failed < self._plan.get("fail", 0):
            self._failed += 1
            raise InjectedFault("zero round")

    def record(self, batch: Any, drafted: Any) -> None:
        path, after_zero, self._after_zero = self._plan.get("record"), self._after_zero, False
        if not path:
            return
        verify = drafted[0] if isinstance(drafted, tuple) else drafted
        rows = verify.draft_token.view(len(batch.reqs), -1).tolist()
        with open(path, "a") as file:
            for request, length, tokens in zip(batch.reqs, batch.seq_lens.tolist(), rows, strict=True):
                file.write(json.dumps([request.rid, length, after_zero, tokens[1:]]) + "\n")


def load() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from specserver.plugin import state
    from specserver.plugin.zero import prompt as zero_prompt
    from specserver.plugin.zero import round as zero_round
    from specserver.plugin.zero import step as zero_step

    probe = Probe(Path(os.environ["SPECSERVER_TEST_ZERO"]))
    follow, run_round = state.Rank.follow, zero_step.ZeroStep.run_round
    keep_round_kv = zero_round.PlainDecode._keep_draft_kv
    write_prompt_kv = zero_prompt.write_draft_kv
    next_draft_input = zero_round._next_draft_input

    def watched_follow(self: Any, order: Any) -> None:
        probe.policy_wants_zero = order.get("steps") == 0
        follow(self, order)

    def watched_round(self: Any, batch: Any, *callbacks: Any) -> Any:
        probe.before_round(self, batch)
        result = run_round(self, batch, *callbacks)
        probe.after_round(result)
        return result

    def disturbed_keep(self: Any, *args: Any) -> None:
        if not probe.leaves_cold("rounds"):
            keep_round_kv(self, *args)

    def disturbed_prompt(*args: Any) -> None:
        if not probe.leaves_cold("prompts"):
            write_prompt_kv(*args)

    def failing_half_way(*args: Any) -> Any:
        probe.fail_if_told()
        return next_draft_input(*args)

    def watched_draft(original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        drafted = original(worker, batch, *args, **kwargs)
        probe.record(batch, drafted)
        return drafted

    state.Rank.follow = watched_follow  # type: ignore[method-assign]
    zero_step.ZeroStep.run_round = watched_round  # type: ignore[method-assign]
    zero_round.PlainDecode._keep_draft_kv = disturbed_keep  # type: ignore[method-assign]
    zero_prompt.write_draft_kv = disturbed_prompt
    zero_round._next_draft_input = failing_half_way
    HookRegistry.register(DRAFT, watched_draft, HookType.AROUND)
