"""Container images from the repository's own Dockerfiles, built once for each state of their inputs.

    python -m tests.localcluster.images build [--only operator|sglang-cpu]
    python -m tests.localcluster.images push  [--only operator|sglang-cpu] --registry HOST:PORT

An image's tag in the builder's storage is a hash over everything it is made of, so "is it built?" is a question to the storage
and there is no state file to go stale; two clones with different sources don't overwrite each other's images. The name that pods
use (`specserver/operator:dev`) exists in the registry alone, and each local cluster has its own. What is built is a copy of the
inputs, taken before they are hashed: an editor that saves in mid-build can't make the hash lie.

Nothing of this machine gets into an image: pip's settings and the certificates of a network that re-signs TLS are build secrets.

Rejected: one file of stamps beside the storage (it outlives a pruned image), and importing images into each node from tar files
(minutes, each time; a registry moves changed layers alone).
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.errors import ClusterError
from tests.localcluster.paths import REPOSITORY, cache_root
from tests.localcluster.processes import file_lock, log_tail
from tests.localcluster.progress import say

BASE_IMAGE = "docker.io/library/python:3.11-slim-bookworm"
TAG_IN_REGISTRY = "dev"
KEPT_VERSIONS = 4  # of each image in the builder's storage; they share all big layers
PULL_SECONDS = 300
BUILD_SECONDS = 1800
SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"

_BUILD_CONTAINER = re.compile(r"-working-container(-\d+)?$")  # how `buildah build` names the containers of its steps
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")


@dataclass(frozen=True)
class Recipe:
    """One image: its Dockerfile, what goes into it, and how big it may be."""

    name: str
    dockerfile: str
    inputs: tuple[str, ...]
    limit_bytes: int

    @property
    def repository(self) -> str:
        return f"specserver/{self.name}"


_WHEEL = ("pyproject.toml", "README.md", "operator", "images/wheel-requirements.txt")
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("operator", "Dockerfile", ("Dockerfile", *_WHEEL, "requirements/operator.txt"), 350 * 10**6),
        Recipe("sglang-cpu", "images/sglang-cpu/Dockerfile", ("images/sglang-cpu", *_WHEEL), 3_500 * 10**6),
        Recipe("prometheus", "images/prometheus/Dockerfile", ("images/prometheus",), 700 * 10**6),
    )
}


@dataclass(frozen=True)
class Found:
    """What the builder's storage says of an image."""

    id: str
    size_bytes: int


@dataclass(frozen=True)
class Image:
    """An image in the builder's storage. `size_bytes` is what its layers unpack to."""

    recipe: Recipe
    reference: str
    size_bytes: int


@dataclass(frozen=True)
class PushedImage:
    """An image in a registry. `reference` moves with the next push; `exact` names these very bytes for ever."""

    reference: str
    digest: str

    @property
    def exact(self) -> str:
        return f"{self.reference.rpartition(':')[0]}@{self.digest}"


@dataclass(frozen=True)
class Builder:
    """The program that builds: buildah, or podman or docker where they work."""

    program: str
    storage: tuple[str, ...]
    directory: Path

    def command(self, *arguments: str) -> list[str]:
        return [self.program, *self.storage, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        # buildah keeps `RUN --mount=type=cache` below TMPDIR: beside its storage, so that removing the cache removes it too.
        return {**os.environ, "TMPDIR": str(self.directory / "tmp"), "DOCKER_BUILDKIT": "1"}

    def output(self, *arguments: str, timeout_seconds: float = 120.0) -> str:
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            timeout=timeout_seconds,
        )
        if done.returncode != 0:
            raise ClusterError(f"{self.program} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def build_arguments(
        self, dockerfile: Path, context: Path, reference: str, secrets: Mapping[str, Path], build_args: Mapping[str, str]
    ) -> list[str]:
        arguments = ["build", f"--file={dockerfile}", f"--tag={reference}", "--network=host"]
        if self.program != "docker":
            # Bases come from ensure_base_image alone, and chroot isolation needs no runtime, no cgroups and no bridge.
            arguments += ["--layers", "--pull=never", "--isolation=chroot"]
        arguments += [f"--secret=id={key},src={path}" for key, path in sorted(secrets.items())]
        arguments += [f"--build-arg={key}={value}" for key, value in sorted(build_args.items())]
        return [*arguments, str(context)]

    def push_arguments(self, reference: str, target: str, digest_file: Path) -> list[str]:
        # zstd at its fastest: against gzip half the processor time to push, and half to pull and unpack on the node.
        compression = ["--compression-format=zstd", *(["--compression-level=1"] if self.program == "buildah" else [])]
        return ["push", "--tls-verify=false", *compression, f"--digestfile={digest_file}", reference, f"docker://{target}"]

    def inspect(self, reference: str) -> Found | None:
        """None when no image of that name is in the storage."""
        try:
            if self.program == "buildah":
                return _read_buildah_inspect(json.loads(self.output("inspect", "--type=image", reference)))
            found = json.loads(self.output("image", "inspect", reference))[0]
            return Found(found["Id"], found["Size"])
        except ClusterError:
            return None


