"""Every supported release: each function that is wrapped or called is as the plugin expects it, and what is read is there.

The hooks are registered with each release's own registry, in a process that has its sources and metadata and no torch. A
release that differs in one function, or that nobody looked at, gets nothing but the read-back, which says why.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specserver.plugin import hooks, versions
from specserver.plugin.support import Target, find_target_problems, find_version_problem
from specserver.plugin.zero import wrap
from specserver.plugin.zero.lora import GRAPH_BUFFERS
from tests.versions.sources import REPOSITORY, pinned_versions

TARGETS = (*hooks.SCHEDULER_TARGETS, hooks.HTTP)

REGISTER = """
import importlib.machinery, json, multiprocessing, sys, types
from pathlib import Path

sources, process = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(sources))
for name in ("sglang", "sglang.srt"):  # their own modules import what is not installed here
    module = types.ModuleType(name)
    module.__path__ = [str(sources.joinpath(*name.split(".")))]
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__spec__.submodule_search_locations = module.__path__
    sys.modules[name] = module
plugins = types.ModuleType("sglang.srt.plugins")
plugins.__path__ = [str(sources / "sglang" / "srt" / "plugins")]
sys.modules[plugins.__name__] = plugins
if process == "scheduler":
    multiprocessing.parent_process = lambda: multiprocessing.current_process()

