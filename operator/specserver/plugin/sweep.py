"""Measures what decode rounds of this engine cost, in seconds, and keeps that as a profile:

    python -m specserver.plugin.sweep --url http://127.0.0.1:30000 --out profile.json

Run beside an engine before users come to it. It keeps a number of requests decoding, forces each step count of the ladder
for a few rounds, and goes on to the next number; the rounds are the engine's own, with its own graphs, and measured where all
others are. An engine that starts with the file (SPECSERVER_PROFILE_FILE) knows its costs from the first round on; without,
the rule learns the same from its users within a minute.

What the drafts of such made-up requests are worth says nothing of users' text, so it is kept out of the estimates
(`costOnly`). Rejected: timing forward passes inside the scheduler process. It would need batches made by hand for each
attention backend, and miss what preparation and sampling add.

The keys come from SPECSERVER_ADMIN_KEY and SPECSERVER_API_KEY, as the engine's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

ROUNDS = 12
"""Rounds with a known cost that make a cell."""
SECONDS = 20.0
FIRST_TOKEN, PROMPT_TOKENS, MOST_TOKENS, CONTEXT_RESERVE = 10, 128, 1024, 64
ANSWER_SECONDS = 30.0
UP_POLL_SECONDS, POLL_SECONDS = 1.0, 0.02
SETTLE_SECONDS = 1.0
"""Without another request that runs: then no more will."""


class SweepFailed(Exception):
    """The engine can't be measured; the message says why and what to do."""


class Engine(Protocol):
    def state(self) -> dict[str, Any]: ...
    def force(self, steps: int) -> None: ...
    def unforce(self) -> None: ...
    def profile(self) -> dict[str, Any]: ...
    def decoding(self, requests: int) -> contextlib.AbstractContextManager[None]:
        """So many requests are under way while the block runs; those run that the KV pool has room for."""


def plan_levels(max_running: int) -> list[int]:
    """Batch sizes to measure: costs bend slowly, so each is four times the one before."""
    levels = [1]
    while 4 * levels[-1] < max_running:
        levels.append(4 * levels[-1])
    return levels if levels[-1] == max_running else [*levels, max_running]


def sweep(engine: Engine, seconds: float = SECONDS) -> dict[str, Any]:
    """The profile. Cells that there is no time for are left to the rule's interpolation; the largest batches come first, since
    costs differ most there."""
    state = engine.state()
    if not state["armed"] or state["revision"] is None:
        raise SweepFailed(f"the plugin is not in control: {state['reason']}")
    levels, ladder = plan_levels(state["maxRunning"]), state["ladder"]
    until, cells = time.monotonic() + seconds, len(levels) * len(ladder)
    try:
        for place in reversed(range(len(levels))):
            with engine.decoding(levels[place]):
                running = _settle(engine, levels[place], _share(until, 2 * (place + 1)))
                for steps in ladder:
                    _measure(engine, running, levels[place], steps, _share(until, cells))
                    cells -= 1
    finally:
        engine.unforce()
    profile = engine.profile()
    if not profile["stepSeconds"]:
        raise SweepFailed("nothing was measured: no step count ran for long enough. The engine's log says if it refused requests")
    return profile


def _share(until: float, parts: int) -> float:
    """When the first of so many equal parts of the time that is left ends."""
    now = time.monotonic()
    return now + (until - now) / parts


def _settle(engine: Engine, requests: int, until: float) -> int:
    """How many of the requests run. Fewer where the KV pool is full: nobody waits for the others."""
    reached, since = 0, time.monotonic()
    while (now := time.monotonic()) < until:
        running: int = engine.state()["running"]
        if running == requests:
            return running
        if running != reached or running > requests:  # more: the level before has not ended yet
            reached, since = running, now
        elif reached and now - since >= SETTLE_SECONDS:
            break
        time.sleep(POLL_SECONDS)
    return reached


