"""What the engine benchmark measures: arms, concurrencies, acceptance models, windows. Data alone."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu.load import Shape

CONCURRENCIES = (1, 4, 10, 32, 70, 128, 250)
ORIGINATING = (1, 10, 70, 250)
LADDER = (0, 1, 2, 3)

HEALTHY = (0.69, 0.46, 0.32, 0.23, 0.18, 0.13, 0.10)
"""Survival by position of EAGLE-3 on chat, as published for Llama-3.1-8B (five positions; the last two continue the fall)."""
POOR = (0.45, 0.20, 0.09, 0.04, 0.02, 0.01, 0.005)
"""A draft model that knows its target badly."""
PROFILES = {"healthy": HEALTHY, "poor": POOR}

STOCK_DEFAULT = {"1": (1, 3, 7), "8": (0, 1, 3), "32": (0, 1), "64": (0,)}
"""SGLang 0.5.17's own default table of its adaptive controller."""
STOCK_OFF_AT_64 = {"1": (3,), "64": (0,)}
STOCK_CAPTURED = {"1": (1, 3, 7), "8": (0, 1, 3), "32": (0, 1, 3), "64": (0,)}
"""What the stock server starts with: every runtime state that one of the two tables reaches. Which one decides is set later."""

REQUEST = Shape(prompt=128, output=256)
WAVE_REQUEST = Shape(prompt=16, output=256)


@dataclass(frozen=True)
class Plan:
    """Sizes and times of one run.

    shape            tokens of a request
    groups           requests are replaced in so many groups (load.py)
    concurrencies    in rising order; measured up with the healthy draft, down with the poor one
    one_by_one       concurrencies at which finished requests are also replaced one by one
    passes           how often a concurrency is measured with each draft, one pass right after the other
    window_seconds   one measuring window of the waves' part
    settle_seconds   after a change of arm, before its window: as long as a policy's dwell, which may still run
    adapt_seconds    the same for rules that have to learn
    learn_seconds    at each concurrency, before anything counts: our rule starts without a profile

    Windows of the table, short, so that what is compared lies close together in time:

    cycles                 of our server in a pass: our rule and each fixed step count, one window each
    cycle_window_seconds   of those windows
    busy_window_seconds    of those windows from busy_from requests on, where a round takes several times as long
    force_seconds          after a change of what is forced, before its window: rounds of both are under way
    pass_window_seconds    of the stock servers
    stock_window_seconds   of SGLang's adaptive mode, which is compared with nothing, after stock_settle_seconds

    steady_seconds         of our rule alone at constant load, at the same concurrencies as changes: how often it switches

    change_seconds         with each of three drafts, healthy, poor and healthy again, at the concurrencies beside it
    change_settle_seconds  before that, with our rule and the healthy draft
    change_window_seconds  of each fixed step count with each draft, once before and once after that

    wave             requests of the square wave's low and high phase
    periods          seconds of one wave, with the number of waves
    """

    shape: Shape = REQUEST
    groups: int = 16
    concurrencies: tuple[int, ...] = CONCURRENCIES
    originating: tuple[int, ...] = ORIGINATING
    one_by_one: tuple[int, ...] = (128,)
    window_seconds: float = 1.3
    settle_seconds: float = 0.25
    adapt_seconds: float = 0.8
    learn_seconds: float = 1.0
    passes: int = 2
    cycles: int = 3
    cycle_window_seconds: float = 0.25
    busy_window_seconds: float = 0.45
    busy_from: int = 100
    force_seconds: float = 0.08
    pass_window_seconds: float = 0.8
    stock_window_seconds: float = 0.6
    stock_settle_seconds: float = 0.5
    steady_seconds: float = 8.0
    change_seconds: float = 2.5
    change_settle_seconds: float = 1.0
    change_window_seconds: float = 0.4
    change_concurrencies: tuple[int, ...] = (4, 32, 128)
    wave: tuple[int, int] = (2, 200)
    wave_shape: Shape = WAVE_REQUEST
    periods: tuple[tuple[float, int], ...] = ((1.0, 6), (5.0, 2), (20.0, 1))
    start_seconds: float = 150.0
    max_running: int = 256
    kv_tokens: int = 88_000


REHEARSAL = Plan(
    shape=Shape(12, 48),
    concurrencies=(1, 4, 10),
    originating=(1, 10),
    one_by_one=(10,),
    window_seconds=1.0,
    adapt_seconds=0.5,
    learn_seconds=1.0,
    pass_window_seconds=1.0,
    cycles=2,
    cycle_window_seconds=1.0,
    stock_window_seconds=1.0,
    change_window_seconds=1.0,
    change_concurrencies=(4,),
    wave=(2, 10),
    wave_shape=Shape(8, 64),
    periods=((1.0, 3), (5.0, 1)),
    start_seconds=420.0,
)
