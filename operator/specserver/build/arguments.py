"""The engine's arguments, checked before a pod is made from them, by what SGLang's own parser would say.

A wrong argument otherwise costs a rollout: with no pod to spare the old one is gone before the new one says what it thinks of
`--max-runing-requests`. `options/<release>.json` holds each release's options as its parser has them (`tools/sglang_options.py`);
argparse itself, given that table, does the rest, so abbreviations, `--flag=value`, several values and choices mean here what
they mean in the engine. The same parser finds options of the operator's under any spelling: `--max-run 4` is
`--max-running-requests 4`, and that has a field of its own.

Not seen: what SGLang refuses after parsing (combinations of options but LoRA beside a ladder, files that are not there), and
values that Kubernetes puts in for `$(NAME)`. A release without a table is not checked, and the condition says so.

Rejected: SGLang in the operator's image, which is 3 GB of torch for one parser of one release; and a Job that runs each
engine image once, which needs the image on a node and a right to make pods.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from specserver.api.conditions import Condition, ConditionType, Reason, Status
from specserver.api.v1alpha1 import OWNED_FLAGS, SpeculativeServer
from specserver.build.config import adaptive_rungs
from specserver.build.metadata import BuildInvalid
from specserver.build.models import wanted_draft
from specserver.build.sglang import build_arguments

_TABLES = Path(__file__).parent / "options"
_OWNED_PREFIX = "--speculative-"
_RELEASES_WITHOUT_LORA_DRAFTS = ("0.5.17",)
_LONGEST_MESSAGE = 1000
"""An option of SGLang may have sixty choices."""

_TAG = re.compile(r"v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)(?:[-+_].*)?")
_REFERENCE = re.compile(r"(?<!\$)(?:\$\$)*\$\(")
"""Something that Kubernetes replaces. `$$(` is a `$(` that stays."""
_SIZE = re.compile(r"[-+]?\d+|\d+(\.\d+)?[kMGT]|\d+[KMGT]i")


class _Unfit(ValueError):
    """What the parser says."""


def check_arguments(server: SpeculativeServer) -> Condition:
    """The condition ArgumentsChecked. False keeps the Deployment as it is."""
    release = sglang_release(server)
    options = load_options(release) if release else None
    if options is None:
        return Condition(
            ConditionType.ARGUMENTS_CHECKED,
            Status.UNKNOWN,
            Reason.RELEASE_UNKNOWN,
            f"engine.args are not checked: {_why_unknown(server, release)}. Options are known of SGLang {', '.join(RELEASES)}",
        )
    problem = _find_problem(server, release or "", options)[:_LONGEST_MESSAGE]
    if problem:
        return Condition(ConditionType.ARGUMENTS_CHECKED, Status.FALSE, Reason.ENGINE_ARGUMENTS_REFUSED, problem)
    return Condition(
        ConditionType.ARGUMENTS_CHECKED, Status.TRUE, Reason.ARGUMENTS_FIT, f"SGLang {release} takes the engine's arguments"
    )


def sglang_release(server: SpeculativeServer) -> str | None:
    """SGLang's release in the engine's image: as the user says, else as the image's tag says, else not known."""
    if server.spec.engine.sglang_release is not None:
        return server.spec.engine.sglang_release
    name = server.spec.engine.image.split("@")[0].rsplit("/", 1)[-1]
    tag = _TAG.fullmatch(name.partition(":")[2])
    return tag.group(1) if tag else None


RELEASES = tuple(sorted((path.stem for path in _TABLES.glob("*.json")), key=lambda name: [int(part) for part in name.split(".")]))


@functools.cache
def load_options(release: str) -> tuple[dict[str, Any], ...] | None:
    """The options of a release; None where there is no table of it."""
    if release not in RELEASES:
        return None
    return tuple(json.loads((_TABLES / f"{release}.json").read_text())["options"])


def _why_unknown(server: SpeculativeServer, release: str | None) -> str:
    if release is None:
        return f"the tag of {server.spec.engine.image} names no release of SGLang (engine.sglangRelease can)"
    return f"SGLang {release} is not known to this operator"


