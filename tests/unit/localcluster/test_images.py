"""The image builder's pure parts, and rules that every Dockerfile of this repository keeps."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.localcluster import images
from tests.localcluster.errors import ClusterError
from tests.localcluster.images import (
    RECIPES,
    Builder,
    Found,
    PushedImage,
    Recipe,
    check_size,
    copy_inputs,
    debootstrap_command,
    find_builder,
    hash_inputs,
    read_pip_settings,
    remove_leftovers,
    remove_old_versions,
    run_program,
    write_secrets,
)
from tests.localcluster.paths import REPOSITORY

OPERATOR = RECIPES["operator"]
DOCKERFILES = sorted(REPOSITORY.glob("**/Dockerfile"))
BUILDAH = Builder("buildah", ("--root=/s",), Path("/c"))
DOCKER = Builder("docker", (), Path("/c"))


# ---- what an image is made of -------------------------------------------------------------------------------------------


def make_sources(root: Path) -> Path:
    (root / "operator").mkdir(parents=True)
    (root / "operator" / "main.py").write_text("print()")
    (root / "Dockerfile").write_text("FROM base:1")
    return root


def hash_of(root: Path, scratch: Path, base: str = "base") -> str:
    copy_inputs(("Dockerfile", "operator"), root, scratch)
    return hash_inputs(scratch, base)


def add_cache(root: Path) -> None:
    (root / "operator" / "__pycache__").mkdir()
    (root / "operator" / "__pycache__" / "main.pyc").write_bytes(b"1")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param(lambda root: os.utime(root / "operator" / "main.py", (1, 1)), True, id="a time"),
        pytest.param(add_cache, True, id="bytecode"),
        pytest.param(lambda root: (root / "README.md").write_text("x"), True, id="a file that is no input"),
        pytest.param(lambda root: (root / "operator" / "main.py").write_text("print(1)"), False, id="a content"),
        pytest.param(lambda root: (root / "operator" / "main.py").rename(root / "operator" / "b.py"), False, id="a name"),
        pytest.param(lambda root: (root / "operator" / "main.py").chmod(0o755), False, id="the executable bit"),
        pytest.param(lambda root: (root / "operator" / "new.py").write_text(""), False, id="one file more"),
    ],
)
def test_the_hash_changes_with_what_the_build_can_see(tmp_path: Path, change: object, same: bool) -> None:
    root = make_sources(tmp_path / "root")
    before = hash_of(root, tmp_path / "before")
    change(root)  # type: ignore[operator]
    assert (hash_of(root, tmp_path / "after") == before) is same


def test_another_base_image_makes_another_image(tmp_path: Path) -> None:
    root = make_sources(tmp_path / "root")
    assert hash_of(root, tmp_path / "a", "old") != hash_of(root, tmp_path / "b", "new")


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"pyproject\.toml is missing"):
        copy_inputs(("pyproject.toml",), tmp_path, tmp_path / "context")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_lists_all_that_its_dockerfile_copies(recipe: Recipe) -> None:
    """Otherwise the hash would miss a change, and the build would not find the file."""
    for line in instructions(REPOSITORY / recipe.dockerfile):
        if line.startswith("COPY ") and "--from=" not in line:
            for source in line.split()[1:-1]:
                listed = any(Path(source).is_relative_to(given) for given in recipe.inputs)
                assert listed, f"{recipe.dockerfile} copies {source}, and the recipe {recipe.name} has {recipe.inputs}"
    assert any(Path(recipe.dockerfile).is_relative_to(given) for given in recipe.inputs)


# ---- commands -----------------------------------------------------------------------------------------------------------


def test_buildah_builds_in_its_own_storage_from_local_bases_with_secrets_as_files() -> None:
    secrets, build_args = {"pip": Path("/p")}, {"PYTHON": "base"}
    arguments = BUILDAH.build_arguments(Path("/x/Dockerfile"), Path("/x"), "localhost/a:1", secrets, build_args)
    assert BUILDAH.command(*arguments) == [
        "buildah", "--root=/s", "build", "--file=/x/Dockerfile", "--tag=localhost/a:1", "--network=host",
        "--layers", "--pull=never", "--isolation=chroot", "--secret=id=pip,src=/p", "--build-arg=PYTHON=base", "/x",
    ]  # fmt: skip


def test_docker_gets_no_flag_that_it_lacks() -> None:
    arguments = DOCKER.build_arguments(Path("/x/Dockerfile"), Path("/x"), "localhost/a:1", {}, {})
    assert arguments == ["build", "--file=/x/Dockerfile", "--tag=localhost/a:1", "--network=host", "/x"]


def test_a_push_allows_plain_http_and_reports_the_digest() -> None:
    arguments = BUILDAH.push_arguments("localhost/a:1", "10.0.0.1:5000/a:dev", Path("/d"))
    assert arguments[-2:] == ["localhost/a:1", "docker://10.0.0.1:5000/a:dev"]
    assert {"--tls-verify=false", "--digestfile=/d"} <= set(arguments)


def test_a_pushed_image_is_named_exactly_by_its_digest() -> None:
    pushed = PushedImage("10.0.0.1:5000/specserver/operator:dev", "sha256:12")
    assert pushed.exact == "10.0.0.1:5000/specserver/operator@sha256:12"


def test_the_base_image_holds_the_packages_of_the_list() -> None:
    command = debootstrap_command("# comment\npython3.11\n\ntzdata\n", Path("/r.tar"))
    assert "--include=python3.11,tzdata" in command
    assert command[-2:] == ["bookworm", "/r.tar"]


@pytest.mark.parametrize(
    ("there", "working", "wanted"),
    [
        pytest.param({"buildah", "docker"}, {"docker"}, "buildah", id="buildah before all"),
        pytest.param({"podman", "docker"}, {"podman", "docker"}, "podman", id="podman before docker"),
        pytest.param({"podman", "docker"}, {"docker"}, "docker", id="one that works"),
        pytest.param({"docker"}, set(), None, id="docker without its daemon"),
        pytest.param(set(), set(), None, id="nothing"),
    ],
)
def test_the_builder_is_one_that_works(
    monkeypatch: pytest.MonkeyPatch, there: set[str], working: set[str], wanted: str | None
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(subprocess, "run", lambda argv, **options: subprocess.CompletedProcess(argv, argv[0] not in working))
    if wanted is None:
        with pytest.raises(ClusterError, match="apt-get install buildah"):
            find_builder()
    else:
        assert find_builder().program == wanted


def test_buildahs_report_is_read() -> None:
    manifest = json.dumps({"layers": [{"size": 100}, {"size": 23}]})
    assert images._read_buildah_inspect({"FromImageID": "abc", "Manifest": manifest}) == Found("abc", 123)


def test_an_image_that_grew_too_big_is_refused() -> None:
    check_size(OPERATOR, 349 * 10**6)
    with pytest.raises(ClusterError, match="351 MB; the limit is 350 MB"):
        check_size(OPERATOR, 351 * 10**6)


def test_only_old_versions_of_the_same_image_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [f"localhost/specserver/operator:{number}" for number in range(6)]
    listed = ["localhost/specserver/operator-tools:1", *ours, "docker.io/library/python:3.11-slim-bookworm"]
    removed: list[str] = []

    def answer(self: Builder, *arguments: str, timeout_seconds: float = 0) -> str:
        if arguments[0] == "rmi":
            removed.extend(arguments[1:])
        return "\n".join(listed)

    monkeypatch.setattr(Builder, "output", answer)
    remove_old_versions(BUILDAH, OPERATOR)
    assert removed == ours[images.KEPT_VERSIONS :]


def test_containers_of_killed_builds_are_removed_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []

    def answer(self: Builder, *arguments: str, timeout_seconds: float = 0) -> str:
        if arguments[0] == "rm":
            removed.extend(arguments[1:])
        return "python-working-container\npython-working-container-12\nspecserver-test-7-0a\n"

    monkeypatch.setattr(Builder, "output", answer)
    remove_leftovers(BUILDAH)
    assert removed == ["python-working-container", "python-working-container-12"]


def test_a_failed_program_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"(?s)ended with 3.*the reason"):
        run_program(["sh", "-c", "echo the reason; exit 3"], tmp_path / "log", os.environ)


# ---- what the build may know of this machine ----------------------------------------------------------------------------


def test_pip_settings_later_files_win_and_the_environment_over_all(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("[global]\ncert = /a.crt\nindex-url = https://one/\ntimeout = 5\nfind-links = /srv/wheels\n")
    second.write_text("[install]\nindex-url = https://two/\nextra-index-url =\n  https://x/\n  https://y/\n")
    environ = {"PIP_CERT": "/b.crt", "PIP_DEFAULT_TIMEOUT": "180", "PIP_NO_CACHE_DIR": "1"}
    assert read_pip_settings([first, second, tmp_path / "absent"], environ) == {
        "cert": "/b.crt",
        "extra-index-url": "https://x/ https://y/",
        "index-url": "https://two/",
        "timeout": "180",
    }


def test_secrets_name_the_certificates_where_the_build_sees_them(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("certificates")
    secrets = write_secrets(tmp_path, {"PIP_CERT": str(bundle), "PIP_INDEX_URL": "https://user:word@index/"})
    assert secrets["ca"] == bundle
    text = secrets["pip"].read_text()
    assert "cert = /run/secrets/ca\n" in text
    assert "index-url = https://user:word@index/\n" in text
    assert secrets["pip"].stat().st_mode & 0o077 == 0


# ---- rules for Dockerfiles ----------------------------------------------------------------------------------------------


def instructions(dockerfile: Path) -> list[str]:
    """Instructions with their continuation lines, without comments."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    return [line for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines() if line.strip()]