from sglang.srt.plugins.hook_registry import HookRegistry
from specserver.plugin import entry, hooks
kept, init = [], hooks.SchedulerHooks.__init__
hooks.SchedulerHooks.__init__ = lambda self, problems: (kept.extend(problems), init(self, problems))[1]
entry.load()
print(json.dumps({"registered": sorted(HookRegistry._hooks), "problems": kept}))
"""


def register(sources: Path, process: str) -> tuple[set[str], list[str]]:
    """Targets that the plugin registers in such a process of this release, and what it found not to fit."""
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY / "operator")}
    command = [sys.executable, "-c", REGISTER, str(sources), process]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    return set(answer["registered"]), answer["problems"]


def test_what_is_supported_is_pinned_here() -> None:
    assert tuple(pinned_versions()) == versions.SUPPORTED_VERSIONS


def test_the_release_is_the_one_it_is_taken_for(sources: Path, version: str) -> None:
    (metadata,) = sources.glob("sglang-*.dist-info/METADATA")
    assert f"\nVersion: {version}\n" in metadata.read_text()


def test_wrapped_functions_fit(sources: Path, version: str) -> None:
    assert find_target_problems(TARGETS, sources, version) == []


def test_called_functions_fit(sources: Path, version: str) -> None:
    assert find_target_problems(wrap.CALLED, sources, version) == []


def test_a_scheduler_gets_its_hooks(sources: Path) -> None:
    registered, problems = register(sources, "scheduler")
    assert problems == []
    assert registered == {target.path for target in hooks.SCHEDULER_TARGETS} - {hooks.ACTIVATE.path}


def test_the_http_process_gets_its_routes(sources: Path) -> None:
    assert register(sources, "http") == ({hooks.HTTP.path}, [])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_another_parameter_is_noticed(sources: Path, version: str, target: Target, tmp_path: Path) -> None:
    changed = change_parameter(sources, target, tmp_path)
    expected = ", ".join(target.parameters_in(version))
    assert find_target_problems([target], changed, version) == [
        f"{target.path} takes ({expected}, newcomer), not ({expected})"
    ]


def test_a_release_with_a_changed_function_gets_the_read_back_alone(sources: Path, tmp_path: Path) -> None:
    """The registry sees two hooks: the one that makes the rank, which then says why it is not armed, and the messages."""
    changed = change_parameter(sources, hooks.RESULT, tmp_path)
    for entry in sources.iterdir():
        if entry.suffix == ".dist-info":
            shutil.copytree(entry, changed / entry.name)
    complete(sources, changed)
    registered, problems = register(changed, "scheduler")
    assert registered == {hooks.ARM.path, hooks.MESSAGE.path}
    assert [problem.split(" ", 1)[0] for problem in problems] == [hooks.RESULT.path]


@pytest.mark.parametrize("unknown", ["0.5.16", "0.5.18", "0.5.24", "0.6.0", "0.5.23.post1", "0.5.23+local", "unknown"])
def test_a_release_that_nobody_looked_at_is_not_controlled(unknown: str) -> None:
    assert f"SGLang {unknown} is not supported" in str(find_version_problem(unknown))


# ---- what is read -------------------------------------------------------------------------------------------------------

_SCHEDULER = "managers/scheduler.py"
_BATCH = "managers/schedule_batch.py"
_OLDER = ("0.5.17", "0.5.20")

READ_EVERYWHERE = (
    (_SCHEDULER, "self.draft_worker"),
    (_SCHEDULER, "self.running_batch"),
    (_SCHEDULER, "self.last_batch"),
    (_SCHEDULER, "self.waiting_queue"),
    (_SCHEDULER, "self.max_running_requests"),
    (_SCHEDULER, "self.max_total_num_tokens"),
    (_SCHEDULER, "self.token_to_kv_pool_allocator"),
    (_SCHEDULER, "self.tree_cache"),
    (_SCHEDULER, "self.is_hybrid_swa"),
    (_SCHEDULER, "self.is_hybrid_ssm"),
    (_SCHEDULER, "self.ipc_channels.send_to_tokenizer.send_output("),
    (_SCHEDULER, "batch.forward_iter = self.forward_ct"),
    (_SCHEDULER, "retracted_reqs, new_token_ratio, reqs_to_abort = batch.retract_decode("),
    (_SCHEDULER, "self.result_queue.append((batch.copy(), batch_result))"),
    (_BATCH, "forward_iter=self.forward_iter"),
    (_BATCH, "self.is_retracted"),
    (_BATCH, "def finished(self)"),
    (_BATCH, "self.grammar"),
    ("managers/utils.py", "num_correct_drafts_per_req_cpu: "),
    ("managers/utils.py", "speculative_num_draft_tokens: "),
    ("managers/io_struct.py", "class DumperControlReqInput(BaseReq"),
    ("managers/io_struct.py", "class DumperControlReqOutput(BaseReq"),
    ("managers/tokenizer_control_mixin.py", "async def dumper_control("),
    ("speculative/adaptive_runtime_state.py", "self._states: dict[int, SpecRuntimeState]"),
    ("lora/backend/base_backend.py", "def is_moe_lora(self)"),
    ("entrypoints/http_server.py", "def get_global_state()"),
    ("entrypoints/http_server.py", "app = FastAPI("),
)
"""File under `sglang/srt` and a text in it: an attribute or a call on which the plugin counts without wrapping it."""

READ_FROM_CONTEXT = (
    "get_disagg().disaggregation_mode",
    "get_disagg().enable_pdmux",
    "get_exec().kernel.attention_backend",
    "get_exec().overlap.enable_two_batch_overlap",
    "get_model().model_path",
    "get_observability().enable_metrics",
    "get_parallel().dp_size",
    "get_parallel().pp_size",
    "get_parallel().tp_group",
    "get_parallel().tp_rank",
    "get_parallel().tp_size",
    "get_spec().speculative_algorithm",
    "get_spec().speculative_draft_model_path",
)
"""Of SGLang's run-time context, as SGLang itself reads it somewhere: so the plugin may too."""


@pytest.mark.parametrize(("file", "text"), READ_EVERYWHERE, ids=lambda value: str(value))
def test_what_is_read_is_there(sources: Path, file: str, text: str) -> None:
    assert text in (sources / "sglang" / "srt" / file).read_text()


@pytest.fixture(scope="module")
def whole_text(all_sources: dict[str, Path]) -> dict[str, str]:
    """All sources of a release in one."""
    return {
        version: "\n".join(file.read_text() for file in (directory / "sglang" / "srt").rglob("*.py"))
        for version, directory in all_sources.items()
    }


