"""The metric names that a load is made of, in one table.

SGLang's are those of 0.5.17 to 0.5.23 (`sglang/srt/observability/metrics_collector.py`). An engine spells them `sglang:x`;
SGLang's router passes them on as `sglang_x`.

`num_running_reqs` and `num_queue_reqs` are written when SGLang logs its decode statistics, so that they lag by up to
`--decode-log-interval` steps. The plugin's gauges are live, and preferred. Of the token counters `realtime_tokens_total`
counts at each decode step, `generation_tokens_total` only when a request is over.
"""

from __future__ import annotations

from dataclasses import dataclass


def spellings(name: str) -> tuple[str, str]:
    """Both spellings of an SGLang metric, the engine's own first."""
    return f"sglang:{name}", f"sglang_{name}"


@dataclass(frozen=True)
class Gauge:
    """A level. `live`: the plugin's metric, preferred where it is there; `names`: SGLang's, of which the first there counts."""

    title: str
    names: tuple[str, str]
    live: str | None = None

    @property
    def all_names(self) -> tuple[str, ...]:
        return (self.live, *self.names) if self.live else self.names

    def __str__(self) -> str:
        return f"{self.title} ({' or '.join(self.all_names)})"


RUNNING = Gauge("running requests", spellings("num_running_reqs"), live="specserver_running_requests")
QUEUED = Gauge("queued requests", spellings("num_queue_reqs"), live="specserver_queued_requests")
TOKEN_USAGE = Gauge("token usage", spellings("token_usage"))
GAUGES = (RUNNING, QUEUED, TOKEN_USAGE)

STEP_TOKENS = spellings("realtime_tokens_total")
FINISHED_TOKENS = spellings("generation_tokens_total")

PRESENCE = ("specserver_armed", *spellings("max_total_num_tokens"))
"""Written when the engine starts: with these and none of the others, the engine is up and has had nothing to do."""

ENGINE_NAMES = frozenset(
    (*(name for gauge in GAUGES for name in gauge.all_names), *STEP_TOKENS, *FINISHED_TOKENS, *PRESENCE)
)

TARGET_UP = "up"
"""Prometheus' own series a target: 1 where its last scrape worked."""

# Labels.
DATA_PARALLEL_RANK = "dp_rank"
"""Data-parallel ranks carry requests of their own. All other ranks (`tp_rank`, `pp_rank`, …) report copies."""
PRIORITY = "priority"
"""With priority scheduling a gauge has its total under the empty label and a part of it under each priority."""
TOKEN_MODE = "mode"
TOKEN_MODE_DECODE = "decode"
