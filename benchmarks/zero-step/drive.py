"""The zero-step benchmark on one GPU: is plain decode inside a speculating server as fast as a server without speculation?

    bash benchmarks/zero-step/run.sh OUT DEADLINE                  speed on each backend, proposals
    bash benchmarks/zero-step/run.sh OUT DEADLINE --part trained   accepted drafts, graph memory
    bash benchmarks/zero-step/run.sh OUT DEADLINE --part accepted  accepted drafts alone
    bash benchmarks/zero-step/run.sh OUT DEADLINE --part lora      outputs and speed with LoRA; SGLang 0.5.20 or later
    bash benchmarks/zero-step/run.sh OUT DEADLINE --only fa3,triton  speed of these, without SGLang's own zero step
    bash benchmarks/zero-step/run.sh OUT DEADLINE --part lora --only csgmv,triton_v2  these LoRA backends

For FlashAttention-3, Triton and FlashInfer: a plain server and ours side by side. At each concurrency all requests start and
end together (one decode cycle), so that every interval between two launches counts, and each arm runs forward, then in reverse
order, twice: the plain server, and ours forced to zero steps with the draft kept ready ("ready"), which is the only way it has.
SGLang's own zero step is measured beside them at a few concurrencies.

Then: what the draft model proposes after zero phases, against a run that always speculated. Its KV pool is overwritten with
noise before each run, so that only what the zero rounds themselves wrote can make a proposal right. Weights are random and so
say nothing about acceptance; the other part runs a small trained pair (images/sglang-cpu/trained) on each backend and counts
accepted drafts. One server of the large model starts alone in it: free memory tells what its graphs take only without neighbours.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.draft_model.language import continued, first_lines
from benchmarks.gpu import digest, probe
from benchmarks.gpu.load import Client, Shape
from benchmarks.gpu.product import Product
from benchmarks.gpu.rounds import Kind
from benchmarks.gpu.servers import ADMIN_KEY, REPOSITORY, Machine, Running, Server, visible_gpus
from benchmarks.gpu.session import Session, choose_machine, line_of, parse_arguments

LADDER = (0, 3)
FLASHINFER = {"SGLANG_FLASHINFER_WORKSPACE_SIZE": str(2**30)}
RANK_FIELDS = ("rank", "armed", "reason", "steps", "rounds", "decisionHash", "switches", "hookErrors")
PINNED_AT_ZERO = {"1": (0,), "100000": (3,)}
"""A table of SGLang's adaptive controller that never leaves 0; 3 has to be in it, because the server starts with 3."""

ARMS: dict[str, int | None] = {"0 steps": 0, "3 steps": 3, "toggling": None}

REQUEST = Shape(prompt=128, output=256)
TRAINED = REPOSITORY / "images" / "sglang-cpu" / "trained"
MAKE_ADAPTERS = REPOSITORY / "images" / "sglang-cpu" / "adapters.py"
ADAPTERS = {"narrow": 8, "wide": 16}
"""Rank by name."""
WORN: tuple[str | None, ...] = (*ADAPTERS, None)
"""Requests wear these by turns."""


@dataclass(frozen=True)
class Plan:
    shape: Shape = REQUEST
    concurrencies: tuple[int, ...] = (1, 10, 32, 70, 128, 250)
    stock_concurrencies: tuple[int, ...] = (1, 32, 128)
    backends: tuple[str, ...] = ("fa3", "flashinfer", "triton")
    stock: bool = True
    passes: int = 2
    prompts: int = 6
    draft_prompt: int = 100
    draft_output: int = 96
    second_output: int = 32
    toggle_seconds: float = 0.03
    zero_phase_seconds: float = 30.0
    compared_prompts: int = 12
    variants: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("without-graphs", ("--disable-cuda-graph",)),
        ("without-overlap", ("--disable-overlap-schedule",)),
        ("pages-of-16", ("--page-size", "16")),
    )
    lora_backends: tuple[str, ...] = ("csgmv", "triton")
    lora_concurrencies: tuple[int, ...] = (1, 32, 128)
    lora_start_seconds: float = 330.0  # kernels of another release are compiled
    further_phases: tuple[float, ...] = (2.0, 2.0, 2.0, 2.0)
    rounds_after: int = 4
    trained_concurrency: int = 128
    trained_output: int = 200
    trained_second: int = 512
    trained_kv_tokens: int = 262_144
    start_seconds: float = 170.0
    kv_tokens: int = 100_000
    stock_kv_tokens: int = 52_000


