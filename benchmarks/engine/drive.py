"""The engine benchmark on one GPU: our rule against every fixed step count and against SGLang's adaptive mode.

    benchmarks/engine/run.sh OUT DEADLINE --part table    every arm at every concurrency, with a good and with a poor draft
    benchmarks/engine/run.sh OUT DEADLINE --part waves    square waves, and the originating experiment's table

Four servers stand side by side on the GPU: plain (no draft model), static 3 (stock), stock adaptive (two tables one after
the other), ours. Static 1 and 2 are our server with its step count forced by hand; fixed 0 and 3 are measured there too, so
that the cost of the plugin itself shows against the stock servers. All have the same cap on running requests, graph sizes and KV
pool.

A host's speed drifts by tens of percent within tens of seconds, and below 64 requests a round takes as long as the host needs to
launch it. So what is compared is measured within seconds, in passes (`Benchmark.measure_pass`), and each pass is compared within
itself (report.py). SGLang's adaptive mode is shown and compared with nothing: it comes last, if there is time.

Acceptance is a model: per request and position, from a survival profile (plan.py). Weights are random.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine import plan as plans
from benchmarks.engine.plan import LADDER, PROFILES, Plan
from benchmarks.gpu import digest
from benchmarks.gpu.load import ClosedLoop, SquareWave
from benchmarks.gpu.product import Product
from benchmarks.gpu.servers import Running, Server, write_table
from benchmarks.gpu.session import Session, choose_machine, parse_arguments

SIMULATED = {"SGLANG_SIMULATE_ACC_LEN": "2"}
"""Switches SGLang's simulation on; the probe then draws for each request instead."""
LINE_BIN_SECONDS = 0.05

PLAIN = Server("plain")
STATIC = Server("static-3", 3, variables=SIMULATED)
STOCK = Server("stock", 7, plans.STOCK_CAPTURED, variables=SIMULATED)
OURS = Server("ours", 3, {"1": LADDER[1:]}, product=True, variables=SIMULATED)


def ladder_of(number: int) -> tuple[int, ...]:
    """The fixed step counts, up in one turn and down in the next."""
    return LADDER if number % 2 else LADDER[::-1]


