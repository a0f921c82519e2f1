"""What a benchmark's report says of its targets: met or missed, each by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Target:
    """A figure against its goal. `value` is None where it could not be measured, which is a miss."""

    name: str
    value: float | None
    unit: str
    goal: str
    met: bool


def target(name: str, value: float | None, unit: str, comparison: Literal["≥", "≤"], bound: float) -> Target:
    if value is None:
        return Target(name, None, unit, f"{comparison} {bound:g}", met=False)
    met = value >= bound if comparison == "≥" else value <= bound
    return Target(name, round(value, 4), unit, f"{comparison} {bound:g}", met)


def write_summary(path: Path, targets: Sequence[Target]) -> None:
    path.write_text(json.dumps([asdict(each) for each in targets], indent=1, ensure_ascii=False) + "\n")


def markdown_of(targets: Sequence[Target]) -> str:
    rows = []
    for each in targets:
        value = "–" if each.value is None else f"{each.value:g}"
        rows.append([each.name, value, each.unit, each.goal, "yes" if each.met else "**no**"])
    return table(["target", "measured", "unit", "goal", "met"], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"
