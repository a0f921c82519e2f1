"""The Prometheus adapter against a server that answers what it is told to."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from specserver.api.conditions import Reason
from specserver.core.observed import Load, LoadUnknown
from specserver.load.prometheus import PrometheusLoad
from tests.fakes.pods import build_pod
from tests.fakes.prometheus import FakePrometheus, serving

NOW = 1_764_000_000.0
PORT = 30000
PODS = [build_pod("m-0"), build_pod("m-1")]

Series = dict[str, Any]


async def look(source: PrometheusLoad, *, now: float = NOW, **options: Any) -> Load | LoadUnknown:
    wanted = {"namespace": "t1", "port": PORT, "staleness_seconds": 60, **options}
    return await source.observe_load(PODS, now=now, **wanted)


async def ask(prometheus: FakePrometheus, *, token: str | None = None, **options: Any) -> Load | LoadUnknown:
    async with serving(prometheus):
        source = PrometheusLoad(prometheus.url, token=token, timeout_seconds=2, answer_limit_bytes=1_000_000)
        try:
            return await look(source, **options)
        finally:
            source.close()


def series(name: str, value: object, *, pod: str = "m-0", at: float = NOW - 5, **labels: str) -> Series:
    metric = {"__name__": name, "namespace": "t1", "pod": pod, "job": "t1/m", "instance": f"{pod}:{PORT}", **labels}
    return {"metric": metric, "values": [[at - 15, "0"], [at, str(value)]]}


def scrape_of(pod: str, running: object, *, at: float = NOW - 5, up: int = 1, tokens: int = 0, **labels: str) -> list[Series]:
    return [
        series("sglang:num_running_reqs", running, pod=pod, at=at, **labels),
        series("sglang:num_queue_reqs", 1, pod=pod, at=at, **labels),
        series("sglang:token_usage", 0.5, pod=pod, at=at, **labels),
        series("sglang:generation_tokens_total", tokens, pod=pod, at=at, is_streaming="true", **labels),
        series("up", up, pod=pod, at=at, **labels),
    ]


def known(load: Load | LoadUnknown) -> dict[str, float]:
    assert isinstance(load, Load), load
    return {pod.pod: pod.running for pod in load.pods}


def unknown(load: Load | LoadUnknown) -> dict[str, str]:
    assert isinstance(load, Load), load
    return {one.pod: one.message for one in load.unknown}


async def test_reads_the_last_scrape_of_each_pod() -> None:
    prometheus = FakePrometheus([scrape_of("m-0", 3) + scrape_of("m-1", 4, at=NOW - 9)])
    load = await ask(prometheus)
    assert known(load) == {"m-0": 3, "m-1": 4}
    assert isinstance(load, Load)
    assert (load.queued, load.token_usage, load.observed_at) == (2, 0.5, NOW - 9)
    assert load.complete


async def test_a_stall_ends_with_the_engine() -> None:
    times = (0, 15, 30, 45)
    prometheus = FakePrometheus([scrape_of("m-0", 0, at=NOW + at) for at in times])
    async with serving(prometheus):
        source = PrometheusLoad(prometheus.url)

        async def is_stalled(at: float) -> bool:
            load = await look(source, now=NOW + at)
            assert isinstance(load, Load)
            return load.pods[0].stalled

        assert [await is_stalled(at) for at in times[:3]] == [False, False, True]
        restarting = [build_pod("m-0", ready=False)]
        await source.observe_load(restarting, namespace="t1", port=PORT, now=NOW + 35, staleness_seconds=60)
        assert not await is_stalled(45)
        source.close()


async def test_one_query_by_post_in_the_body_with_the_token() -> None:
    prometheus = FakePrometheus([scrape_of("m-0", 3)])
    await ask(prometheus, token="s3cret\n", labels={"cluster": "eu-1"})
    assert prometheus.paths == ["/api/v1/query"]
    assert 'cluster="eu-1"' in prometheus.queries[0]
    assert prometheus.authorization == ["Bearer s3cret"]


async def test_no_ready_pod_asks_nothing() -> None:
    source = PrometheusLoad("http://127.0.0.1:1")
    load = await source.observe_load([], namespace="t1", port=PORT, now=NOW, staleness_seconds=60)
    source.close()
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.NO_READY_REPLICAS


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-3", "0x1p4"])
async def test_a_number_that_is_no_load_is_that_pods_alone(value: str) -> None:
    load = await ask(FakePrometheus([scrape_of("m-0", 7) + scrape_of("m-1", value)]))
    assert known(load) == {"m-0": 7}
    assert f"sglang:num_running_reqs is '{value}'" in unknown(load)["m-1"]


async def test_others_series_are_dropped_even_from_a_server_that_ignores_matchers() -> None:
    foreign = [
        *scrape_of("m-0", 90, namespace="t2"),
        *scrape_of("m-0-rank-0", 3),
        *scrape_of("m-0", 3, namespace="monitoring", exported_namespace="t1"),
    ]
    load = await ask(FakePrometheus([scrape_of("m-0", 3) + foreign]))
    assert known(load) == {"m-0": 3}
    assert "no series of it" in unknown(load)["m-1"]


async def test_where_nothing_fits_the_message_shows_what_there_is() -> None:
    stray = {"metric": {"__name__": "sglang:num_running_reqs", "namespace": "monitoring", "exported_namespace": "t1"}}
    prometheus = FakePrometheus([[], [stray]])
    load = await ask(prometheus, labels={"cluster": "eu-1"})
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.METRICS_MISSING
    for words in ("namespace='t1'", "'m-0'", "eu-1", "'exported_namespace': 't1'"):
        assert words in load.message
    assert len(prometheus.queries) == 2


async def test_target_down_is_unknown_although_its_last_samples_are_young() -> None:
    down = [*scrape_of("m-1", 4, at=NOW - 20), series("up", 0, pod="m-1", at=NOW - 5)]
    down = [one for one in down if not (one["metric"]["__name__"] == "up" and one["values"][-1][0] == NOW - 20)]
    load = await ask(FakePrometheus([scrape_of("m-0", 3) + down]))
    assert known(load) == {"m-0": 3}
    assert "up is 0" in unknown(load)["m-1"]


async def test_target_up_without_samples_is_zero_where_it_is_an_idle_engine() -> None:
    idle = [series("sglang:max_total_num_tokens", 8192, pod="m-1"), series("up", 1, pod="m-1")]
    load = await ask(FakePrometheus([scrape_of("m-0", 3) + idle]))
    assert known(load) == {"m-0": 3, "m-1": 0}


async def test_target_up_that_is_no_engine_is_missing() -> None:
    load = await ask(FakePrometheus([[series("up", 1, pod="m-0"), series("up", 1, pod="m-1")]]))
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.METRICS_MISSING
    assert "sglang:num_running_reqs" in load.message
    assert "sglang_num_running_reqs" in load.message


async def test_old_samples_are_stale() -> None:
    load = await ask(FakePrometheus([scrape_of("m-0", 3, at=NOW - 61)]))
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.METRICS_STALE
    assert "older than 60 s" in load.message


async def test_a_pod_scraped_by_two_jobs_counts_once() -> None:
    twice = scrape_of("m-0", 3, at=NOW - 9, job="annotations") + scrape_of("m-0", 4, job="podmonitor")
    assert known(await ask(FakePrometheus([twice]))) == {"m-0": 4}


async def test_two_jobs_that_scrape_in_the_same_millisecond_count_tokens_once() -> None:
    first, second = scrape_of("m-0", 3, tokens=100), scrape_of("m-0", 3, at=NOW + 5, tokens=200)
    beside = scrape_of("m-0", 3, at=NOW + 5, tokens=200, job="annotations")
    async with serving(FakePrometheus([first, second + beside])) as prometheus:
        source = PrometheusLoad(prometheus.url)
        await look(source)
        load = await look(source, now=NOW + 10)
        source.close()
    assert isinstance(load, Load)
    assert load.tokens_per_second == 10.0


async def test_of_two_ports_of_a_pod_the_engines_counts() -> None:
    sidecar = scrape_of("m-0", 90, at=NOW - 1, instance="10.0.0.4:9000")
    assert known(await ask(FakePrometheus([scrape_of("m-0", 3) + sidecar]))) == {"m-0": 3}


async def test_series_that_the_last_scrape_did_not_have_are_over() -> None:
    before = series("sglang:generation_tokens_total", 9999, at=NOW - 35, is_streaming="true", model_name="old")
    first, second = scrape_of("m-0", 3, tokens=100), scrape_of("m-0", 3, at=NOW + 5, tokens=200)
    async with serving(FakePrometheus([first, [*second, before]])) as prometheus:
        source = PrometheusLoad(prometheus.url)
        await look(source)
        load = await look(source, now=NOW + 10)
        source.close()
    assert isinstance(load, Load)
    assert load.tokens_per_second == 10.0


FAILURES = {
    "401": (FakePrometheus(status=401, body="<html>who?</html>", content_type="text/html"), "answered 401, the bearer token"),
    "403": (FakePrometheus(status=403, body="{}"), "answered 403, the bearer token may not query"),
    "404": (FakePrometheus(status=404, body="nothing here"), "metrics.prometheus.url"),
    "422": (
        FakePrometheus(status=422, body='{"status":"error","error":"too many samples"}'),
        "answered 422, it refused the query: {\"status\":\"error\",\"error\":\"too many samples\"}",
    ),
    "500": (FakePrometheus(status=500, body="x" * 5000), "answered 500: xxx"),
    "503": (FakePrometheus(status=503, body="shutting down"), "answered 503: shutting down"),
    "login page": (FakePrometheus(body="<html>log in</html>", content_type="text/html"), "not JSON: a login page"),
    "no data": (FakePrometheus(body='{"status":"success"}'), "not that of a Prometheus"),
    "scalar": (FakePrometheus([[NOW, "2"]]), "not a list of series"),
    "null": (FakePrometheus(body='{"data":{"result":null}}'), "not that of a Prometheus"),
    "instant vector": (FakePrometheus([[{"metric": {"pod": "m-0"}, "value": [NOW, "1"]}]]), "not a list of series"),
    "redirect": (FakePrometheus(status=302, location="http://127.0.0.1:1/"), "answered 302; redirects are refused"),
    "slow": (FakePrometheus(delay_seconds=30), "no answer within 2 s"),
    "drip": (FakePrometheus(drips=True), "no answer within 2 s"),
    "too large": (FakePrometheus(padding_bytes=2_000_000), "larger than 1000000 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES)
async def test_failures_name_prometheus_query_and_cause(case: str) -> None:
    prometheus, words = FAILURES[case]
    started = time.monotonic()
    load = await ask(prometheus)
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.PROMETHEUS_ERROR
    assert words in load.message
    assert "query load" in load.message
    assert len(load.message) < 500
    assert len(prometheus.paths) == 1, "a failed query must not be tried again at once"
    assert time.monotonic() - started < 20


async def test_refused_connection_and_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def know_nobody(host: str, *more: Any, **named: Any) -> Any:
        if host == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", know_nobody)
    for url, words in (("http://127.0.0.1:1", "connection refused"), ("http://nowhere.invalid:9090", "host name is unknown")):
        source = PrometheusLoad(url, timeout_seconds=2)
        started = time.monotonic()
        load, again = await look(source), await look(source)
        assert time.monotonic() - started < 20, "the next look is the retry"
        source.close()
        assert isinstance(load, LoadUnknown)
        assert load.reason == Reason.PROMETHEUS_ERROR
        assert words in load.message
        assert load == again, "a text that changes is a status write each time"


@pytest.mark.parametrize("url", ["http://[", "http://", "https://:9090", "http://host:99999"])
async def test_an_url_that_is_none(url: str) -> None:
    source = PrometheusLoad(url, timeout_seconds=2)
    load = await look(source)
    source.close()
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.PROMETHEUS_ERROR


async def self_signed(tmp_path: Path, *, alternative_name: str = "IP:127.0.0.1") -> tuple[ssl.SSLContext, str]:
    """A server's side of a certificate that nobody vouches for, and the certificate."""
    certificate = tmp_path / "tls.pem"
    process = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
        "-subj", "/CN=127.0.0.1", "-addext", f"subjectAltName={alternative_name}",
        "-keyout", str(certificate), "-out", str(tmp_path / "crt"),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await process.wait() == 0, "openssl is needed: apt-get install openssl"
    certificate.write_text(certificate.read_text() + (tmp_path / "crt").read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context, (tmp_path / "crt").read_text()


async def test_a_self_signed_certificate_is_said(tmp_path: Path) -> None:
    context, _ = await self_signed(tmp_path)
    prometheus = FakePrometheus([scrape_of("m-0", 3)])
    async with serving(prometheus, tls=context):
        source = PrometheusLoad(prometheus.url, token="s3cret", timeout_seconds=2)
        load = await look(source)
        source.close()
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.PROMETHEUS_ERROR
    assert "TLS certificate is not trusted: self-signed certificate (metrics.prometheus.tls)" in load.message
    assert prometheus.paths == []


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize("trusted", [True, False], ids=["its authority is given", "any is accepted"])
async def test_a_self_signed_certificate_that_is_trusted(tmp_path: Path, trusted: bool) -> None:
    context, certificate = await self_signed(tmp_path)
    prometheus = FakePrometheus([scrape_of("m-0", 3)])
    async with serving(prometheus, tls=context):
        trust: dict[str, Any] = {"authorities": certificate} if trusted else {"verify": False}
        source = PrometheusLoad(prometheus.url, timeout_seconds=2, **trust)
        load = await look(source)
        source.close()
    assert known(load) == {"m-0": 3}


async def test_a_certificate_of_another_host_is_said_with_the_host_that_was_asked(tmp_path: Path) -> None:
    context, certificate = await self_signed(tmp_path, alternative_name="DNS:other.monitoring.svc")
    async with serving(FakePrometheus([scrape_of("m-0", 3)]), tls=context) as prometheus:
        source = PrometheusLoad(prometheus.url, authorities=certificate, timeout_seconds=2)
        load = await look(source)
        source.close()
    assert isinstance(load, LoadUnknown)
    assert "certificate is not valid for '127.0.0.1' (metrics.prometheus.tls)" in load.message


async def test_another_authority_is_not_the_one(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    context, _ = await self_signed(tmp_path)
    _, other = await self_signed(tmp_path / "other")
    async with serving(FakePrometheus([scrape_of("m-0", 3)]), tls=context) as prometheus:
        source = PrometheusLoad(prometheus.url, authorities=other, timeout_seconds=2)
        load = await look(source)
        source.close()
    assert isinstance(load, LoadUnknown)
    assert "TLS certificate is not trusted" in load.message


def test_authorities_that_are_none() -> None:
    with pytest.raises(ValueError, match="no PEM certificates"):
        PrometheusLoad("https://prometheus", authorities="s3cret")


async def test_credentials_are_in_no_message() -> None:
    echo = FakePrometheus(status=400, body="bad request, Authorization: Bearer s3cret-token")
    async with serving(echo):
        source = PrometheusLoad(echo.url.replace("://", "://user:passw0rd@"), token="s3cret-token")
        load = await look(source)
        source.close()
    assert echo.authorization == ["Bearer s3cret-token"]
    assert isinstance(load, LoadUnknown)
    assert "s3cret" not in load.message
    assert "passw0rd" not in load.message
    assert "<token>" in load.message


async def test_a_token_that_fits_no_header_is_said_and_not_shown() -> None:
    load = await ask(FakePrometheus(), token="s3cret\nX-More: 1")
    assert isinstance(load, LoadUnknown)
    assert load.reason == Reason.PROMETHEUS_ERROR
    assert "bearer token has characters" in load.message
    assert "s3cret" not in load.message


async def test_a_slow_prometheus_delays_neither_another_one_nor_the_event_loop() -> None:
    async with serving(FakePrometheus(delay_seconds=30)) as slow, serving(FakePrometheus([scrape_of("m-0", 3)])) as quick:
        waiting, answering = PrometheusLoad(slow.url, timeout_seconds=2), PrometheusLoad(quick.url, timeout_seconds=2)
        pending = asyncio.create_task(look(waiting))
        assert known(await look(answering)) == {"m-0": 3}
        assert not pending.done()
        assert isinstance(await pending, LoadUnknown)
        waiting.close()
        answering.close()
