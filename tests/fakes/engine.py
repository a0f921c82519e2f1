"""An engine without a model: SGLang's /metrics and health routes, and the plugin's control API, on any loopback address.

It decides by the real rule (`policy/`), so that what it reports follows from its load and its policy as in a real engine.
Everything is a plain attribute and can be changed while it runs:

    async with FakeEngine(host="127.7.0.3", port=30000, admin_key="k") as engine:
        engine.running = 80          # the next look at it finds it decoding plainly
        engine.refusal = Refusal(422, "steps", "not captured")
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from specserver.policy.decider import Decider
from specserver.policy.decision import Decision, Observation
from specserver.policy.document import Policy, PolicyInvalid, parse_policy


@dataclass(frozen=True)
class Refusal:
    """What PUT answers whatever it is sent."""

    status: int
    field: str = ""
    error: str = "refused on purpose"
    current: int | None = None


@dataclass
class FakeEngine:
    """One fake engine. `port` 0 takes a free one; `port` tells which once it runs."""

    host: str = "127.0.0.1"
    port: int = 0
    admin_key: str | None = "admin-key"
    initial_policy: dict[str, Any] | None = None
    """In force at the start and after `restart()`."""
    ladder: tuple[int, ...] = (0, 1, 2, 3)
    ranks: tuple[str, ...] = ("tp0",)

    # The load.
    running: int = 0
    queued: int = 0
    token_usage: float = 0.0
    decoded_tokens: float = 0.0
    decode_rate: float = 0.0
    """Tokens a second that come on top, by the clock."""
    accept_length: float | None = None

    # What is wrong with it.
    unarmed_reason: str = ""
    has_plugin: bool = True
    exports_metrics: bool = True
    exports_live_gauges: bool = True
    metrics_page: str | None = None
    """Served at /metrics in place of the own page."""
    metrics_status: int = 200
    refusal: Refusal | None = None
    delay_seconds: float = 0.0
    """Before each answer of the control API and of /metrics."""
    stuck_rank: str | None = None
    """This rank keeps its policy whatever is pushed, and PUT says so."""
    ready: bool = True

    # What happened to it.
    pushes: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of all PUTs with the right key."""
    answers: list[tuple[str, str, int]] = field(default_factory=list)
    """Method, path and status of all requests."""

    plugin_version: str = "0.1.0"
    engine_version: str = "0.5.23"

    def __post_init__(self) -> None:
        self._runner: web.AppRunner | None = None
        self.restart()

    # ---- life ------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> FakeEngine:
        app = web.Application(middlewares=[self._record])
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/health", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/specserver/v1/policy", self._get_policy)
        app.router.add_put("/specserver/v1/policy", self._put_policy)
        app.router.add_get("/specserver/v1/state", self._get_state)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def restart(self) -> None:
        """Forgets what was pushed and counted, as a restarted container does."""
        start = parse_policy(self.initial_policy) if self.initial_policy is not None else None
        self.policies: dict[str, Policy | None] = dict.fromkeys(self.ranks, start)
        self.rounds: Counter[int] = Counter()
        self.switch_times: list[float] = []
        self._decider: Decider | None = None
        self._decision: Decision | None = None

    # ---- what it is doing ------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy | None:
        """The first rank's, which decides for all."""
        return self.policies[self.ranks[0]]

    def decide(self) -> tuple[int, int]:
        """Steps and decided steps at the present load. Each look counts as a round."""
        if self.unarmed_reason or self.policy is None:
            return self.ladder[-1], self.ladder[-1]
        before, now = self._decision, time.time()
        if self._decider is None:
            self._decider = Decider(self.policy)
        self._decider.set_policy(self.policy)
        self._decision = self._decider.decide(Observation(self.running, self.queued), now)
        if before is not None and before.steps != self._decision.steps:
            self.switch_times.append(now)
        self.rounds[self._decision.steps] += 1
        return self._decision.steps, self._decision.decided_steps

    # ---- routes ----------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _record(self, request: web.Request, handler: Any) -> web.StreamResponse:
        controls = request.path.startswith("/specserver/")
        if self.delay_seconds and (controls or request.path == "/metrics"):
            await asyncio.sleep(self.delay_seconds)
        refused = self._refuse_caller(request) if controls else None
        try:
            response: web.StreamResponse = refused or await handler(request)
        except web.HTTPException as error:
            response = web.json_response({"detail": error.reason}, status=error.status)
        self.answers.append((request.method, request.path, response.status))
        return response

    def _refuse_caller(self, request: web.Request) -> web.Response | None:
        if not self.has_plugin:
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.admin_key is None:
            return web.json_response({"error": "no admin key: start the engine with SPECSERVER_ADMIN_KEY"}, status=403)
        if request.headers.get("Authorization") != f"Bearer {self.admin_key}":
            return web.json_response({"error": "wrong or missing admin key"}, status=401)
        return None

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def _get_policy(self, request: web.Request) -> web.Response:
        policy = self.policy
        return web.json_response(
            {"revision": policy.revision if policy else None, "policy": policy.to_document() if policy else None}
        )

    async def _put_policy(self, request: web.Request) -> web.Response:
        try:
            document = await request.json()
        except ValueError as error:
            return web.json_response({"error": f"not JSON: {error}", "field": ""}, status=422)
        self.pushes.append(document)
        if self.refusal is not None:
            body: dict[str, Any] = {"error": self.refusal.error, "field": self.refusal.field}
            if self.refusal.current is not None:
                body["current"] = self.refusal.current
            return web.json_response(body, status=self.refusal.status)
        if self.unarmed_reason:
            return web.json_response({"error": f"not armed: {self.unarmed_reason}", "field": "armed"}, status=503)
        try:
            policy = parse_policy(document)
        except PolicyInvalid as error:
            return web.json_response({"error": error.message, "field": error.field}, status=422)
        if not set(policy.steps) <= set(self.ladder):
            return web.json_response({"error": f"the engine captured {self.ladder}", "field": "steps"}, status=422)
        current = self.policy
        if current is not None and policy.revision < current.revision:
            return web.json_response(
                {"error": "a newer policy is in force", "field": "revision", "current": current.revision}, status=409
            )
        for rank in self.ranks:
            if rank != self.stuck_rank:
                self.policies[rank] = policy
        return web.json_response(
            {
                "revision": policy.revision,
                "ranks": [{"rank": rank, "revision": kept.revision if kept else 0} for rank, kept in self.policies.items()],
            }
        )

    async def _get_state(self, request: web.Request) -> web.Response:
        steps, decided_steps = self.decide()
        hour_ago = time.time() - 3600
        return web.json_response(
            {
                "pluginVersion": self.plugin_version,
                "engineVersion": self.engine_version,
                "ranks": [
                    {
                        "rank": rank,
                        "armed": not self.unarmed_reason,
                        "reason": self.unarmed_reason,
                        "revision": policy.revision if policy else None,
                        "policy": policy.to_document() if policy else None,
                        "steps": steps,
                        "decidedSteps": decided_steps,
                        "running": self.running,
                        "queued": self.queued,
                        "acceptLength": self.accept_length,
                        "rounds": {str(key): count for key, count in sorted(self.rounds.items())},
                        "switches": len(self.switch_times),
                        "switchesLastHour": sum(at > hour_ago for at in self.switch_times),
                        "lastSwitchAt": self.switch_times[-1] if self.switch_times else None,
                        "hookErrors": 0,
                    }
                    for rank, policy in self.policies.items()
                ],
            }
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.exports_metrics:
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.metrics_status != 200:
            return web.Response(status=self.metrics_status, text="out of order")
        page = self.metrics_page if self.metrics_page is not None else self._build_page()
        return web.Response(text=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def _build_page(self) -> str:
        decoded = self.decoded_tokens + self.decode_rate * time.monotonic()
        labels = '{engine_type="unified",model_name="fake",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
        lines = [
            f"sglang:max_total_num_tokens{labels} 8192.0",
            f"sglang:num_running_reqs{labels} {float(self.running)}",
            f"sglang:num_queue_reqs{labels} {float(self.queued)}",
            f"sglang:token_usage{labels} {self.token_usage}",
            f'sglang:realtime_tokens_total{labels[:-1]},mode="decode"}} {decoded}',
        ]
        if self.has_plugin and self.exports_live_gauges:
            steps, _ = self.decide()
            policy = self.policy
            lines += [
                f"specserver_armed {0.0 if self.unarmed_reason else 1.0}",
                f"specserver_steps {float(steps)}",
                f"specserver_running_requests {float(self.running)}",
                f"specserver_queued_requests {float(self.queued)}",
                f"specserver_policy_revision {float(policy.revision if policy else 0)}",
                f'specserver_switches_total{{reason="AboveDisable"}} {float(len(self.switch_times))}',
                *(f'specserver_rounds_total{{steps="{key}"}} {float(count)}' for key, count in self.rounds.items()),
            ]
            if self.accept_length is not None:
                lines.append(f"specserver_accept_length {self.accept_length}")
        return "\n".join(lines) + "\n"
