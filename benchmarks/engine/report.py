"""Table, picture and targets of the engine benchmark, from its raw data alone:

    python -m benchmarks.engine.report TABLE.json WAVES.json [--out FOLDER]

Rates are the model's expectation (digest.py): tokens that the rounds which really ran would gain in the mean, over the time that
they really took. A window of a second or two catches one prefill more or less by chance, so a rate is put together from the time
of a decoded token and that of a prefilled request, in the shape that every request has. The raw data holds what was drawn, too.

The host's speed drifts by tens of percent while a run goes on, which decides how two ratios are made (`ratio_over_passes`). Arms
are compared within a pass alone, some ten seconds. And the best of several noisy rates is above the best of the true ones, so the
best fixed arm is chosen by other passes than the one that it is then compared in: its luck in the choice is not held against us.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.summary import Target, markdown_of, table, target, write_summary

FIXED = ("plain", "fixed-1", "fixed-2", "static-3")
"""The fixed step counts 0 to 3. plain and static-3 are stock servers, fixed-1 and fixed-2 our server forced by hand."""
OWN_FIXED = ("fixed-0", "fixed-1", "fixed-2", "fixed-3")
"""The same, all of them in our own process: nothing but the step count then differs."""
SHOWN = (*FIXED, "measured", "stock-default", "stock-off-at-64", "fixed-0", "fixed-3")
PROFILES = ("healthy", "poor")
TABLE_ORDERS = ("rising", "falling", "stock")
CHANGE_FIXED, STEADY = "change fixed", "steady"
ENOUGH_PREFILLS = 16
"""Prefilled requests in a pass, of each kind, whose mean time is taken for this pass."""

Cell = dict[str, Any]


def pass_of(cell: Cell) -> int:
    number: int = cell.get("pass", 1)
    return number


def prefill_seconds(cells: Sequence[Cell]) -> float:
    """Of one request, over all these windows."""
    requests = sum(cell["prefilledRequests"] for cell in cells)
    return sum(cell["prefillSeconds"] for cell in cells) / requests if requests else 0.0


def prefills_alike(cell: Cell) -> tuple[str, bool]:
    """What a prefill's time hangs on besides the load: the server, and whether the draft reads prompts, too. Which step count
    drafts is all the same to it."""
    rounds: dict[str, int] = cell.get("rounds", {})
    return cell["server"], sum(rounds.values()) > 2 * rounds.get("0", 0)


def ratio_over_passes(ours: Mapping[int, float], fixed: Mapping[str, Mapping[int, float]]) -> float | None:
    """Ours over the best fixed arm: the geometric mean over passes. Rates by pass; those of fixed arms by arm and pass.

    In each pass the arm is chosen by its rates in the others, where there are others. Of arms that lie closer together than the
    noise it is at times not the best one. That leans to our side, by less than those arms differ; to take the best of what is
    compared leans to the other side, by the noise.
    """
    ratios = []
    for number, rate in ours.items():
        others = [other for other in ours if other != number] or [number]
        measured = {arm: rates for arm, rates in fixed.items() if all(each in rates for each in (number, *others))}
        if measured:
            chosen = max(measured, key=lambda arm: statistics.geometric_mean(measured[arm][other] for other in others))
            ratios.append(rate / measured[chosen][number])
    return statistics.geometric_mean(ratios) if ratios else None


class Rates:
    """Rates by arm, concurrency and acceptance model: over all windows of an arm, to be shown, and by pass, to be compared.

    `output` is how many tokens a request generates.
    """

    def __init__(self, cells: Sequence[Cell], output: int) -> None:
        usable = [cell for cell in cells if cell.get("expectedPerSecond")]
        self._output = output
        self._cells = [cell for cell in usable if cell["order"] in TABLE_ORDERS]
        self._steady = [cell for cell in usable if cell["order"] == STEADY]
        self._changing = [cell for cell in usable if cell["arm"] == "changing"]
        self._change_fixed = [cell for cell in usable if cell["order"] == CHANGE_FIXED]
        self.change_concurrencies = sorted({cell["concurrency"] for cell in self._changing})
        self.concurrencies = sorted({cell["concurrency"] for cell in self._cells})

    def cells(self, arm: str, concurrency: int, profile: str) -> list[Cell]:
        return [
            cell
            for cell in self._cells
            if cell["arm"] == arm and cell["concurrency"] == concurrency and cell["profile"] in (profile, "any")
        ]

    def rate(self, arm: str, concurrency: int, profile: str) -> float | None:
        return self._rate_of(self.cells(arm, concurrency, profile), self._at(concurrency))

    def _rate_of(self, cells: Sequence[Cell], pool: Sequence[Cell]) -> float | None:
        """A request's first token comes with its prefill, the others are decoded. `pool`: windows that tell a prefill's time."""
        tokens = sum(cell["decodeTokens"] for cell in cells)
        if not tokens:
            return None
        decode = (self._output - 1) * sum(cell["decodeSeconds"] for cell in cells) / tokens
        prefill = sum(cell["decodeTokens"] * prefill_seconds(self._like(cell, pool)) for cell in cells) / tokens
        return self._output / (decode + prefill)

    @staticmethod
    def _like(cell: Cell, pool: Sequence[Cell]) -> list[Cell]:
        """Those of the pool whose prefills tell of this one's; of the same server, where none does."""
        alike = [each for each in pool if prefills_alike(each) == prefills_alike(cell)]
        told = any(each["prefilledRequests"] for each in alike)
        return alike if told else [each for each in pool if each["server"] == cell["server"]]

    def _at(self, concurrency: int) -> list[Cell]:
        return [cell for cell in self._cells if cell["concurrency"] == concurrency]

    def best_fixed(self, concurrency: int, profile: str) -> tuple[str, float] | None:
        """Over all windows: what to name. What it is compared by is chosen pass by pass."""
        rates = {arm: rate for arm in FIXED if (rate := self.rate(arm, concurrency, profile)) is not None}
        return max(rates.items(), key=lambda item: item[1]) if rates else None

    def ratio_to_highest(self, concurrency: int, profile: str, arms: Sequence[str] = FIXED) -> float | None:
        """Ours over the highest of the fixed arms' rates, all passes together: noise then counts as our loss."""
        return self._over_highest(self.rate("measured", concurrency, profile), concurrency, profile, arms)

    def ratio_alone(self, concurrency: int) -> float | None:
        """The same of our rule in the seconds in which nothing was forced, healthy draft, over our own server's counts."""
        cells = [cell for cell in self._steady if cell["concurrency"] == concurrency]
        return self._over_highest(self._rate_of(cells, self._at(concurrency)), concurrency, "healthy", OWN_FIXED)

    def _over_highest(self, ours: float | None, concurrency: int, profile: str, arms: Sequence[str]) -> float | None:
        rates = [rate for arm in arms if (rate := self.rate(arm, concurrency, profile)) is not None]
        return None if ours is None or not rates else ours / max(rates)

    # ---- pass by pass --------------------------------------------------------------------------------------------------------

    def rates_by_pass(self, arm: str, concurrency: int, profile: str) -> dict[int, float]:
        cells = self.cells(arm, concurrency, profile)
        rates = {}
        for number in sorted({pass_of(cell) for cell in cells}):
            within = [cell for cell in cells if pass_of(cell) == number]
            rate = self._rate_of(within, self._prefill_pool(concurrency, profile, number))
            if rate is not None:
                rates[number] = rate
        return rates

    def _prefill_pool(self, concurrency: int, profile: str, number: int) -> list[Cell]:
        """The pass's own windows if each kind of prefill came often enough in it, else all at this concurrency.

        For all alike: one whose prefills are of the moment, beside one whose are of the whole run, is no fair comparison.
        """
        everything = self._at(concurrency)
        within = [
            cell for cell in everything
            if cell["order"] != "stock" and cell["profile"] in (profile, "any") and pass_of(cell) == number
        ]  # fmt: skip
        counts: Counter[tuple[str, bool]] = Counter()
        for cell in within:
            counts[prefills_alike(cell)] += cell["prefilledRequests"]
        return within if counts and min(counts.values()) >= ENOUGH_PREFILLS else everything

    def _ratio(self, arms: Sequence[str], concurrency: int, profile: str) -> float | None:
        fixed = {arm: self.rates_by_pass(arm, concurrency, profile) for arm in arms}
        return ratio_over_passes(self.rates_by_pass("measured", concurrency, profile), fixed)

    def ratio(self, concurrency: int, profile: str) -> float | None:
        """Ours over the best fixed step count."""
        return self._ratio(FIXED, concurrency, profile)

    def ratio_to_own(self, concurrency: int, profile: str) -> float | None:
        """Ours over the best fixed step count of our own server."""
        return self._ratio(OWN_FIXED, concurrency, profile)

    def ratio_to_plain(self, concurrency: int, profile: str) -> float | None:
        return self._ratio(("plain",), concurrency, profile)

    def ratio_through_change(self, concurrency: int) -> float | None:
        """Ours over the best fixed step count of our own server while acceptance falls and comes back: one count all the time.

        The fixed ones were measured before and after in the same load, which counts as two passes; ours was measured between.
        """
        ours = [cell for cell in self._changing if cell["concurrency"] == concurrency]
        fixed = [cell for cell in self._change_fixed if cell["concurrency"] == concurrency]
        pool = [*ours, *fixed]
        tokens = sum((self._rate_of([cell], pool) or 0.0) * cell["seconds"] for cell in ours)
        if not tokens:
            return None
        passes = sorted({pass_of(cell) for cell in fixed})
        through: dict[str, dict[int, float]] = {arm: {} for arm in OWN_FIXED}
        for arm in OWN_FIXED:
            for number in passes:
                found = [cell for cell in fixed if (cell["arm"], pass_of(cell)) == (arm, number)]
                rates = {name: self._rate_of([cell for cell in found if cell["profile"] == name], pool) for name in PROFILES}
                if None not in rates.values():
                    through[arm][number] = sum((rates[cell["profile"]] or 0.0) * cell["seconds"] for cell in ours)
        return ratio_over_passes(dict.fromkeys(passes, tokens), through)

    def switches_in_ten_seconds(self, concurrency: int | None = None) -> float | None:
        """Of our rule, which nobody disturbs meanwhile."""
        chosen = [cell for cell in self._steady if concurrency in (None, cell["concurrency"])]
        seconds = sum(cell["seconds"] for cell in chosen)
        return 10 * sum(cell["switches"] for cell in chosen) / seconds if seconds else None


