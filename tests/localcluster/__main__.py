"""python -m tests.localcluster up|down|status|env — a cluster on this machine, from the command line.

Progress goes to standard error, results to standard output, so `eval "$(python -m tests.localcluster env)"` works.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from tests.localcluster.apiserver import start_apiserver
from tests.localcluster.base import LocalCluster
from tests.localcluster.errors import ClusterError
from tests.localcluster.node import explain_node, find_node, node_down, node_up
from tests.localcluster.processes import interrupt_once
from tests.localcluster.progress import say

_INTERRUPTED = 130


def main() -> int:
    options = parse_options()
    interrupt_once()
    try:
        match options.command, options.size:
            case "up", "node":
                print_environment(node_up(options.name))
            case "up", _:
                serve_apiserver()
            case "down", _:
                node_down(options.name, purge=options.purge)
            case "status", _:
                print(explain_node(options.name))
                return 0 if find_node(options.name) else 1
            case "env", _:
                if (node := find_node(options.name)) is None:
                    raise ClusterError(f"{explain_node(options.name)}: python -m tests.localcluster up starts it")
                print_environment(node)
    except (ClusterError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.localcluster", description="A Kubernetes cluster on this machine.")
    parser.add_argument("command", choices=("up", "down", "status", "env"))
    parser.add_argument(
        "--size", choices=("node", "apiserver"), default="node", help="apiserver: no root, no pods; runs until Ctrl-C (up only)"
    )
    parser.add_argument("--name", help="of the instance; default: from the path of this clone")
    parser.add_argument("--purge", action="store_true", help="down: delete kept images and logs, too")
    options = parser.parse_args()
    if options.size == "apiserver" and options.command != "up":
        parser.error(f"--size apiserver: there is nothing to {options.command}; it lives as long as its `up` runs")
    return options


def print_environment(cluster: LocalCluster) -> None:
    for name, value in cluster.environment().items():
        print(f"export {name}={shlex.quote(value)}", flush=True)


def serve_apiserver() -> None:
    """In the foreground: nothing to find and clean up later."""
    with (
        tempfile.TemporaryDirectory(prefix="specserver-apiserver-") as directory,
        start_apiserver(Path(directory), with_controllers=True) as api,
    ):
        print_environment(api)
        say("ready; Ctrl-C ends it")
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        raise ClusterError(f"process {ended.si_pid if ended else '?'} of the cluster has ended by itself")


if __name__ == "__main__":
    sys.exit(main())
