"""What SGLang calls in each of its processes (entry point group `sglang.srt.plugins`).

SGLang imports the module of every registered target in the process that registers it, so each process gets only the
hooks that belong to it: the HTTP process its routes, a scheduler all others, the detokenizer and the data-parallel
dispatcher none.
"""

from __future__ import annotations

import logging
import multiprocessing

logger = logging.getLogger(__name__)

WITHOUT_SCHEDULER = (
    "run_detokenizer_process",
    "run_multi_detokenizer_router_process",
    "run_data_parallel_controller_process",
)
"""Functions that SGLang starts processes with in which no scheduler runs."""


def load() -> None:
    """Registers this process's hooks. Never raises: a plugin that can't load must not matter to the engine."""
    try:
        _register()
    except Exception:
        logger.exception("the SpecServer plugin could not load; the engine runs stock")


def _register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from specserver.plugin import hooks, support

    def register(target: support.Target, hook: hooks.Hook) -> None:
        HookRegistry.register(target.path, hook, HookType.AROUND)

    sources, version = support.engine_sources(), support.engine_version()
    if multiprocessing.parent_process() is None:
        problems = support.find_target_problems([hooks.HTTP], sources, version)
        if problems:
            logger.error("no control routes: %s", "; ".join(problems))
        else:
            register(hooks.HTTP, hooks.Guard(hooks.note_http_error).before("http", hooks.add_control_routes))
    elif _process_function() not in WITHOUT_SCHEDULER:
        problems = support.find_target_problems(hooks.SCHEDULER_TARGETS, sources, version)
        hooks.SchedulerHooks(problems).register(register)


def _process_function() -> str:
    """Name of the function that this process was started with. An unknown one counts as a scheduler's."""
    return getattr(getattr(multiprocessing.current_process(), "_target", None), "__name__", "")