def worst(values: Sequence[float | None], choose: Callable[[list[float]], float] = min) -> float | None:
    """None where one is missing: a target over all of them is then not known to be met."""
    known = [value for value in values if value is not None]
    return choose(known) if known and len(known) == len(values) else None


def targets_of(rates: Rates, waves: Sequence[dict[str, Any]]) -> list[Target]:
    ratios = {name: [rates.ratio(concurrency, name) for concurrency in rates.concurrencies] for name in PROFILES}
    targets = []
    for name in PROFILES:
        to_plain = [rates.ratio_to_plain(concurrency, name) for concurrency in rates.concurrencies]
        mean = worst(ratios[name], statistics.fmean)
        targets += [
            target(f"ours ÷ best fixed steps, worst concurrency, {name} draft", worst(ratios[name]), "ratio", "≥", 0.97),
            target(f"ours ÷ best fixed steps, mean, {name} draft", mean, "ratio", "≥", 0.985),
            target(f"ours ÷ no speculation, worst concurrency, {name} draft", worst(to_plain), "ratio", "≥", 0.98),
        ]
    own = [rates.ratio_to_own(concurrency, name) for name in PROFILES for concurrency in rates.concurrencies]
    name = "ours ÷ best fixed steps of our own server, mean, both drafts"
    targets.append(target(name, worst(own, statistics.fmean), "ratio", "≥", 0.985))
    own = [rates.ratio_to_highest(concurrency, name, OWN_FIXED) for name in PROFILES for concurrency in rates.concurrencies]
    name = "the same, by the highest rate over all passes"
    targets.append(target(name, worst(own, statistics.fmean), "ratio", "≥", 0.985))
    targets.append(target("the same, worst concurrency", worst(own), "ratio", "≥", 0.97))
    changing = worst([rates.ratio_through_change(concurrency) for concurrency in rates.change_concurrencies])
    name = "ours ÷ best fixed steps while acceptance falls and returns, worst concurrency"
    targets.append(target(name, changing, "ratio", "≥", 0.97))
    targets.append(target("switches at constant load", rates.switches_in_ten_seconds(), "in 10 s", "≤", 1))
    for period in (1.0, 5.0, 20.0):
        ratio = wave_ratio(waves, period, "measured")
        targets.append(target(f"square wave of {period:g} s, ours ÷ oracle", ratio, "ratio", "≥", 0.95))
    return targets


