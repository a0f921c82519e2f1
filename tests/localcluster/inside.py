"""The node's first process: makes the namespaces it was born into fit for a node, starts the programs, reaps orphans.

`python -m tests.localcluster.inside STATE`, started by `node.py` through unshare as process 1 of new mount, network and
process namespaces. Process 1 dead means all of the node dead, containers included, and its mounts and interfaces gone:
the kernel does the cleaning, whoever was killed in the middle of whatever. (Rejected: a list of process numbers to kill
one by one, which is wrong as soon as one of them is missing from it.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.localcluster.components import answers
from tests.localcluster.network import UPLINK
from tests.localcluster.pki import Pki
from tests.localcluster.plan import EMPTIED, Daemon, Plan, read_plan

_POLL_SECONDS = 0.05


def main(state: Path) -> None:
    if os.getpid() != 1:
        sys.exit("this is the first process of a node: python -m tests.localcluster up starts it")
    plan = read_plan((state / "run" / "plan.json").read_text())
    # 1. the namespaces
    mount(plan)
    prepare_network(plan.services)
    # 2. the programs, in order
    running: dict[int, str] = {}
    for daemon in plan.daemons:
        while daemon.after_api and not answers(plan.api_url, Pki(Path(plan.pki))):
            reap(running, Path(plan.ended), block=False)
            time.sleep(_POLL_SECONDS)
        running[start(daemon, Path(plan.logs))] = daemon.name
    # 3. every orphan of every container ends up here
    while True:
        reap(running, Path(plan.ended), block=True)


def mount(plan: Plan) -> None:
    """/run and /var/lib empty and in memory, the binds over them, the kubelet's sysctls answered by files.

    Shared propagation: a volume that the kubelet mounts has to show up in containerd, and stays in this namespace.
    """
    run("mount", "--make-rshared", "/")
    for directory in EMPTIED:
        run("mount", "-t", "tmpfs", "-o", "mode=755", "specserver-node", directory)
    for directory in ("/run/lock", "/run/netns"):
        Path(directory).mkdir()
    for target, source in plan.binds.items():
        Path(target).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", source, target)
    for name, file in plan.sysctls.items():
        run("mount", "--bind", file, f"/proc/sys/{name}")


def prepare_network(services: str) -> None:
    """Loopback up, forwarding on, and the host's end of the link awaited: node.py plugs it in.

    A connection to a service that kube-proxy hasn't got to yet is refused. Otherwise its first packet would pass
    unchanged, the kernel would stick to that for the whole connection, and the client would hang for minutes.
    """
    run("ip", "link", "set", "lo", "up")
    for name in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        Path("/proc/sys", name).write_text("1\n")
    run(
        "iptables", "--wait", "--append", "FORWARD", "--destination", services, "--protocol", "tcp",
        "--jump", "REJECT", "--reject-with", "tcp-reset",
    )  # fmt: skip
    while "default" not in run("ip", "route", "show", "dev", UPLINK, check=False):
        time.sleep(_POLL_SECONDS)


def start(daemon: Daemon, logs: Path) -> int:
    """Not by subprocess: its objects, once forgotten, reap children behind the back of the loop that counts them."""
    log = os.open(logs / f"{daemon.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    try:
        return os.posix_spawnp(daemon.argv[0], daemon.argv, os.environ, file_actions=files, setsid=True)
    finally:
        os.close(log)


def reap(running: dict[int, str], ended: Path, *, block: bool) -> None:
    """Collect one dead child (block) or all there are now; a program of the plan among them is written down."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
        except ChildProcessError:
            sys.exit("every program of the node has ended")
        if pid == 0:
            return
        if name := running.pop(pid, None):
            with ended.open("a") as file:
                file.write(json.dumps({"name": name, "code": os.waitstatus_to_exitcode(status)}) + "\n")
        if block:
            return


def run(*argv: str, check: bool = True) -> str:
    return subprocess.run(argv, check=check, stdin=subprocess.DEVNULL, capture_output=not check, text=True).stdout or ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