def _find_problem(server: SpeculativeServer, release: str, options: Sequence[dict[str, Any]]) -> str:
    """What is wrong, and where to mend it; empty where nothing is."""
    parser = _parser(release)
    users = list(server.spec.engine.args)
    # 1. The user's, apart: an error in them is the user's to mend.
    try:
        given = vars(parser.parse(users))
    except _Unfit as error:
        return f"engine.args: SGLang {release} refuses them: {error}"
    # 2. Options that the operator passes, whatever the spelling: `given` is by destination.
    owned = {option["dest"]: option["flags"][0] for option in options if any(_is_owned(flag) for flag in option["flags"])}
    for destination, flag in owned.items():
        if destination in given:
            return f"engine.args: set {flag}, which the operator passes itself: remove it and use the field of the resource"
    # 3. Ours.
    try:
        ours = build_arguments(server)
        parser.parse(ours[: len(ours) - len(users)])
    except BuildInvalid:
        return ""  # told by whoever builds the objects
    except _Unfit as error:
        return (
            f"engine.image: SGLang {release} does not take what this operator passes: {error}. Use an image with one of"
            f" {', '.join(RELEASES)}"
        )
    # 4. Together.
    return _find_lora_problem(server, release, given)


def _find_lora_problem(server: SpeculativeServer, release: str, given: Mapping[str, Any]) -> str:
    """SGLang ends at start where LoRA meets a speculation that it doesn't go with (`arg_groups/lora_hook.py`)."""
    if not (given.get("enable_lora") or given.get("lora_paths")) or wanted_draft(server) is None:
        return ""
    highest = server.spec.speculation.ladder[-1]
    if release in _RELEASES_WITHOUT_LORA_DRAFTS:
        later = f"use an image of a later release with speculation.steps [0, {highest}], or mode Never"
        return f"engine.args: SGLang {release} has no LoRA beside speculation: {later}"
    if adaptive_rungs(server) is not None:
        return f"engine.args: SGLang has LoRA beside one step count above 0 alone: set speculation.steps to [0, {highest}]"
    return ""


def _is_owned(flag: str) -> bool:
    return flag in OWNED_FLAGS or flag.startswith(_OWNED_PREFIX)


# ---- the parser ------------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse over a table: says what is wrong instead of ending the process, and keeps only what was given."""

    def __init__(self, options: Sequence[dict[str, Any]]) -> None:
        super().__init__(add_help=False, argument_default=argparse.SUPPRESS)
        self._flags = [flag for option in options for flag in option["flags"]]
        for option in options:
            kind: dict[str, Any] = {"dest": option["dest"]}
            if option["takes"] == 0:
                kind["action"], kind["const"] = "store_const", True
            else:
                kind["type"] = _converter(option["type"])
                kind["nargs"] = None if option["takes"] == 1 else option["takes"]
                if "choices" in option:
                    kind["choices"] = _Choices(option["choices"])
            self.add_argument(*option["flags"], **kind)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """_Unfit where SGLang would end with an error, or with its help."""
        if any(argument in ("-h", "--help") for argument in arguments):
            raise _Unfit("--help prints the options and ends: remove it")
        parsed, unknown = self.parse_known_args(list(arguments))
        left = [argument for argument in unknown if not _REFERENCE.search(argument)]
        if left:
            raise _Unfit(f"unrecognized arguments: {' '.join(left)}{self._suggest(left[0])}")
        return parsed

    def _suggest(self, argument: str) -> str:
        close = difflib.get_close_matches(argument.split("=")[0], self._flags, n=1)
        if close:
            return f" (did you mean {close[0]}?)"
        return "" if argument.startswith("-") else " (the option before it takes no value, or no further one)"

    def error(self, message: str) -> NoReturn:
        raise _Unfit(message)


@functools.cache
def _parser(release: str) -> _Parser:
    return _Parser(load_options(release) or ())


class _Later(str):
    """A value that Kubernetes puts in: fits everything until it is there."""

    __slots__ = ()


class _Choices(list[Any]):
    def __contains__(self, value: object) -> bool:
        return isinstance(value, _Later) or super().__contains__(value)


def _converter(kind: str) -> Callable[[str], Any]:
    convert = _CONVERTERS[kind]

    def converter(text: str) -> Any:
        return _Later(text) if _REFERENCE.search(text) else convert(text)

    converter.__name__ = kind  # argparse's messages have it: "invalid float value"
    return converter


def _size(text: str) -> str:
    if not _SIZE.fullmatch(text.strip()):
        raise ValueError
    return text


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "str": str, "any": str, "int": int, "float": float, "size": _size, "json": json.loads,
}  # fmt: skip
