"""`make demo`. Environment: KEEP=1 leaves everything up; CONTEXT=name uses that cluster, with REGISTRY=host:port for images."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo.claim import claim, take_away
from demo.manifests import NAMESPACE
from demo.report import HONEST, write_report
from demo.story import run_story
from tests.localcluster import ClusterError, LocalCluster, node_down, node_up
from tests.localcluster.base import named_context, write_context_kubeconfig
from tests.localcluster.packages import ensure_packages
from tests.localcluster.processes import interrupt_once, undisturbed
from tests.localcluster.progress import say

DIRECTORY = Path(__file__).resolve().parent


@contextmanager
def a_cluster(*, keep: bool) -> Iterator[LocalCluster]:
    """The cluster that CONTEXT names, else a node on this machine that is gone afterwards."""
    context = named_context()
    if context:
        if not os.environ.get("REGISTRY"):
            raise ClusterError(
                "CONTEXT needs REGISTRY=host:port: a registry that this machine pushes to and the cluster pulls from"
            )
        with tempfile.TemporaryDirectory() as directory:
            kubeconfig = write_context_kubeconfig(context, Path(directory) / "kubeconfig")
            yield LocalCluster(context, kubeconfig, os.environ["REGISTRY"])
        return
    ensure_packages()
    node: LocalCluster | None = None
    try:
        node = node_up()
        yield node
    finally:
        if node is None:
            pass  # it has cleaned up after itself
        elif keep:
            look = f"{node.kubectl_path} --kubeconfig={node.kubeconfig} --namespace {NAMESPACE} get ssv -w"
            say(f"left up (KEEP=1); look around with:  {look}")
            say("take it down with:  make cluster-down")
        else:
            say("taking the node down")
            node_down(node.name)


def main() -> int:
    began = time.monotonic()
    keep = os.environ.get("KEEP", "") not in ("", "0")
    print(HONEST, flush=True)
    interrupt_once()
    try:
        with a_cluster(keep=keep) as cluster:
            claim(cluster)
            try:
                assert cluster.registry is not None
                record = run_story(cluster, cluster.registry)
            finally:
                if named_context() and not keep:
                    with undisturbed():
                        take_away(cluster)
            picture, table = write_report(record, DIRECTORY)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ClusterError, RuntimeError, TimeoutError, OSError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(table.read_text())
    say(f"{picture} and {table.name}; the whole demo took {(time.monotonic() - began) / 60:.1f} min")
    return 0


if __name__ == "__main__":
    sys.exit(main())