def _measure(engine: Engine, running: int, requests: int, steps: int, until: float) -> None:
    """`running` of the `requests` were decoded a moment ago; the number moves where the KV pool is full, or prompts are long."""
    engine.force(steps)
    before: int | None = None
    while time.monotonic() < until:
        state = engine.state()
        if running * 3 // 4 < state["running"] <= requests and state["steps"] == steps:
            rounds = state["stepTime"].get(str(steps), {"rounds": 0})["rounds"]
            if before is None:
                before = rounds
            elif rounds - before >= ROUNDS:
                return
        time.sleep(POLL_SECONDS)


class HttpEngine:
    def __init__(self, url: str, admin_key: str, api_key: str) -> None:
        self._url, self._admin_key, self._api_key = url.rstrip("/"), admin_key, api_key

    def wait_until_up(self) -> None:
        """However long the model takes to load: who starts this beside an engine ends it with the engine."""
        while True:
            try:
                self._open("GET", "/ready", None, "").close()
                return
            except SweepFailed:
                time.sleep(UP_POLL_SECONDS)

    def state(self) -> dict[str, Any]:
        """Of the first rank: costs are the deciding rank's."""
        ranks: list[dict[str, Any]] = self._control("GET", "state")["ranks"]
        return ranks[0]

    def force(self, steps: int) -> None:
        self._control("POST", "force", {"steps": steps, "ttlSeconds": 60, "costOnly": True})

    def unforce(self) -> None:
        self._control("DELETE", "force")

    def profile(self) -> dict[str, Any]:
        return self._control("GET", "profile")

    @contextlib.contextmanager
    def decoding(self, requests: int) -> Iterator[None]:
        body = {
            "input_ids": [[FIRST_TOKEN + (7 * number + i) % 97 for i in range(PROMPT_TOKENS)] for number in range(requests)],
            "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": self._most_tokens()},
            "stream": True,  # the answer begins at once, and nobody reads on
        }
        response = self._open("POST", "/generate", body, self._api_key)
        try:
            yield
        finally:
            response.close()  # the engine gives requests up whose reader has gone

    @cache  # noqa: B019 — one engine a process
    def _most_tokens(self) -> int:
        """More would be refused where the context is short; nobody waits for all of them."""
        with self._open("GET", "/v1/models", None, self._api_key) as response:
            context = int(json.load(response)["data"][0]["max_model_len"])
        return max(1, min(MOST_TOKENS, context - PROMPT_TOKENS - CONTEXT_RESERVE))

    def _control(self, method: str, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with self._open(method, f"/specserver/v1/{name}", body, self._admin_key) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def _open(self, method: str, path: str, body: dict[str, Any] | None, key: str) -> Any:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, content, headers, method=method)
        try:
            return urllib.request.urlopen(request, timeout=ANSWER_SECONDS)
        except urllib.error.HTTPError as error:
            raise SweepFailed(f"{method} {path}: {error.code}: {error.read(500).decode(errors='replace')}") from error
        except OSError as error:
            raise SweepFailed(f"{method} {self._url}{path}: {error}: is the engine up?") from error


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specserver.plugin.sweep", description="Measures an engine's step costs.")
    parser.add_argument("--url", required=True, help="the engine's, such as http://127.0.0.1:30000")
    parser.add_argument("--out", required=True, type=Path, help="the file for the profile")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for all of it (default: %(default)s)")
    parser.add_argument("--wait", action="store_true", help="wait until the engine is up")
    return parser


def main(arguments: Sequence[str]) -> int:
    options = build_parser().parse_args(arguments)
    engine = HttpEngine(options.url, os.environ.get("SPECSERVER_ADMIN_KEY", ""), os.environ.get("SPECSERVER_API_KEY", ""))
    if options.wait:
        engine.wait_until_up()
    try:
        profile = sweep(engine, options.seconds)
    except (SweepFailed, OSError) as error:  # the latter in the middle of an answer
        print(f"sweep: {error}", file=sys.stderr)
        return 1
    temporary = options.out.with_suffix(".new")
    temporary.write_text(json.dumps(profile))
    temporary.replace(options.out)
    cells = sum(len(points) for points in profile["stepSeconds"].values())
    print(f"sweep: {options.out}: {cells} step costs for steps {', '.join(profile['stepSeconds'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