REHEARSAL = Plan(
    shape=Shape(8, 24), concurrencies=(1, 4), stock_concurrencies=(1, 4), backends=("cpu",),
    prompts=3, draft_prompt=20, lora_backends=("torch_native",), lora_concurrencies=(1, 4),
    draft_output=40, second_output=16, start_seconds=420.0, toggle_seconds=0.1, zero_phase_seconds=6.0, further_phases=(3.0,),
    trained_concurrency=3, trained_output=60, trained_second=6, trained_kv_tokens=16384, stock_kv_tokens=16384,
)  # fmt: skip


def backend_of(name: str, machine: Machine) -> dict[str, Any]:
    if machine.name == "cpu":
        return {}
    return {"arguments": ("--attention-backend", name), "variables": FLASHINFER if name == "flashinfer" else {}}


class Benchmark:
    def __init__(self, session: Session, plan: Plan) -> None:
        self.session, self.plan = session, plan
        session.raw.update(
            plan={"prompt": plan.shape.prompt, "output": plan.shape.output, "concurrencies": plan.concurrencies},
            proposals=[], acceptance=[], reports={}, variants={}, lora={},
        )  # fmt: skip
        self._with_adapters: set[str] = set()

    async def run(self) -> None:
        # 1. Two backends at once: as many servers as the GPU's memory holds.
        first, second = self.plan.backends[:2], self.plan.backends[2:]
        await self.measure_backends(first, [])
        # 2. The others, with SGLang's own zero step beside them.
        stock = [self.stock_server(name) for name in self.plan.backends if name != "triton"] if self.plan.stock else []
        if second or stock:
            await self.measure_backends(second, stock)

    def plain_server(self, backend: str) -> Server:
        return Server(f"plain-{backend}", **backend_of(backend, self.session.machine))

    def our_server(self, backend: str) -> Server:
        return Server(f"ours-{backend}", 3, product=True, **backend_of(backend, self.session.machine))

    def stock_server(self, backend: str) -> Server:
        options = backend_of(backend, self.session.machine)
        options["arguments"] = (*options.get("arguments", ()), "--max-total-tokens", str(self.plan.stock_kv_tokens))
        return Server(f"stock-{backend}", 3, PINNED_AT_ZERO, **options)

    def trained_server(self, backend: str) -> Server:
        options = backend_of(backend, self.session.machine)
        options["arguments"] = (
            *options.get("arguments", ()), "--load-format", "auto", "--context-length", str(context_of(TRAINED / "target")),
            "--max-total-tokens", str(self.plan.trained_kv_tokens),
        )  # fmt: skip
        return Server(f"trained-{backend}", 3, product=True, target=TRAINED / "target", draft=TRAINED / "eagle3", **options)

    async def run_accepted(self) -> None:
        """The small servers alone."""
        session, plan = self.session, self.plan
        trained = [self.trained_server(name) for name in plan.backends]
        pair = [self.two_gpu_server(plan.backends[0])] if visible_gpus() > 1 else []
        session.fleet.start([*trained, *pair], min(session.end - 60, time.monotonic() + plan.start_seconds))
        for server in pair:
            await session.stage("two GPUs", 25, partial(self.compare_two_gpus, server.name, trained[0].name))
            session.fleet.stop([server.name])
        await session.stage("acceptance", plan.zero_phase_seconds + 25, self.compare_all_acceptance)
        for server in trained:
            self.note_report(server.name, "atEnd")

    async def run_trained(self) -> None:
        session, plan = self.session, self.plan
        # 1. One large server has the machine to itself while it starts: what its graphs take is told then.
        alone = self.our_server(plan.backends[0])
        session.fleet.launch([alone])
        session.fleet.wait_for([alone.name], min(session.end - 60, time.monotonic() + plan.start_seconds))
        trained = [self.trained_server(name) for name in plan.backends]
        pair = [self.two_gpu_server(plan.backends[0])] if visible_gpus() > 1 else []
        variants = [self.variant(name, arguments) for name, arguments in plan.variants]
        session.fleet.launch([*trained, *pair, *variants])
        names = [server.name for server in (*trained, *pair, *variants)]
        session.fleet.wait_for(names, min(session.end - 60, time.monotonic() + plan.start_seconds))
        self.note_report(alone.name, "atStart")
        # 2. Over two GPUs, where there are two: ranks in step, outputs as on one. And without what makes it fast, and in pages.
        for server in pair:
            await session.stage("two GPUs", 25, partial(self.compare_two_gpus, server.name, trained[0].name))
            session.fleet.stop([server.name])
        for server in variants:
            await session.stage(server.name, 25, partial(self.compare_variant, server.name, trained[0].name))
            session.fleet.stop([server.name])
        await session.stage("sweep", 25, partial(self.sweep, alone.name))
        # 3. Acceptance is no matter of time, so the small servers can run side by side.
        await session.stage("acceptance", plan.zero_phase_seconds + 45, self.compare_all_acceptance)
        for server in (alone, *trained):
            self.note_report(server.name, "atEnd")

    # ---- LoRA --------------------------------------------------------------------------------------------------------------

    async def run_lora(self) -> None:
        """Requests with and without adapters beside one another: the outputs of the trained pair, on each LoRA backend, and the
        speed of the large model. Two servers lack one half of what keeps the buffers apart: their outputs must be wrong."""
        session, plan = self.session, self.plan
        trained, large = self.trained_server(plan.backends[0]), self.our_server(plan.backends[0])
        small = [
            self.lora_server(f"{kind}-{backend}", backend, trained)
            for backend in plan.lora_backends
            for kind in ("plain", "stock", "ours")
        ]
        first = plan.lora_backends[0]
        without = [
            replace(
                self.lora_server(f"without-{part}-{first}", first, trained), variables={**trained.variables, probe.ENV_LORA: part}
            )
            for part in ("capturing", "in_place")
        ]
        pair = [self.lora_server(name, first, large) for name in ("plain-lora", "ours-lora")]
        session.fleet.start([*small, *without, *pair], min(session.end - 90, time.monotonic() + plan.lora_start_seconds))
        for backend in plan.lora_backends:
            await session.stage(f"outputs {backend}", 60, partial(self.compare_lora, backend))
        session.fleet.stop([server.name for server in (*small, *without)])
        await session.stage("warm-up", 15, self.warm_up)
        for concurrency in plan.lora_concurrencies:
            await session.stage(f"lora C={concurrency}", 30, partial(self.compare, "lora", concurrency))
        self.note_report("ours-lora", "atEnd")

    async def compare_lora(self, backend: str) -> None:
        """Every arm against a plain server and against SGLang's own speculation, whose rounds with drafts are ours too.

        Random adapters leave many tokens nearly undecided, so verify kernels may part from decode kernels by their rounding;
        a wrong adapter parts in the first tokens.
        """
        plain, stock = await self.outputs_of(f"plain-{backend}", "0 steps"), await self.outputs_of(f"stock-{backend}", "3 steps")
        found = self.session.raw["lora"][backend] = {"stock": {"equalPlain": equal(stock, plain), "alike": alike(stock, plain)}}
        for name in sorted(self.session.fleet.running):
            if name.endswith(f"-{backend}") and not name.startswith(("plain", "stock")):
                arms = found[name] = {}
                for arm in ARMS:
                    outputs = await self.outputs_of(name, arm)
                    arms[arm] = {
                        "equalPlain": equal(outputs, plain), "alike": alike(outputs, plain), "equalStock": equal(outputs, stock),
                        "rounds": Product(self.running(name), LADDER).state()["zero"]["rounds"],
                    }  # fmt: skip
                    self.session.say(f"{name}, {arm}: {json.dumps(arms[arm])}")
                self.note_report(name, "atEnd")

    def lora_server(self, name: str, lora_backend: str, like: Server) -> Server:
        """`like` with adapters; without speculation, or without our plugin, if its name says so."""
        target = like.target or self.session.machine.target
        directory = self.session.scratch / "adapters" / target.parent.name
        if not directory.exists():
            ranks = [f"{adapter}={rank}" for adapter, rank in ADAPTERS.items()]
            subprocess.run([self.session.machine.python, MAKE_ADAPTERS, target, directory, *ranks], check=True)
        paths = [f"{adapter}={directory / adapter}" for adapter in ADAPTERS]
        arguments = (*like.arguments, "--lora-backend", lora_backend, "--lora-paths", *paths)
        self._with_adapters.add(name)
        steps = 0 if name.startswith("plain") else like.steps
        return replace(like, name=name, arguments=arguments, steps=steps, product=not name.startswith(("plain", "stock")))

    def worn(self, running: Running, requests: int) -> dict[str, Any]:
        """What so many requests in one call say of their adapters."""
        if running.name not in self._with_adapters:
            return {}
        return {"lora_path": list(itertools.islice(itertools.cycle(WORN), requests))}

    # ---- servers started otherwise -----------------------------------------------------------------------------------------

    def two_gpu_server(self, backend: str) -> Server:
        one = self.trained_server(backend)
        arguments = (*one.arguments, "--tp-size", "2", "--disable-custom-all-reduce")
        # The other GPU has neighbours, which SGLang would take for a fault.
        variables = {**one.variables, "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
        return replace(one, name="two-gpus", arguments=arguments, variables=variables)

    def variant(self, name: str, arguments: tuple[str, ...]) -> Server:
        one = self.trained_server(self.plan.backends[0])
        return replace(one, name=name, arguments=(*one.arguments, *arguments))

    async def compare_two_gpus(self, name: str, single: str) -> None:
        """Outputs of a tensor-parallel server in every mode against one GPU's, and whether its ranks ran the same rounds."""
        self.session.raw["twoGpus"] = await self.compare_outputs(name, single)

    async def compare_variant(self, name: str, usual: str) -> None:
        """The same for a server that was started otherwise."""
        self.session.raw["variants"][name] = await self.compare_outputs(name, usual)

    async def compare_outputs(self, name: str, usual: str) -> dict[str, Any]:
        """Outputs of the server `name` at 0 steps, at 3 and while toggling, against those of `usual` at 0 steps."""
        reference = await self.outputs_of(usual, "0 steps")
        result: dict[str, Any] = {}
        for arm in ARMS:
            outputs = await self.outputs_of(name, arm)
            ranks = Product(self.running(name), LADDER).ranks()
            result[arm] = {
                "zero": ranks[0]["zero"],
                "equal": equal(outputs, reference),
                "ranks": [{key: rank.get(key) for key in RANK_FIELDS} for rank in ranks],
                "inStep": len({json.dumps([rank["rounds"], rank["decisionHash"]]) for rank in ranks}) == 1,
            }
            self.session.say(f"{name}, {arm}: {json.dumps(result[arm])}")
        return result

    async def outputs_of(self, name: str, arm: str) -> list[list[int]]:
        """Of the same prompts in any server. One without our plugin has but one arm."""
        texts, running = Texts(seed=9), self.running(name)
        prompts = [texts.next() for _ in range(self.plan.compared_prompts)]
        product = Product(running, LADDER)
        if running.server.product:
            product.fixed(ARMS[arm] or 0)
        async with self.session.client(running) as client:
            toggling = None
            if ARMS[arm] is None:
                toggling = asyncio.create_task(self.toggle(running, product, spoiling=False))
            answers = await client.generate(prompts, self.plan.trained_output, **self.worn(running, len(prompts)))
            if toggling:
                toggling.cancel()
                await asyncio.gather(toggling, return_exceptions=True)
        return [answer["output_ids"] for answer in answers]

    async def sweep(self, name: str) -> None:
        """What an engine can measure of itself at its start: how long that takes, and how many step costs it gets."""
        running = self.running(name)
        Product(running, LADDER).fixed(0)
        path, began = running.directory / "profile.json", time.monotonic()
        command = (self.session.machine.python, "-m", "specserver.plugin.sweep", "--url", running.url, "--out", str(path))
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "SPECSERVER_ADMIN_KEY": ADMIN_KEY})
        code = await process.wait()
        profile = json.loads(path.read_text()) if path.exists() else None
        self.session.raw["sweep"] = {"exitCode": code, "seconds": round(time.monotonic() - began, 2), "profile": profile}
        self.session.say(f"sweep: {json.dumps(self.session.raw['sweep'])}")

    async def compare_all_acceptance(self) -> None:
        names = [name for name in self.session.fleet.running if name.startswith("trained")]
        for error in await asyncio.gather(*(self.compare_acceptance(name) for name in names), return_exceptions=True):
            if error is not None:
                self.session.problem("acceptance", error)

    async def measure_backends(self, backends: Sequence[str], stock: Sequence[Server]) -> None:
        session, plan = self.session, self.plan
        session.fleet.stop_all()
        servers = [server for name in backends for server in (self.plain_server(name), self.our_server(name))]
        if session.left() < 90 and session.machine.name != "cpu":
            session.leave_out(f"servers {', '.join(server.name for server in (*servers, *stock))}")
            return
        session.fleet.start([*servers, *stock], min(session.end - 20, time.monotonic() + plan.start_seconds))
        session.save()
        await session.stage("warm-up", 15, self.warm_up)
        for backend in backends:
            self.note_report(f"ours-{backend}", "atStart")
        for concurrency in plan.concurrencies:
            for backend in backends:
                await session.stage(f"{backend} C={concurrency}", 30, partial(self.compare, backend, concurrency))
        for server in stock:
            for concurrency in plan.stock_concurrencies:
                await session.stage(f"{server.name} C={concurrency}", 8, partial(self.stock_zero, server, concurrency))
        for backend in backends:
            await session.stage(f"proposals {backend}", 15, partial(self.compare_proposals, f"ours-{backend}"))
            self.note_report(f"ours-{backend}", "atEnd")

    def running(self, name: str) -> Running:
        try:
            return self.session.fleet.running[name]
        except KeyError:
            raise RuntimeError(f"{name} is not up") from None

    def note_report(self, name: str, when: str) -> None:
        """What the plugin says of itself: graph memory, start-up seconds, rounds that it did not cover."""
        try:
            self.session.raw["reports"].setdefault(name, {})[when] = Product(self.running(name), LADDER).state()
        except Exception as error:  # noqa: BLE001 — the measurements do not need it
            self.session.problem(f"report of {name}", error)

    async def warm_up(self) -> None:
        for running in list(self.session.fleet.running.values()):
            if running.server.product:
                Product(running, LADDER).fixed(0)
            if not running.name.startswith("trained"):
                biggest = self.plan.stock_concurrencies[-1] if running.name.startswith("stock") else self.plan.concurrencies[-1]
                sizes = [c for c in self.plan.concurrencies if c <= biggest]
                async with self.session.client(running, seed=99) as client:
                    for size in sizes:  # in one call, as the cycles
                        prompts = [client.prompt(self.plan.shape.prompt) for _ in range(size)]
                        await client.generate(prompts, 4, **self.worn(running, size))

    # ---- speed -----------------------------------------------------------------------------------------------------------------

    async def compare(self, backend: str, concurrency: int) -> None:
        product = Product(self.running(f"ours-{backend}"), LADDER)
        arms: list[tuple[str, str, Callable[[], None] | None]] = [
            ("plain", f"plain-{backend}", None),
            ("ready", f"ours-{backend}", lambda: product.fixed(0)),
        ]
        for order, chosen in (("forward", arms), ("reverse", arms[::-1])) * self.plan.passes:
            for arm, server, put in chosen:
                if put is not None:
                    put()
                await self.cycle(self.running(server), concurrency, arm=arm, backend=backend, order=order)

    async def stock_zero(self, server: Server, concurrency: int) -> None:
        backend = server.name.removeprefix("stock-")
        await self.cycle(self.running(server.name), concurrency, arm="stock", backend=backend, order="forward")

    async def cycle(self, running: Running, concurrency: int, **labels: Any) -> None:
        """All requests in one call, from the first prefill to the last token."""
        session, shape = self.session, self.plan.shape
        async with session.client(running, seed=concurrency + len(session.raw["cells"])) as client:
            prompts = [client.prompt(shape.prompt) for _ in range(concurrency)]
            began = time.monotonic()
            await client.generate(prompts, shape.output, **self.worn(running, concurrency))
        await asyncio.sleep(0.05)
        records = running.rounds()
        records = records[records["time"] >= began]
        if not len(records):
            raise RuntimeError(f"{running.name}: no rounds were recorded")
        decoded = records[records["kind"] == Kind.DECODE_RESULT]
        seconds = float(decoded["time"].max() - records["time"].min())
        cell = {
            "server": running.name, "concurrency": concurrency, **labels, "seconds": round(seconds, 4),
            "requests": round(float(decoded["batch"].mean()), 2),
            "tokensPerSecond": round(concurrency * shape.output / seconds, 2),
            "rounds": {str(int(k)): int((decoded["steps"] == k).sum()) for k in sorted(set(decoded["steps"].tolist()))},
            "intervalMs": digest.digest_intervals(records, concurrency),
        }  # fmt: skip
        session.raw["cells"].append(cell)
        session.say(line_of(cell))

    # ---- drafts ----------------------------------------------------------------------------------------------------------------

    async def compare_proposals(self, name: str) -> None:
        """Proposals at the same place of the same request: after zero phases, against always speculating.

        always   the reference, and once more: what the machine itself does not repeat
        ready    zero phases
        control  zero phases, and the draft's KV pool overwritten at the end of each: it must differ, or nothing was tested
        """
        reference: dict[str, Any] | None = None
        for arm in ("always", "always again", "ready", "control"):
            found = await self.propose(name, arm)
            if reference is None:
                reference = found
                continue
            result = {"server": name, "arm": arm, **compare_notes(reference, found)}
            self.session.raw["proposals"].append(result)
            self.session.say(f"proposals {json.dumps(result)}")
            self.session.save()

    async def propose(self, name: str, arm: str) -> dict[str, Any]:
        """Two turns of each conversation: the second continues the first one's cached text and always speculates."""
        plan, running = self.plan, self.running(name)
        product = Product(running, LADDER)
        rng = random.Random(11)
        low, high = self.session.machine.vocabulary
        prompts = [[rng.randrange(low, high) for _ in range(plan.draft_prompt)] for _ in range(plan.prompts)]
        tails = [[rng.randrange(low, high) for _ in range(6)] for _ in range(plan.prompts)]
        async with self.session.client(running) as client:
            # 1. Noise over the draft's KV pool, and nothing in the prefix cache.
            await self.start_cold(running, client, [low, low + 1, low + 2])
            running.controls.set(note_drafts=True)
            mark = f"{arm.replace(' ', '-')}-{time.monotonic_ns()}"
            # 2. First turns, with zero phases unless this arm always speculates.
            toggling = None
            if not arm.startswith("always"):
                toggling = asyncio.create_task(self.toggle(running, product, spoiling=arm == "control"))
            outputs = []
            for number, prompt in enumerate(prompts):
                answer = await client.generate(prompt, plan.draft_output, rid=f"{mark}-first-{number}")
                outputs.append(answer["output_ids"])
            if toggling:
                toggling.cancel()
                await asyncio.gather(toggling, return_exceptions=True)
            product.fixed(3)
            await asyncio.sleep(0.1)
            # 3. Second turns.
            starts = {("first", str(number)): len(prompt) for number, prompt in enumerate(prompts)}
            for number, (prompt, output, tail) in enumerate(zip(prompts, outputs, tails, strict=True)):
                conversation = [*prompt, *output, *tail]
                starts["second", str(number)] = len(conversation)
                await client.generate(conversation, plan.second_output, rid=f"{mark}-second-{number}")
            running.controls.set(note_drafts=False)
        return {"outputs": outputs, "starts": starts, "drafted": read_drafted(running, mark)}

    async def start_cold(self, running: Running, client: Client, prompt: Sequence[int]) -> None:
        Product(running, LADDER).fixed(3)
        scribble(running)
        await client.generate(list(prompt), 4)
        running.flush_cache()

    async def toggle(self, running: Running, product: Product, *, spoiling: bool) -> None:
        while True:
            await asyncio.to_thread(product.fixed, 0)
            await asyncio.sleep(self.plan.toggle_seconds)
            if spoiling:
                scribble(running)
            await asyncio.to_thread(product.fixed, 3)
            await asyncio.sleep(self.plan.toggle_seconds)

    async def compare_acceptance(self, name: str) -> None:
        """The trained pair: drafts accepted in each request's first four rounds after a long zero phase.

        always   the reference: three steps all the time
        ready    zero steps for the whole phase
        control  the same, and the draft's KV pool overwritten at its end: acceptance must fall, or nothing was tested
        The first turn's requests are under way at the end of the phase; the second turn's continue conversations that the phase
        left in the prefix cache.
        """
        running, plan = self.running(name), self.plan
        product = Product(running, LADDER)
        for arm in ("always", "ready", "control"):
            first = Accepted()
            async with self.session.client(running) as client:
                texts = Texts(seed=5)
                await self.start_cold(running, client, texts.next())
                phases = (plan.zero_phase_seconds, *plan.further_phases) if arm == "ready" else plan.further_phases
                for seconds in phases:
                    # 1. The phase.
                    running.controls.set(note_drafts=False)
                    product.fixed(3 if arm == "always" else 0)
                    loop = TextLoop(client, texts, plan.trained_concurrency, plan.trained_output)
                    loop.start()
                    await asyncio.sleep(seconds)
                    # 2. Its end, with requests under way.
                    running.controls.set(note_drafts=True)
                    if arm == "control":
                        scribble(running)
                    product.fixed(3)
                    switched = time.monotonic()
                    await loop.stop()
                    first.add(running, switched, loop.started_before(switched), plan.rounds_after)
                # 3. Conversations of the last phase go on.
                left = [[*prompt, *output] for prompt, output in loop.finished_before(switched)[-plan.trained_second :]]
                marks = [f"second-{arm}-{number}-{time.monotonic_ns()}" for number in range(len(left))]
                continuations = [continued(conversation, len(conversation) + 3) for conversation in left]
                await asyncio.gather(
                    *(client.generate(text, 24, rid=mark) for text, mark in zip(continuations, marks, strict=True))
                )
                second = Accepted()
                second.add(running, switched, marks, plan.rounds_after)
                running.controls.set(note_drafts=False)
            self.session.note_errors(running, client)
            result = {"server": name, "arm": arm, "first": first.report(), "second": second.report()}
            self.session.raw["acceptance"].append(result)
            self.session.say(f"acceptance {json.dumps(result)}")


