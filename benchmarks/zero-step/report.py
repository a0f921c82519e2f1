"""Table, picture and targets of the zero-step benchmark, from its raw data alone:

    python -m benchmarks.zero-step.report OLDEST.json … NEWEST.json [--later FILE.json …] [--out FOLDER]

`--later` names raw data of later releases of SGLang than the one that targets are measured with: shown behind it, apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.summary import Target, markdown_of, table, target, write_summary

NAMES = {"fa3": "FlashAttention-3", "flashinfer": "FlashInfer", "triton": "Triton"}
ARMS = ("plain", "ready", "stock")
WORDS = {
    "plain": "server without speculation",
    "ready": "ours, draft kept ready",
    "stock": "SGLang's own zero step",
}

OF_LORA = {
    "ours": "ours",
    "without-capturing": "ours, SGLang's buffers not put back (must fail with drafts)",
    "without-in_place": "ours, its own buffers not put in place (must fail)",
}

COUNTS = ("requests", "rounds", "acceptedDrafts", "error")
LISTS = ("cells", "proposals", "acceptance", "leftOut", "problems")

Cell = dict[str, Any]


class Cells:
    """Iteration time and rate by backend, concurrency and arm: the median of all windows, in forward and reverse order.

    An arm's figure at a place is that of the newest run that measured it there, and a ratio is taken within that run.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = cells
        self.backends = list(dict.fromkeys(cell["backend"] for cell in cells))
        self.concurrencies = sorted({cell["concurrency"] for cell in cells})

    def _find(self, backend: str, concurrency: int, arm: str) -> list[Cell]:
        place = (backend, concurrency, arm)
        return [cell for cell in self._cells if (cell["backend"], cell["concurrency"], cell["arm"]) == place]

    def _run(self, backend: str, concurrency: int, arm: str) -> int:
        return max((cell.get("run", 0) for cell in self._find(backend, concurrency, arm)), default=0)

    def _median(
        self, backend: str, concurrency: int, arm: str, value: Callable[[Cell], float | None], run: int | None = None
    ) -> float | None:
        run = self._run(backend, concurrency, arm) if run is None else run
        cells = [cell for cell in self._find(backend, concurrency, arm) if cell.get("run", 0) == run]
        values = [found for cell in cells if (found := value(cell)) is not None]
        return statistics.median(values) if values else None

    def interval(self, backend: str, concurrency: int, arm: str) -> float | None:
        """Median milliseconds from launch to launch at exactly this concurrency, of rounds with zero steps."""
        return self._median(backend, concurrency, arm, interval_of)

    def rate(self, backend: str, concurrency: int, arm: str) -> float | None:
        return self._median(backend, concurrency, arm, rate_of)

    def interval_ratio(self, backend: str, concurrency: int, arm: str) -> float | None:
        return self._ratio(backend, concurrency, arm, interval_of)

    def rate_ratio(self, backend: str, concurrency: int, arm: str) -> float | None:
        return self._ratio(backend, concurrency, arm, rate_of)

    def _ratio(self, backend: str, concurrency: int, arm: str, value: Callable[[Cell], float | None]) -> float | None:
        run = self._run(backend, concurrency, arm)
        plain = self._median(backend, concurrency, "plain", value, run)
        return divide(self._median(backend, concurrency, arm, value, run), plain)


def interval_of(cell: Cell) -> float | None:
    """The mean: a median would not see a write that comes every few rounds. Older raw data has the median alone."""
    intervals = cell["intervalMs"].get("0", {})
    found: float | None = intervals.get("mean", intervals.get("p50"))
    return found


def rate_of(cell: Cell) -> float | None:
    found: float | None = cell["tokensPerSecond"]
    return found


def divide(value: float | None, by: float | None) -> float | None:
    return value / by if value and by else None


def worst(values: Sequence[float | None], choose: Callable[[list[float]], float]) -> float | None:
    """None where one is missing: a target over all of them is then not known to be met."""
    known = [value for value in values if value is not None]
    return choose(known) if known and len(known) == len(values) else None


