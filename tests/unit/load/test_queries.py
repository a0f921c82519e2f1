"""The PromQL texts. That Prometheus understands them is shown in tests/apiserver/test_load_real_prometheus.py."""

from __future__ import annotations

import pytest

from specserver.load import queries


def test_load_is_bound_to_namespace_and_pods_literally() -> None:
    query = queries.load("t1", ["m-7c9.aa", "m-7c9-bb"], {}, staleness_seconds=60)
    assert 'namespace="t1"' in query
    assert r'pod=~"m\\-7c9\\-bb|m\\-7c9\\.aa"' in query
    assert "sglang:num_running_reqs" in query
    assert "|up" in query


@pytest.mark.parametrize(("staleness_seconds", "window"), [(60, "[300s]"), (150, "[300s]"), (200.2, "[401s]")])
def test_the_window_reaches_beyond_staleness(staleness_seconds: float, window: str) -> None:
    assert queries.load("t1", ["m"], {}, staleness_seconds=staleness_seconds).endswith(window)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        pytest.param("eu-1", 'cluster="eu-1"', id="plain"),
        pytest.param("通义/mini", 'cluster="通义/mini"', id="not-ascii"),
        pytest.param('a"b\\c', r'cluster="a\"b\\c"', id="quote-and-backslash"),
        pytest.param('x"} or up{a="', r'cluster="x\"} or up{a=\""', id="injection"),
        pytest.param("a\nb", r'cluster="a\nb"', id="line-break"),
    ],
)
def test_label_values_are_escaped_in_every_query(value: str, written: str) -> None:
    assert written in queries.load("t1", ["m"], {"cluster": value}, staleness_seconds=60)
    assert queries.misplaced("t1", {"cluster": value}).count(written) == 2


def test_misplaced_never_leaves_the_namespace() -> None:
    assert queries.misplaced("t1", {}).count('namespace="t1"') == 2
