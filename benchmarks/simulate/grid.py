"""What is run: a case is one arm on one kind of traffic, and its result is JSON.

Cases are independent and deterministic, so that any number of processes may share them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specserver.simulate import arms, traffic
from specserver.simulate.controllers import Product
from specserver.simulate.costs import PLAIN, PREFILL_SECONDS_PER_TOKEN, TABLES
from specserver.simulate.engine import Engine, Noise, Outcome, simulate

CLIENTS = {"fa3": (1, 4, 10, 32, 70, 128, 250), "fa3-stock-zero": (1, 10, 70, 250), "triton-stock-zero": (1, 10, 70, 250)}
"""By cost table."""
SURVIVAL = {"good": traffic.GOOD, "low": traffic.LOW}
STATIC = ("static-0", "static-1", "static-2", "static-3")
OTHERS = ("threshold", "stock-like")
OURS = ("measured", "measured-profile")
PERIODS = (1, 5, 20)
COLLAPSE, RETURN, COLLAPSE_END = 15.0, 40.0, 85.0
IMPROVE, IMPROVE_END, IMPROVE_CLIENTS = 20.0, 35.0, (4, 10, 32, 70)
POOR = (0.45, 0.20, 0.07, 0.03, 0.01)
"""Three steps are a little worse than two, so that probes of three fail."""
TRACES = Path(__file__).parent / "traces"
TRACE_SECONDS = 400.0
STRETCH = {"azure": (0.25, 0.18), "mooncake": (3.0, 2.0)}
"""Slow and fast replay: about half of what the engine can carry, and nearly all."""
WINDOW_SECONDS = 5.0
LEARNING_RUN_SECONDS = 50.0


@dataclass(frozen=True)
class Case:
    """kind: constant, noisy, square, sawtooth, ramp, collapse, improve, azure or mooncake; `size` is its number of clients,
    period or stretch. The arm `plain` is a server started without speculation."""

    kind: str
    size: float
    survival: str
    costs: str
    arm: str
    seconds: float
    jitter: float = 0.0


def build_cases(tables: tuple[str, ...]) -> list[Case]:
    cases: list[Case] = []
    for costs in tables:
        for survival in SURVIVAL:
            for clients in CLIENTS[costs]:
                cases += [Case("constant", clients, survival, costs, arm, 20.0) for arm in ("plain", *STATIC, *OTHERS)]
                cases += [Case("constant", clients, survival, costs, arm, LEARNING_RUN_SECONDS) for arm in OURS]
    for jitter in (0.1, 0.3):
        cases += [Case("noisy", clients, "good", "fa3", "measured", LEARNING_RUN_SECONDS, jitter) for clients in CLIENTS["fa3"]]
    everyone = (*STATIC, *OTHERS, *OURS, "oracle")
    for arm in everyone:
        cases += [Case("square", period, "good", "fa3", arm, max(20.0, 2.0 * period)) for period in PERIODS]
        cases += [Case("sawtooth", 10, "good", "fa3", arm, 40.0), Case("ramp", 40, "good", "fa3", arm, 45.0)]
        for kind, stretches in STRETCH.items():
            cases += [Case(kind, stretch, "good", "fa3", arm, TRACE_SECONDS) for stretch in stretches]
    for arm in ("static-3", "stock-like", "measured", "oracle"):
        cases += [Case("collapse", clients, "good", "fa3", arm, COLLAPSE_END) for clients in (4, 32, 100)]
    for arm in ("measured", "oracle"):
        cases += [Case("improve", clients, "good", "fa3", arm, IMPROVE_END) for clients in IMPROVE_CLIENTS]
    return cases


def run_case(case: Case) -> dict[str, Any]:
    """One run. Tokens come in windows of WINDOW_SECONDS, so that every figure can be made from the raw file."""
    plain = case.arm == "plain"
    table = PLAIN if plain else TABLES[case.costs]
    engine = Engine(table, prefill_seconds_per_token=PREFILL_SECONDS_PER_TOKEN) if plain else Engine(table)
    source = _build_source(case)
    controller = arms.build("static-0" if plain else case.arm, table, source.acceptance)
    noise = Noise(clock=case.jitter, outliers=0.05) if case.jitter else Noise()
    outcome = simulate(engine, source, controller, case.seconds, noise=noise)
    explained = controller.decider.explain() if isinstance(controller, Product) else {}
    probes = {key: explained.get(key) for key in ("probes", "probeSeconds")}
    return {**asdict(case), **_describe(outcome), **probes}


def _build_source(case: Case) -> traffic.Source:
    survival = SURVIVAL[case.survival]
    acceptance = traffic.steady(survival)
    if case.kind in ("constant", "noisy"):
        return traffic.Source(acceptance, traffic.constant(int(case.size)))
    if case.kind == "square":
        return traffic.Source(acceptance, traffic.square(2, 200, case.size), prompt_tokens=(8, 16))
    if case.kind == "sawtooth":
        return traffic.Source(acceptance, traffic.sawtooth(1, 250, case.size))
    if case.kind == "ramp":
        return traffic.Source(acceptance, traffic.ramp(1, 250, case.size))
    if case.kind == "collapse":
        changing = traffic.changing(survival, traffic.NONE, COLLAPSE, RETURN)
        return traffic.Source(changing, traffic.constant(int(case.size)))
    if case.kind == "improve":
        return traffic.Source(traffic.changing(POOR, survival, IMPROVE), traffic.constant(int(case.size)))
    read, file = {
        "azure": (traffic.read_azure, "azure_llm_2023_code.csv"),
        "mooncake": (traffic.read_mooncake, "mooncake_fast25_conversation.csv"),
    }[case.kind]
    return traffic.Source(acceptance, arrivals=read(TRACES / file, case.seconds, case.size))


def _describe(outcome: Outcome) -> dict[str, Any]:
    spent: dict[int, float] = {}
    for by_steps in outcome.steps_by_bin:
        for steps, seconds in by_steps.items():
            spent[steps] = spent.get(steps, 0.0) + seconds
    latencies = sorted(outcome.latencies)
    windows = int(outcome.seconds / WINDOW_SECONDS)
    return {
        "tokens": outcome.tokens,
        "tokensByWindow": [
            outcome.tokens_between(WINDOW_SECONDS * number, WINDOW_SECONDS * (number + 1)) for number in range(windows)
        ],
        "switchTimes": [round(at, 3) for at in outcome.switch_times],
        "secondsBySteps": {str(steps): round(seconds, 3) for steps, seconds in sorted(spent.items())},
        "decodeSeconds": round(outcome.decode_seconds, 3),
        "prefillSeconds": round(outcome.prefill_seconds, 3),
        "finished": outcome.finished,
        "latencyP50Seconds": round(latencies[len(latencies) // 2], 4) if latencies else None,
        "latencyP99Seconds": round(latencies[int(0.99 * len(latencies))], 4) if latencies else None,
        "retractions": outcome.retractions,
    }