def wave_ratio(waves: Sequence[dict[str, Any]], period: float, arm: str) -> float | None:
    ours, oracle = wave_rate(waves, period, arm), wave_rate(waves, period, "oracle")
    return ours / oracle if ours is not None and oracle else None


def wave_rate(waves: Sequence[dict[str, Any]], period: float, arm: str) -> float | None:
    """Tokens a second over all runs of this arm."""
    found = [wave for wave in waves if (wave["period"], wave["arm"]) == (period, arm)]
    return sum(wave["tokens"] for wave in found) / sum(wave["seconds"] for wave in found) if found else None


# ---- words and pictures ------------------------------------------------------------------------------------------------------


def show(value: float | None, form: str = ",.0f") -> str:
    return "–" if value is None else format(value, form)


def markdown(
    rates: Rates, raws: Sequence[dict[str, Any]], waves: Sequence[dict[str, Any]], targets: Sequence[Target]
) -> str:
    parts = ["## Targets\n", markdown_of(targets)]
    columns = [str(concurrency) for concurrency in rates.concurrencies]
    for name in PROFILES:
        rows: list[list[str]] = [
            [arm, *(show(rates.rate(arm, concurrency, name)) for concurrency in rates.concurrencies)] for arm in SHOWN
        ]
        best = [rates.best_fixed(concurrency, name) for concurrency in rates.concurrencies]
        rows.append(["best fixed", *(each[0] if each else "–" for each in best)])
        rows.append(["ours ÷ best fixed", *(show(rates.ratio(concurrency, name), ".3f") for concurrency in rates.concurrencies)])
        highest = [rates.ratio_to_highest(concurrency, name) for concurrency in rates.concurrencies]
        rows.append(["the same, by the highest rate over all passes", *(show(ratio, ".3f") for ratio in highest)])
        own = [rates.ratio_to_own(concurrency, name) for concurrency in rates.concurrencies]
        rows.append(["ours ÷ best of our own fixed-0 to 3", *(show(ratio, ".3f") for ratio in own)])
        own = [rates.ratio_to_highest(concurrency, name, OWN_FIXED) for concurrency in rates.concurrencies]
        rows.append(["the same, by the highest rate over all passes", *(show(ratio, ".3f") for ratio in own)])
        plain = [rates.ratio_to_plain(concurrency, name) for concurrency in rates.concurrencies]
        rows.append(["ours ÷ plain", *(show(ratio, ".3f") for ratio in plain)])
        parts += [f"\n## Output tokens a second, prefill included, {name} draft\n", table(["arm", *columns], rows)]
    rows = [
        ["ours ÷ best fixed, draft changing", *(show(rates.ratio_through_change(c), ".3f") for c in rates.concurrencies)],
        ["ours alone ÷ highest of our own fixed", *(show(rates.ratio_alone(c), ".3f") for c in rates.concurrencies)],
        ["switches in 10 s", *(show(rates.switches_in_ten_seconds(c), ".1f") for c in rates.concurrencies)],
    ]
    parts += ["\n## Change and calm\n", table(["", *columns], rows)]
    if waves:
        rows = []
        for period, arm in dict.fromkeys((wave["period"], wave["arm"]) for wave in waves):
            runs = [wave for wave in waves if (wave["period"], wave["arm"]) == (period, arm)]
            rate, ratio = wave_rate(waves, period, arm), wave_ratio(waves, period, arm)
            switches = "; ".join(str(wave["switches"]) for wave in runs)
            rows.append([f"{period:g} s", arm, str(len(runs)), show(rate), show(ratio, ".3f"), switches])
        parts += ["\n## Square wave\n", table(["period", "arm", "runs", "tokens a second", "÷ oracle", "switches"], rows)]
    originating = [cell for raw in raws for cell in raw["cells"] if cell["order"] == "originating"]
    if originating:
        sizes = sorted({cell["concurrency"] for cell in originating})
        rows = []
        for arm in dict.fromkeys(cell["arm"] for cell in originating):
            found = {cell["concurrency"]: cell.get("expectedPerSecond") for cell in originating if cell["arm"] == arm}
            rows.append([arm, *(show(found.get(size)) for size in sizes)])
        parts += [
            "\n## The originating table, with SGLang's default cap of 48 running requests and without\n",
            table(["arm", *map(str, sizes)], rows),
        ]
    alone = [cell for raw in raws for cell in raw["cells"] if cell["order"] == "one by one"]
    if alone:
        sizes = sorted({cell["concurrency"] for cell in alone})
        rows = []
        for arm in dict.fromkeys(cell["arm"] for cell in alone):
            found = {cell["concurrency"]: cell.get("expectedPerSecond") for cell in alone if cell["arm"] == arm}
            rows.append([arm, *(show(found.get(size)) for size in sizes)])
        parts += [
            "\n## Requests replaced one by one instead of in groups, healthy draft\n", table(["arm", *map(str, sizes)], rows)
        ]
    left_out = [each for raw in raws for each in (*raw["leftOut"], *raw["problems"])]
    if left_out:
        parts += ["\n## Left out, and problems\n", "".join(f"- {each.splitlines()[0]}\n" for each in left_out)]
    return "\n".join(parts)


