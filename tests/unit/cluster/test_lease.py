"""The Lease: one of two operators works, whatever becomes of the other."""

from __future__ import annotations

from specserver.cluster.errors import Unavailable
from specserver.cluster.lease import DURATION_SECONDS, GIVE_UP_SECONDS, NAME, Lease, Leases
from tests.fakes.cluster import MemoryCluster, Request


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def holder(cluster: MemoryCluster) -> str | None:
    name: str | None = cluster.objects["Lease", NAME]["spec"].get("holderIdentity")
    return name


def two() -> tuple[MemoryCluster, Clock, Lease, Lease]:
    cluster, clock = MemoryCluster(), Clock()
    return cluster, clock, *(Lease(cluster, "ns", name, clock=clock) for name in ("a", "b"))  # type: ignore[return-value]


def be_away(_request: Request) -> None:
    raise Unavailable("no answer")


async def test_the_first_has_it_and_the_second_says_who() -> None:
    cluster, _, first, second = two()
    await first.turn()
    await second.turn()
    assert (first.held, second.held, holder(cluster)) == (True, False, "a")
    assert second.waits_for == f"the operator a holds the Lease ns/{NAME}"


async def test_the_second_waits_for_as_long_as_the_first_renews() -> None:
    _, clock, first, second = two()
    await first.turn()
    for _ in range(20):
        clock.now += 5
        await first.turn()
        await second.turn()
    assert (first.held, second.held) == (True, False)


async def test_what_is_let_go_is_taken_at_once() -> None:
    cluster, _, first, second = two()
    await first.turn()
    await second.turn()
    await first.release()
    assert not first.held
    await second.turn()
    assert (second.held, second.waits_for, holder(cluster)) == (True, "", "b")


async def test_what_is_not_renewed_runs_out_by_the_clock_of_who_waits() -> None:
    """Whatever time the first wrote: clocks of two machines differ."""
    cluster, clock, first, second = two()
    await first.turn()
    cluster.objects["Lease", NAME]["spec"]["renewTime"] = "2099-01-01T00:00:00.000000Z"
    await second.turn()
    clock.now += DURATION_SECONDS - 1
    await second.turn()
    assert not second.held
    clock.now += 2
    await second.turn()
    assert (second.held, holder(cluster)) == (True, "b")


async def test_the_first_stops_before_the_second_may_begin_and_waits_then() -> None:
    cluster, clock, first, second = two()
    await first.turn()
    await second.turn()
    cluster.on_request = be_away
    clock.now += GIVE_UP_SECONDS
    await first.turn()
    assert not first.held
    assert "no answer" in first.waits_for
    assert GIVE_UP_SECONDS < DURATION_SECONDS
    cluster.on_request = lambda _request: None
    clock.now += DURATION_SECONDS
    await second.turn()
    await first.turn()
    assert (first.held, second.held) == (False, True)
    assert "operator b holds" in first.waits_for


async def test_after_an_outage_the_holder_goes_on_at_once() -> None:
    cluster, clock, first, _ = two()
    await first.turn()
    cluster.on_request = be_away
    clock.now += 600
    await first.turn()
    cluster.on_request = lambda _request: None
    await first.turn()
    assert first.held


async def test_a_restarted_container_has_its_own_lease_at_once() -> None:
    cluster, clock, first, _ = two()
    await first.turn()
    again = Lease(cluster, "ns", "a", clock=clock)
    await again.turn()
    assert again.held


async def test_of_two_that_take_it_at_once_one_has_it() -> None:
    cluster, _, first, second = two()
    await first.turn()
    await first.release()

    def meanwhile(request: Request) -> None:
        """Between the second's look and its write the first takes it again."""
        if request[0] == "patch":
            cluster.on_request = lambda _request: None
            cluster.objects["Lease", NAME]["metadata"]["resourceVersion"] = "another"

    cluster.on_request = meanwhile
    await second.turn()
    assert not second.held
    assert "another operator takes" in second.waits_for
    await second.turn()
    assert second.held


async def test_a_deleted_lease_is_made_anew() -> None:
    cluster, _, first, _ = two()
    await first.turn()
    del cluster.objects["Lease", NAME]
    await first.turn()
    assert (first.held, holder(cluster)) == (True, "a")


async def test_letting_go_of_nothing_writes_nothing() -> None:
    cluster, _, first, second = two()
    await first.turn()
    await second.turn()
    writes = len(cluster.writes)
    await second.release()
    assert len(cluster.writes) == writes
    assert holder(cluster) == "a"


async def test_all_namespaces_are_one_lease_and_named_ones_one_each() -> None:
    clock = Clock()
    everywhere = Leases(MemoryCluster(), (), "a", clock=clock)
    assert everywhere.waits_for()
    await everywhere._leases["default"].turn()
    assert everywhere.held("team")
    assert everywhere.waits_for() == ""

    named = Leases(MemoryCluster(), ("team", "other"), "a", clock=clock)
    await named._leases["team"].turn()
    assert (named.held("team"), named.held("other"), named.held("third")) == (True, False, False)
    assert named.waits_for()
