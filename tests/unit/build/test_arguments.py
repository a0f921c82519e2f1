"""The engine's arguments before a pod is made: every release's own options, under every spelling that argparse knows."""

from __future__ import annotations

from typing import Any

import pytest

from specserver.api.conditions import Condition, Reason, Status
from specserver.build.arguments import RELEASES, check_arguments, load_options, sglang_release
from specserver.build.sglang import build_arguments
from tests.unit.build.support import make_server

NEWEST = RELEASES[-1]


def check(*arguments: str, **engine: Any) -> Condition:
    engine = {"image": f"registry.example.com/sglang:v{NEWEST}", **engine}
    return check_arguments(make_server({"engine": {**engine, "args": list(arguments)}}))


FIT: dict[str, tuple[str, ...]] = {
    "none": (),
    "a flag": ("--log-requests",),
    "value apart": ("--mem-fraction-static", "0.8"),
    "value behind an equals sign": ("--mem-fraction-static=0.8",),
    "a value with equals signs and quotes": ("--json-model-override-args", '{"rope_scaling":{"factor":2.0},"a":"b=c"}'),
    "abbreviated": ("--mem-frac", "0.8"),
    "an alias": ("--context-length", "4096"),
    "several values": ("--cuda-graph-bs-decode", "1", "2", "4"),
    "a choice": ("--load-format", "dummy"),
    "a size": ("--max-total-tokens", "200000"),
    "a switch and its contrary": ("--enable-fp32-lm-head", "--disable-radix-cache"),
    "not ASCII": ("--chat-template", "/vorlagen/ünï 通义.jinja"),
    "a value that Kubernetes puts in": ("--mem-fraction-static", "$(FRACTION)", "--load-format=$(FORMAT)"),
    "an item that Kubernetes puts in": ("$(EXTRA)",),
    "deprecated": ("--enable-dp-attention",),
}


@pytest.mark.parametrize("case", FIT)
def test_what_the_engine_takes_passes(case: str) -> None:
    condition = check(*FIT[case])
    assert (condition.status, condition.reason) == (Status.TRUE, Reason.ARGUMENTS_FIT), condition.message