def draw(rates: Rates, waves: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(13, 9))
    colours = {"measured": "black", "plain": "tab:gray", "stock-default": "tab:red", "stock-off-at-64": "tab:purple"}
    for axis, name in zip(axes[0], PROFILES, strict=True):
        for arm in (*FIXED, "stock-default", "stock-off-at-64", "measured"):
            points = [
                (concurrency, rate / plain)
                for concurrency in rates.concurrencies
                if (rate := rates.rate(arm, concurrency, name)) and (plain := rates.rate("plain", concurrency, name))
            ]
            ours = arm == "measured"
            axis.plot(
                [concurrency for concurrency, _ in points], [ratio for _, ratio in points], marker="o", markersize=3,
                color=colours.get(arm), linewidth=2.5 if ours else 1.2, label="ours" if ours else arm,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_xticks(rates.concurrencies, [str(concurrency) for concurrency in rates.concurrencies])
        axis.set_title(f"{name} draft: tokens a second ÷ no speculation")
        axis.set_xlabel("requests at a time")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    for axis, period in zip(axes[1], (5.0, 20.0), strict=True):
        drawn: set[str] = set()
        for wave in waves:
            if wave["period"] == period and wave["arm"] in ("measured", "oracle") and wave["arm"] not in drawn:
                drawn.add(wave["arm"])
                label = "ours" if wave["arm"] == "measured" else "oracle"
                seconds, requests, steps = zip(*wave["line"], strict=True)
                axis.plot(seconds, steps, label=f"steps, {label}", linewidth=1)
                if label == "ours":
                    running = axis.twinx()
                    running.plot(seconds, requests, color="tab:gray", alpha=0.5)
                    running.set_ylabel("running requests")
        axis.set_title(f"square wave of {period:g} s")
        axis.set_xlabel("s")
        axis.set_ylabel("steps")
        if axis.lines:
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.engine.report")
    parser.add_argument("raw", type=Path, nargs="+", help="raw.json of the parts")
    parser.add_argument("--out", type=Path, help="folder for the results; that of the first raw file if left out")
    options = parser.parse_args()
    out = options.out or options.raw[0].parent
    raws = [json.loads(path.read_text()) for path in options.raw]
    rates = Rates([cell for raw in raws for cell in raw["cells"]], raws[0]["plan"]["output"])
    waves = [wave for raw in raws for wave in raw.get("waves", [])]
    targets = targets_of(rates, waves)
    write_summary(out / "summary.json", targets)
    text = markdown(rates, raws, waves, targets)
    (out / "results.md").write_text(text)
    draw(rates, waves, out / "engine.png")
    print(text)


if __name__ == "__main__":
    main()
