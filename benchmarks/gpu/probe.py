"""A measuring plugin for SGLang, beside the product's and apart from it: it watches every arm of a benchmark in the same way.

In each scheduler process it can, as a control file says (`Controls`, changeable while the engine runs):

- write every round's launch and result to a file (rounds.py): always;
- simulate acceptance, where SGLANG_SIMULATE_ACC_LEN is set: how many drafts of a request are right is drawn for each request
  and position from a survival profile, as a model of a draft model. SGLang's own simulation draws one number for a whole batch;
- replace the table of SGLang's adaptive controller, so that two of its configurations can be measured in one server;
- note what was drafted and accepted, request by request, and overwrite the draft's KV pool with noise first: what a draft
  proposes after a zero phase can then be compared with a run that always speculated, and old bytes can't help;
- fill random weights from +-0.04 instead of +-0.001, which leaves the next token almost independent of the context;
- take the product's own LoRA buffers out (zero/lora.py), which outputs must then show.

Standard library until a hook runs: every process of the engine loads this module.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import multiprocessing
import os
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.rounds import Kind, RoundWriter

logger = logging.getLogger(__name__)

ENV_DIRECTORY = "SPECSERVER_PROBE"
ENV_WEIGHTS = "SPECSERVER_PROBE_WEIGHTS"
ENV_LORA = "SPECSERVER_PROBE_LORA"
"""Which of LoraBuffers' two parts does nothing: `capturing` or `in_place`."""
SIMULATED_TOKEN = 100
NOTED_ROUNDS = 8
_SEQUENCE = struct.Struct("<Q")


@dataclass(frozen=True)
class Controls:
    """What the probe does, beside writing rounds.

    survival        probability that draft position j and all before it are right; empty: acceptance is real
    adaptive_table  path of a configuration of SGLang's adaptive controller to put in force; empty: its own
    note_drafts     write proposals and acceptance of each request
    scribbles       the draft's KV pool is overwritten each time this number changes
    """

    survival: tuple[float, ...] = ()
    adaptive_table: str = ""
    note_drafts: bool = False
    scribbles: int = 0


class ControlFile:
    """The benchmark's end: writes controls, then raises the number that the engine looks at each round."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.controls = Controls()
        (directory / "sequence").write_bytes(_SEQUENCE.pack(0))
        with (directory / "sequence").open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SEQUENCE.size)
        self._sequence = 0
        self.set()

    def set(self, **changes: Any) -> None:
        self.controls = replace(self.controls, **changes)
        path = self._directory / "controls.json"
        path.with_suffix(".new").write_text(json.dumps(asdict(self.controls)))
        path.with_suffix(".new").replace(path)
        self._sequence += 1
        _SEQUENCE.pack_into(self._map, 0, self._sequence)


class ControlReader:
    """The engine's end. `read` costs a microsecond while nothing changed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "controls.json"
        with (directory / "sequence").open("rb") as file:
            self._map = mmap.mmap(file.fileno(), _SEQUENCE.size, access=mmap.ACCESS_READ)
        self._sequence = -1
        self._controls = Controls()

    def read(self) -> Controls:
        (sequence,) = _SEQUENCE.unpack_from(self._map)
        if sequence != self._sequence:
            self._sequence = sequence
            document = json.loads(self._path.read_text())
            self._controls = Controls(**{**document, "survival": tuple(document["survival"])})
        return self._controls


