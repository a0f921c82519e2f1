"""The images that the node runs, built from this checkout: what is in them, and that they run as they will in a pod."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserver import __version__
from tests.localcluster.errors import ClusterError
from tests.localcluster.images import (
    BASE_IMAGE,
    RECIPES,
    Builder,
    Image,
    build_image,
    copy_inputs,
    find_builder,
    run_logged,
    write_secrets,
)
from tests.localcluster.paths import REPOSITORY
from tests.node.containers import Container, open_image

MB = 10**6
PRINT_PLUGINS = (
    "from importlib.metadata import entry_points; print(*sorted(e.name for e in entry_points(group='sglang.srt.plugins')))"
)


@pytest.fixture(scope="module")
def builder() -> Builder:
    return find_builder()


@pytest.fixture(scope="module")
def operator_image(builder: Builder) -> Image:
    return build_image(RECIPES["operator"], builder)


@pytest.fixture(scope="module")
def operator(builder: Builder, operator_image: Image) -> Iterator[Container]:
    with open_image(builder, operator_image.reference) as container:
        yield container


@pytest.fixture(scope="module")
def engine_image(builder: Builder) -> Image:
    return build_image(RECIPES["sglang-cpu"], builder)


@pytest.fixture(scope="module")
def engine(builder: Builder, engine_image: Image) -> Iterator[Container]:
    with open_image(builder, engine_image.reference) as container:
        yield container


# ---- operator -----------------------------------------------------------------------------------------------------------


def test_operator_starts_as_its_own_user_on_a_read_only_root(operator: Container) -> None:
    assert operator.output(*operator.entrypoint, "--version") == f"specserver {__version__}"
    assert operator.output("python", "-c", "import os; print(os.getuid(), os.getgid())") == "65532 65532"
    refused = operator.run("python", "-c", "open('/opt/specserver/x', 'w')")
    assert "Read-only file system" in refused.stderr


def test_operator_imports_all_that_it_runs(operator: Container) -> None:
    operator.output("python", "-c", "import specserver.app")


def test_operator_is_small_and_holds_no_compiler_no_cache_and_nothing_of_the_builders_machine(
    operator: Container, operator_image: Image
) -> None:
    assert operator_image.size_bytes < 350 * MB
    for absent in ("usr/bin/gcc", "root/.cache/pip", "etc/pip.conf", "run/secrets/pip", "run/secrets/ca", "build"):
        path = operator.root / absent
        assert not path.exists() or not any(path.iterdir()), path


def test_operator_compiles_nothing_when_it_starts(operator: Container) -> None:
    """Bytecode could not be written, so that every start would compile everything again."""
    modules = "json, kopf, kubernetes.aio.client, specserver.core.status"
    paths = operator.output("python", "-c", f"import os, sys, {modules}; print(*(m.__cached__ for m in sys.modules.values() "
                            "if getattr(m, '__cached__', None) and not os.path.exists(m.__cached__)), sep='\\n')")  # fmt: skip
    assert paths == ""


# ---- engine on a CPU ----------------------------------------------------------------------------------------------------


def test_engine_finds_the_plugin_and_starts_sglang_as_its_own_user(engine: Container) -> None:
    assert engine.output("python", "-c", PRINT_PLUGINS).split() == ["specserver", "specserver_cpu_standins"]
    assert engine.output("python", "-c", "import os, sglang; print(os.getuid(), sglang.__version__)") == "65532 0.5.23"


def test_engine_computes_without_cudas_libraries(engine: Container, engine_image: Image) -> None:
    assert engine_image.size_bytes < 3_000 * MB
    assert [path.name for path in engine.root.rglob("libcudnn*.so*") if not path.is_symlink()] == []
    program = "import torch; x = torch.eye(3); print(torch.cuda.is_available(), (x @ x).sum(), torch.linalg.svdvals(x)[0])"
    assert engine.output("python", "-c", program) == "False tensor(3.) tensor(1.)"


@pytest.mark.parametrize("family", ["halves", "random"])
@pytest.mark.parametrize("model", ["target", "eagle3", "eagle"])
def test_engine_can_read_its_tiny_models(engine: Container, family: str, model: str) -> None:
    program = "import sys; print(len(open(sys.argv[1], 'rb').read()) > 1000)"
    assert engine.output("python", "-c", program, f"/models/{family}/{model}/model.safetensors") == "True"


def test_a_changed_plugin_is_a_small_last_layer(builder: Builder, engine_image: Image) -> None:
    manifest = json.loads(json.loads(builder.output("inspect", "--type=image", engine_image.reference))["Manifest"])
    *_, wheel, installed = (layer["size"] for layer in manifest["layers"])
    assert wheel + installed < 3 * MB


# ---- engine on a GPU ----------------------------------------------------------------------------------------------------
# The public image can't be built on here: these tests put a package of SGLang's name and version in its place.


def build_gpu_image(builder: Builder, scratch: Path, sglang_version: str) -> str:
    base = f"localhost/specserver-test/sglang:{sglang_version}"
    (scratch / "base").mkdir()
    (scratch / "base" / "Dockerfile").write_text(
        f"FROM {BASE_IMAGE}\n"
        "RUN d=$(python3 -c 'import site; print(site.getsitepackages()[0])')"
        f' && mkdir -p "$d/sglang-{sglang_version}.dist-info"'
        f" && printf 'Metadata-Version: 2.1\\nName: sglang\\nVersion: {sglang_version}\\n'"
        f' > "$d/sglang-{sglang_version}.dist-info/METADATA"\n'
    )
    arguments = builder.build_arguments(scratch / "base" / "Dockerfile", scratch / "base", base, {}, {})
    run_logged(builder, arguments, scratch / "base.log")
    context = scratch / "context"
    copy_inputs((*RECIPES["operator"].inputs, "images/sglang"), REPOSITORY, context)
    reference = f"localhost/specserver-test/gpu:{sglang_version}"
    bases = {"SGLANG": base, "PYTHON": BASE_IMAGE}
    arguments = builder.build_arguments(context / "images/sglang/Dockerfile", context, reference, write_secrets(scratch), bases)
    run_logged(builder, arguments, scratch / "gpu.log")
    return reference


@pytest.mark.usefixtures("operator_image")  # brings the base image
def test_gpu_image_adds_the_plugin_and_nothing_else(builder: Builder, tmp_path: Path) -> None:
    reference = build_gpu_image(builder, tmp_path, "0.5.23")
    with open_image(builder, reference) as container:
        assert container.output("python3", "-c", PRINT_PLUGINS) == "specserver"
        assert container.entrypoint == ("python3", "-m", "specserver.plugin.launcher")
        installed = container.output("python3", "-m", "pip", "list", "--format=freeze")
        assert not re.search("kopf|kubernetes|pydantic", installed)


@pytest.mark.usefixtures("operator_image")
def test_gpu_image_on_another_sglang_is_refused(builder: Builder, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"this image holds SGLang 0\.5\.22"):
        build_gpu_image(builder, tmp_path, "0.5.22")
