"""A program in an image, as its own user on a read-only root file system, without a node: for tests of the image alone.

A mount namespace and chroot are what matters here: the image's files, its user, its environment, nothing that can be written but
/tmp. Memory limits, seccomp and the network are the kubelet's, and tested with it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.errors import ClusterError
from tests.localcluster.images import Builder
from tests.localcluster.paths import short_hash

_ENTER = """
set -e
root=$1 user=$2; shift 2
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
exec chroot --userspec="$user" "$root" env -i "$@"
"""


@dataclass(frozen=True)
class Container:
    """An image's files, mounted, and what its configuration says."""

    root: Path
    user: str
    variables: tuple[str, ...]
    entrypoint: tuple[str, ...]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        enter = ["unshare", "--mount", "--propagation=private", "sh", "-c", _ENTER, "-", str(self.root), self.user]
        return subprocess.run([*enter, *self.variables, *argv], capture_output=True, text=True, timeout=120)

    def output(self, *argv: str) -> str:
        done = self.run(*argv)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@contextmanager
def open_image(builder: Builder, reference: str) -> Iterator[Container]:
    if builder.program != "buildah" or os.geteuid() != 0:
        raise ClusterError("tests of image contents need root and buildah: apt-get install buildah")
    config = json.loads(builder.output("inspect", "--type=image", reference))["OCIv1"]["config"]
    # Not named like a container of a build: the next build removes those.
    name = f"specserver-test-{os.getpid()}-{short_hash(reference)}"
    container = builder.output("from", "--pull-never", f"--name={name}", reference).strip()
    try:
        root = Path(builder.output("mount", container).strip())
        yield Container(root, config.get("User") or "0:0", tuple(config["Env"]), tuple(config.get("Entrypoint") or ()))
    finally:
        builder.output("umount", container)
        builder.output("rm", container)
