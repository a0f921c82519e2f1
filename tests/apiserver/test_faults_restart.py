"""An API server that is killed and comes back: the operator outlives it, and 30 s later everything is as wanted.

The API server of this file is its own, since the others' must not go away under them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.apiserver.operator_process import OperatorProcess, install_rights
from tests.apiserver.world import World
from tests.fakes.api import Api
from tests.fakes.kubelet import Behaviour, FakeKubelet
from tests.localcluster import ApiServer, start_apiserver
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

AWAY_SECONDS = 12.0
"""Longer than the operator works without a renewal of its Lease."""
CONVERGES_WITHIN_SECONDS = 30.0


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with start_apiserver(tmp_path_factory.mktemp("restarted"), with_controllers=True) as api:
        yield api


@pytest.fixture(scope="module")
def operator_kubeconfig(control_plane: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_rights(control_plane, tmp_path_factory.mktemp("rights"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(control_plane: ApiServer) -> AsyncIterator[Api]:
    async with Api(control_plane.kubeconfig, patience_seconds=60.0) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kubelet(api: Api) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(api) as node:
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_operator(
    operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[OperatorProcess]:
    operator = OperatorProcess(operator_kubeconfig, tmp_path_factory.mktemp("operator") / "operator.log")
    await operator.start()
    yield operator
    await operator.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def operator(shared_operator: OperatorProcess) -> AsyncIterator[OperatorProcess]:
    """The same process to the end."""
    pid = shared_operator.pid
    yield shared_operator
    assert shared_operator.running
    assert shared_operator.pid == pid


async def test_it_is_all_in_order_after_a_restart(world: World, control_plane: ApiServer) -> None:
    """In the middle of a rollout, with changes that nobody has seen yet."""
    world.behave(Behaviour(start_seconds=1.0))
    await world.create_ready(replicas=3, rollout={"drainTimeout": "2s"})
    await world.create_ready("calm")
    old, calm = await world.pod_uids(), await world.pod_uids("calm")
    keys = await world.api.get("Secret", world.namespace, "chat-keys")
    # 1. Half of the pods are new, and the last words before the end are heard by nobody.
    await world.change(engine={"env": [{"name": "NEW", "value": "1"}]})

    async def some_are_new() -> bool:
        return bool(await world.pod_uids() - old)

    await eventually(some_are_new, "the first new pod", within_seconds=30)
    await world.change("calm", speculation={"policy": {"disableAbove": 9}})
    await world.api.delete("Service", world.namespace, "calm")
    control_plane.kill("kube-apiserver")
    # 2. Nobody answers. The operator says so, waits, and ends nothing.
    await asyncio.sleep(AWAY_SECONDS)
    assert world.operator.running
    assert "can't be had" in await world.operator.text("/readyz")
    assert await world.operator.page("/healthz") == "ok", "a restart of the operator would mend nothing"
    # 3. It is back.
    control_plane.start_again("kube-apiserver")
    await world.wait_condition("PolicyApplied", "True", name="calm", says="revision 2", within_seconds=CONVERGES_WITHIN_SECONDS)

    async def service() -> bool:
        return await world.api.find("Service", world.namespace, "calm") is not None

    await eventually(service, "the Service again", within_seconds=CONVERGES_WITHIN_SECONDS)
    await world.wait_condition("Ready", "True", within_seconds=60)
    # 4. Nothing lost, nothing twice.
    assert await world.pod_uids("calm") == calm
    assert len(await world.pod_uids()) == 3
    assert not old & await world.pod_uids()
    assert len(await world.api.list("ReplicaSet", world.namespace)) == 3, "two of the one, one of the other"
    assert await world.api.get("Secret", world.namespace, "chat-keys") == keys
