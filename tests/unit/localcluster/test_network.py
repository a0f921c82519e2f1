"""Which network a node takes: never one that the machine uses."""

from __future__ import annotations

import pytest

from tests.localcluster.errors import ClusterError
from tests.localcluster.network import CANDIDATES, Network, Subnet, parse_routes, plan_subnet

FIRST, SECOND = CANDIDATES[:2]


@pytest.mark.parametrize(
    ("taken", "preferred", "seed", "expected"),
    [
        pytest.param([], None, 0, FIRST, id="nothing taken: where the seed points"),
        pytest.param([], None, 1, SECOND, id="another seed, another place"),
        pytest.param([], SECOND, 0, SECOND, id="the one of last time, to keep image names"),
        pytest.param([SECOND], SECOND, 0, FIRST, id="the one of last time is taken by now"),
        pytest.param([FIRST], None, 0, SECOND, id="taken whole"),
        pytest.param([Network(f"{FIRST.network_address + 77}/32")], None, 0, SECOND, id="one address in it taken"),
        pytest.param([CANDIDATES[-1]], None, len(CANDIDATES) - 1, FIRST, id="from the end on to the beginning"),
        pytest.param([Network("10.0.0.0/8")], None, 0, Network("172.20.0.0/16"), id="a private network of everything in 10/8"),
    ],
)
def test_choice(taken: list[Network], preferred: Network | None, seed: int, expected: Network) -> None:
    assert plan_subnet(taken, preferred=preferred, seed=seed).network == expected


def test_no_network_left_is_an_error_that_names_what_is_in_the_way() -> None:
    with pytest.raises(ClusterError, match=r"overlaps a route.*10\.0\.0\.0/8, 172\.16\.0\.0/12"):
        plan_subnet([Network("10.0.0.0/8"), Network("172.16.0.0/12")], preferred=None, seed=0)


def test_routes_are_networks_and_the_default_route_forbids_nothing() -> None:
    routes: list[dict[str, object]] = [{"dst": "default"}, {"dst": "10.1.0.0/16"}, {"dst": "192.0.2.2", "type": "local"}]
    assert parse_routes(routes) == [Network("10.1.0.0/16"), Network("192.0.2.2/32")]


def test_parts_of_a_subnet_do_not_overlap() -> None:
    subnet = Subnet(FIRST)
    link = Network(f"{subnet.host_ip}/30", strict=False)
    parts = [link, Network(subnet.pods), Network(subnet.services)]
    assert all(part.subnet_of(FIRST) for part in parts)
    assert not any(one.overlaps(other) for one in parts for other in parts if one is not other)
    assert Network(f"{subnet.node_ip}/32").subnet_of(link)
    for service_ip in (subnet.api_service_ip, subnet.dns_ip):
        assert Network(f"{service_ip}/32").subnet_of(Network(subnet.services))
