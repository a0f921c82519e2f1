"""The sources of every supported release, and tests that run once for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserver.plugin.versions import SUPPORTED_VERSIONS
from tests.versions.sources import ensure_sources


@pytest.fixture(scope="session")
def all_sources() -> dict[str, Path]:
    return ensure_sources()


@pytest.fixture(params=SUPPORTED_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def sources(all_sources: dict[str, Path], version: str) -> Path:
    return all_sources[version]
