"""Options of the whole suite. (pytest reads them from here alone, before it knows which directories will run.)

`pytest --hypothesis-profile=explore` tries examples that nobody has tried yet.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# The same examples in each run, and no limit on the time of one: a run tells of a change, not of chance or of the machine.
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what is built now as the wanted text of the golden tests, instead of comparing",
    )
