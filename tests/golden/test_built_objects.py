"""Every object that is built for a server, byte for byte: `servers/*.yaml` and `examples/*.yaml` in, `built/*.yaml` out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from specserver.api import v1alpha1
from specserver.build import build_all
from specserver.build.secret import build_keys_secret, needs_keys_secret

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
SCENARIOS = {path.stem: path for path in (*sorted((HERE / "servers").glob("*.yaml")), *sorted(EXAMPLES.glob("*.yaml")))}
KUBERNETES_VERSION = "1.36"


def build_everything(scenario: str) -> list[dict[str, Any]]:
    body = yaml.safe_load(SCENARIOS[scenario].read_text(encoding="utf-8"))
    body["metadata"] = {"namespace": "models", "uid": "0b5c2f0e-0000-4000-8000-000000000001", "generation": 7} | body["metadata"]
    server = v1alpha1.parse(body)
    secrets = [build_keys_secret(server, admin_key="admin", api_key="api")] if needs_keys_secret(server) else []
    return [*secrets, *build_all(server).values()]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_built_objects_are_as_reviewed(scenario: str, check_golden: Callable[[Path, str], None]) -> None:
    text = yaml.safe_dump_all(build_everything(scenario), sort_keys=False, allow_unicode=True, width=1000)
    check_golden(HERE / "built" / f"{scenario}.yaml", text)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_built_objects_satisfy_the_kubernetes_schema(scenario: str) -> None:
    for built in build_everything(scenario):
        kubernetes_validate.validate(built, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_object_belongs_to_the_server(scenario: str) -> None:
    for built in build_everything(scenario):
        [owner] = built["metadata"]["ownerReferences"]
        assert owner["kind"] == "SpeculativeServer"
        assert owner["controller"] is True
        assert owner["blockOwnerDeletion"] is True
        assert built["metadata"]["namespace"] == "models"


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in (HERE / "built").glob("*.yaml")} == set(SCENARIOS)


