"""An API server that fails in every way it has: 30 s after the end of it everything is as wanted, nothing lost, nothing twice.

The operator of this file speaks to the real API server through a front (`tests/fakes/proxy.py`) in which requests go wrong.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.apiserver.operator_process import OperatorProcess
from tests.apiserver.world import KIND, MARKS, World
from tests.fakes.kubelet import Behaviour
from tests.fakes.proxy import Answer, Call, Cut, Fault, FaultyApi, Hang
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONVERGES_WITHIN_SECONDS = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def front(operator_kubeconfig: Path) -> AsyncIterator[FaultyApi]:
    async with FaultyApi(operator_kubeconfig) as faulty:
        yield faulty


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def behind(
    front: FaultyApi, shared_operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[OperatorProcess]:
    if shared_operator.running:
        await shared_operator.stop()
    directory = tmp_path_factory.mktemp("behind-the-front")
    operator = OperatorProcess(front.write_kubeconfig(directory / "kubeconfig"), directory / "operator.log")
    await operator.start()
    yield operator
    await operator.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def operator(behind: OperatorProcess, front: FaultyApi) -> AsyncIterator[OperatorProcess]:
    """In place of the one that the other files share. Whatever goes wrong in front of it, it goes on."""
    yield behind
    front.heal()
    assert behind.running
    assert not re.findall("Traceback|reconcile failed|never awaited", behind.log.read_text())


def when(applies: Callable[[Call], bool], fault: Fault) -> Callable[[Call], Fault | None]:
    return lambda call: fault if applies(call) else None


def every(call: Call) -> bool:
    return True


FAULTS: dict[str, Callable[[Call], Fault | None]] = {
    "gone": when(every, Cut()),
    "500": when(every, Answer(500)),
    "429 with Retry-After": when(every, Answer(429, headers={"Retry-After": "1"})),
    "409 to every write": when(lambda call: call.writes, Answer(409)),
    "a proxy's page with 200": when(lambda call: not call.watch, Answer(200, text="<html>log in</html>")),
    "writes fail": when(lambda call: call.writes, Answer(504)),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_it_is_all_in_order_after(world: World, front: FaultyApi, fault: str) -> None:
    await live_through(world, front, FAULTS[fault], ends_watches=fault != "409 to every write")


async def live_through(
    world: World, front: FaultyApi, fault: Callable[[Call], Fault | None], *, ends_watches: bool = True
) -> None:
    """A spec changes, an object is deleted and another server is made, all of it while nothing works."""
    await world.create_ready()
    uids = await world.pod_uids()
    keys = await world.api.get("Secret", world.namespace, "chat-keys")
    before = front.hits
    front.fault = fault
    if ends_watches:
        await front.end_watches()
    await world.change(replicas=3, speculation={"policy": {"disableAbove": 9}})
    await world.api.delete("Service", world.namespace, "chat")
    await world.create("late")
    await eventually(lambda: front.hits >= before + 5, "the operator meets the fault")
    front.heal()
    await wait_in_order(world, uids)
    assert await world.api.get("Secret", world.namespace, "chat-keys") == keys


async def wait_in_order(world: World, uids: set[str]) -> None:
    """Three replicas, the policy in each of them, the Service, the other server; and of everything one."""
    within = CONVERGES_WITHIN_SECONDS

    async def service() -> bool:
        return await world.api.find("Service", world.namespace, "chat") is not None

    await asyncio.gather(
        world.wait_condition("Ready", "True", says="3 replicas", within_seconds=within),
        world.wait_condition("PolicyApplied", "True", says="in force in 3 replicas", within_seconds=within),
        world.wait_condition("Ready", "True", name="late", within_seconds=within),
        eventually(service, "the Service again", within_seconds=within),
    )
    now = await world.pod_uids()
    assert len(now) == 3
    assert uids < now, "no pod was replaced"
    sets = await world.api.list("ReplicaSet", world.namespace)
    assert Counter(one["metadata"]["ownerReferences"][0]["name"] for one in sets).most_common(1)[0][1] == 1
    ups = [event for event in await world.events("ScaledUp") if event["involvedObject"]["name"] == "chat"]
    assert len(ups) <= 1


async def test_a_silent_watch_hides_nothing_for_long(world: World, front: FaultyApi) -> None:
    """The streams stay open and carry nothing; all is noticed while they do, also where the next look is far off."""
    await world.create_ready()
    await world.create_ready("slow", replicas=1, metrics={"interval": "10m", "staleness": "20m"})
    uids = await world.pod_uids()
    front.silent = True
    await world.change(replicas=3, speculation={"policy": {"disableAbove": 9}})
    await world.change("slow", replicas=2)
    await world.api.delete("Service", world.namespace, "chat")
    await world.create("late")
    await wait_in_order(world, uids)
    await world.wait_condition("Ready", "True", name="slow", says="2 replicas", within_seconds=CONVERGES_WITHIN_SECONDS)
    front.heal()


async def test_objects_that_vanish_in_a_gap_of_the_watch(world: World, front: FaultyApi) -> None:
    """The watch ends with 410, and what was deleted before the next list is in no event at all."""
    await world.create_ready()
    await world.create_ready("gone")
    front.silent = True
    for kind, name in (("Service", "chat"), ("ConfigMap", "chat-policy"), (KIND, "gone")):
        await world.api.delete(kind, world.namespace, name)
    deployment = (await world.deployment())["metadata"]["uid"]
    await world.api.delete("Deployment", world.namespace, "chat")
    front.silent = False
    await front.end_watches(gone=True)

    async def all_there() -> bool:
        found = [await world.api.find(kind, world.namespace, name) for kind, name in (
            ("Service", "chat"), ("ConfigMap", "chat-policy"), ("Deployment", "chat"))]  # fmt: skip
        return all(found) and found[2] is not None and found[2]["metadata"]["uid"] != deployment

    await eventually(all_there, "what had vanished", within_seconds=CONVERGES_WITHIN_SECONDS)
    await world.wait_condition("Ready", "True", within_seconds=CONVERGES_WITHIN_SECONDS)
    # The server that vanished stays gone: nothing of it is made anew.
    assert await world.api.find(KIND, world.namespace, "gone") is None

    async def gone() -> bool:
        return await world.api.find("Deployment", world.namespace, "gone") is None

    await eventually(gone, "the garbage collector", within_seconds=60)


async def test_a_server_made_anew_in_a_gap_is_another_one(world: World, front: FaultyApi) -> None:
    old = (await world.create_ready())["metadata"]["uid"]
    front.silent = True
    await world.api.delete(KIND, world.namespace, "chat")
    await world.create(replicas=1)
    front.silent = False
    await front.end_watches(gone=True)

    async def of_the_new_one() -> bool:
        found = await world.api.find("Deployment", world.namespace, "chat")
        return found is not None and found["metadata"]["ownerReferences"][0]["uid"] != old

    # The garbage collector is first, and it learns of a definition that is new each 30 s.
    await eventually(of_the_new_one, "a Deployment of the new one", within_seconds=90)
    await world.wait_condition("Ready", "True", says="1 replicas", within_seconds=CONVERGES_WITHIN_SECONDS)


async def test_too_large_a_request_is_told_with_its_object(world: World, front: FaultyApi) -> None:
    await world.create_ready()
    uids = await world.pod_uids()
    too_large = "etcdserver: request is too large"
    front.fault = when(lambda call: call.writes and call.path.endswith("/deployments/chat"), Answer(413, too_large))
    await world.change(engine={"env": [{"name": "MORE", "value": "x" * 100}]}, speculation={"policy": {"disableAbove": 9}})
    await world.wait_condition("Ready", "False", "ObjectRefused", says=f"Deployment chat: {too_large}")
    # What was not refused is done all the same, and what runs goes on.
    await world.wait_condition("PolicyApplied", "True", says="revision 2")
    assert await world.pod_uids() == uids
    front.heal()
    await world.wait_condition("Ready", "True", within_seconds=CONVERGES_WITHIN_SECONDS)


async def test_a_namespace_that_ends_is_left_in_peace(world: World, front: FaultyApi) -> None:
    """Something of somebody else's keeps it from going: nothing is created in it any more, over and over least of all."""
    await world.create_ready()
    held = {"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "held", "namespace": world.namespace, "finalizers": ["example.com/held"]}}  # fmt: skip
    await world.api.create(held)
    tried: list[str] = []

    def note(call: Call) -> Fault | None:
        if call.writes and world.namespace in call.path:
            tried.append(f"{call.method} {call.path}")
        return None

    await world.api.delete("Namespace", "", world.namespace)

    async def emptied() -> bool:
        return await world.api.find(KIND, world.namespace, "chat") is None

    await eventually(emptied, "the server is gone", within_seconds=60)
    await asyncio.sleep(1)  # a pass that was on its way
    front.fault = note
    await asyncio.sleep(3)
    assert tried == []
    await world.api.patch("ConfigMap", world.namespace, "held", {"metadata": {"finalizers": None}})

    async def ended() -> bool:
        return await world.api.find("Namespace", "", world.namespace) is None

    await eventually(ended, "the namespace is gone", within_seconds=60)


async def test_a_rollout_goes_on_where_the_fault_found_it(world: World, front: FaultyApi) -> None:
    """Half of the pods are new when the API server goes away; no pod of the new revision is made twice."""
    world.behave(Behaviour(start_seconds=1.0))
    await world.create_ready(replicas=3, rollout={"drainTimeout": "2s"})
    old = await world.pod_uids()
    await world.change(engine={"env": [{"name": "NEW", "value": "1"}]})

    async def some_are_new() -> bool:
        return bool(await world.pod_uids() - old)

    await eventually(some_are_new, "the first new pod", within_seconds=30)
    before = front.hits
    front.fault = FAULTS["gone"]
    await front.end_watches()
    await eventually(lambda: front.hits >= before + 5, "the operator meets the fault")
    front.heal()
    await world.wait_condition("Ready", "True", within_seconds=90)
    assert len(await world.pod_uids()) == 3
    assert not old & await world.pod_uids()
    assert len(await world.api.list("ReplicaSet", world.namespace)) == 2


async def test_status_of_a_thousand_faults_stays_small(world: World, front: FaultyApi) -> None:
    """An error text of 300 kB with line breaks goes into a condition as one short line."""
    endless = "refused\n\x00 because " + "x" * 300_000
    front.fault = when(lambda call: call.writes and "/services/" in call.path, Answer(422, endless))
    await world.create()
    await world.wait_condition("Ready", "False", "ObjectRefused", says="Service chat: refused")
    body = await world.read()
    assert len(json.dumps(body)) < 32_768
    assert all("\n" not in one["message"] and len(one["message"]) <= 1024 for one in body["status"]["conditions"])


async def test_it_is_all_in_order_after_an_api_server_that_hung(world: World, front: FaultyApi) -> None:
    """The last one: streams that were opened meanwhile hang on for a minute, and what comes is noticed without them."""
    await live_through(world, front, when(every, Hang()))


# ---- killed at every write ----------------------------------------------------------------------------------------------


async def roll(world: World) -> None:
    await world.change(engine={"image": "engine:2"})


async def scale_up(world: World) -> None:
    await world.change(replicas=3)


@pytest.mark.parametrize(("story", "replicas", "pods"), [(roll, 2, 4), (scale_up, 3, 3)])
async def test_killed_at_every_write_it_gets_there(
    world: World, front: FaultyApi, story: Callable[[World], Awaitable[None]], replicas: int, pods: int
) -> None:
    """Each life ends with -9 when the API server has taken its first write, before it learns of that; the next one has what is on
    the objects alone. `pods`: as many as a story without deaths would ever have."""
    await world.create_ready()
    uids, deaths, here = await world.pod_uids(), list[str](), f"/namespaces/{world.namespace}/"

    async def die(call: Call, status: int) -> None:
        # Of other tests' servers that are still going nothing counts: their writes come beside ours, which would go unseen.
        if call.writes and not call.dry_run and status < 300 and here in call.path:
            deaths.append(f"{call.method} {call.path.rpartition(here)[2]}")
            await world.operator.kill()

    async def is_done() -> bool:
        if not world.operator.running:
            await world.operator.launch()
        uids.update(await world.pod_uids())
        assert await world.receiving(), f"nobody serves after {deaths}"
        made = [pod for pod in await world.pods() if story is scale_up or pod["spec"]["containers"][0]["image"] == "engine:2"]
        condition = await world.condition("Ready")
        current = condition["observedGeneration"] == (await world.read())["metadata"]["generation"]
        return len(made) == replicas and current and condition["status"] == "True"

    front.answered = die
    await story(world)
    await eventually(is_done, lambda: f"the end of the story; deaths: {deaths}", within_seconds=200)
    front.heal()
    await world.operator.kill()  # if its last write has not done so yet
    await world.operator.start()
    await world.wait_condition("PolicyApplied", "True", says=f"in force in {replicas} replicas", within_seconds=30)
    await world.wait_still()
    # How many deaths there are hangs on what a life finds to write first. These are always met.
    met = {death.partition(" ")[2].partition("/")[0] for death in deaths}
    assert {"deployments", "speculativeservers", *(["pods"] if story is roll else [])} <= met, deaths
    assert len(uids) == pods, deaths
    assert [pod for pod in await world.pods() if set(MARKS) & pod["metadata"].get("annotations", {}).keys()] == []
    told = [(event["reason"], event["message"]) for event in await world.events("DrainStarted", "ScaledUp")]
    assert len(told) == len(set(told)) == (2 if story is roll else 1), deaths
