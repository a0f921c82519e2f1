"""Whole scale-ups and scale-downs, pass by pass, on the cluster in miniature."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserver.core import drain
from specserver.core.observed import EngineState, EngineUnreachable
from tests.unit.core.scaling_cluster import NOW, Cluster, Operator, a_scaling, an_engine


def busy_between(start: float, end: float, *, quiet: float, busy: float) -> Callable[[float], float]:
    return lambda t: busy if start <= t < end else quiet


def test_quiet_busy_quiet() -> None:
    """The story of the demo, 2 → 3 → 2: one change up, one change down, the window between them, nothing lost."""
    cluster = Cluster(demand=busy_between(60, 240, quiet=10, busy=55), replicas=2)
    operator = Operator(cluster, a_scaling(low=2, high=4, Running=20))
    operator.run(1200)
    assert operator.changes == [(60, 2, 3), (540, 3, 2)]
    assert operator.actions == [
        # 300 s after the last sample that asked for three, at 225 s.
        (525, "MarkDraining", "p2"),
        # The victim finishes its last request 12 s later, is seen idle twice, and goes.
        (538, "NoteIdle", "p2"),
        (540, "ReleaseReplica", "2"),
    ]
    assert cluster.removed == [("p2", 0.0)]


def test_a_surge_is_met_at_once_and_as_fast_as_allowed() -> None:
    cluster = Cluster(demand=lambda _: 200, replicas=1, load_seconds=90)
    operator = Operator(cluster, a_scaling(high=10, Running=20))
    operator.run(600)
    # 1 → 5: the HPA's four pods. Those are loading, so 5 → 10 needs no new load figure: one replica alone carries 200.
    assert operator.changes == [(0, 1, 5), (15, 5, 10)]
    assert cluster.replicas == 10
    assert cluster.removed == []


def test_a_slow_start_is_not_asked_for_twice() -> None:
    """Models load for ten minutes; the overload is there at every look until then."""
    cluster = Cluster(demand=lambda _: 50, replicas=2, load_seconds=600)
    operator = Operator(cluster, a_scaling(high=10, Running=20))
    operator.run(1500)
    assert operator.changes == [(0, 2, 3)]


def test_down_from_many_goes_one_by_one() -> None:
    cluster = Cluster(demand=lambda _: 10, replicas=5)
    operator = Operator(cluster, a_scaling(low=2, high=10, Running=20))
    operator.run(900)
    assert [(before, after) for _, before, after in operator.changes] == [(5, 4), (4, 3), (3, 2)]
    assert operator.changes[0][0] >= 300
    assert all(requests == 0 for _, requests in cluster.removed)
    marks = [name for _, kind, name in operator.actions if kind == "MarkDraining"]
    assert marks == [name for name, _ in cluster.removed]
    # Two more drains: 12 s of requests, found idle twice by polls of 2 s, and the removal seen.
    assert operator.changes[-1][0] - operator.changes[0][0] <= 2 * (12 + 4 * drain.POLL_SECONDS)


def test_a_replica_that_never_finishes_goes_at_its_deadline() -> None:
    cluster = Cluster(demand=lambda _: 10, replicas=2, drain_seconds=10_000)
    operator = Operator(cluster, a_scaling(Running=20), drain_timeout_seconds=45)
    operator.run(600)
    (mark,) = (at for at, kind, _ in operator.actions if kind == "MarkDraining")
    assert operator.changes == [(mark + 45, 2, 1)]


def test_load_that_comes_back_during_a_drain_ends_it() -> None:
    cluster = Cluster(demand=lambda t: 55 if 305 <= t < 400 else 10, replicas=3, drain_seconds=40)
    operator = Operator(cluster, a_scaling(low=2, Running=20))
    operator.run(420)
    assert [(kind, name) for _, kind, name in operator.actions] == [("MarkDraining", "p2"), ("ReturnToService", "p2")]
    assert operator.changes == []
    assert len(cluster.serving) == 3


def test_an_overload_that_the_engines_solve_adds_no_replica() -> None:
    """At 60 s the load rises above the bound; the engines go plain, and from 70 s on the same traffic runs shorter."""
    cluster = Cluster(demand=lambda t: 30 if t < 60 else 150 if t < 70 else 38, replicas=2)

    def engines(cluster: Cluster) -> dict[str, EngineState | EngineUnreachable]:
        if cluster.now - NOW < 60:
            return {pod.name: an_engine(pod.name, steps=3, decided_steps=3) for pod in cluster.serving}
        return {pod.name: an_engine(pod.name, last_switch_at=NOW + 60) for pod in cluster.serving}

    operator = Operator(cluster, a_scaling(Running=20), engines=engines)
    operator.run(300)
    assert operator.changes == []

    # The same without the engines' word: the operator can't know, and adds.
    blind = Operator(Cluster(demand=cluster.demand, replicas=2), a_scaling(Running=20))
    blind.run(300)
    assert blind.changes == [(60, 2, 6)]


def test_an_overload_that_the_engines_don_t_solve_adds_after_the_grace() -> None:
    cluster = Cluster(demand=lambda t: 30 if t < 60 else 90, replicas=2)

    def engines(cluster: Cluster) -> dict[str, EngineState | EngineUnreachable]:
        return {pod.name: an_engine(pod.name, last_switch_at=NOW + 60) for pod in cluster.serving}

    operator = Operator(cluster, a_scaling(Running=20), engines=engines)
    operator.run(300)
    assert operator.changes == [(90, 2, 5)]


def test_metrics_that_come_and_go_change_nothing() -> None:
    """Nothing is readable for a minute, again and again, while the load is low: at no time is anything added."""
    cluster = Cluster(demand=lambda _: 35, replicas=2, unreadable=lambda t: None if t % 120 < 60 else set())
    operator = Operator(cluster, a_scaling(high=5, Running=20))
    operator.run(3000)
    assert operator.changes == []
    assert operator.actions == []


def test_a_long_loss_of_metrics_is_followed_by_a_whole_window() -> None:
    cluster = Cluster(demand=lambda _: 5, replicas=3, unreadable=lambda t: None if t < 900 else set())
    operator = Operator(cluster, a_scaling(Running=20))
    operator.run(1300)
    (first, *_) = (at for at, kind, _ in operator.actions if kind == "MarkDraining")
    assert 1200 <= first <= 1230


def test_one_replica_that_can_t_be_read_is_not_the_victim() -> None:
    cluster = Cluster(demand=lambda _: 5, replicas=4, unreadable=lambda _: {"p3"})
    operator = Operator(cluster, a_scaling(low=2, Running=20))
    operator.run(900)
    # p3 counts as full on the way down: two replicas remain, and p3, which may be decoding, is one of them.
    assert [pod.name for pod in cluster.live] == ["p0", "p3"]
    assert [name for name, _ in cluster.removed] == ["p2", "p1"]


CRASHES = ["MarkDraining", "NoteIdle", "ReleaseReplica"]


@pytest.mark.parametrize("kind", CRASHES)
def test_a_crash_after_any_write_of_a_drain_is_carried_on(kind: str) -> None:
    """All that the operator held in memory is lost at that point; the pods alone tell how far it was."""
    cluster = Cluster(demand=lambda _: 10, replicas=3)
    operator = Operator(cluster, a_scaling(low=2, Running=20), crash_after_action=lambda a: type(a).__name__ == kind)
    operator.run(900)
    assert [pod.name for pod in cluster.live] == ["p0", "p1"]
    assert cluster.removed == [("p2", 0.0)]
    kinds = [action for _, action, _ in operator.actions]
    assert kinds == ["MarkDraining", "NoteIdle", "ReleaseReplica"]


def test_a_fixed_number_that_the_user_lowers_drains_too() -> None:
    """Without `scaling` the same plan takes `spec.replicas` for the wanted number."""
    cluster = Cluster(demand=lambda _: 30, replicas=3)
    for _ in range(60):
        step = drain.plan_drain(
            pods=cluster.pods, load=cluster.observe_load(), desired_replicas=1, current_replicas=cluster.replicas,
            drain_timeout_seconds=60, now=cluster.now,
        )  # fmt: skip
        for action in step.actions:
            cluster.obey(action)
        cluster.advance(step.requeue_after_seconds or 15)
    assert cluster.replicas == len(cluster.live) == 1
    assert [requests for _, requests in cluster.removed] == [0, 0]
    assert len(cluster.serving) == 1


# ---- what holds for every day --------------------------------------------------------------------------------------------


def phases(steps: list[tuple[int, int]]) -> Callable[[float], float]:
    """A demand that is constant for a while, then another: [(ticks, requests)]; the last one stays."""

    def demand(t: float) -> float:
        for ticks, requests in steps:
            if t < ticks * 15:
                return requests
            t -= ticks * 15
        return steps[-1][1]

    return demand


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 150)), min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from([5.0, 60.0, 400.0]),
    st.sampled_from([0.0, 12.0, 90.0]),
)
def test_every_demand_is_followed_without_flapping(
    steps: list[tuple[int, int]], replicas: int, load_seconds: float, drain_seconds: float
) -> None:
    cluster = Cluster(demand=phases(steps), replicas=replicas, load_seconds=load_seconds, drain_seconds=drain_seconds)
    operator = Operator(cluster, a_scaling(high=8, Running=20))
    in_flight = []
    end = sum(ticks for ticks, _ in steps) * 15 + 8 * 120 + 1200

    while cluster.now < NOW + end:
        again = operator.look()
        marked = [pod for pod in cluster.live if pod.draining_since is not None]
        in_flight.append(len(marked))
        # The last serving replicas are never out of the Service: what is wanted serves, as far as it is there.
        wanted = operator.plan.desired_replicas if operator.plan else 1
        ready = [pod for pod in cluster.live if pod.ready]
        assert len(cluster.serving) >= min(wanted, len(ready))
        cluster.advance(min(15.0, again or 15.0))

    # One change in flight; down in single steps; up and down within the bounds.
    assert max(in_flight) <= 1
    assert all(after == before - 1 or after > before for _, before, after in operator.changes)
    assert all(1 <= after <= 8 for *_, after in operator.changes)
    # Between a change up and the next one down lies the window, counted from the look that asked for more.
    for (at, before, after), (later, since, then) in zip(operator.changes, operator.changes[1:], strict=False):
        if after > before and then < since:
            assert later - at >= 300
    # No replica was told to end with requests, unless its time was up.
    if drain_seconds < 60:
        assert all(requests == 0 for _, requests in cluster.removed)
    # It ends where the load is carried, and stays there.
    final = steps[-1][1]
    within_tolerance = 0.9 <= final / (20 * cluster.replicas) <= 1.1
    assert within_tolerance or cluster.replicas == min(8, max(1, -(-final // 20)))
    assert len(cluster.live) == cluster.replicas
    assert not operator.changes or operator.changes[-1][0] <= end - 60
