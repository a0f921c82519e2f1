"""The first run on a new machine: does everything start, arm, switch and count, and are outputs equal?

Four servers at once: plain, and ours on each attention backend. It leaves the kernels that they compiled, so that the
measuring runs start sooner, and a first look at speed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from benchmarks.gpu.load import ClosedLoop, Shape
from benchmarks.gpu.product import LADDER, Product
from benchmarks.gpu.servers import Machine, Running, Server
from benchmarks.gpu.session import Session, choose_machine, parse_arguments

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 6, 128, 64
SIMULATED = {"SGLANG_SIMULATE_ACC_LEN": "2"}
Meanwhile = Callable[[], Coroutine[Any, Any, None]]


def servers_of(machine: Machine) -> list[Server]:
    ladder = {"1": LADDER[1:]}
    plain = Server("plain")
    if machine.name == "cpu":
        return [plain, Server("ours-fa3", 3, ladder, product=True, variables=SIMULATED)]
    return [
        plain,
        Server("ours-fa3", 3, ladder, product=True, variables=SIMULATED),
        Server("ours-triton", 3, product=True, arguments=("--attention-backend", "triton")),
        Server(
            "ours-flashinfer", 3, product=True, arguments=("--attention-backend", "flashinfer"),
            variables={"SGLANG_FLASHINFER_WORKSPACE_SIZE": str(2**30)},
        ),
    ]  # fmt: skip


async def outputs_of(
    session: Session, running: Running, prompts: Sequence[Sequence[int]], meanwhile: Meanwhile | None = None
) -> list[list[int]]:
    """Greedy outputs, one request after another; `meanwhile` runs beside them and is cancelled at their end."""
    async with session.client(running) as client:
        beside = asyncio.create_task(meanwhile()) if meanwhile else None
        answers = [(await client.generate(prompt, OUTPUT_TOKENS))["output_ids"] for prompt in prompts]
        if beside:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
        return answers


def equal(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> str:
    whole = sum(list(a) == list(b) for a, b in zip(left, right, strict=True))
    return f"{whole}/{len(left)}"


async def check_server(session: Session, running: Running, ladder: tuple[int, ...], reference: list[list[int]]) -> None:
    """Outputs against plain in every mode, with the rounds that really ran in each."""
    rng = random.Random(7)
    low, high = session.machine.vocabulary
    prompts = [[rng.randrange(low, high) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    product = Product(running, ladder)
    checks: dict[str, Any] = session.raw.setdefault("checks", {}).setdefault(running.name, {})
    checks["state"] = product.state()
    session.say(f"{running.name}: armed {checks['state'].get('armed')} {checks['state'].get('reason')}")

    async def toggle() -> None:
        while True:
            for steps in (0, ladder[-1]):
                await asyncio.to_thread(product.fixed, steps)
                await asyncio.sleep(0.03)

    arms: list[tuple[str, Callable[[], None] | None]] = [(f"fixed {steps}", partial(product.fixed, steps)) for steps in ladder]
    for name, put in [*arms, ("never", product.never), ("measured", product.measured), ("toggling", None)]:
        try:
            if put:
                put()
            running.flush_cache()
            began = time.monotonic()
            answers = await outputs_of(session, running, prompts, meanwhile=None if put else toggle)
            rounds = running.rounds()
            decoded = rounds[(rounds["time"] >= began) & (rounds["kind"] == 1)]
            counts = {int(k): int((decoded["steps"] == k).sum()) for k in sorted(set(decoded["steps"].tolist()))}
            checks[name] = {"equal": equal(answers, reference), "rounds": counts, "seconds": round(time.monotonic() - began, 2)}
        except Exception as error:  # noqa: BLE001 — the other arms tell something too
            session.problem(f"{running.name} {name}", error)
            continue
        session.say(f"{running.name:16} {name:10} equal to plain {checks[name]['equal']} rounds {counts}")
        session.save()
    checks["stateAfter"] = product.state()


async def look_at_speed(session: Session, running: Running, concurrency: int, ladder: tuple[int, ...] | None) -> None:
    """Intervals of plain, of each step count, and what our rule does, at one concurrency."""
    shape = Shape(128, 256) if session.machine.name != "cpu" else Shape(16, 64)
    async with session.client(running) as client:
        loop = ClosedLoop(client, concurrency, shape)
        began = time.monotonic()
        loop.start()
        await session.ramp(running, concurrency, began)
        if ladder is None:
            await session.window(running, 1.5, concurrency, (), arm="plain")
        else:
            product = Product(running, ladder)
            arms: list[tuple[str, Callable[[], None]]] = [(f"fixed {k}", partial(product.fixed, k)) for k in ladder]
            for name, put in [*arms, ("never", product.never)]:
                await asyncio.to_thread(put)
                await asyncio.sleep(0.3)
                await session.window(running, 1.0, concurrency, (), arm=name)
        await loop.stop()
    session.note_errors(running, client)


def ladder_of(running: Running) -> tuple[int, ...]:
    return LADDER if running.server.ladder else (0, LADDER[-1])


async def main(session: Session) -> None:
    fleet = session.fleet
    servers = servers_of(session.machine)
    fleet.launch(servers)
    # The others may compile their kernels for minutes; what needs no waiting is checked meanwhile.
    fleet.wait_for([server.name for server in servers[:2]], session.end - 90)
    session.save()
    concurrencies = (1, 128) if session.machine.name != "cpu" else (1, 4)
    rng = random.Random(7)
    low, high = session.machine.vocabulary
    prompts = [[rng.randrange(low, high) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    reference: list[list[int]] = []
    if plain := fleet.running.get("plain"):
        reference = await outputs_of(session, plain, prompts)
        again = await outputs_of(session, plain, prompts)
        session.raw["plainAgain"] = equal(again, reference)
        session.say(f"plain against itself {session.raw['plainAgain']}")
    for server in servers[1:]:
        fleet.wait_for([server.name], session.end - 45)
        running = fleet.running.get(server.name)
        if running is not None:
            check = partial(check_server, session, running, ladder_of(running), reference)
            await session.stage(f"checks {server.name}", 15, check)
    for concurrency in concurrencies:
        for name, running in fleet.running.items():
            look = partial(look_at_speed, session, running, concurrency, None if name == "plain" else ladder_of(running))
            await session.stage(f"speed {name} C={concurrency}", 12, look)

    async def note_states() -> None:
        for name, running in fleet.running.items():
            if name != "plain":
                session.raw["checks"][name]["stateAtEnd"] = Product(running, LADDER).state()

    await session.stage("states", 1, note_states)


if __name__ == "__main__":
    options = parse_arguments("shakeout")
    run = Session("shakeout", options.out, options.deadline, choose_machine(options, 256, 70_000))
    run.run(main(run))
