"""`python -m specserver`: the operator."""

from __future__ import annotations

import argparse
import gc
import os
import sys

from specserver import __version__

_NEW_OBJECTS_BEFORE_A_SEARCH = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="specserver",
        description="The SpecServer operator. Settings are environment variables: SPECSERVER_NAMESPACES (comma-separated; empty:"
        " all), SPECSERVER_LOG_LEVEL, SPECSERVER_LOG_FORMAT (json, text), SPECSERVER_PORT, SPECSERVER_WORKERS.",
    )
    parser.add_argument("--version", action="version", version=f"specserver {__version__}")
    parser.parse_args()

    import uvloop

    from specserver.app import run
    from specserver.settings import SettingsInvalid, load_settings
    from specserver.telemetry import configure_logging

    try:
        settings = load_settings(os.environ)
    except SettingsInvalid as error:
        print(f"specserver: {error}", file=sys.stderr)
        return 2
    configure_logging(settings.log_level, settings.log_format)
    # One list of pods is thousands of new objects, and by default each 700 of them would be searched for cycles, now and then
    # with all that live: a quarter of the operator's time with a thousand servers (benchmarks/operator).
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_BEFORE_A_SEARCH)
    uvloop.run(run(settings))  # most of the work is connections
    return 0


if __name__ == "__main__":
    sys.exit(main())
