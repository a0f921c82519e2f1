from __future__ import annotations

import pytest

from tests.chart.helm import Helm
from tests.localcluster.binaries import ensure_helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(binary=ensure_helm(), home=tmp_path_factory.mktemp("helm"))