def test_all_dockerfiles_are_seen() -> None:
    names = {str(path.relative_to(REPOSITORY)) for path in DOCKERFILES}
    assert {"Dockerfile", "images/base/Dockerfile", "images/sglang/Dockerfile", "images/sglang-cpu/Dockerfile"} <= names


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
class TestDockerfile:
    def test_every_base_is_pinned(self, dockerfile: Path) -> None:
        lines = instructions(dockerfile)
        defaults = dict(line.removeprefix("ARG ").split("=", 1) for line in lines if line.startswith("ARG ") and "=" in line)
        stages = {line.split(" AS ")[1] for line in lines if line.startswith("FROM ") and " AS " in line}
        for line in lines:
            if line.startswith("FROM "):
                base = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], line.split()[1])
                pinned = re.fullmatch(r".+/.+:v?\d[\w.-]+", base) and not base.endswith("latest")
                assert base == "scratch" or base in stages or pinned, base

    def test_no_key_is_baked_in(self, dockerfile: Path) -> None:
        for line in instructions(dockerfile):
            if line.startswith(("ENV ", "ARG ", "LABEL ")):
                assert not re.search(r"key|token|password|secret|credential|index.?url|cert", line, re.IGNORECASE), line

    def test_python_packages_come_with_hashes_or_without_an_index(self, dockerfile: Path) -> None:
        for line in instructions(dockerfile):
            if re.search(r"\bpip\b.* install ", line):
                assert "--require-hashes" in line or "--no-index" in line, line
                assert "--no-deps" in line or "python-wheels" in line, line

    def test_no_cache_of_pip_stays(self, dockerfile: Path) -> None:
        for line in instructions(dockerfile):
            if re.search(r"\bpip\b.* install .*--require-hashes", line):
                assert "--mount=type=cache,target=/root/.cache/pip" in line, line

    def test_nothing_is_mounted_from_another_stage(self, dockerfile: Path) -> None:
        """buildah 1.28 takes such a step from its cache although the other stage has changed."""
        assert not [line for line in instructions(dockerfile) if re.match(r"RUN .*--mount=\S*from=", line)]


