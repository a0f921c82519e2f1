"""The command line, flag by flag. That SGLang's own parser takes it is the engine tier's matter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specserver.build.metadata import BuildInvalid
from specserver.build.sglang import build_arguments
from tests.unit.build.support import make_server


def arguments(changes: dict[str, Any] | None = None) -> list[str]:
    return build_arguments(make_server(changes))


def value_of(flag: str, changes: dict[str, Any] | None = None) -> str:
    built = arguments(changes)
    assert built.count(flag) == 1
    return built[built.index(flag) + 1]


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "hub model": ({}, "--model-path", "org/target"),
    "model in the image": ({"model.uri": "file:///models/target"}, "--model-path", "/models/target"),
    "model on a claim": ({"model.uri": "pvc://weights/a/b"}, "--model-path", "/mnt/specserver/model/a/b"),
    "claim that is the model": ({"model.uri": "pvc://weights"}, "--model-path", "/mnt/specserver/model"),
    "model revision": ({"model.revision": "v2"}, "--revision", "v2"),
    "served name": ({"model.servedName": "通义/mini"}, "--served-model-name", "通义/mini"),
    "served name by default": ({}, "--served-model-name", "llama"),
    "port": ({"engine.port": 8000}, "--port", "8000"),
    "host": ({}, "--host", "0.0.0.0"),
    "running requests by default": ({}, "--max-running-requests", "256"),
    "running requests": ({"engine.maxRunningRequests": 12}, "--max-running-requests", "12"),
    "graphs up to the running requests": ({"engine.maxRunningRequests": 12}, "--cuda-graph-max-bs-decode", "12"),
    "attention backend": ({"engine.attentionBackend": "fa3"}, "--attention-backend", "fa3"),
    "tensor": ({"engine.parallelism.tensor": 4}, "--tp-size", "4"),
    "pipeline": ({"engine.parallelism.pipeline": 2}, "--pp-size", "2"),
    "data": ({"engine.parallelism.data": 2}, "--dp-size", "2"),
    "algorithm by default": ({}, "--speculative-algorithm", "EAGLE3"),
    "algorithm": ({"speculation.algorithm": "EAGLE"}, "--speculative-algorithm", "EAGLE"),
    "hub draft": ({}, "--speculative-draft-model-path", "org/draft"),
    "draft on its own claim": (
        {"speculation.draftModel.uri": "pvc://drafts/d"}, "--speculative-draft-model-path", "/mnt/specserver/draft/d",
    ),
    "draft on the model's claim": (
        {"model.uri": "pvc://all/m", "speculation.draftModel.uri": "pvc://all/d"},
        "--speculative-draft-model-path", "/mnt/specserver/model/d",
    ),
    "draft revision": ({"speculation.draftModel.revision": "d1"}, "--speculative-draft-model-revision", "d1"),
    "start value is the largest step": ({"speculation.maxSteps": 5}, "--speculative-num-steps", "5"),
    "verify batch is one more": ({"speculation.maxSteps": 5}, "--speculative-num-draft-tokens", "6"),
    "one draft a step": ({}, "--speculative-eagle-topk", "1"),
    "ladder by default": ({}, "--speculative-adaptive-config", "/etc/specserver/ladder-1-2-3.json"),
    "ladder": (
        {"speculation.maxSteps": 5, "speculation.steps": [0, 2, 5]},
        "--speculative-adaptive-config", "/etc/specserver/ladder-2-5.json",
    ),
    "dollar in a field is not a variable": ({"model.servedName": "a$(HOME)"}, "--served-model-name", "a$$(HOME)"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "flag", "value"), CASES.values(), ids=CASES.keys())
def test_field_becomes_flag(changes: dict[str, Any], flag: str, value: str) -> None:
    assert value_of(flag, changes) == value


@pytest.mark.parametrize("mode", ["Auto", "Always", "Observe"])
def test_the_speculating_modes_share_one_command_line(mode: str) -> None:
    assert arguments({"speculation.mode": mode}) == arguments()
    assert "--speculative-adaptive" in arguments()


@pytest.mark.parametrize(
    "changes",
    [{"speculation.maxSteps": 1}, {"speculation.maxSteps": 4, "speculation.steps": [0, 4]}],
    ids=["one step", "one rung"],
)
def test_a_single_step_count_above_0_needs_nothing_adaptive(changes: dict[str, Any]) -> None:
    built = arguments(changes)
    assert "--speculative-num-steps" in built
    assert [argument for argument in built if "adaptive" in argument] == []


@pytest.mark.parametrize("draft", [None, {"uri": "hf://org/draft"}], ids=["without draft", "with draft"])
def test_never_passes_nothing_of_speculation(draft: dict[str, str] | None) -> None:
    built = arguments({"speculation.mode": "Never", "speculation.draftModel": draft})
    assert [argument for argument in built if "speculative" in argument or "draft" in argument] == []


def test_speculating_without_a_draft_is_refused_by_field() -> None:
    with pytest.raises(BuildInvalid, match=r"spec\.speculation\.draftModel: .*give draftModel\.uri"):
        arguments({"speculation.draftModel": None})


@pytest.mark.parametrize(
    "flag", ["--tp-size", "--pp-size", "--dp-size", "--revision", "--attention-backend", "--trust-remote-code"]
)
def test_what_is_not_asked_for_is_not_passed(flag: str) -> None:
    assert flag not in arguments()


def test_metrics_are_always_on() -> None:
    assert "--enable-metrics" in arguments()


def test_remote_code_only_when_trusted() -> None:
    assert "--trust-remote-code" in arguments({"model.trustRemoteCode": True})


@pytest.mark.parametrize(
    ("data", "args", "limit"),
    [(1, [], "300"), (2, [], "150"), (7, [], "43"), (2, ["--enable-dp-attention"], "300")],
    ids=["one scheduler", "two schedulers", "rounded up", "divided by SGLang itself"],
)
def test_running_requests_are_those_of_the_whole_replica(data: int, args: list[str], limit: str) -> None:
    changes = {"engine.maxRunningRequests": 300, "engine.parallelism.data": data, "engine.args": args}
    assert value_of("--max-running-requests", changes) == limit


def test_users_arguments_come_last_and_unchanged() -> None:
    given = ["--json-model-override-args", '{"a": "b c"}', "$(HOME)/t", "$$(HOME)", "", "ключ\n✓", "--mem-fraction-static=0.8"]
    assert arguments({"engine.args": given})[-len(given) :] == given


def test_no_key_reaches_the_command_line() -> None:
    changes = {
        "engine.adminKeySecretRef": {"name": "secret-admin", "key": "entry-admin"},
        "engine.apiKeySecretRef": {"name": "secret-api", "key": "entry-api"},
        "model.tokenSecretRef": {"name": "secret-hub", "key": "entry-hub"},
    }
    assert arguments(changes) == arguments()
    assert not [argument for argument in arguments() if "key" in argument or "token" in argument.replace("draft-tokens", "")]


def test_arguments_are_one_string_each() -> None:
    built = arguments({"engine.parallelism.tensor": 2})
    assert json.loads(json.dumps(built)) == built
    assert all(isinstance(argument, str) for argument in built)
