"""Settings, logs and pages of the operator's process."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys

import aiohttp
import pytest

from specserver.settings import Settings, SettingsInvalid, load_settings
from specserver.telemetry import JsonFormatter, OperatorMetrics, serve_pages
from tests.localcluster.processes import free_ports


def test_settings_have_defaults() -> None:
    wanted = Settings(identity=socket.gethostname())
    assert load_settings({}) == load_settings({"SPECSERVER_PORT": "", "SPECSERVER_LOG_LEVEL": ""}) == wanted


def test_settings_are_read() -> None:
    read = load_settings(
        {
            "SPECSERVER_NAMESPACES": "a, b,", "SPECSERVER_LOG_LEVEL": "debug", "SPECSERVER_LOG_FORMAT": "Text",
            "SPECSERVER_PORT": "9090", "SPECSERVER_WORKERS": "2", "SPECSERVER_IDENTITY": "op-1",
        }
    )  # fmt: skip
    assert read == Settings(("a", "b"), "DEBUG", "text", 9090, 2, "op-1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPECSERVER_LOG_LEVEL", "LOUD"), ("SPECSERVER_LOG_FORMAT", "xml"), ("SPECSERVER_PORT", "0"),
        ("SPECSERVER_PORT", "65536"), ("SPECSERVER_PORT", "-1"), ("SPECSERVER_PORT", "²"),
        ("SPECSERVER_WORKERS", "many"), ("SPECSERVER_WORKERS", "0"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsInvalid, match=f"{name}=") as caught:
        load_settings({name: value})
    assert "must be" in str(caught.value)


def test_a_line_of_the_log_is_one_json_object() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        trace = (type(error), error, error.__traceback__)
    record = logging.LogRecord("a.b", logging.ERROR, "f", 1, "%s: Ünïcode\n✓", ("x",), trace)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "Ünïcode" in line
    said = json.loads(line)
    assert (said["level"], said["logger"], said["message"]) == ("ERROR", "a.b", "x: Ünïcode\n✓")
    assert "ValueError: two\nlines" in said["exception"]


def test_the_log_is_utf_8_where_the_locale_is_not() -> None:
    """An image without a locale, or with one of another character set: what does not fit was no JSON any more."""
    said = "é ✓ 推理 🔑"
    code = f"import logging; from specserver import telemetry as t; t.configure_logging('INFO', 'json'); logging.info({said!a})"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **locale}, capture_output=True, check=True)
    assert said in done.stderr.decode()
    assert json.loads(done.stderr)["message"] == said


async def test_pages() -> None:
    wrong = {"alive": "", "ready": "waiting for something"}
    metrics = OperatorMetrics()
    metrics.count_request("apply", "Deployment", 200)
    (port,) = free_ports(1)
    runner = await serve_pages(port, metrics, alive=lambda: wrong["alive"], ready=lambda: wrong["ready"])

    async def get(path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
            return response.status, await response.text()

    assert await get("/healthz") == (200, "ok")
    assert await get("/readyz") == (503, "waiting for something")
    wrong.update(alive="a reconcile takes 400 s", ready="")
    assert await get("/healthz") == (503, "a reconcile takes 400 s")
    assert await get("/readyz") == (200, "ok")
    status, page = await get("/metrics")
    assert status == 200
    assert 'specserver_operator_api_requests_total{kind="Deployment",status="200",verb="apply"} 1.0' in page
    await runner.cleanup()
