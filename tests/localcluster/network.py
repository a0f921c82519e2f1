"""A node's addresses: one /16 of its own, chosen free, joined to the host by one link and one route.

In it: the link (host .0.1, node .0.2), the pods (.1.0/24) and the services (.16.0/20). The host reaches all of them
through that one route; nothing else of the host's network changes, and when the node's network namespace dies the
kernel takes link and route along.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.errors import ClusterError

Network = ipaddress.IPv4Network

# Private ranges, less the ends of 10/8, where routers, name servers and other people's clusters like to live.
CANDIDATES = tuple(Network(f"10.{second}.0.0/16") for second in range(130, 230)) + tuple(
    Network(f"172.{second}.0.0/16") for second in range(20, 31)
)
UPLINK = "uplink"  # the link's end inside the node


@dataclass(frozen=True)
class Subnet:
    """The addresses of one node, all from one /16."""

    network: Network

    def _address(self, offset: int) -> str:
        return str(self.network.network_address + offset)

    @property
    def host_ip(self) -> str:
        return self._address(1)

    @property
    def node_ip(self) -> str:
        return self._address(2)

    @property
    def pods(self) -> str:
        return f"{self._address(256)}/24"

    @property
    def services(self) -> str:
        return f"{self._address(16 * 256)}/20"

    @property
    def api_service_ip(self) -> str:
        return self._address(16 * 256 + 1)

    @property
    def dns_ip(self) -> str:
        return self._address(16 * 256 + 10)


def plan_subnet(taken: Iterable[Network], *, preferred: Network | None, seed: int) -> Subnet:
    """The preferred network if it is free, else the first free candidate counted from a place that the seed picks."""
    used = list(taken)
    start = seed % len(CANDIDATES)
    for network in (*([preferred] if preferred else []), *CANDIDATES[start:], *CANDIDATES[:start]):
        if not any(network.overlaps(other) for other in used):
            return Subnet(network)
    raise ClusterError(
        f"every candidate network from {CANDIDATES[0]} to {CANDIDATES[-1]} overlaps a route of this machine: "
        f"{', '.join(map(str, used))}"
    )


def observe_networks() -> list[Network]:
    """Networks that this machine routes to, has addresses in, or asks for names: none of them may be covered."""
    networks = parse_routes(json.loads(run_ip("-4", "-json", "route", "show", "table", "all")))
    for line in Path("/etc/resolv.conf").read_text().splitlines() if Path("/etc/resolv.conf").exists() else ():
        words = line.split()
        if words[:1] == ["nameserver"] and ":" not in words[1]:
            networks.append(Network(words[1]))
    return networks


def parse_routes(routes: Sequence[dict[str, object]]) -> list[Network]:
    """Destinations of `ip -json route`, the default route left out: it covers everything and forbids nothing."""
    return [Network(str(route["dst"]), strict=False) for route in routes if route["dst"] not in ("default", "0.0.0.0/0")]


def connect(link: str, subnet: Subnet, node_pid: int) -> None:
    """Make the link between the host and the network namespace of that process, addresses at both ends, and the route."""
    run_ip("link", "add", link, "type", "veth", "peer", "name", UPLINK, "netns", str(node_pid))
    run_ip("address", "add", f"{subnet.host_ip}/30", "dev", link)
    run_ip("link", "set", link, "up")
    inside = ("nsenter", f"--target={node_pid}", "--net", "ip")  # not `ip netns exec`: that remounts /sys and hides cgroups
    _run(*inside, "address", "add", f"{subnet.node_ip}/30", "dev", UPLINK)
    _run(*inside, "link", "set", UPLINK, "up")
    _run(*inside, "route", "add", "default", "via", subnet.host_ip)
    run_ip("route", "add", str(subnet.network), "via", subnet.node_ip)


def disconnect(link: str) -> None:
    """Take the link away, with its route, unless it has gone with its namespace."""
    subprocess.run(["ip", "link", "delete", link], capture_output=True)


def run_ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout
