"""Golden files: the text that a change must not alter unnoticed. `pytest tests/golden --update-golden` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CheckGolden = Callable[[Path, str], None]


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> CheckGolden:
    """Compare a text with a golden file, or write it under --update-golden."""
    update = bool(request.config.getoption("--update-golden"))

    def check(path: Path, text: str) -> None:
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path.name} is missing: run pytest tests/golden --update-golden, then read and commit what it wrote")
        assert text == path.read_text(encoding="utf-8"), (
            f"{path.name} differs; if that is wanted, run pytest tests/golden --update-golden and review the change"
        )

    return check
