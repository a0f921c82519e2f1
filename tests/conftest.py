"""Options of the whole suite. (pytest reads them from here alone, before it knows which directories will run.)"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what is built now as the wanted text of the golden tests, instead of comparing",
    )
