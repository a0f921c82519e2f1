"""A stand-in for an SGLang server, for rehearsing a benchmark in real time on any machine: same command line, same HTTP, same
round records, step costs as measured on one H200. The product's own rule decides where the product would.

No figure that it gives is a measurement: `machine.kind` in the raw data says "fake".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from benchmarks.gpu import probe
from benchmarks.gpu.rounds import Kind, RoundWriter
from specserver.policy.decider import Decider
from specserver.policy.decision import Observation, Round
from specserver.policy.document import parse_policy
from specserver.simulate import costs


@dataclass
class Request:
    rid: str
    prompt: int
    left: int
    done: asyncio.Future[list[int]]
    generated: int = 0
    output: list[int] = field(default_factory=list)


class FakeEngine:
    def __init__(self, options: argparse.Namespace, directory: Path, product: bool) -> None:  # noqa: FBT001
        self.max_running = options.max_running_requests
        self.steps = options.speculative_num_steps
        self.product = product
        self.decider: Decider | None = None
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._costs = costs.FA3 if self.steps else costs.PLAIN
        self._directory = directory
        self._controls = probe.ControlReader(directory)
        self._writer = RoundWriter(directory / "rounds.bin")
        self._random = random.Random(3)
        self.counted: dict[int, int] = {}

    async def run(self) -> None:
        last: float | None = None
        while True:
            if not self.waiting and not self.running:
                last = None
                await asyncio.sleep(0.002)
                continue
            if self.waiting and len(self.running) < self.max_running:
                await self._prefill()
                last = None
            else:
                last = await self._decode(last)

    async def _prefill(self) -> None:
        room = self.max_running - len(self.running)
        batch: list[Request] = []
        tokens = 0
        while self.waiting and len(batch) < room and tokens < 8192:
            batch.append(self.waiting.pop(0))
            tokens += batch[-1].prompt
        began = time.monotonic()
        await asyncio.sleep(costs.PREFILL_SECONDS + tokens * costs.PREFILL_SECONDS_PER_TOKEN)
        self._writer.add(began, 0.001, 0, len(batch), Kind.PREFILL_LAUNCH, 0)
        self._writer.add(time.monotonic(), 0.001, len(batch), len(batch), Kind.PREFILL_RESULT, 0)
        for request in batch:
            self._advance(request, 1)
        self.running += [request for request in batch if request.left > 0]

    async def _decode(self, last: float | None) -> float:
        size, began = len(self.running), time.monotonic()
        kv_tokens = sum(request.prompt + request.generated for request in self.running)
        steps = self.steps
        if self.decider is not None:
            steps = self.decider.decide(Observation(size, len(self.waiting), kv_tokens, 0.1, 0, self.max_running), began).steps
        self._writer.add(began, 0.001, 0, size, Kind.DECODE_LAUNCH, steps)
        await asyncio.sleep(self._costs.seconds(min(steps, 3), size, kv_tokens) * self._random.gauss(1, 0.01))
        survival = self._controls.read().survival or (0.5, 0.2, 0.1)
        gained, tokens = [], 0
        for request in self.running:
            drawn = self._random.random()
            gained.append(sum(drawn < level for level in survival[:steps]))
            tokens += self._advance(request, gained[-1] + 1)
        done = time.monotonic()
        self._writer.add(done, 0.001, tokens, size, Kind.DECODE_RESULT, steps)
        self.counted[steps] = self.counted.get(steps, 0) + 1
        if self._controls.read().note_drafts:
            self._note(steps, gained, done)
        if self.decider is not None:
            self.decider.record(Round(steps, size, kv_tokens, None if last is None else done - last, gained), done)
        self.running = [request for request in self.running if request.left > 0]
        return done

    def _note(self, steps: int, gained: list[int], done: float) -> None:
        with (self._directory / "notes.jsonl").open("a") as file:
            for request, count in zip(self.running, gained, strict=True):
                if steps:
                    note = {"request": request.rid, "steps": steps, "gained": count + 1, "time": done}
                    file.write(json.dumps(note) + "\n")
                if steps and len(self.running) == 1:
                    length = request.prompt + request.generated
                    file.write(json.dumps({"request": request.rid, "length": length, "drafted": [1, 2, 3, length % 7]}) + "\n")

    def _advance(self, request: Request, tokens: int) -> int:
        tokens = min(tokens, request.left)
        request.left -= tokens
        request.generated += tokens
        request.output += [100] * tokens
        if request.left == 0 and not request.done.done():
            request.done.set_result(request.output)
        return tokens

    # ---- HTTP ----------------------------------------------------------------------------------------------------------------

    async def generate(self, http: web.Request) -> web.Response:
        body = await http.json()
        ids = body["input_ids"]
        prompts = ids if isinstance(ids[0], list) else [ids]
        tokens = body["sampling_params"]["max_new_tokens"]
        loop = asyncio.get_running_loop()
        requests = [
            Request(body.get("rid", f"r{number}"), len(prompt), tokens, loop.create_future())
            for number, prompt in enumerate(prompts)
        ]
        self.waiting += requests
        try:
            outputs = await asyncio.gather(*(request.done for request in requests))
        except RuntimeError as error:
            return web.json_response({"error": str(error)}, status=400)
        answers = [{"output_ids": output, "meta_info": {}} for output in outputs]
        return web.json_response(answers if isinstance(ids[0], list) else answers[0])

    async def abort(self, http: web.Request) -> web.Response:
        for request in (*self.waiting, *self.running):
            request.left = 0
            if not request.done.done():
                request.done.set_exception(RuntimeError("aborted"))
        self.waiting.clear()
        return web.json_response({})

    async def put_policy(self, http: web.Request) -> web.Response:
        policy = parse_policy(await http.json())
        if self.decider is None:
            self.decider = Decider(policy)
        elif policy.revision < self.decider.policy.revision:
            return web.json_response({"error": "older"}, status=409)
        self.decider.set_policy(policy)
        return web.json_response({"revision": policy.revision})

    async def force(self, http: web.Request) -> web.Response:
        if self.decider is None:
            return web.json_response({"error": "no policy"}, status=409)
        if http.method == "DELETE":
            self.decider.clear_force()
        else:
            body = await http.json()
            self.decider.force(body["steps"], time.monotonic() + body["ttlSeconds"])
        return web.json_response({})

    async def state(self, http: web.Request) -> web.Response:
        rounds = {str(steps): count for steps, count in self.counted.items()}
        return web.json_response({"ranks": [{"armed": True, "reason": "", "rounds": rounds, "zero": {"graphs": None}}]})


async def done(http: web.Request) -> web.Response:
    return web.json_response({})


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--speculative-num-steps", type=int, default=0)
    parser.add_argument("--max-running-requests", type=int, default=256)
    options, _ = parser.parse_known_args()
    product = bool(os.environ.get("SPECSERVER_ADMIN_KEY"))
    engine = FakeEngine(options, Path(os.environ[probe.ENV_DIRECTORY]), product)
    app = web.Application(client_max_size=2**28)
    app.add_routes(
        [
            web.get("/health", done), web.post("/flush_cache", done), web.post("/generate", engine.generate),
            web.post("/abort_request", engine.abort), web.put("/specserver/v1/policy", engine.put_policy),
            web.post("/specserver/v1/force", engine.force),
            web.delete("/specserver/v1/force", engine.force), web.get("/specserver/v1/state", engine.state),
            web.get("/specserver/v1/profile", done),
        ]
    )  # fmt: skip
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", options.port).start()
    await engine.run()


if __name__ == "__main__":
    asyncio.run(main())
