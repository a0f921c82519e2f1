"""A real API server with its controllers and scheduler, a node of fake engines, and the operator as a process: one set for
all tests of a worker, since starting them costs seconds; one namespace a test.

All of it lives in one event loop, the session's, so that a test can change an engine and ask the API server in one breath.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.apiserver.operator_process import OperatorProcess, install_rights
from tests.apiserver.world import World
from tests.fakes.api import Api
from tests.fakes.kubelet import FakeKubelet
from tests.localcluster import ApiServer, start_apiserver


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with start_apiserver(tmp_path_factory.mktemp("control-plane"), with_controllers=True) as api:
        yield api


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_rights(control_plane, tmp_path_factory.mktemp("rights"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api(control_plane: ApiServer) -> AsyncIterator[Api]:
    async with Api(control_plane.kubeconfig) as client:
        yield client


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kubelet(api: Api) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(api) as node:
        yield node


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_operator(
    operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[OperatorProcess]:
    operator = OperatorProcess(operator_kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log")
    await operator.start()
    yield operator
    await operator.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def operator(shared_operator: OperatorProcess) -> AsyncIterator[OperatorProcess]:
    """Running when the test starts, whatever the one before did to it; no fault of its log goes unseen."""
    if not shared_operator.running:
        await shared_operator.start()
    before = len(shared_operator.faults())
    yield shared_operator
    assert shared_operator.faults()[before:] == []


@pytest_asyncio.fixture(loop_scope="session")
async def world(
    api: Api, control_plane: ApiServer, kubelet: FakeKubelet, operator: OperatorProcess
) -> AsyncIterator[World]:
    """A namespace of the test's own. Its end is not waited for."""
    made = World(api, control_plane, kubelet, operator)
    faults = len(kubelet.errors)
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.namespace}})
    yield made
    await api.delete("Namespace", "", made.namespace)
    assert kubelet.errors[faults:] == []