def targets_of(raw: dict[str, Any], cells: Cells) -> list[Target]:
    targets = []
    for backend in NAMES:

        def over_all(
            ratio: Callable[[str, int, str], float | None], arm: str, backend: str = backend
        ) -> list[float | None]:
            return [ratio(backend, concurrency, arm) for concurrency in raw["plan"]["concurrencies"]]

        name = NAMES[backend]
        targets += [
            target(
                f"{name}: zero-step iteration ÷ plain, worst concurrency (the draft is kept ready: there is no other)",
                worst(over_all(cells.interval_ratio, "ready"), max), "ratio", "≤", 1.01,
            ),
            target(
                f"{name}: zero-step iteration with the draft kept ready ÷ plain, worst concurrency",
                worst(over_all(cells.interval_ratio, "ready"), max), "ratio", "≤", 1.015,
            ),
            target(
                f"{name}: total tokens a second ÷ plain server, prefill included, worst concurrency",
                worst(over_all(cells.rate_ratio, "ready"), min), "ratio", "≥", 0.985,
            ),
        ]  # fmt: skip
    for turn in ("first", "second"):
        name = f"proposals after zero phases as if never left, {turn} turn (random weights)"
        targets.append(target(name, proposals_share(raw, turn), "ratio", "≥", 0.98))
    for turn in ("first", "second"):
        name = f"accepted drafts in the first 4 rounds after a zero phase ÷ always, {turn} turn (trained pair)"
        targets.append(target(name, acceptance_ratio(raw, turn), "ratio", "≥", 0.98))
    name = "extra graph memory (FlashAttention-3, alone on the GPU)"
    targets.append(target(name, graphs_of(raw.get("alone", {})).get("gigabytes"), "GB", "≤", 0.3))
    name = "extra start-up time (FlashAttention-3, most of the runs)"
    targets.append(target(name, max(raw.get("graphSeconds", []), default=None), "s", "≤", 2))
    return targets