def test_the_operator_runs_as_a_number_and_not_root() -> None:
    users = [line.split()[1] for line in instructions(REPOSITORY / "Dockerfile") if line.startswith("USER ")]
    assert users
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_the_docker_context_lets_through_what_the_dockerfiles_copy() -> None:
    allowed = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for dockerfile in (REPOSITORY / "Dockerfile", *sorted((REPOSITORY / "images").glob("sglang*/Dockerfile"))):
        for line in instructions(dockerfile):
            if line.startswith("COPY ") and "--from=" not in line:
                for source in line.split()[1:-1]:
                    assert any(Path(source).is_relative_to(name) for name in allowed), f"{dockerfile}: {source}"


def test_the_wheels_build_backend_is_the_one_of_the_project() -> None:
    wanted = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    locked = re.findall(r"^(hatchling==\S+)", (REPOSITORY / "images" / "wheel-requirements.txt").read_text(), re.MULTILINE)
    assert locked == wanted


# ---- torch without CUDA's libraries -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lean() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lean", REPOSITORY / "images" / "sglang-cpu" / "lean.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_locked_requirements_split_into_torch_and_others_with_their_hashes(lean: ModuleType) -> None:
    locked = (REPOSITORY / "images" / "sglang-cpu" / "requirements.txt").read_text()
    torch, others = lean.split(locked)

    def names(text: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE | re.IGNORECASE))

    assert names(torch) == {"torch", "triton", "nvidia-cuda-runtime"}
    assert not names(torch) & names(others)
    left_out = names(locked) - names(torch) - names(others)
    assert left_out
    assert all(name.startswith(("nvidia-", "cuda-")) for name in left_out)
    assert (torch + others).count("==") == len(re.findall(r"==.* \\\n +--hash=sha256:", torch + others))


def test_requirements_without_torch_are_refused(lean: ModuleType) -> None:
    with pytest.raises(ValueError, match="nvidia-cuda-runtime"):
        lean.split("torch==2.13.0 \\\n    --hash=sha256:0\n")


def test_trim_links_missing_libraries_and_removes_what_a_cpu_never_opens(lean: ModuleType, tmp_path: Path) -> None:
    libraries = tmp_path / "torch" / "lib"
    libraries.mkdir(parents=True)
    (libraries / lean.STAND_IN).write_bytes(b"")
    (libraries / "libtorch_cuda.so").write_bytes(b"")
    (tmp_path / "torch" / "include").mkdir()
    lean.trim(tmp_path)
    lean.trim(tmp_path)  # a second time changes nothing
    assert (libraries / "libcublas.so.13").readlink() == Path(lean.STAND_IN)
    assert (libraries / "libtorch_cuda.so").exists()
    assert not (tmp_path / "torch" / "include").exists()
    assert "RTLD_LAZY" in (tmp_path / "lazy_binding.pth").read_text()


def test_trim_of_a_wrong_directory_is_refused(lean: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"torch\.txt"):
        lean.trim(tmp_path)