def equal(outputs: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> str:
    return f"{sum(a == b for a, b in zip(outputs, reference, strict=True))}/{len(outputs)}"


def alike(outputs: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> float:
    """Share of tokens before an output's first difference, in the mean."""
    shares = [
        next((place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one)) / len(one)
        for one, other in zip(outputs, reference, strict=True)
    ]
    return round(statistics.fmean(shares), 3)


def context_of(model: Path) -> int:
    context: int = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    return context


def scribble(running: Running) -> None:
    """Noise over the draft's KV pool before the next batch."""
    running.controls.set(scribbles=running.controls.controls.scribbles + 1)


class Texts:
    """Prompts in the trained pair's language."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def next(self) -> list[int]:
        return first_lines(self._random, 2)


class TextLoop:
    """A closed loop over texts that remembers which request ran when and what it answered."""

    def __init__(self, client: Client, texts: Texts, concurrency: int, output: int) -> None:
        self._client, self._texts, self._concurrency, self._output = client, texts, concurrency, output
        self._stopping = False
        self._workers: list[asyncio.Task[None]] = []
        self._asked: list[tuple[str, float]] = []
        self._answers: list[tuple[float, list[int], list[int]]] = []

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._work(number)) for number in range(self._concurrency)]

    async def _work(self, worker: int) -> None:
        output = max(8, self._output * (worker + 1) // self._concurrency)
        while not self._stopping:
            prompt, request = self._texts.next(), f"text-{worker}-{time.monotonic_ns()}"
            self._asked.append((request, time.monotonic()))
            answer = await self._client.generate(prompt, output, rid=request)
            self._answers.append((time.monotonic(), prompt, answer["output_ids"]))
            output = self._output

    async def stop(self) -> None:
        """When the requests under way are done."""
        self._stopping = True
        await asyncio.gather(*self._workers)

    def started_before(self, moment: float) -> list[str]:
        return [request for request, at in self._asked if at < moment]

    def finished_before(self, moment: float) -> list[tuple[list[int], list[int]]]:
        return [(prompt, output) for at, prompt, output in self._answers if at < moment]


# ---- notes of the probe --------------------------------------------------------------------------------------------------------


def read_notes(running: Running) -> list[dict[str, Any]]:
    path = running.directory / "notes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read_drafted(running: Running, mark: str) -> dict[tuple[str, str, int], list[int]]:
    """Proposals by turn, request and length."""
    drafted: dict[tuple[str, str, int], list[int]] = {}
    for note in read_notes(running):
        if "drafted" in note and note["request"].startswith(mark):
            turn, number = note["request"].rsplit("-", 2)[-2:]
            drafted[turn, number, note["length"]] = note["drafted"]
    return drafted


def compare_notes(reference: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Of the rounds that both runs drafted at with the same last token: in how many were all proposals the same?

    `after` are those that follow a gap in this run, that is the first round after zero rounds; a request's own start is none.
    """
    same = sum(a == b for a, b in zip(reference["outputs"], found["outputs"], strict=True))
    result: dict[str, Any] = {"outputsEqual": f"{same}/{len(found['outputs'])}"}
    ours, theirs = found["drafted"], reference["drafted"]
    for turn in ("first", "second"):
        places = [key for key in ours if key[0] == turn and key in theirs and theirs[key][0] == ours[key][0]]
        lengths: dict[str, list[int]] = {}
        for key in ours:
            if key[0] == turn:
                lengths.setdefault(key[1], []).append(key[2])
        after = [
            key
            for key in places
            if key[2] > found["starts"][key[:2]] and is_after_gap(key[2], lengths[key[1]], len(ours[key]))
        ]
        result[turn] = {
            "rounds": len(places), "allEqual": sum(ours[key] == theirs[key] for key in places),
            "firstEqual": sum(ours[key][:2] == theirs[key][:2] for key in places),
            "after": len(after), "afterAllEqual": sum(ours[key] == theirs[key] for key in after),
        }  # fmt: skip
    return result


def is_after_gap(length: int, lengths: Sequence[int], width: int) -> bool:
    """Whether no round of this request drafted within the tokens that one round can add before this place."""
    return not any(length - width <= other < length for other in lengths)


class Accepted:
    """Drafts accepted in the first rounds with drafts of each request after a moment."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._requests = 0

    def add(self, running: Running, moment: float, requests: Sequence[str], rounds: int) -> None:
        found: dict[str, list[int]] = {request: [] for request in requests}
        for note in read_notes(running):
            counts = found.get(note["request"])
            if counts is not None and "gained" in note and note["time"] >= moment and note["steps"] > 0 and note["gained"] > 0:
                counts.append(note["gained"] - 1)
        self._requests += sum(bool(counts) for counts in found.values())
        self._counts += [count for counts in found.values() for count in counts[:rounds]]

    def report(self) -> dict[str, Any]:
        """`error` is the standard error of the mean."""
        if len(self._counts) < 2:
            return {"requests": self._requests, "rounds": len(self._counts), "acceptedDrafts": None, "error": None}
        mean, deviation = statistics.fmean(self._counts), statistics.stdev(self._counts)
        return {
            "requests": self._requests, "rounds": len(self._counts), "acceptedDrafts": round(mean, 4),
            "error": round(deviation / len(self._counts) ** 0.5, 4),
        }  # fmt: skip


if __name__ == "__main__":
    options = parse_arguments("zero-step")
    plan = REHEARSAL if options.rehearse else Plan()
    if options.only:
        only = tuple(options.only.split(","))
        plan = replace(plan, lora_backends=only) if options.part == "lora" else replace(plan, backends=only, stock=False)
    run = Session(f"zero-step-{options.part}", options.out, options.deadline, choose_machine(options, 256, plan.kv_tokens))
    benchmark = Benchmark(run, plan)
    parts = {
        "all": benchmark.run, "trained": benchmark.run_trained, "accepted": benchmark.run_accepted, "lora": benchmark.run_lora,
    }  # fmt: skip
    run.run(parts[options.part]())
