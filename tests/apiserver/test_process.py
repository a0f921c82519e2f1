"""The operator as a process: starts before its CustomResourceDefinition, beside broken APIs, and ends when told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.apiserver.operator_process import OperatorProcess
from tests.apiserver.world import World, a_server
from tests.chart.helm import CRD_SOURCE
from tests.fakes.api import Api
from tests.fakes.kubelet import FakeKubelet
from tests.localcluster import ApiServer, start_apiserver
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOBODY = {
    "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.gone.example.com"},
    "spec": {
        "group": "gone.example.com", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
        "insecureSkipTLSVerify": True, "service": {"name": "nobody", "namespace": "default"},
    },
}  # fmt: skip


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server of its own, without the definition."""
    with start_apiserver(tmp_path / "bare") as api:
        yield api


@pytest_asyncio.fixture(loop_scope="session")
async def own(bare: ApiServer, tmp_path: Path) -> AsyncIterator[OperatorProcess]:
    operator = OperatorProcess(bare.kubeconfig, tmp_path / "operator.log")
    yield operator
    if operator.running:
        await operator.kill()


async def launch(operator: OperatorProcess) -> None:
    await operator.launch()

    async def waits() -> bool:
        return "not installed yet" in operator.log.read_text()

    await eventually(waits, lambda: f"waiting for the definition: {operator.log.read_text()}")


async def test_it_waits_for_its_definition_and_lives_beside_a_broken_api(bare: ApiServer, own: OperatorProcess) -> None:
    await asyncio.to_thread(bare.kubectl, "create", "-f", "-", stdin=json.dumps(NOBODY))
    await launch(own)
    assert "waiting for the CustomResourceDefinition" in await own.text("/readyz")
    assert await own.page("/healthz") == "ok"
    await asyncio.to_thread(bare.kubectl, "apply", "--server-side", "-f", str(CRD_SOURCE))

    async def ready() -> bool:
        return await own.page("/readyz") == "ok"

    await eventually(ready, lambda: own.log.read_text())
    async with Api(bare.kubeconfig) as api:
        await api.create(a_server("default"))

        async def made() -> bool:
            return await api.find("Deployment", "default", "chat") is not None

        await eventually(made, lambda: own.log.read_text())
    assert own.faults() == []


async def test_it_ends_when_told_though_it_still_waits(own: OperatorProcess) -> None:
    await launch(own)
    began = time.monotonic()
    assert await own.stop() == 0
    assert time.monotonic() - began < 10.0


async def test_a_running_one_ends_soon(world: World) -> None:
    await world.create_ready()
    began = time.monotonic()
    assert await world.operator.stop() == 0
    assert time.monotonic() - began < 10.0


async def test_it_leaves_other_namespaces_alone(
    world: World, api: Api, control_plane: ApiServer, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    await world.operator.stop()
    other = World(api, control_plane, kubelet, world.operator)
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other.namespace}})
    narrow = OperatorProcess(control_plane.kubeconfig, tmp_path / "narrow.log", namespaces=(world.namespace,))
    await narrow.start()
    await other.create()
    await world.create_ready()
    assert await other.status() == {}
    assert await api.find("Deployment", other.namespace, "chat") is None
    await narrow.stop()
    await api.delete("Namespace", "", other.namespace)


async def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    operator = OperatorProcess(tmp_path / "none", tmp_path / "operator.log", environment={"SPECSERVER_WORKERS": "many"})
    await operator.launch()
    assert await operator.wait() == 2
    assert "SPECSERVER_WORKERS='many': must be a whole number from 1 to 256" in operator.log.read_text()
