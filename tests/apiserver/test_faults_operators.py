"""Two operators by mistake: the second waits, says for whom, and takes over when the first is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.apiserver.operator_process import OperatorProcess
from tests.apiserver.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def second(operator_kubeconfig: Path, tmp_path: Path, world: World) -> AsyncIterator[OperatorProcess]:
    """Beside the one of all tests; gone before that one is needed again."""
    operator = OperatorProcess(operator_kubeconfig, tmp_path / "second.log")
    yield operator
    if operator.running:
        await operator.stop()
    assert operator.faults() == []


async def wait_waiting(second: OperatorProcess, first: OperatorProcess) -> None:
    async def waits() -> bool:
        return f"the operator operator-{first.port} holds the Lease default/specserver-operator" in await second.text("/readyz")

    await second.launch()
    await eventually(second.serves_pages, "its pages")
    await eventually(waits, lambda: second.log.read_text())


async def test_the_second_waits_and_takes_over_from_one_that_ends(world: World, second: OperatorProcess) -> None:
    await world.create_ready()
    await wait_waiting(second, world.operator)
    assert await second.page("/healthz") == "ok", "waiting is no illness"
    await world.change(replicas=3)
    await world.wait_condition("Ready", "True")
    assert await second.writes() == {}
    assert "waits: the operator" in second.log.read_text()

    uids = await world.pod_uids()
    await world.operator.stop()  # lets go of it
    await eventually(second.is_ready, lambda: second.log.read_text())
    await world.change(replicas=4)
    await world.wait_condition("Ready", "True")
    assert uids < await world.pod_uids()


async def test_the_second_takes_over_from_one_that_was_killed(world: World, second: OperatorProcess) -> None:
    await world.create_ready()
    await wait_waiting(second, world.operator)
    await world.operator.kill()
    await world.change(replicas=3)
    await world.wait_condition("Ready", "True", within_seconds=45)
    assert await second.writes() != {}
    # The first comes back, and is the second now.
    await world.operator.launch()
    await eventually(world.operator.serves_pages, "its pages")

    async def waits() -> bool:
        return f"operator-{second.port} holds" in await world.operator.text("/readyz")

    await eventually(waits, "the first waits")
    await second.stop()
    await eventually(world.operator.is_ready, "the first works again")