def test_context_that_is_read_is_there(whole_text: dict[str, str], version: str) -> None:
    ranks = ("self.ps.dp_rank", "get_parallel().enable_dp_attention")
    newer_ranks = ("get_parallel().dp_rank", "get_parallel().attn_dp_enabled")
    own, others = (ranks, newer_ranks) if version in _OLDER else (newer_ranks, ranks[:1])
    text = whole_text[version]
    assert [name for name in (*READ_FROM_CONTEXT, *own) if name not in text] == []
    assert [name for name in others if name in text] == [], "a place of the other releases: versions.py tells them apart"


def test_multi_layer_drafts_are_told_in_the_context(whole_text: dict[str, str], version: str) -> None:
    """0.5.17 declares the field in the same namespace and reads it elsewhere."""
    text = whole_text[version]
    declared = re.search(r"enable_multi_layer_eagle: A\[[^\]]*NS\(\"spec\"\)", text, re.DOTALL)
    assert declared or "get_spec().enable_multi_layer_eagle" in text


def test_older_releases_publish_no_context_in_the_http_process(whole_text: dict[str, str]) -> None:
    """Why the keys are read from the arguments."""
    assert 'publish(server_args, role="scheduler")' in whole_text["0.5.17"]
    assert 'role="launcher")' not in whole_text["0.5.17"]


_RESIZES = {"init_dp_attention_cuda_graph_batch_info", "resize_cuda_graph_moe_buffers"}
"""Further work of a capture on LoRA's backend: data-parallel attention and adapters of experts, both refused."""


def test_what_a_capture_replaces_of_lora_is_told_by_its_name(sources: Path) -> None:
    """`zero/lora.py` tells by their name what a capture put in the place of SGLang's own."""
    directory = sources / "sglang" / "srt" / "lora"
    replaced: dict[str, set[str]] = {}
    for file in (directory / "lora_manager.py", *directory.glob("backend/*_backend.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and re.fullmatch("init_(decode_)?cuda_graph_batch_info", node.name):
                called = {each.func.attr for each in ast.walk(node) if is_call_of(each, "self.lora_backend")}
                assert called <= {node.name, *_RESIZES}
                stored = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
                replaced.setdefault(file.stem, set()).update(ast.unparse(each) for each in stored)
    of_npus = replaced.pop("ascend_backend")
    assert of_npus == {"self.npu_graph_batch_info"}, "zero steps are refused on other devices than CUDA's"
    assert {"lora_manager", "chunked_backend", "triton_backend"} <= replaced.keys()
    names = set().union(*replaced.values()) - {"batch.tokens_per_request"}  # triton_v2: of a buffer that is new itself
    assert names
    assert [name for name in names if not (name.startswith("self.") and GRAPH_BUFFERS in name)] == []


def is_call_of(node: ast.AST, owner: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == owner


# ---- a release that changed -----------------------------------------------------------------------------------------------


def change_parameter(sources: Path, target: Target, directory: Path) -> Path:
    """A directory with the target's module alone, in which the function takes one more parameter."""
    file = Path(*target.module.split(".")).with_suffix(".py")
    text = (sources / file).read_text()
    function = find_function(ast.parse(text), target.name)
    last = [*function.args.args, *function.args.kwonlyargs][-1]
    lines = text.splitlines(keepends=True)
    end = last.annotation or last
    if function.args.defaults and not function.args.kwonlyargs:
        end = function.args.defaults[-1]
    assert end.end_lineno is not None
    assert end.end_col_offset is not None
    line = lines[end.end_lineno - 1].encode()
    default = b" = None" if function.args.defaults or function.args.kwonlyargs else b""
    changed = line[: end.end_col_offset] + b", newcomer" + default + line[end.end_col_offset :]
    lines[end.end_lineno - 1] = changed.decode()
    (directory / file).parent.mkdir(parents=True)
    (directory / file).write_text("".join(lines))
    return directory


def find_function(tree: ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    body: list[ast.stmt] = tree.body
    *classes, function = name.split(".")
    for class_name in classes:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name).body
    return next(node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function)


def complete(sources: Path, directory: Path) -> None:
    """Puts in what of the release's sources is not in the directory yet."""
    for file in (sources / "sglang").rglob("*.py"):
        copy = directory / file.relative_to(sources)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(file)
