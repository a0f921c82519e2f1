"""Measures an engine's step costs at its start and keeps them as a profile file:  python -m specserver.plugin.sweep URL FILE

The rule learns step costs from traffic within a minute, one rung and one load at a time. The sweep gives it the whole table
before the first user comes: for each of some batch sizes, and for each step count of the ladder, so many requests of
nonsense run together under a forced step count, and the engine measures its rounds as it always does. What is measured is
then what will be served: the engine's own graphs, sampler and scheduler, host time included. Rejected: replaying the captured
graphs alone, which is faster, but leaves the host out, and on backends that plan per batch reads plans of other batches.

    SPECSERVER_ADMIN_KEY  key of the control routes
    SPECSERVER_API_KEY    SGLang's ordinary key, where it has one

The launcher runs this by itself where SPECSERVER_SWEEP_FILE names a file that is not there yet; as SPECSERVER_PROFILE_FILE
the next start reads it. An engine that is serving already is only slowed for those seconds, but its users' step counts are
forced too: sweep before it gets traffic.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

RUNNING = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROMPT_TOKENS = 32
ROUNDS = 16
"""Rounds of a cell if no draft is right. Each right one makes a request end earlier, so those with drafts are given more."""
SECONDS = 20.0
"""After which no further cell is begun."""
START_SECONDS = 1800.0
TOKENS = range(10, 250)
"""Token numbers that every vocabulary has."""


@dataclass(frozen=True)
class Cell:
    """So many requests at once under a step count."""

    running: int
    steps: int

    @property
    def tokens(self) -> int:
        """New tokens of each request: half of the drafts right, at most."""
        return ROUNDS + ROUNDS * self.steps // 2


class Engine(Protocol):
    def read_ladder(self) -> tuple[int, ...]:
        """Step counts that can be forced. Raises SweepImpossible."""

    def read_max_running(self) -> int: ...

    def force(self, steps: int, seconds: float) -> None: ...

    def unforce(self) -> None: ...

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        """Until all are done."""

    def read_profile(self) -> dict[str, Any]: ...


class SweepImpossible(Exception):
    """The engine can't be swept; the message says why."""


def plan_cells(ladder: Sequence[int], max_running: int) -> list[Cell]:
    """Small batches first: they are quick, and where the time is up, what is left out is the far end of the table."""
    sizes = sorted({min(running, max_running) for running in RUNNING})
    return [Cell(running, steps) for running in sizes for steps in sorted(ladder)]


def sweep(engine: Engine, *, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """The profile document."""
    rng, until = random.Random(0), clock() + seconds
    cells = plan_cells(engine.read_ladder(), engine.read_max_running())
    done = 0
    try:
        for cell in cells:
            if clock() >= until:
                break
            engine.force(cell.steps, seconds)
            engine.generate([_prompt(rng) for _ in range(cell.running)], cell.tokens)
            done += 1
    finally:
        engine.unforce()
    if done < len(cells):
        logger.warning("%d of %d cells measured in %.0f s; the rest is left to the traffic", done, len(cells), seconds)
    return engine.read_profile()


def _prompt(rng: random.Random) -> list[int]:
    """No two alike, so that the prefix cache has no part in it."""
    return [rng.choice(TOKENS) for _ in range(PROMPT_TOKENS)]


# ---- a running engine -------------------------------------------------------------------------------------------------------


class HttpEngine:
    def __init__(self, url: str, admin_key: str, api_key: str) -> None:
        self._url, self._admin_key, self._api_key = url.rstrip("/"), admin_key, api_key

    def wait_until_up(self, seconds: float = START_SECONDS) -> None:
        until = time.monotonic() + seconds
        while True:
            try:
                self._call("GET", "/health", key=self._api_key)
            except (OSError, http.client.HTTPException):  # not there yet, or starting
                if time.monotonic() > until:
                    raise
                time.sleep(1)
            else:
                return

    def read_ladder(self) -> tuple[int, ...]:
        rank = self._call("GET", "/specserver/v1/state", key=self._admin_key)["ranks"][0]
        if not rank["armed"] or rank["policy"] is None:
            raise SweepImpossible(rank["reason"])
        return tuple(rank["policy"]["steps"])

    def read_max_running(self) -> int:
        return int(self._call("GET", "/server_info", key=self._api_key)["max_running_requests"] or RUNNING[-1])

    def force(self, steps: int, seconds: float) -> None:
        body = {"steps": steps, "ttlSeconds": seconds}
        self._call("POST", "/specserver/v1/force", body, key=self._admin_key)

    def unforce(self) -> None:
        self._call("DELETE", "/specserver/v1/force", key=self._admin_key)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        self._call("POST", "/generate", {"input_ids": prompts, "sampling_params": parameters}, key=self._api_key)

    def read_profile(self) -> dict[str, Any]:
        profile: dict[str, Any] = self._call("GET", "/specserver/v1/profile", key=self._admin_key)
        return profile

    def _call(self, method: str, path: str, body: object = None, *, key: str) -> Any:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            text = response.read()
        return json.loads(text) if text else None


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s sweep: %(message)s")
    url, file = arguments[0], Path(arguments[1])
    engine = HttpEngine(url, os.environ.get("SPECSERVER_ADMIN_KEY", ""), os.environ.get("SPECSERVER_API_KEY", ""))
    started = time.monotonic()
    try:
        engine.wait_until_up()
        up = time.monotonic()
        profile = sweep(engine)
        write_profile(file, profile)
    except (SweepImpossible, OSError, ValueError, http.client.HTTPException) as error:
        detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        logger.error("no profile: %s %s", error, detail)
        return 1
    cells = sum(len(points) for points in profile["stepSeconds"].values())
    logger.info("%d cells in %.1f s, %.0f s after the launch: %s", cells, time.monotonic() - up, up - started, file)
    return 0


def write_profile(file: Path, profile: dict[str, Any]) -> None:
    """All or nothing: an engine that starts meanwhile reads no half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps(profile, indent=1))
    temporary.replace(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
