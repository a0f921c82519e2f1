"""Raw runs to the summary: each goal with what came out, met or missed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.simulate.grid import (
    CLIENTS,
    COLLAPSE,
    IMPROVE,
    IMPROVE_CLIENTS,
    IMPROVE_END,
    LEARNING_RUN_SECONDS,
    PERIODS,
    RETURN,
    STATIC,
    STRETCH,
    SURVIVAL,
    WINDOW_SECONDS,
)

Run = Mapping[str, Any]
LEARNT_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 20.0
CALM_TENS = (LEARNING_RUN_SECONDS - LEARNT_SECONDS) / 10.0


def build_summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """{name, value, unit, goal, met} a line; goal and met are null where the figure only explains."""
    lines: list[dict[str, Any]] = []

    def add(name: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None) -> None:
        goal = met = None
        if at_most is not None:
            goal, met = f"<= {at_most:g}", value <= at_most
        if at_least is not None:
            goal, met = f">= {at_least:g}", value >= at_least
        lines.append({"name": name, "value": round(value, 4), "unit": unit, "goal": goal, "met": met})

    # 1. Constant loads, with nothing known at the start.
    for costs in dict.fromkeys(run["costs"] for run in runs if run["kind"] == "constant"):
        goals = costs.startswith("fa3")
        ratios, plain, learnt, early, calm, probes = [], [], [], [], [], []
        for survival in SURVIVAL:
            for clients in CLIENTS[costs]:
                arms = {run["arm"]: run for run in _select(runs, kind="constant", costs=costs, survival=survival, size=clients)}
                best = max(_rate(arms[arm], 5.0, 20.0) for arm in STATIC)
                ours = _rate(arms["measured"], LEARNT_SECONDS, LEARNING_RUN_SECONDS)
                ratios.append(ours / best)
                plain.append(_rate(arms["measured"], 5.0, LEARNING_RUN_SECONDS) / _rate(arms["static-0"], 5.0, 20.0))
                learnt.append(ours / _rate(arms["measured-profile"], LEARNT_SECONDS, LEARNING_RUN_SECONDS))
                early.append(_worst_window(arms["measured"], arms["static-0"], 20.0))
                calm.append(sum(at >= LEARNT_SECONDS for at in arms["measured"]["switchTimes"]) / CALM_TENS)
                probes.append((arms["measured"]["probeSeconds"] - 1.0) / LEARNING_RUN_SECONDS)
        add(f"{costs}_ours_over_best_fixed_least", min(ratios), "ratio", at_least=0.97)
        add(f"{costs}_ours_over_best_fixed_mean", sum(ratios) / len(ratios), "ratio", at_least=0.985)
        add(f"{costs}_ours_over_zero_steps_least", min(plain), "ratio", at_least=0.98)
        add(f"{costs}_without_profile_over_with_least", min(learnt), "ratio", at_least=0.95)
        add(f"{costs}_worst_5s_of_first_20s_over_zero_steps", min(early), "ratio", at_least=0.9 if goals else None)
        add(f"{costs}_switches_per_10s_most", max(calm), "switches", at_most=1.0)
        add(f"{costs}_probe_duty_beyond_first_second_most", max(probes), "ratio", at_most=0.01)
        for arm in ("threshold", "stock-like", "static-0", "static-3"):
            add(f"{costs}_{arm}_over_best_fixed_least", min(_over_best(runs, costs, arm)), "ratio")
    # 2. A clock that lies.
    for jitter in (0.1, 0.3):
        ratios = []
        for clients in CLIENTS["fa3"]:
            (ours_run,) = _select(runs, kind="noisy", size=clients, jitter=jitter)
            static = _select(runs, kind="constant", costs="fa3", survival="good", size=clients)
            best = max(_rate(run, 5.0, 20.0) for run in static if run["arm"] in STATIC)
            ratios.append(_rate(ours_run, LEARNT_SECONDS, LEARNING_RUN_SECONDS) / best)
        add(f"jitter_{jitter:.0%}_ours_over_best_fixed_least", min(ratios), "ratio", at_least=0.95)
    # 3. Loads that move.
    moving = [("square", period) for period in PERIODS] + [("sawtooth", 10), ("ramp", 40)]
    for kind, size in moving:
        arms = {run["arm"]: run for run in _select(runs, kind=kind, size=size)}
        for arm in ("measured", "measured-profile"):
            add(f"{kind}_{size}s_{arm}_over_oracle", arms[arm]["tokens"] / arms["oracle"]["tokens"], "ratio", at_least=0.95)
        for arm in ("threshold", "stock-like", *STATIC):
            add(f"{kind}_{size}s_{arm}_over_oracle", arms[arm]["tokens"] / arms["oracle"]["tokens"], "ratio")
    # 4. Acceptance that collapses and returns.
    after_return = RETURN + LONGEST_WAIT_SECONDS + 5.0
    for clients in (4, 32, 100):
        arms = {run["arm"]: run for run in _select(runs, kind="collapse", size=clients)}
        for name, begin, end in (("collapsed", COLLAPSE + 5.0, RETURN), ("returned", after_return, 85.0)):
            value = _rate(arms["measured"], begin, end) / _rate(arms["oracle"], begin, end)
            add(f"collapse_{clients}_clients_{name}_over_oracle", value, "ratio", at_least=0.95)
    # 5. Acceptance that gets better: new requests are accepted otherwise, the others end first.
    for clients in IMPROVE_CLIENTS:
        arms = {run["arm"]: run for run in _select(runs, kind="improve", size=clients)}
        for name, begin, end in (("first_5s", IMPROVE, IMPROVE + 5.0), ("next_10s", IMPROVE + 5.0, IMPROVE_END)):
            value = _rate(arms["measured"], begin, end) / _rate(arms["oracle"], begin, end)
            add(f"improve_{clients}_clients_{name}_over_oracle", value, "ratio", at_least=0.95)
    # 6. Traces: what decoding the same requests takes, and how long requests take.
    for kind, stretches in STRETCH.items():
        for stretch in stretches:
            arms = {run["arm"]: run for run in _select(runs, kind=kind, size=stretch)}
            cost = {arm: run["decodeSeconds"] / run["tokens"] for arm, run in arms.items()}
            name = f"{kind}_stretch_{stretch:g}"
            add(f"{name}_decode_seconds_a_token_over_oracle", cost["measured"] / cost["oracle"], "ratio", at_most=1.05)
            add(f"{name}_decode_seconds_a_token_over_zero_steps", cost["measured"] / cost["static-0"], "ratio", at_most=1.02)
            for arm in ("measured", "threshold", "stock-like", *STATIC):
                add(f"{name}_{arm}_latency_p50", arms[arm]["latencyP50Seconds"], "s")
    return lines


def _select(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    return [run for run in runs if all(run[key] == value for key, value in wanted.items())]


def _rate(run: Run, begin: float, end: float) -> float:
    windows = run["tokensByWindow"][round(begin / WINDOW_SECONDS) : round(end / WINDOW_SECONDS)]
    return float(sum(windows)) / (WINDOW_SECONDS * len(windows))


def _worst_window(ours: Run, plain: Run, seconds: float) -> float:
    count = round(seconds / WINDOW_SECONDS)
    return min(a / b for a, b in zip(ours["tokensByWindow"][:count], plain["tokensByWindow"][:count], strict=True))


def _over_best(runs: Sequence[Run], costs: str, arm: str) -> list[float]:
    ratios = []
    for survival in SURVIVAL:
        for clients in CLIENTS[costs]:
            arms = {run["arm"]: run for run in _select(runs, kind="constant", costs=costs, survival=survival, size=clients)}
            ratios.append(_rate(arms[arm], 5.0, 20.0) / max(_rate(arms[other], 5.0, 20.0) for other in STATIC))
    return ratios


def build_table(runs: Sequence[Run]) -> str:
    """Markdown: tokens a second over the best fixed step count, by clients."""
    rows = []
    for costs in dict.fromkeys(run["costs"] for run in runs if run["kind"] == "constant"):
        for survival in SURVIVAL:
            rows += [f"\n{costs}, acceptance {survival}: tokens a second over those of the best fixed step count\n"]
            rows += ["| arm | " + " | ".join(f"C={clients}" for clients in CLIENTS[costs]) + " |"]
            rows += ["|---" * (len(CLIENTS[costs]) + 1) + "|"]
            for arm in ("plain", *STATIC, "threshold", "stock-like", "measured-profile", "measured"):
                cells = []
                for clients in CLIENTS[costs]:
                    arms = {
                        run["arm"]: run for run in _select(runs, kind="constant", costs=costs, survival=survival, size=clients)
                    }
                    best = max(_rate(arms[other], 5.0, 20.0) for other in STATIC)
                    span = (LEARNT_SECONDS, LEARNING_RUN_SECONDS) if arm.startswith("measured") else (5.0, 20.0)
                    cells.append(f"{_rate(arms[arm], *span) / best:.3f}")
                rows.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(rows).lstrip("\n") + "\n"
