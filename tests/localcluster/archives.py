"""Images made from files of this machine: pause, CoreDNS and a busybox for tests. No registry of the world is asked."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.localcluster.errors import ClusterError

BUSYBOX_IMAGE = "localhost/busybox:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = "1970-01-01T00:00:00Z"  # fixed times: the same files give the same image


def build_archive(
    reference: str, files: Mapping[str, Path], *, entrypoint: Sequence[str], links: Mapping[str, str] | None = None
) -> bytes:
    """A docker-archive with one layer: these programs at these paths, and links to them."""
    layer = _tar({name: file.read_bytes() for name, file in files.items()}, links or {}, mode=0o755)
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": _EPOCH,
            "config": {"Entrypoint": list(entrypoint) or None, "Env": ["PATH=/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            "history": [{"created": _EPOCH, "created_by": "tests.localcluster"}],
        },
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [reference], "Layers": ["layer.tar"]}]).encode()
    return _tar({config_name: config, "layer.tar": layer, "manifest.json": manifest}, {}, mode=0o644)


def build_busybox() -> bytes:
    """Debian's static busybox with a link for each of its commands."""
    busybox = Path("/bin/busybox")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    links = {f"bin/{applet}": "busybox" for applet in listed if applet != "busybox"}
    return build_archive(BUSYBOX_IMAGE, {"bin/busybox": busybox}, entrypoint=(), links=links)


class Containerd:
    """The node's containerd, spoken to through its socket."""

    def __init__(self, socket: Path) -> None:
        self._command = ["ctr", f"--address={socket}", "--namespace=k8s.io", "images"]

    def images(self) -> list[str]:
        return self._run("ls", "--quiet").split()

    def load(self, archive: bytes) -> None:
        self._run("import", "-", stdin=archive)

    def _run(self, *arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run([*self._command, *arguments], input=stdin, capture_output=True)
        if done.returncode != 0:
            raise ClusterError(f"ctr images {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode()


def _tar(files: Mapping[str, bytes], links: Mapping[str, str], *, mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
            archive.addfile(entry)
    return buffer.getvalue()
