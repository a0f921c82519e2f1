"""The options of an SGLang release as a table: what its own parser would be built from, without SGLang.

    PYTHONPATH=<directory with the package sglang> <a Python with its dependencies> tools/sglang_options.py \\
        > operator/specserver/build/options/<release>.json

Run once a release, by whoever adds it to the supported ones; `tests/engine/test_options.py` compares the committed table with
the parser of the installed release. The operator reads the tables (`build/arguments.py`) and needs neither SGLang nor torch.

Names, kinds, types and choices are taken from the parser object itself, not from sources: SGLang makes most of its options from
the fields of several classes, and choices come from lists in half a dozen modules.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

TYPES = {
    "str": "str", "nullable_str": "str", "parse_cuda_graph_backend_arg": "str", "int": "int", "float": "float",
    "human_readable_int": "size", "loads": "json", "json_list_type": "json", "parse_cuda_graph_config_arg": "json",
}  # fmt: skip
"""SGLang's converters by name, and what each takes."""


def describe_options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """One entry an option, in the parser's order. `takes` is argparse's nargs, with 1 where it is not said."""
    options = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        takes: Any = 1 if action.nargs is None else action.nargs
        option: dict[str, Any] = {"flags": list(action.option_strings), "dest": action.dest, "takes": takes}
        if takes != 0:
            converter = getattr(action.type, "__name__", "str") if action.type else "str"
            if converter not in TYPES:
                print(f"{action.option_strings[0]}: the converter {converter} is not known, any value passes", file=sys.stderr)
            option["type"] = TYPES.get(converter, "any")
            if action.choices is not None:
                option["choices"] = sorted(action.choices)
        options.append(option)
    return options


def main() -> int:
    import sglang.version
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    lines = ",\n".join(json.dumps(option) for option in describe_options(parser))
    print(f'{{"release": {json.dumps(sglang.version.__version__)}, "options": [\n{lines}\n]}}')
    return 0


if __name__ == "__main__":
    sys.exit(main())