def merged(raws: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> dict[str, Any]:
    """The parts as one, oldest first. What a later part asked the same server, it asked a newer plugin, and replaces. `names`, of
    the parts, stand before their problems. The report of the server that started alone is that of the part which has one. Its
    start-up time is disturbed by what starts beside it; all parts' are kept from the last on that measured its speed.
    """
    lists: dict[str, list[Any]] = {name: [] for name in LISTS}
    for number, raw in enumerate(raws):
        lists["cells"] += [{**cell, "run": number} for cell in raw["cells"]]
        for name in ("proposals", "acceptance"):
            servers = {result["server"] for result in raw[name]}
            lists[name] = [result for result in lists[name] if result["server"] not in servers] + raw[name]
        for name in ("leftOut", "problems"):
            lists[name] += [f"{names[number]}: {each}" if names else each for each in raw[name]]
    alone: dict[str, Any] = {}
    for raw in raws:
        if raw["acceptance"]:
            alone = raw["reports"].get("ours-fa3", {}).get("atStart", {}) or alone
    seconds: list[float] = []
    for raw in raws:
        if any((cell["backend"], cell["arm"]) == ("fa3", "ready") for cell in raw["cells"]):
            seconds.clear()
        found = graphs_of(raw["reports"].get("ours-fa3", {}).get("atStart", {})).get("seconds")
        seconds += [found] if found else []
    two_gpus: dict[str, Any] = next((raw["twoGpus"] for raw in raws[::-1] if raw.get("twoGpus")), {})
    variants: dict[str, Any] = {name: found for raw in raws for name, found in raw.get("variants", {}).items()}
    return {
        **raws[0], **lists, "alone": alone, "graphSeconds": seconds,
        "compared": {"two GPUs": two_gpus, **variants},
    }  # fmt: skip


def graphs_of(report: dict[str, Any]) -> dict[str, Any]:
    """What a server said that its zero step's graphs took."""
    return report.get("zero", {}).get("graphs") or {}


def proposals_share(raw: dict[str, Any], turn: str) -> float | None:
    """Over all backends but Triton, whose other kernels lead to other tokens and so to hardly a round to compare: the share of
    rounds with all proposals the same."""
    found = [result[turn] for result in raw["proposals"] if result["arm"] == "ready" and result["server"] != "ours-triton"]
    rounds = sum(each["rounds"] for each in found)
    return sum(each["allEqual"] for each in found) / rounds if rounds else None


def acceptance_ratio(raw: dict[str, Any], turn: str) -> float | None:
    """Over the backends that ran both arms: one alone has a standard error of two to three per cent."""
    servers = [{result["server"] for result in raw["acceptance"] if result["arm"] == arm} for arm in ("ready", "always")]
    both = set.intersection(*servers)

    def accepted(arm: str) -> float | None:
        found = [result[turn] for result in raw["acceptance"] if result["arm"] == arm and result["server"] in both]
        rounds = sum(each["rounds"] for each in found)
        return sum(each["acceptedDrafts"] * each["rounds"] for each in found) / rounds if rounds else None

    return divide(accepted("ready"), accepted("always"))


def markdown(raw: dict[str, Any], cells: Cells, targets: Sequence[Target]) -> str:
    parts = ["## Targets\n", markdown_of(targets)]
    columns = [f"C={concurrency}" for concurrency in cells.concurrencies]
    for backend in cells.backends:
        title = NAMES.get(backend, backend)
        for heading, value, ratio, form in (
            (f"{title}: milliseconds an iteration (÷ plain)", cells.interval, cells.interval_ratio, ".3f"),
            (f"{title}: output tokens a second, prefill included (÷ plain)", cells.rate, cells.rate_ratio, ",.0f"),
        ):
            rows = []
            for arm in ARMS:
                shown = [show(value(backend, c, arm), ratio(backend, c, arm), form) for c in cells.concurrencies]
                if any(cell != "–" for cell in shown):
                    rows.append([WORDS[arm], *shown])
            parts += [f"\n## {heading}\n", table(["arm", *columns], rows)]
    rows = []
    for result in raw["proposals"]:
        first, second = result["first"], result["second"]
        rows.append(
            [
                result["server"], result["arm"], result["outputsEqual"], f"{first['allEqual']}/{first['rounds']}",
                f"{first['afterAllEqual']}/{first['after']}", f"{second['allEqual']}/{second['rounds']}",
            ]
        )  # fmt: skip
    header = ["server", "arm", "outputs equal", "all proposals equal", "of these after zero rounds", "second turn"]
    parts += ["\n## Proposals against a run that always speculated\n", table(header, rows)]
    if raw["acceptance"]:
        rows = [
            [result["server"], result["arm"], turn, *(result[turn][name] for name in COUNTS)]
            for result in raw["acceptance"]
            for turn in ("first", "second")
        ]
        header = ["server", "arm", "turn", "requests", "rounds", "accepted drafts a round", "standard error"]
        parts += ["\n## Accepted drafts in the first four rounds, trained pair\n", table(header, rows)]
    if raw.get("compared"):
        title = "\n## Started otherwise: tensor parallel over two GPUs, and more; trained pair\n"
        parts += [title, compared_table(raw["compared"])]
    left_out = [*raw["leftOut"], *raw["problems"]]
    if left_out:
        parts += ["\n## Left out, and problems\n", "".join(f"- {each.splitlines()[0]}\n" for each in left_out)]
    return "\n".join(parts)


def compared_table(compared: dict[str, Any]) -> str:
    rows = [
        [name, arm, found["equal"], "yes" if found["inStep"] else "**no**"]
        for name, arms in compared.items()
        for arm, found in arms.items()
    ]
    return table(["server", "arm", "outputs as the usual server's in plain decode", "ranks in step"], rows)


def later_markdown(raw: dict[str, Any]) -> str:
    """What one run of a later release showed: whatever of it was run there."""
    parts = [f"\n## SGLang {raw['machine']['sglang']}, {'with LoRA' if raw.get('lora') else 'without LoRA'}\n"]
    if raw.get("lora"):
        parts += ["Two adapters and none by turns in one batch, trained pair:\n", lora_table(raw["lora"])]
    cells = Cells(raw["cells"])
    if cells.concurrencies:
        rows = [
            [what, *(show(value("lora", c, "ready"), ratio("lora", c, "ready"), form) for c in cells.concurrencies)]
            for what, value, ratio, form in (
                ("milliseconds an iteration", cells.interval, cells.interval_ratio, ".3f"),
                ("output tokens a second", cells.rate, cells.rate_ratio, ",.0f"),
            )
        ]
        header = ["with LoRA, zero steps (÷ plain)", *(f"C={concurrency}" for concurrency in cells.concurrencies)]
        parts += ["\nSpeed with the large model, adapters by turns:\n", table(header, rows)]
    if raw["variants"]:
        parts += ["\nStarted otherwise, trained pair:\n", compared_table(raw["variants"])]
    if raw["acceptance"]:
        ratios = [f"{show(acceptance_ratio(raw, turn), None, '.3f')} in the {turn} turn" for turn in ("first", "second")]
        parts.append(f"\nAccepted drafts after a zero phase ÷ always speculating: {', '.join(ratios)}.\n")
    graphs = graphs_of(raw["reports"].get("ours-fa3", {}).get("atStart", {}))
    if graphs:
        parts.append(f"\nGraphs of the zero step, 8B model: {graphs['seconds']} s.\n")
    if raw["leftOut"]:
        parts.append(f"\nLeft out for time: {', '.join(raw['leftOut'])}.\n")
    return "\n".join(parts)


def lora_table(lora: dict[str, Any]) -> str:
    rows = []
    for backend, servers in lora.items():
        stock = servers["stock"]
        rows.append(["SGLang's own speculation", backend, "3 steps", stock["equalPlain"], stock["alike"], "–"])
        rows += [
            [OF_LORA[name.rsplit("-", 1)[0]], backend, arm, found["equalPlain"], found["alike"], found["equalStock"]]
            for name, arms in servers.items()
            if name != "stock"
            for arm, found in arms.items()
        ]
    return table(["server", "LoRA backend", "arm", "as a plain server", "alike up to, share of tokens", "as SGLang's own"], rows)


def show(value: float | None, ratio: float | None, form: str) -> str:
    if value is None:
        return "–"
    return format(value, form) + ("" if ratio is None or ratio == 1 else f" ({ratio:.3f})")


def draw(cells: Cells, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(cells.backends), figsize=(5 * len(cells.backends), 4.5), squeeze=False)
    for axis, backend in zip(axes[0], cells.backends, strict=True):
        for arm in ARMS[1:]:
            ratios = {c: ratio for c in cells.concurrencies if (ratio := cells.interval_ratio(backend, c, arm)) is not None}
            if ratios:
                axis.plot(list(ratios), list(ratios.values()), marker="o", markersize=4, label=WORDS[arm])
        axis.axhline(1.0, color="black", linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks(cells.concurrencies, [str(concurrency) for concurrency in cells.concurrencies])
        axis.set_yscale("log")
        axis.set_yticks([1, 1.05, 1.1, 1.5, 2, 3], ["1", "1.05", "1.1", "1.5", "2", "3"])
        axis.minorticks_off()
        axis.set_title(f"{NAMES.get(backend, backend)}: iteration ÷ plain server")
        axis.set_xlabel("requests at a time")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.zero-step.report")
    parser.add_argument("raw", type=Path, nargs="+", help="raw.json of the parts")
    parser.add_argument("--later", type=Path, nargs="+", default=[], help="raw.json of later releases")
    parser.add_argument("--out", type=Path, help="folder for the results; that of the raw file if left out")
    options = parser.parse_args()
    out = options.out or options.raw[0].parent
    raw = merged([json.loads(path.read_text()) for path in options.raw], [path.name for path in options.raw])
    cells = Cells(raw["cells"])
    targets = targets_of(raw, cells)
    write_summary(out / "summary.json", targets)
    text = markdown(raw, cells, targets) + "".join(later_markdown(json.loads(path.read_text())) for path in options.later)
    (out / "results.md").write_text(text)
    draw(cells, out / "zero-step.png")
    print(text)


if __name__ == "__main__":
    main()