def load() -> None:
    """SGLang calls this in each of its processes (entry point group `sglang.srt.plugins`)."""
    directory = os.environ.get(ENV_DIRECTORY)
    process = getattr(multiprocessing.current_process(), "_target", None)
    if not directory or getattr(process, "__name__", "") != "run_scheduler_process":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    probe = Probe(Path(directory))
    worker = "sglang.srt.speculative.eagle_worker_v2"
    hooks: dict[str, Callable[..., Any]] = {
        "sglang.srt.managers.scheduler.Scheduler.run_batch": probe.run_batch,
        "sglang.srt.managers.scheduler.Scheduler.process_batch_result": probe.process_batch_result,
        "sglang.srt.speculative.spec_utils.generate_simulated_accept_index": probe.simulate_acceptance,
        "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.activate_step_by_batch": probe.replace_table,
        f"{worker}.EagleDraftWorker.draft": probe.draft,
    }
    if os.environ.get(ENV_WEIGHTS):
        hooks["sglang.srt.model_loader.weight_utils.initialize_dummy_weights"] = fill_weights
        hooks["sglang.srt.lora.lora.LoRAAdapter.initialize_weights"] = read_adapter
    if os.environ.get(ENV_LORA):
        take_out_lora_buffers(os.environ[ENV_LORA])
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    logger.info("the probe watches; controls in %s", directory)


