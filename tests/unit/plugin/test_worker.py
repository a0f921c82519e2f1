"""Several HTTP processes: uvicorn is told to import our application in place of SGLang's, and nobody else's."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specserver.plugin import worker


@pytest.fixture
def uvicorn(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Config:
        def __init__(self, app: Any, host: str = "", *, workers: int = 1) -> None:
            self.given = (app, host, workers)

    module = ModuleType("uvicorn")
    module.Config = Config  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "uvicorn", module)
    worker.serve_routes_from_workers()
    return module


def test_sglang_s_application_is_served_from_here(uvicorn: Any) -> None:
    given = uvicorn.Config("sglang.srt.entrypoints.http_server:app", "127.0.0.1", workers=2).given
    assert given == ("specserver.plugin.worker:app", "127.0.0.1", 2)


@pytest.mark.parametrize("other", ["somebody.else:app", SimpleNamespace()], ids=["a name", "an object"])
def test_others_are_left_alone(uvicorn: Any, other: Any) -> None:
    assert uvicorn.Config(other).given == (other, "", 1)


def test_keys_are_read_when_a_request_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application is made before SGLang has read the process's arguments."""
    state: list[Any] = []
    server = ModuleType("sglang.srt.entrypoints.http_server")
    server.app = SimpleNamespace(build_middleware_stack=lambda: None)  # type: ignore[attr-defined]
    server.get_global_state = lambda: state[0]  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["sglang.srt.entrypoints"].http_server = server  # type: ignore[attr-defined]
    read: list[Any] = []
    monkeypatch.setattr(worker.control, "add_routes", lambda app, ranks, read_keys: read.append((app, read_keys)))
    assert worker.app is server.app
    arguments = SimpleNamespace(admin_api_key="admin", api_key=None)
    state.append(SimpleNamespace(tokenizer_manager=SimpleNamespace(server_args=arguments)))
    ((app, read_keys),) = read
    assert (app, read_keys()) == (server.app, worker.control.Keys("admin", None))


def test_nothing_else_is_made_up() -> None:
    with pytest.raises(AttributeError, match="no attribute 'application'"):
        worker.application  # noqa: B018
