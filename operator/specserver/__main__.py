"""`python -m specserver`: the operator."""

from __future__ import annotations

import argparse
import os
import sys

from specserver import __version__


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
    uvloop.run(run(settings))  # most of the work is connections
    return 0


if __name__ == "__main__":
    sys.exit(main())