def _read_buildah_inspect(report: dict[str, str]) -> Found:
    """buildah has no field for the size: it is the sum of the layers, which its storage keeps unpacked."""
    layers = json.loads(report["Manifest"])["layers"]
    return Found(report["FromImageID"], sum(layer["size"] for layer in layers))


def find_builder() -> Builder:
    """buildah with storage of our own, else podman or docker with theirs."""
    directory = cache_root() / "images"
    if shutil.which("buildah"):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]  # what is mounted does not outlive a boot
        storage = (
            f"--root={directory / 'storage'}",
            f"--runroot={directory / 'run' / boot}",
            "--storage-opt=skip_mount_home=true",  # otherwise a bind mount stays on the machine for good
        )
        return Builder("buildah", storage, directory)
    for program in ("podman", "docker"):
        if shutil.which(program) and subprocess.run([program, "info"], capture_output=True, timeout=60).returncode == 0:
            return Builder(program, (), directory)
    raise ClusterError("nothing here builds images: apt-get install buildah (podman or a running docker do as well)")


def build_image(recipe: Recipe, builder: Builder | None = None, *, repository: Path = REPOSITORY) -> Image:
    """The image of the sources as they are now; built only when no image of the same inputs is there."""
    builder = builder or find_builder()
    (builder.directory / "tmp").mkdir(parents=True, exist_ok=True)
    with (
        file_lock(builder.directory / "lock", waiting=lambda: say("images: waiting for another build to end")),
        tempfile.TemporaryDirectory(prefix="context-", dir=builder.directory / "tmp") as scratch,
    ):
        # 1. What it is made of, and whether that is built.
        remove_leftovers(builder)
        base_id = ensure_base_image(builder)
        context = Path(scratch) / "context"
        copy_inputs(recipe.inputs, repository, context)
        reference = f"localhost/{recipe.repository}:{hash_inputs(context, base_id)}"
        found = builder.inspect(reference)
        # 2. Build it.
        if found is None:
            began = time.monotonic()
            say(f"images: building {recipe.repository} with {builder.program}")
            secrets = write_secrets(Path(scratch))
            arguments = builder.build_arguments(context / recipe.dockerfile, context, reference, secrets, {"PYTHON": BASE_IMAGE})
            run_logged(builder, arguments, builder.directory / f"{recipe.name}.log")
            found = builder.inspect(reference)
            if found is None:
                raise ClusterError(f"{builder.program} built {reference}, but does not have it")
            say(f"images: {recipe.repository} is built: {time.monotonic() - began:.0f} s")
            remove_old_versions(builder, recipe)
        # 3. Refuse one that has grown too big.
        check_size(recipe, found.size_bytes)
        return Image(recipe, reference, found.size_bytes)


def push_image(image: Image, registry: str, builder: Builder | None = None) -> PushedImage:
    """Into `registry` (HOST:PORT, plain HTTP) under the name that pods use; layers that are there already don't move."""
    builder = builder or find_builder()
    reference = f"{registry}/{image.recipe.repository}:{TAG_IN_REGISTRY}"
    began = time.monotonic()
    log = builder.directory / f"{image.recipe.name}-push.log"
    if builder.program == "docker":
        digest = _push_with_docker(builder, image, reference, log)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            digest_file = Path(scratch) / "digest"
            run_logged(builder, builder.push_arguments(image.reference, reference, digest_file), log)
            digest = digest_file.read_text().strip()
    say(f"images: {reference} is pushed: {time.monotonic() - began:.1f} s")
    return PushedImage(reference, digest)


