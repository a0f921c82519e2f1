"""The report: one picture on one time axis, and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from demo.manifests import PHASES
from demo.record import Record, Sample

CONDITIONS = ("Ready", "SpeculationActive", "PolicyApplied", "MetricsAvailable", "Progressing")
_COLOURS = {"True": "#4c9f70", "False": "#d9705f", "Unknown": "#b8b8b8"}
_INK, _QUIET, _ACCENT = "#22313f", "#8395a7", "#2e6fb7"
HONEST = "On a CPU speculation costs more than it gains: this shows control. Speed is a matter for a GPU and its own benchmark."


def write_report(record: Record, directory: Path) -> tuple[Path, Path]:
    """Writes report.png and report.md, and returns their paths."""
    picture, table = directory / "report.png", directory / "report.md"
    _draw(record, picture)
    table.write_text(_table(record))
    return picture, table


# ---- picture ----------------------------------------------------------------------------------------------------------


def _draw(record: Record, path: Path) -> None:
    start = record.traffic[0]["time"]
    end = max(record.traffic[-1]["time"], record.samples[-1].time)
    figure, rows = plt.subplots(
        6, 1, figsize=(13, 14), sharex=True, gridspec_kw={"height_ratios": [2, 1.3, 1.7, 1.3, 1.3, 2], "hspace": 0.18}
    )
    figure.suptitle("SpecServer: speculation and replicas follow the load", x=0.06, ha="left", fontsize=16, color=_INK, y=0.965)
    figure.text(0.06, 0.935, HONEST, fontsize=10, color=_QUIET)
    samples = [sample for sample in record.samples if sample.time >= start - 5]
    times = [sample.time - start for sample in samples]

    # 1. Load.
    sent = [(line["time"] - start, line["in_flight"]) for line in record.traffic]
    rows[0].fill_between(*zip(*sent, strict=True), step="post", color="#dfe6ee", label="in flight (clients)")
    _steps(rows[0], times, [_load(sample, "running") for sample in samples], _ACCENT, "running (status)")
    _steps(rows[0], times, [_load(sample, "queued") for sample in samples], "#d9705f", "queued (status)")
    _name(rows[0], "requests")

    # 2. Steps: how many replicas are in which mode.
    speculating = [_speculation(sample, "replicasSpeculating") or 0 for sample in samples]
    plain = [_speculation(sample, "replicasPlain") or 0 for sample in samples]
    rows[1].stackplot(
        times, speculating, plain, step="post", colors=["#4c9f70", "#e6b35a"], labels=["3 steps (speculating)", "0 steps (plain)"]
    )
    _name(rows[1], "replicas\nby steps")
    rows[1].set_yticks(range(4))

    # 3. Tokens.
    rates = zip(*_token_rates(record, start), strict=True)
    rows[2].plot(*rates, color=_INK, linewidth=1.4, label="tokens a second (clients, 5 s mean)")
    _name(rows[2], "tokens/s")

    # 4. Acceptance.
    lengths = [_number(_speculation(sample, "acceptLength")) for sample in samples]
    _steps(rows[3], times, lengths, "#7d5ba6", "accept length (status)")
    rows[3].set_ylim(0.9, 4.1)
    _name(rows[3], "tokens a\nround")

    # 5. Replicas.
    _steps(rows[4], times, [sample.status.get("scaling", {}).get("desiredReplicas") for sample in samples], "#d9705f", "wanted")
    _steps(rows[4], times, [sample.status.get("replicas") for sample in samples], _QUIET, "there")
    _steps(rows[4], times, [sample.status.get("readyReplicas") for sample in samples], "#4c9f70", "ready")
    rows[4].set_ylim(0, 3.6)
    rows[4].set_yticks(range(4))
    _name(rows[4], "replicas")

    # 6. Conditions.
    for height, kind in enumerate(reversed(CONDITIONS)):
        for begin, finish, condition in _spans(samples, kind, end):
            rows[5].broken_barh(
                [(begin - start, finish - begin)], (height - 0.4, 0.8), color=_COLOURS[condition["status"]], edgecolor="white"
            )
            if finish - begin > 14:
                rows[5].text(begin - start + 1, height, condition["reason"], fontsize=8, color="white", va="center", clip_on=True)
    rows[5].set_yticks(range(len(CONDITIONS)), reversed(CONDITIONS))
    rows[5].set_xlabel("seconds since the clients began", color=_INK)

    # What happened when, on all rows.
    for number, (time, text) in enumerate(record.notes):
        at = time - start
        if at < -5:
            continue
        for row in rows:
            row.axvline(at, color=_QUIET, linewidth=0.7, linestyle=":")
        late = at > 0.85 * (end - start)  # so that it ends inside the picture
        rows[0].annotate(
            text, (at, 1.0), xycoords=("data", "axes fraction"), xytext=(-2 if late else 2, -11 - 12 * (number % 5)),
            textcoords="offset points", ha="right" if late else "left", fontsize=7.5, color=_INK,
        )  # fmt: skip
    for row in rows:
        row.set_xlim(-5, end - start)
        row.spines[["top", "right"]].set_visible(False)
    rows[0].set_ylim(0, 1.75 * max(count for _, count in sent))
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def _steps(axes: Axes, times: list[float], values: list[Any], colour: str, label: str) -> None:
    known = [(time, value) for time, value in zip(times, values, strict=True) if value is not None]
    if known:
        axes.step(*zip(*known, strict=True), where="post", color=colour, linewidth=1.6, label=label)


def _name(axes: Axes, label: str) -> None:
    axes.set_ylabel(label, color=_INK)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)


def _spans(samples: list[Sample], kind: str, end: float) -> list[tuple[float, float, dict[str, Any]]]:
    """Stretches in which the condition had one status and reason."""
    spans: list[tuple[float, float, dict[str, Any]]] = []
    for sample in samples:
        condition = sample.condition(kind)
        if not condition:
            continue
        if spans and (spans[-1][2]["status"], spans[-1][2]["reason"]) == (condition["status"], condition["reason"]):
            continue
        if spans:
            begin, _, earlier = spans[-1]
            spans[-1] = (begin, sample.time, earlier)
        spans.append((sample.time, end, condition))
    return spans


def _token_rates(record: Record, start: float) -> list[tuple[float, float]]:
    lines, width = record.traffic, 5
    return [
        (late["time"] - start, (late["tokens"] - early["tokens"]) / (late["time"] - early["time"]))
        for early, late in zip(lines, lines[width:], strict=False)
        if late["time"] > early["time"]
    ]


# ---- table ------------------------------------------------------------------------------------------------------------


def _table(record: Record) -> str:
    """One row a phase; means over the phase, from the status and from the clients."""
    rows = [
        "# The demo, phase by phase",
        "",
        "| phase | requests in flight | steps | tokens/s | accept length | replicas ready | requests | failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, wanted, _ in PHASES:
        lines = [line for line in record.traffic if line["phase"] == name]
        samples = [sample for sample in record.samples if lines[0]["time"] <= sample.time <= lines[-1]["time"]]
        seconds = max(lines[-1]["time"] - lines[0]["time"], 1.0)
        accepted = [value for sample in samples if (value := _number(_speculation(sample, "acceptLength"))) is not None]
        ready = sorted({sample.status.get("readyReplicas", 0) for sample in samples})
        steps = list(dict.fromkeys(steps for sample in samples if (steps := _speculation(sample, "steps"))))
        accept = f"{sum(accepted) / len(accepted):.1f}" if accepted else ""
        cells = (
            name, wanted, " → ".join(steps), f"{(lines[-1]['tokens'] - lines[0]['tokens']) / seconds:.0f}", accept,
            ", ".join(map(str, ready)), lines[-1]["completed"] - lines[0]["completed"], lines[-1]["failed"] - lines[0]["failed"],
        )  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |")
    rows += ["", HONEST, "", "## What happened", ""]
    start = record.traffic[0]["time"]
    rows += [f"- {time - start:+6.0f} s  {text}" for time, text in record.notes]
    return "\n".join(rows) + "\n"


def _load(sample: Sample, field: str) -> Any:
    return sample.status.get("load", {}).get(field)


def _speculation(sample: Sample, field: str) -> Any:
    return sample.status.get("speculation", {}).get(field)


def _number(text: str | None) -> float | None:
    return float(text) if text else None
