"""The operator's own metrics, its logs, and the three pages that the kubelet and Prometheus read."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class OperatorMetrics:
    """Series of the operator; labels are bounded by the code's own words, never by names of resources."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter("specserver_operator_reconciles", "Reconciles by outcome.", ["outcome"], registry=self.registry)
        self.reconcile_seconds = Histogram(
            "specserver_operator_reconcile_seconds", "Duration of a reconcile.", registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
        )  # fmt: skip
        self.requests = Counter(
            "specserver_operator_api_requests", "Requests to the API server.", ["verb", "kind", "status"], registry=self.registry
        )
        self.pushes = Counter(
            "specserver_operator_policy_pushes", "Policies pushed to engines by result.", ["result"], registry=self.registry
        )
        self.queue_length = Gauge("specserver_operator_queue_length", "Servers waiting to be looked at.", registry=self.registry)

    def count_request(self, verb: str, kind: str, status: int) -> None:
        self.requests.labels(verb, kind, str(status)).inc()


class JsonFormatter(logging.Formatter):
    """One JSON object a line, UTF-8 as it is."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(level: str, log_format: str) -> None:
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")  # whatever the locale: JSON is UTF-8
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if level != "DEBUG":
        logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event, and ours only become keys


async def serve_pages(
    port: int, metrics: OperatorMetrics, *, alive: Callable[[], str], ready: Callable[[], str]
) -> web.AppRunner:
    """Serves /healthz, /readyz, /metrics. `alive` and `ready` return what is wrong, or an empty string."""

    def page(check: Callable[[], str]) -> Callable[[web.Request], object]:
        async def answer(_request: web.Request) -> web.Response:
            wrong = check()
            return web.Response(text=wrong or "ok", status=503 if wrong else 200)

        return answer

    async def metrics_page(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/healthz", page(alive))  # type: ignore[arg-type]
    application.router.add_get("/readyz", page(ready))  # type: ignore[arg-type]
    application.router.add_get("/metrics", metrics_page)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