def _push_with_docker(builder: Builder, image: Image, reference: str, log: Path) -> str:
    builder.output("tag", image.reference, reference)
    try:
        run_logged(builder, ["push", reference], log)
    except ClusterError as error:
        host = reference.partition("/")[0]
        fix = f"docker wants HTTPS of {host}: name it in docker's insecure-registries, or install buildah"
        raise ClusterError(f"{error}\n{fix}") from None
    return builder.output("image", "inspect", "--format={{index .RepoDigests 0}}", reference).strip().rpartition("@")[2]


def ensure_base_image(builder: Builder) -> str:
    """The id of the base image in the builder's storage: present, pulled, or the stand-in of images/base. Needs the lock."""
    found = builder.inspect(BASE_IMAGE)
    if found is None:
        try:
            say(f"images: pulling {BASE_IMAGE}")
            builder.output("pull", BASE_IMAGE, timeout_seconds=PULL_SECONDS)
        except (ClusterError, subprocess.TimeoutExpired):
            say("images: no registry in reach; making the base image from Debian packages (about a minute)")
            build_stand_in(builder)
        found = builder.inspect(BASE_IMAGE)
    if found is None:
        raise ClusterError(f"{builder.program} does not have {BASE_IMAGE} after it was made")
    return found.id


def build_stand_in(builder: Builder) -> None:
    if not shutil.which("mmdebstrap"):
        raise ClusterError(f"{BASE_IMAGE} can't be pulled, and mmdebstrap is missing to make it here: apt-get install mmdebstrap")
    sources = REPOSITORY / "images" / "base"
    with tempfile.TemporaryDirectory(prefix="specserver-base-", dir=builder.directory / "tmp") as scratch:
        context = Path(scratch)
        shutil.copy(sources / "Dockerfile", context)
        command = debootstrap_command((sources / "packages.txt").read_text(), context / "rootfs.tar")
        run_program(command, builder.directory / "base-rootfs.log", os.environ)
        arguments = builder.build_arguments(context / "Dockerfile", context, BASE_IMAGE, {}, {})
        run_logged(builder, arguments, builder.directory / "base.log")


def debootstrap_command(packages: str, target: Path) -> list[str]:
    names = [line for line in packages.splitlines() if line and not line.startswith("#")]
    return [
        "mmdebstrap",
        "--variant=minbase",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",  # else a package merges /usr at its installation, with 50 MB of Perl
        f"--include={','.join(names)}",
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in ("doc", "info", "locale", "man")),
        "bookworm",
        str(target),
    ]


def copy_inputs(inputs: Iterable[str], repository: Path, context: Path) -> None:
    for name in inputs:
        source, target = repository / name, context / name
        if not source.exists():
            raise ClusterError(f"{source} is missing, and an image is made of it")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_IGNORED, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)


def hash_inputs(context: Path, base_id: str) -> str:
    """Over names, contents and the executable bit: what a Dockerfile can see. Times don't count."""
    digest = hashlib.sha256(base_id.encode())
    for path in sorted(path for path in context.rglob("*") if path.is_file()):
        executable = b"x" if path.stat().st_mode & 0o100 else b"-"
        content = hashlib.sha256(path.read_bytes()).digest()
        digest.update(str(path.relative_to(context)).encode() + b"\0" + executable + content)
    return digest.hexdigest()[:16]


def check_size(recipe: Recipe, size_bytes: int) -> None:
    if size_bytes > recipe.limit_bytes:
        raise ClusterError(
            f"{recipe.repository} has {size_bytes / 1e6:.0f} MB; the limit is {recipe.limit_bytes / 1e6:.0f} MB. "
            f"Look for what grew, or raise limit_bytes in {Path(__file__).name} on purpose"
        )


def remove_old_versions(builder: Builder, recipe: Recipe) -> None:
    """The newest few stay: another clone may be about to push one of them."""
    columns = "{{.Name}}:{{.Tag}}" if builder.program == "buildah" else "{{.Repository}}:{{.Tag}}"
    listed = builder.output("images", f"--format={columns}").split()  # newest first
    ours = [reference for reference in listed if reference.startswith(f"localhost/{recipe.repository}:")]
    for reference in ours[KEPT_VERSIONS:]:
        builder.output("rmi", reference)


