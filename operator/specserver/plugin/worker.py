"""The application of a further HTTP process (`--tokenizer-worker-num` above 1): SGLang's own, with the control routes.

SGLang then serves HTTP from processes that uvicorn starts anew; they import the application by its name and load no
plugins. So the first process, which does, has uvicorn import `app` from here instead (`serve_routes_from_workers`). A
message of such a process carries its address to the scheduler, and the answer comes back there: SGLang routes its own
control messages so.
"""

from __future__ import annotations

import importlib
from typing import Any

from specserver.plugin import control

SGLANG_APPLICATION = "sglang.srt.entrypoints.http_server:app"
APPLICATION = f"{__name__}:app"


def serve_routes_from_workers() -> None:
    """In the first process, before it starts uvicorn."""
    uvicorn: Any = importlib.import_module("uvicorn")  # of SGLang's environment alone
    configure = uvicorn.Config.__init__

    def configure_ours(self: Any, app: Any, *args: Any, **kwargs: Any) -> None:
        configure(self, APPLICATION if app == SGLANG_APPLICATION else app, *args, **kwargs)

    uvicorn.Config.__init__ = configure_ours


def __getattr__(name: str) -> Any:
    """Makes `app` when uvicorn asks for it: importing this module must not import SGLang."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sglang.srt.entrypoints import http_server

    def read_keys() -> control.Keys:
        """SGLang reads this process's arguments only once the application starts."""
        server_args = http_server.get_global_state().tokenizer_manager.server_args
        return control.Keys(server_args.admin_api_key, server_args.api_key)

    control.add_routes(http_server.app, control.SchedulerClient(http_server.get_global_state), read_keys)
    return http_server.app
