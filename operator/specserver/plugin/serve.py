"""SGLang's server with keys from the environment:  python -m specserver.plugin.serve SGLANG-ARGUMENTS…

A key in a command line is open to everybody who can list processes. Here the keys come from SPECSERVER_ADMIN_KEY and
SPECSERVER_API_KEY, leave the environment before SGLang starts its processes, and reach SGLang's own argument parser
inside this process. SGLang logs its arguments at start-up, so the keys are masked in every line that this process logs.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

OPTIONS = {"SPECSERVER_ADMIN_KEY": "--admin-api-key", "SPECSERVER_API_KEY": "--api-key"}
MASK = "********"


def take_keys(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Removes the keys from the environment and returns them by SGLang's option."""
    taken = {option: environment.pop(name, "") for name, option in OPTIONS.items()}
    return {option: key for option, key in taken.items() if key}


def build_options(keys: dict[str, str]) -> list[str]:
    """Options with their keys, each as one argument: apart, a key that begins with a dash would be read as an option."""
    return [f"{option}={key}" for option, key in keys.items()]


def mask_in_logs(keys: list[str]) -> None:
    """From now on every log record of this process has the keys masked, whatever logger and handler it goes to."""
    make_record = logging.getLogRecordFactory()

    def make_masked_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        message = record.getMessage()
        masked = message
        for key in keys:
            masked = masked.replace(key, MASK)
        if masked != message:
            record.msg, record.args = masked, None
        return record

    logging.setLogRecordFactory(make_masked_record)


def main(arguments: list[str]) -> None:
    keys = take_keys(os.environ)
    mask_in_logs(list(keys.values()))
    options = build_options(keys)

    # The same steps as in SGLang's own launch_server module.
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    server_args = prepare_server_args([*arguments, *options])
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
