"""Loading the plugin: light, silent about what a process does not need, and never an error."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specserver.plugin import entry

REPOSITORY = Path(__file__).resolve().parents[3]


def test_modules_import_nothing_heavy() -> None:
    """prometheus_client among it: it looks for its directory when it is imported, before SGLang has made one."""
    code = """
import pkgutil, importlib, sys, specserver.plugin
for module in pkgutil.iter_modules(specserver.plugin.__path__):
    importlib.import_module(f"specserver.plugin.{module.name}")
print([name for name in ("sglang", "torch", "prometheus_client", "starlette", "pydantic", "kopf") if name in sys.modules])
"""
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY / "operator")}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_load_never_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ImportError("no sglang here")

    monkeypatch.setattr(entry, "_register", broken)
    with caplog.at_level(logging.ERROR):
        entry.load()
    assert "the engine runs stock" in caplog.text
