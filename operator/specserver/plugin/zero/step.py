"""When a round is plain, when it is a bridge back to drafting, and what is counted.

    activate(0)  the next decode rounds are plain, whatever runtime state is in force: a switch is this branch
    activate(k)  the next decode round is a bridge, a plain one with the draft's extend of one token; then k steps

The bridge is needed because the KV-only write leaves the draft's last *proposal* behind: what a round with drafts starts
from (top-k and hidden state of every running request) is of the time before the zero phase, and requests that came in it have
none. Requests that come later bring theirs from their prefill. Where each zero round runs the extend anyway, because the
KV-only write does not fit the draft, nothing is behind and no bridge is run.

A round that does not fit falls through to SGLang. While zero steps are asked for, it then runs with the fewest steps that
SGLang has a state for, its own zero step if there is one. The drafts of a round that falls through behind a zero phase
start from a stale proposal, and its result is marked so (`is_cold`): no evidence of how good the draft is. Its outputs are
right in any case, and its own extend makes the proposals fresh.

All tensor-parallel ranks branch alike: what they are asked for comes by an order that all follow in the same turn, and
whether a round fits is read off the batch, which is the same everywhere. A round that raises is put back and run by
SGLang; after MAX_ERRORS of them zero steps are SGLang's own for good. An exception of one rank alone would leave its
neighbours in a round of another kind: nothing at this level can help that, and SGLang's own watchdog ends such a group.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from specserver.plugin.zero import fit, graphs, prompt
from specserver.plugin.zero.dialect import Dialect
from specserver.plugin.zero.draft_kv_graphs import is_copied
from specserver.plugin.zero.draft_kv_queue import DraftKvQueue, EagerWriter
from specserver.plugin.zero.round import Draft, PlainDecode

logger = logging.getLogger(__name__)

MAX_ERRORS = 5

_COLD = "specserver_cold"
_BRIDGE = "specserver_bridge"
_ATTRIBUTE = "specserver_zero"


class Outcome(StrEnum):
    """How a round that zero steps were wanted for, or that led back from them, was run, and prompts read meanwhile without
    running the draft: a label of the counter.

    With `fit.Cause` for those that fell through, these are all.
    """

    KV_ONLY = "kv_only"
    EXTEND = "extend"
    BRIDGE = "bridge"
    PROMPT = "prompt"
    PROMPT_ERROR = "prompt_error"
    ERROR = "error"


class ZeroStep:
    """The zero step of one engine. Lives on its scheduler's thread."""

    def __init__(self, worker: Any, dialect: Dialect) -> None:
        self.problem = ""
        self.kv_misfit = ""
        """Why zero rounds run the draft's extend instead of the KV-only write, or empty."""
        self.prompt_problem = ""
        """Why prompts in a zero phase are read by the whole draft again, or empty. It costs a little and breaks nothing."""
        self.dialect = dialect
        self.outcomes: Counter[str] = Counter()
        self.on_outcome: Callable[[str], None] = lambda outcome: None
        self._worker = worker
        self._graphs: graphs.Graphs | None = None
        self._draft_kv: DraftKvQueue | None = None
        self._prepared = False
        self._asked = False
        self._behind = False

    # ---- at start ------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Looks at the engine and captures what a GPU needs, once SGLang has captured its own. Never raises: a failure is
        the problem that is told."""
        self._prepared = True
        try:
            self.problem = fit.find_obstacle(self._worker) or ""
            if self.problem:
                return
            self.kv_misfit = fit.find_kv_misfit(self._worker) or ""
            setattr(self._worker._draft_worker, _ATTRIBUTE, self)
            if not str(self._worker._target_worker.model_runner.device).startswith("cpu"):
                self._graphs = graphs.build_graphs(self._worker, self.dialect, draft_kv=not self.kv_misfit)
            if not self.kv_misfit:
                eager = EagerWriter(self._worker._draft_worker, self.dialect)
                captured = self._graphs.draft_kv if self._graphs is not None else None
                self._draft_kv = DraftKvQueue(captured or eager, eager, waits=not is_copied())
        except Exception as error:
            logger.exception("zero steps are SGLang's own: they could not be prepared")
            self.problem = f"could not be prepared: {type(error).__name__}: {error}"
            return
        logger.info("zero steps are plain decode: %s", self.report())

    # ---- what is asked for -----------------------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Why zero rounds are not plain decode here, or empty."""
        return self.problem if self._prepared else "not prepared"

    @property
    def usable(self) -> bool:
        return not self.reason

    @property
    def asked(self) -> bool:
        """Zero steps are asked for, and are plain decode."""
        return self._asked and self.usable

    def ask(self, *, wanted: bool) -> None:
        self._asked = wanted

    # ---- each round ------------------------------------------------------------------------------------------------------

    def run_round(self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None) -> Any | None:
        """The result of a decode round that is plain; None where it is SGLang's to run. Never raises."""
        try:
            if not (self.asked or self._behind) or _is_other(batch) or not self.usable:
                return None
            cause = fit.find_fall_through(batch)
            if cause is not None:
                self._count(cause)
                if self.asked:
                    self._lower_steps()
                return None
            bridge = not self.asked
            draft = Draft.EXTEND if bridge or self.kv_misfit else Draft.KV_ONLY
            result = PlainDecode(self._worker, self.dialect, self._graphs, self._draft_kv).run(
                batch, on_publish, grammar_barrier, draft
            )
        except Exception as error:  # noqa: BLE001 — the round was put back as it was, and SGLang runs it
            self._note_error(error)
            return None
        self._behind = draft is Draft.KV_ONLY
        if bridge:
            setattr(result, _BRIDGE, True)
        self._count(Outcome.BRIDGE if bridge else Outcome.EXTEND if self.kv_misfit else Outcome.KV_ONLY)
        return result

    def run_prompt(self, draft_worker: Any, batch: Any, hidden: Any, next_tokens: Any, image_embeddings: Any) -> Any | None:
        """The draft's part of a prefill in a zero phase, as SGLang's `_draft_extend_for_prefill` returns it; None where it is
        SGLang's to run. Never raises."""
        try:
            if not self.asked or self.kv_misfit or self.prompt_problem or not prompt.fits(batch, image_embeddings):
                return None
            draft_input = prompt.write_prompt_kv(draft_worker, batch, hidden, next_tokens)
        except Exception as error:
            # Nothing was changed but rows that SGLang writes now.
            self.prompt_problem = f"{type(error).__name__}: {error}"
            logger.exception("a prompt's K and V could not be written alone; the draft reads prompts in full from now on")
            self._count(Outcome.PROMPT_ERROR)
            return None
        self._behind = True
        self._count(Outcome.PROMPT)
        return draft_input

    def prepare_stock_round(self) -> None:
        """Before SGLang runs a round, or reads a prompt. Never raises."""
        try:
            if self._draft_kv is not None:
                self._draft_kv.join()
        except Exception as error:  # noqa: BLE001 — some drafts will be wrong; SGLang's round is right in any case
            self._note_error(error)

    def note_stock_round(self, batch: Any, result: Any) -> None:
        """After a round that SGLang ran: a decode round has made every running request's proposal fresh."""
        if self._behind and not _is_other(batch):
            self._behind = False
            setattr(result, _COLD, True)

    def _lower_steps(self) -> None:
        controller = self._worker.adaptive_controller
        if controller is not None:
            fewest = min(controller._states)
            if fewest != self._worker.speculative_num_steps:
                controller._activate(fewest)

    # ---- counting --------------------------------------------------------------------------------------------------------

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.on_outcome(outcome)

    def _note_error(self, error: Exception) -> None:
        self._count(Outcome.ERROR)
        if self.outcomes[Outcome.ERROR] == 1:
            logger.error("a zero round failed; SGLang ran it instead", exc_info=error)
        if self.outcomes[Outcome.ERROR] == MAX_ERRORS:
            self.problem = f"{MAX_ERRORS} rounds failed, the last with {type(error).__name__}: {error}"
            logger.error("zero steps are SGLang's own from now on: %s", self.problem)
            if self._asked:
                self._lower_steps()

    def report(self) -> dict[str, Any]:
        """The part `zero` of a rank's report. JSON values alone."""
        return {
            "plainDecode": self.usable,
            "reason": self.reason,
            "draftExtendedBecause": self.kv_misfit,
            "promptsReadBecause": self.prompt_problem,
            "rounds": {str(outcome): count for outcome, count in sorted(self.outcomes.items())},
            "graphs": None if self._graphs is None else self._graphs.report(),
        }


def is_cold(result: Any) -> bool:
    """Whether the drafts of this result started from a stale proposal."""
    return bool(getattr(result, _COLD, False))


def is_bridge(result: Any) -> bool:
    """Whether this round led back to drafting: its time is neither a zero round's nor that of one with drafts."""
    return bool(getattr(result, _BRIDGE, False))


def zero_step_of(worker: Any, version: str) -> ZeroStep:
    """The worker's zero step, made at the first call. It can be used once it is prepared. An engine without speculation has
    no worker (None), and a zero step that is never prepared."""
    step: ZeroStep | None = getattr(worker, _ATTRIBUTE, None)
    if step is None:
        step = ZeroStep(worker, Dialect(version))
        if worker is not None:
            setattr(worker, _ATTRIBUTE, step)
    return step


def _is_other(batch: Any) -> bool:
    """Not a decode round of requests."""
    return bool(batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle())