UNFIT: dict[str, tuple[tuple[str, ...], str]] = {
    "misspelt": (("--mem-fraction-statik", "0.8"), "--mem-fraction-statik 0.8 (did you mean --mem-fraction-static?)"),
    "of another engine": (("--gpu-memory-utilization", "0.8"), "unrecognized arguments: --gpu-memory-utilization"),
    "no number": (("--mem-fraction-static", "much"), "--mem-fraction-static: invalid float value: 'much'"),
    "no whole number": (("--context-length=4.5",), "--context-length: invalid size value: '4.5'"),
    "no JSON": (("--cuda-graph-config", "{'a': 1}"), "--cuda-graph-config: invalid json value"),
    "none of the choices": (("--load-format", "zip"), "--load-format: invalid choice: 'zip'"),
    "no value": (("--mem-fraction-static",), "--mem-fraction-static: expected one argument"),
    "no value before the next": (("--mem-fraction-static", "--log-requests"), "--mem-fraction-static: expected one argument"),
    "a value too many": (("--log-requests", "true"), "unrecognized arguments: true (the option before it takes no value"),
    "a value to a switch": (("--log-requests=true",), "--log-requests: ignored explicit argument 'true'"),
    "ambiguous": (("--log", "info"), "ambiguous option: --log could match"),
    "one item for two": (("--mem-fraction-static 0.8",), "--mem-fraction-static 0.8"),
    "help": (("--help",), "--help"),
    "a reference that stays": (("--mem-fraction-static", "$$(FRACTION)"), "invalid float value: '$$(FRACTION)'"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_the_engine_refuses_is_said_with_the_argument(case: str) -> None:
    arguments, says = UNFIT[case]
    condition = check(*arguments)
    assert (condition.status, condition.reason) == (Status.FALSE, Reason.ENGINE_ARGUMENTS_REFUSED)
    assert condition.message.startswith(f"engine.args: SGLang {NEWEST} refuses them: ")
    assert says in condition.message


OURS: dict[str, tuple[tuple[str, ...], str]] = {
    "abbreviated": (("--max-run", "4"), "--max-running-requests"),
    "another name of it, abbreviated, with an equals sign": (("--tensor-par=2",), "--tp-size"),
    "abbreviated speculation": (("--speculative-num-st", "9"), "--speculative-num-steps"),
    "as short as it gets": (("--admin", "key"), "--admin-api-key"),
}


@pytest.mark.parametrize("case", OURS)
def test_an_option_of_the_operators_is_found_under_any_spelling(case: str) -> None:
    arguments, option = OURS[case]
    condition = check(*arguments)
    assert (condition.status, condition.reason) == (Status.FALSE, Reason.ENGINE_ARGUMENTS_REFUSED)
    assert condition.message.startswith(f"engine.args: set {option}, which the operator passes itself")


WHOLE: dict[str, dict[str, Any]] = {
    "speculating": {
        "engine.parallelism": {"tensor": 2, "pipeline": 2, "data": 2},
        "engine.attentionBackend": "triton",
        "model.revision": "v2",
        "model.trustRemoteCode": True,
        "speculation.draftModel": {"uri": "hf://org/draft", "revision": "v3"},
    },
    "plain": {"speculation.mode": "Never", "speculation.draftModel": None},
}


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("release", RELEASES)
def test_every_release_takes_all_that_the_operator_passes(release: str, case: str) -> None:
    condition = check_arguments(make_server({**WHOLE[case], "engine.image": f"sglang:{release}"}))
    assert condition.status is Status.TRUE, condition.message


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("release", RELEASES)
def test_every_option_of_ours_is_written_in_full(release: str, case: str) -> None:
    """argparse takes a beginning as well, until a later release has two options that begin so."""
    flags = {flag for option in load_options(release) or () for flag in option["flags"]}
    ours = {argument for argument in build_arguments(make_server(WHOLE[case])) if argument.startswith("--")}
    assert ours - flags == set()


def test_an_operators_value_that_the_release_lacks_is_the_images_or_the_fields() -> None:
    condition = check(attentionBackend="crayons")
    assert condition.status is Status.FALSE
    assert "engine.image" in condition.message
    assert "--attention-backend: invalid choice: 'crayons'" in condition.message


LORA: dict[str, tuple[str, dict[str, Any], str]] = {
    "one step count": ("0.5.20", {"speculation.steps": [0, 3]}, ""),
    "several": ("0.5.23", {"speculation.steps": [0, 1, 3]}, "set speculation.steps to [0, 3]"),
    "a release without": ("0.5.17", {"speculation.steps": [0, 3]}, "SGLang 0.5.17 has no LoRA beside speculation"),
    "no speculation": ("0.5.17", WHOLE["plain"], ""),
}


@pytest.mark.parametrize(
    "arguments",
    [("--lora-paths", "a=/adapters/a"), ("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "all")],
    ids=["paths", "loaded later"],
)
@pytest.mark.parametrize("case", LORA)
def test_lora_beside_a_speculation_that_the_engine_would_end_for(case: str, arguments: tuple[str, ...]) -> None:
    release, changes, says = LORA[case]
    server = make_server({**changes, "engine.image": f"sglang:{release}", "engine.args": list(arguments)})
    condition = check_arguments(server)
    assert condition.status is (Status.FALSE if says else Status.TRUE)
    assert says in condition.message


def test_a_resource_that_cannot_be_built_is_told_elsewhere() -> None:
    assert check_arguments(make_server({"engine.image": "sglang:0.5.23", "speculation.draftModel": None})).status is Status.TRUE


IMAGES = [
    ("lmsysorg/sglang:v0.5.23", "0.5.23"),
    ("lmsysorg/sglang:v0.5.20-cu130", "0.5.20"),
    ("reg.local:5000/ai/sglang:0.5.17-x@sha256:" + 64 * "2", "0.5.17"),
    ("reg.local:5000/ai/sglang@sha256:" + 64 * "1", None),
    ("reg.local:5000/ai/sglang", None),
    ("sglang:latest", None),
    ("sglang:prod-0.5.23", None),
    ("sglang:0.5.23.post1", "0.5.23.post1"),
]


@pytest.mark.parametrize(("image", "release"), IMAGES)
def test_the_release_is_the_tags(image: str, release: str | None) -> None:
    assert sglang_release(make_server({"engine.image": image})) == release


def test_the_users_word_on_the_release_counts_more_than_the_tag() -> None:
    assert check("--nonsense", image="own:prod", sglangRelease=NEWEST).status is Status.FALSE
    assert check("--nonsense", sglangRelease="9.9.9").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("image", "says"),
    [("own:prod", "the tag of own:prod names no release of SGLang"), ("own:0.4.9", "SGLang 0.4.9 is not known")],
)
def test_an_unknown_release_is_not_checked_and_that_is_said(image: str, says: str) -> None:
    condition = check("--nonsense", image=image)
    assert (condition.status, condition.reason) == (Status.UNKNOWN, Reason.RELEASE_UNKNOWN)
    assert "engine.args are not checked" in condition.message
    assert says in condition.message
    assert NEWEST in condition.message


def test_a_long_list_of_choices_is_cut() -> None:
    assert len(check("--tool-call-parser", "x" * 2000).message) <= 1000


@pytest.mark.parametrize("release", RELEASES)
def test_tables_hold_what_a_parser_needs(release: str) -> None:
    options = load_options(release) or ()
    assert len(options) > 400
    flags = [flag for option in options for flag in option["flags"]]
    assert len(set(flags)) == len(flags)
    assert {"--model-path", "--mem-fraction-static", "--enable-metrics"} <= set(flags)
