"""The operator's settings: environment variables with defaults, read and checked once at start."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LOG_FORMATS = ("json", "text")


class SettingsInvalid(ValueError):
    """An environment variable has a value that can't be used; the message names it."""


@dataclass(frozen=True)
class Settings:
    """namespaces  those to watch; empty means all
    port        of /healthz, /readyz and /metrics
    workers     servers that are reconciled at the same time, half of them at most without news; a pass waits most of its time,
                for others' answers
    identity    this operator's name in its Lease: the pod's, which a restarted container keeps
    """

    namespaces: tuple[str, ...] = ()
    log_level: str = "INFO"
    log_format: str = "json"
    port: int = 8080
    workers: int = 16
    identity: str = "specserver"


def load_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from `SPECSERVER_*`. SettingsInvalid where one is wrong."""
    return Settings(
        namespaces=tuple(name.strip() for name in environment.get("SPECSERVER_NAMESPACES", "").split(",") if name.strip()),
        log_level=_choice(environment, "SPECSERVER_LOG_LEVEL", "INFO", LOG_LEVELS),
        log_format=_choice(environment, "SPECSERVER_LOG_FORMAT", "json", LOG_FORMATS),
        port=_number(environment, "SPECSERVER_PORT", 8080, least=1, most=65535),
        workers=_number(environment, "SPECSERVER_WORKERS", 16, least=1, most=256),
        identity=environment.get("SPECSERVER_IDENTITY", "") or socket.gethostname(),
    )


def _choice(environment: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    value = environment.get(name, "") or default
    found = next((choice for choice in choices if choice.lower() == value.lower()), None)
    if found is None:
        raise SettingsInvalid(f"{name}={value!r}: must be one of {', '.join(choices)}")
    return found


def _number(environment: Mapping[str, str], name: str, default: int, *, least: int, most: int) -> int:
    value = environment.get(name, "") or str(default)
    if not (value.isascii() and value.isdigit()) or not least <= int(value) <= most:
        raise SettingsInvalid(f"{name}={value!r}: must be a whole number from {least} to {most}")
    return int(value)