class Benchmark:
    def __init__(self, session: Session, plan: Plan, only: Sequence[str]) -> None:
        self.session, self.plan, self.only = session, plan, only
        self.tables: dict[str, str] = {}
        session.raw["plan"] = {
            "prompt": plan.shape.prompt, "output": plan.shape.output, "concurrencies": plan.concurrencies,
            "profiles": PROFILES, "ladder": LADDER, "windowSeconds": plan.window_seconds, "wave": plan.wave,
            "passes": plan.passes, "passWindowSeconds": plan.pass_window_seconds, "cycles": plan.cycles,
            "kvTokens": plan.kv_tokens, "maxRunning": plan.max_running,
        }  # fmt: skip

    def start(self, *servers: Server) -> None:
        session = self.session
        chosen = [server for server in servers if not self.only or server.name in self.only]
        session.fleet.start(chosen, min(session.end - 30, session.began + self.plan.start_seconds))
        for name, table in (("default", plans.STOCK_DEFAULT), ("off-at-64", plans.STOCK_OFF_AT_64)):
            path = Path("/tmp") / f"adaptive-{name}.json"
            write_table(path, table)
            self.tables[name] = str(path)
        session.save()

    def running(self, server: Server) -> Running:
        try:
            return self.session.fleet.running[server.name]
        except KeyError:
            raise RuntimeError(f"{server.name} is not up") from None

    async def warm_up(self) -> None:
        for running in list(self.session.fleet.running.values()):
            running.controls.set(survival=plans.HEALTHY)
            await self.session.warm_up(running, self.plan.concurrencies, type(self.plan.shape)(self.plan.shape.prompt, 6))

    async def under_load(
        self, server: Server, concurrency: int, measure: Callable[[Running], Awaitable[None]], group: int | None = None
    ) -> None:
        """Runs `measure` while so many requests are decoded."""
        session, running = self.session, self.running(server)
        async with session.client(running, seed=concurrency) as client:
            loop = ClosedLoop(client, concurrency, self.plan.shape, group=group or max(1, concurrency // self.plan.groups))
            began = time.monotonic()
            loop.start()
            try:
                await session.ramp(running, min(concurrency, self.cap_of(server)), began)
                await measure(running)
            finally:
                await loop.stop()
        session.note_errors(running, client)

    def cap_of(self, server: Server) -> int:
        return 48 if server.name.endswith("cap-48") else self.plan.max_running

    # ---- the table -----------------------------------------------------------------------------------------------------------

    async def table(self) -> None:
        """Concurrencies rising with the healthy draft, then falling with the poor one, in passes; then drafts that change.

        The draft changes once in the table: what a change costs a rule is measured apart.
        """
        self.start(PLAIN, STATIC, STOCK, OURS)
        await self.session.stage("warm-up", 20, self.warm_up)
        await self.session.stage("learning", 20, self.learn)
        rising = self.plan.concurrencies
        for draft, order, concurrencies in (("healthy", "rising", rising), ("poor", "falling", rising[::-1])):
            for concurrency in concurrencies:
                for number in range(1, self.plan.passes + 1):
                    await self.measure_pass(concurrency, number, draft, order)
        for concurrency in self.plan.change_concurrencies:
            await self.session.stage(f"steady C={concurrency}", 10, partial(self.steady, concurrency))
        for concurrency in self.plan.change_concurrencies:
            await self.session.stage(f"change C={concurrency}", 24, partial(self.change, concurrency))
        for concurrency in rising:
            await self.session.stage(f"stock C={concurrency}", 6, partial(self.stock_arms, concurrency))

    async def measure_pass(self, concurrency: int, number: int, draft: str, order: str) -> None:
        """All that is compared, in some ten seconds: our server's arms, then the two stock servers; the other way round next."""
        labels = {"profile": draft, "order": order, "pass": number}
        parts = [("ours", 9, self.ours_arms), ("static-3", 2, self.static_arms), ("plain", 2, self.plain_arms)]
        for name, seconds, arms in parts if number % 2 else parts[::-1]:
            await self.session.stage(f"{draft} C={concurrency} pass {number} {name}", seconds, partial(arms, concurrency, labels))

    async def learn(self) -> None:
        """Our rule starts without a profile: some traffic at each concurrency, which a server has behind it when it is looked at.

        No step count is forced on it here: what it knows afterwards it found out by itself.
        """
        product = Product(self.running(OURS), LADDER)
        product.measured()
        for concurrency in self.plan.concurrencies:

            async def measure(running: Running, concurrency: int = concurrency) -> None:
                running.controls.set(survival=plans.HEALTHY)
                await self.session.window(
                    running, self.plan.learn_seconds, concurrency, plans.HEALTHY, arm="learning", profile="", order="learning"
                )

            await self.under_load(OURS, concurrency, measure)
        self.session.raw["stateAfterLearning"] = product.state()

    async def ours_arms(self, concurrency: int, labels: Mapping[str, Any]) -> None:
        """Our rule and each step count by turns, several times in some seconds: a host that slows down for a second or two slows
        all of them. The order turns around from cycle to cycle, so that a steady drift tells for none.

        The rule goes on beneath what is forced, and does not start anew behind it. It learns from those rounds, too, what they
        cost, which helps it: what it does by itself is `steady`'s to show.
        """
        plan, survival = self.plan, PROFILES[labels["profile"]]
        seconds = plan.busy_window_seconds if concurrency >= plan.busy_from else plan.cycle_window_seconds

        async def measure(running: Running) -> None:
            product = Product(running, LADDER)
            window = partial(self.session.window, running, seconds, concurrency, survival, **labels)
            running.controls.set(survival=survival)
            await asyncio.to_thread(product.measured)
            await asyncio.sleep(plan.adapt_seconds)
            for cycle in range(plan.cycles):
                await window(arm="measured")
                for steps in ladder_of(labels["pass"] + cycle):
                    await self.force(product, steps)
                    await window(arm=f"fixed-{steps}")
                await self.release(product)
            await window(arm="measured")

        await self.under_load(OURS, concurrency, measure)

    async def force(self, product: Product, steps: int) -> None:
        await asyncio.to_thread(product.force, steps)
        await asyncio.sleep(self.plan.force_seconds)

    async def release(self, product: Product) -> None:
        await asyncio.to_thread(product.release)
        await asyncio.sleep(self.plan.force_seconds)

    async def steady(self, concurrency: int) -> None:
        """Our rule alone at a constant load. Nothing is forced."""

        async def measure(running: Running) -> None:
            running.controls.set(survival=plans.HEALTHY)
            await asyncio.to_thread(Product(running, LADDER).measured)
            await asyncio.sleep(self.plan.adapt_seconds)
            await self.session.window(
                running, self.plan.steady_seconds, concurrency, plans.HEALTHY, arm="measured", profile="healthy", order="steady"
            )

        await self.under_load(OURS, concurrency, measure)

    async def change(self, concurrency: int) -> None:
        """Our rule while acceptance falls from one second to the next, and when it comes back.

        The fixed step counts it is held against are measured in the same load, right before and right after: the table's rates
        are minutes old by then. A fixed step count has nothing to adapt, so its rate with each draft says all of it. The stock
        servers are left out: what following a change costs is asked here, and what the plugin costs is seen in the table.
        """
        plan, session = self.plan, self.session

        async def measure(running: Running) -> None:
            product = Product(running, LADDER)
            await asyncio.to_thread(product.measured)
            await self.fixed_under_change(running, concurrency, ("poor", "healthy"), 1)
            await asyncio.sleep(plan.change_settle_seconds)
            for half, profile in enumerate(("healthy", "poor", "healthy")):
                survival = PROFILES[profile]
                running.controls.set(survival=survival)
                await session.window(
                    running, plan.change_seconds, concurrency, survival, arm="changing", profile=profile, order=f"change {half}"
                )
            await self.fixed_under_change(running, concurrency, ("healthy", "poor"), 2)

        await self.under_load(OURS, concurrency, measure)

    async def fixed_under_change(self, running: Running, concurrency: int, drafts: Sequence[str], number: int) -> None:
        product = Product(running, LADDER)
        for draft in drafts:
            running.controls.set(survival=PROFILES[draft])
            for steps in ladder_of(number):
                await self.force(product, steps)
                labels = {"arm": f"fixed-{steps}", "profile": draft, "order": "change fixed", "pass": number}
                await self.session.window(running, self.plan.change_window_seconds, concurrency, PROFILES[draft], **labels)
        await self.release(product)

    async def static_arms(self, concurrency: int, labels: Mapping[str, Any]) -> None:
        survival = PROFILES[labels["profile"]]

        async def measure(running: Running) -> None:
            running.controls.set(survival=survival)
            await asyncio.sleep(self.plan.settle_seconds)
            await self.session.window(running, self.plan.pass_window_seconds, concurrency, survival, arm="static-3", **labels)

        await self.under_load(STATIC, concurrency, measure)

    async def plain_arms(self, concurrency: int, labels: Mapping[str, Any]) -> None:
        """Without a draft: the label says whose pass it belongs to."""

        async def measure(running: Running) -> None:
            await asyncio.sleep(self.plan.settle_seconds)
            await self.session.window(running, self.plan.pass_window_seconds, concurrency, (), arm="plain", **labels)

        await self.under_load(PLAIN, concurrency, measure)

    async def stock_arms(self, concurrency: int) -> None:
        async def measure(running: Running) -> None:
            for draft, survival in PROFILES.items():
                running.controls.set(survival=survival)
                for name, path in self.tables.items():
                    running.controls.set(adaptive_table=path)
                    await asyncio.sleep(self.plan.stock_settle_seconds)
                    await self.session.window(
                        running, self.plan.stock_window_seconds, concurrency, survival, arm=f"stock-{name}", profile=draft,
                        order="stock",
                    )  # fmt: skip

        await self.under_load(STOCK, concurrency, measure)

    # ---- waves -----------------------------------------------------------------------------------------------------------------

    async def waves(self) -> None:
        capped = Server("static-3-cap-48", 3, variables=SIMULATED, arguments=("--max-running-requests", "48"))
        self.start(PLAIN, STATIC, capped, OURS)
        session = self.session
        await session.stage("warm-up", 15, self.warm_up)
        await session.stage("best steps", 20, self.find_best_steps)
        for period, count in self.plan.periods:
            both = ("oracle", "measured")
            further = ("fixed-3", "fixed-0") if period == self.plan.periods[0][0] else ()
            for arm in (*both, *further, *both[::-1]) if count > 1 else both:
                await session.stage(
                    f"wave {period} s {arm}", period * count + 5, partial(self.wave, period, count, arm)
                )
        for concurrency in self.plan.one_by_one:
            for server in (PLAIN, OURS):
                await session.stage(
                    f"one by one C={concurrency} {server.name}", 15, partial(self.one_by_one, server, concurrency)
                )
        for concurrency in self.plan.originating:
            for server in (PLAIN, STATIC, capped, OURS):
                await session.stage(
                    f"originating C={concurrency} {server.name}", 6, partial(self.originating, server, concurrency)
                )

    async def one_by_one(self, server: Server, concurrency: int) -> None:
        """The same with requests replaced one by one: hardly a round then has a neighbour to be timed against."""

        async def measure(running: Running) -> None:
            running.controls.set(survival=plans.HEALTHY)
            product = Product(running, LADDER)
            arms = ("measured", *(f"fixed-{steps}" for steps in LADDER)) if server is OURS else ("plain",)
            for arm in arms:
                if arm == "measured":
                    await asyncio.to_thread(product.measured)
                elif arm != "plain":
                    await asyncio.to_thread(product.fixed, int(arm[-1]))
                await asyncio.sleep(self.plan.adapt_seconds)
                survival = () if arm == "plain" else plans.HEALTHY
                await self.session.window(
                    running, 1.5 * self.plan.window_seconds, concurrency, survival, arm=arm, profile="healthy", order="one by one"
                )

        await self.under_load(server, concurrency, measure, group=1)

    async def find_best_steps(self) -> None:
        """The best fixed step count at each level of the wave, which is what the oracle knows."""
        self.best: dict[int, int] = {}
        for concurrency in self.plan.wave:
            rates: dict[int, float] = {}

            async def measure(running: Running, concurrency: int = concurrency, rates: dict[int, float] = rates) -> None:
                running.controls.set(survival=plans.HEALTHY)
                for steps in LADDER:
                    await asyncio.to_thread(Product(running, LADDER).fixed, steps)
                    await asyncio.sleep(self.plan.settle_seconds)
                    cell = await self.session.window(
                        running, self.plan.window_seconds, concurrency, plans.HEALTHY, arm=f"fixed-{steps}", profile="healthy",
                        order="wave levels",
                    )  # fmt: skip
                    rates[steps] = cell.get("expectedPerSecond") or 0.0

            await self.under_load(OURS, concurrency, measure)
            self.best[concurrency] = max(rates, key=lambda steps: rates[steps])
        self.session.raw["bestSteps"] = {str(level): steps for level, steps in self.best.items()}

    async def wave(self, period: float, count: int, arm: str) -> None:
        session, running = self.session, self.running(OURS)
        product = Product(running, LADDER)
        low, high = self.plan.wave
        steps = {"oracle": self.best, "fixed-3": {low: 3, high: 3}, "fixed-0": {low: 0, high: 0}}.get(arm)
        running.controls.set(survival=plans.HEALTHY)
        product.measured() if steps is None else product.fixed(steps[low])
        phases = []
        forcing: asyncio.Task[None] | None = None
        async with session.client(running, seed=int(period)) as client:
            wave = SquareWave(client, low, high, self.plan.wave_shape)
            clock = asyncio.get_running_loop()
            began = clock.time()
            wave.start()
            await session.ramp(running, low, began)
            at = clock.time()
            for number in range(2 * count):
                level = high if number % 2 == 0 else low
                if steps is not None and steps[low] != steps[high]:
                    forcing = asyncio.create_task(asyncio.to_thread(product.fixed, steps[level]))  # beside the load
                if level == high:
                    wave.go_high()
                else:
                    await wave.go_low()
                phases.append({"level": level, "from": at, "to": at + period / 2})
                at += period / 2
                await asyncio.sleep(max(0.0, at - clock.time()))
            rounds = running.rounds()
            await wave.stop()
            if forcing is not None:
                await forcing
        result = digest.digest_phases(rounds, phases, plans.HEALTHY, LINE_BIN_SECONDS)
        session.raw.setdefault("waves", []).append({"period": period, "arm": arm, **result})
        tokens, seconds, switches = result["tokens"], result["seconds"], result["switches"]
        session.say(f"wave {period:4} s {arm:9} tokens {tokens} in {seconds} s, {switches} switches")
        session.note_errors(running, client)

    # ---- the originating experiment's table ----------------------------------------------------------------------------------

    async def originating(self, server: Server, concurrency: int) -> None:
        async def measure(running: Running) -> None:
            running.controls.set(survival=plans.HEALTHY)
            if server is OURS:
                await asyncio.to_thread(Product(running, LADDER).measured)
                await asyncio.sleep(self.plan.adapt_seconds)
            await asyncio.sleep(self.plan.settle_seconds)
            survival = () if server is PLAIN else plans.HEALTHY
            await self.session.window(
                running, 1.5 * self.plan.window_seconds, concurrency, survival, arm=server.name, profile="healthy",
                order="originating",
            )  # fmt: skip

        await self.under_load(server, concurrency, measure)


async def main(session: Session, plan: Plan, part: str, only: Sequence[str]) -> None:
    benchmark = Benchmark(session, plan, only)
    await {"table": benchmark.table, "waves": benchmark.waves}[part]()

    async def note_what_it_knows() -> None:
        product = Product(benchmark.running(OURS), LADDER)
        session.raw["stateAfter"] = product.state()
        session.raw["profile"] = product.profile()

    await session.stage("what our rule knows", 1, note_what_it_knows)


if __name__ == "__main__":
    options = parse_arguments("engine")
    plan = plans.REHEARSAL if options.rehearse else Plan()
    machine = choose_machine(options, plan.max_running, plan.kv_tokens)
    run = Session(f"engine-{options.part}", options.out, options.deadline, machine)
    run.run(main(run, plan, options.part, options.only.split(",") if options.only else ()))