def remove_leftovers(builder: Builder) -> None:
    """Containers of builds that were killed; no build runs now, because we hold the lock."""
    if builder.program == "buildah":
        names = builder.output("containers", "--format={{.ContainerName}}").split()
        for name in names:
            if _BUILD_CONTAINER.search(name):
                say(f"images: removing what a killed build left: {name}")
                builder.output("rm", name)


def write_secrets(directory: Path, environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The files that the Dockerfiles take as build secrets, by id: pip's settings, and the certificates to trust."""
    files = [Path("/etc/pip.conf"), Path.home() / ".pip" / "pip.conf", Path.home() / ".config" / "pip" / "pip.conf"]
    settings = read_pip_settings(files, environ)
    secrets = {}
    bundles = [settings.get("cert"), environ.get("SSL_CERT_FILE"), environ.get("REQUESTS_CA_BUNDLE"), SYSTEM_BUNDLE]
    bundle = next((Path(name) for name in bundles if name and Path(name).is_file()), None)
    if bundle:
        secrets["ca"] = bundle
        settings["cert"] = "/run/secrets/ca"
    if settings:
        lines = ["[global]", *(f"{key} = {value}" for key, value in sorted(settings.items()))]
        secrets["pip"] = directory / "pip.conf"
        secrets["pip"].touch(mode=0o600)  # an index's URL may hold a password
        secrets["pip"].write_text("\n".join(lines) + "\n")
    return secrets


_PIP_SETTINGS = ("cert", "extra-index-url", "index-url", "proxy", "retries", "timeout", "trusted-host")


def read_pip_settings(files: Iterable[Path], environ: Mapping[str, str]) -> dict[str, str]:
    """What decides where pip looks on this machine, as pip reads it: later files win, the environment over all."""
    settings: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        parser.read(file)
        for section in ("global", "install"):
            if section in parser:
                settings |= {key: " ".join(value.split()) for key, value in parser[section].items()}
    for key, value in environ.items():
        if key.startswith("PIP_") and value:
            settings[key.removeprefix("PIP_").lower().replace("_", "-")] = value
    if "default-timeout" in settings:
        settings["timeout"] = settings["default-timeout"]
    return {key: settings[key] for key in _PIP_SETTINGS if key in settings}


def run_logged(builder: Builder, arguments: Sequence[str], log: Path) -> None:
    run_program(builder.command(*arguments), log, builder.environment)


def run_program(command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    """Run to the end, everything into `log` and the steps to the terminal; the log's end is in the error."""
    with log.open("w") as output, _ended_with_us(command, environ) as process:
        for line in process.stdout or ():
            output.write(line)
            if line.startswith(("STEP", "[", "I: ")):
                say(f"images:   {line.strip()[:150]}")
        code = process.wait(timeout=BUILD_SECONDS)
    if code != 0:
        raise ClusterError(f"{command[0]} ended with {code}; the end of {log}:\n{log_tail(log, 25)}")


@contextmanager
def _ended_with_us(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process group of its own, which ends when we leave, also by Ctrl-C: steps of a build are grandchildren."""
    # Killed without a chance to end it, we take it along, and its mounts go with its namespace.
    prefix = ["setpriv", "--pdeathsig=TERM", *(["unshare", "--mount"] if os.geteuid() == 0 else []), "nice"]
    process = subprocess.Popen(
        [*prefix, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(environ),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    description = "Build this repository's images and push them to a local registry."
    parser = argparse.ArgumentParser(prog="python -m tests.localcluster.images", description=description)
    parser.add_argument("action", choices=("build", "push"), help="push builds what is not built")
    parser.add_argument("--only", choices=sorted(RECIPES), action="append", help="one image instead of all")
    parser.add_argument("--registry", metavar="HOST:PORT", help="where to push, plain HTTP")
    options = parser.parse_args(arguments)
    if options.action == "push" and not options.registry:
        parser.error("push needs --registry HOST:PORT")
    try:
        builder = find_builder()
        for name in options.only or RECIPES:
            image = build_image(RECIPES[name], builder)
            print(f"{image.reference}  {image.size_bytes / 1e6:.0f} MB")
            if options.action == "push":
                print(push_image(image, options.registry, builder).exact)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