class Probe:
    """Lives in one scheduler process. An exception here ends the engine: a benchmark must not go on with a blind probe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._controls = ControlReader(directory)
        self._rounds: RoundWriter | None = None
        self._notes: TextIO | None = None
        self._noted: dict[str, int] = {}
        self._table = ""
        self._scribbles = 0
        self._survival: tuple[tuple[float, ...], int, Any, Any] | None = None

    # ---- rounds ----------------------------------------------------------------------------------------------------------

    def run_batch(self, original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        controls = self._controls.read()
        if controls.scribbles != self._scribbles:
            self._scribbles = controls.scribbles
            scribble_draft_pool(scheduler)
        kind = Kind.DECODE_LAUNCH if batch.forward_mode.is_decode() else Kind.PREFILL_LAUNCH
        size = batch.batch_size()
        began = time.monotonic()
        result = original(scheduler, batch, *args, **kwargs)
        self._writer().add(began, time.monotonic() - began, 0, size, kind, _steps_of(result))
        return result

    def process_batch_result(self, original: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:
        before = sum(len(request.output_ids) for request in batch.reqs)
        kind = Kind.DECODE_RESULT if batch.forward_mode.is_decode() else Kind.PREFILL_RESULT
        taking_notes = self._controls.read().note_drafts
        noting = taking_notes and kind is Kind.DECODE_RESULT
        lengths = [len(request.output_ids) for request in batch.reqs] if noting else []
        began = time.monotonic()
        answer = original(scheduler, batch, result)
        done = time.monotonic()
        tokens = sum(len(request.output_ids) for request in batch.reqs) - before
        steps = _steps_of(result)
        self._writer().add(done, done - began, max(0, tokens), len(batch.reqs), kind, steps)
        if noting and steps > 0:
            for request, length in zip(batch.reqs, lengths, strict=True):
                self._note_gain(request, len(request.output_ids) - length, steps, done)
        elif not taking_notes:
            self._noted.clear()
        return answer

    def _note_gain(self, request: Any, gained: int, steps: int, time: float) -> None:
        """Of each request, its first rounds with drafts since notes are taken."""
        noted = self._noted.get(request.rid, 0)
        if noted < NOTED_ROUNDS:
            self._noted[request.rid] = noted + 1
            self._note({"request": request.rid, "steps": steps, "gained": gained, "time": time})

    def _writer(self) -> RoundWriter:
        if self._rounds is None:
            self._rounds = RoundWriter(self._directory / "rounds.bin")
        return self._rounds

    # ---- acceptance ------------------------------------------------------------------------------------------------------

    def simulate_acceptance(self, original: Callable[..., Any], **kwargs: Any) -> Any:
        survival = self._controls.read().survival
        if not survival:
            return kwargs["accept_index"]  # as verified: SGLang asks for a simulation in every round, or in none since its start
        import torch

        index, steps = kwargs["accept_index"], int(kwargs["spec_steps"])
        if self._survival is None or self._survival[:2] != (survival, steps):
            levels = torch.tensor(_levels(survival, steps), dtype=torch.float32, device=index.device)
            columns = torch.arange(steps + 1, dtype=torch.int32, device=index.device)
            self._survival = (survival, steps, levels, columns)
        _, _, levels, columns = self._survival
        # One draw a request: position j is right where it falls below s_j, so all before it are right too.
        drawn = torch.rand((int(kwargs["bs"]), 1), device=index.device)
        correct = (drawn < levels).sum(dim=1, dtype=torch.int32)
        chain = index[:, :1] + columns
        kwargs["num_correct_drafts"].copy_(correct)
        kwargs["predict"].fill_(SIMULATED_TOKEN)
        return torch.where(columns <= correct.unsqueeze(1), chain, -1).to(torch.int32)

    # ---- SGLang's adaptive controller --------------------------------------------------------------------------------------

    def replace_table(self, original: Callable[..., Any], controller: Any, batch_size: int) -> Any:
        table = self._controls.read().adaptive_table
        if table != self._table:
            from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams

            self._table = table
            sizes = controller.params._cuda_graph_bs
            # The largest step count is what such a server has to be started with.
            controller.params = AdaptiveSpeculativeParams(max(controller._states), table)
            controller.params.set_cuda_graph_bs(sizes)
        return original(controller, batch_size)

    # ---- drafts ----------------------------------------------------------------------------------------------------------

    def draft(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        verify = original(worker, batch, *args, **kwargs)
        # Reading the drafts waits for the device: only where they are wanted, and with one request only.
        if self._controls.read().note_drafts and batch.batch_size() == 1:
            drafted = verify.draft_token.tolist()
            self._note({"request": batch.reqs[0].rid, "length": int(batch.seq_lens[0]), "drafted": drafted})
        return verify

    def _note(self, note: dict[str, Any]) -> None:
        if self._notes is None:
            self._notes = (self._directory / "notes.jsonl").open("a", buffering=1)
        self._notes.write(json.dumps(note) + "\n")


def _steps_of(result: Any) -> int:
    width = getattr(result, "speculative_num_draft_tokens", None)
    return int(width) - 1 if width else 0


def _levels(survival: tuple[float, ...], steps: int) -> list[float]:
    """The first levels of the profile; beyond its end drafts are right half as often as the position before."""
    levels = list(survival[:steps])
    while len(levels) < steps:
        levels.append(levels[-1] / 2)
    return levels


def read_adapter(original: Callable[..., Any], adapter: Any) -> Any:
    """From its files, also where the model's weights are random."""
    from sglang.srt.configs.load_config import LoadFormat

    adapter.load_config = replace(adapter.load_config, load_format=LoadFormat.AUTO)
    return original(adapter)


def take_out_lora_buffers(part: str) -> None:
    from specserver.plugin.zero.lora import LoraBuffers

    setattr(LoraBuffers, part, lambda buffers: contextlib.nullcontext())


def scribble_draft_pool(scheduler: Any) -> None:
    """Noise over the whole KV pool of the draft model: after it, only what a run writes itself can be right."""
    import torch

    worker = getattr(scheduler, "draft_worker", None)
    if worker is None:
        return
    pool = worker._draft_worker.draft_runner.token_to_kv_pool
    for buffers in (pool.k_buffer, pool.v_buffer):
        for buffer in buffers:
            buffer.normal_(0, 3)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def fill_weights(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> None:
    """Norms of 1 and all else from +-0.04 with a seed a tensor: outputs and drafts then depend on the KV."""
    import torch

    for number, (name, parameter) in enumerate(model.state_dict().items()):
        if not torch.is_floating_point(parameter):
            continue
        if parameter.dim() == 1 and "norm" in name:
            parameter.fill_(1.0)
            continue
        generator = torch.Generator(device=parameter.device)
        generator.manual_seed(1234 + number)
        parameter.uniform_(-0.04, 0.04, generator=generator)
