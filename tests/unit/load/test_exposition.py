"""The text format, for the names that are asked for."""

from __future__ import annotations

import pytest

from specserver.load.exposition import ExpositionInvalid, Sample, parse_exposition

NAMES = {"sglang:x", "plain"}


def test_reads_wanted_lines_and_leaves_all_others_alone() -> None:
    page = """# HELP sglang:x help
# TYPE sglang:x gauge
sglang:x{a="1",b="two"} 3.5
sglang:x_bucket{le="+Inf"} 7
other this line is {broken
plain 1e3
\tplain{}  2  1764000000500
"""
    assert parse_exposition(page, NAMES) == [
        Sample("sglang:x", {"a": "1", "b": "two"}, "3.5"),
        Sample("plain", {}, "1e3"),
        Sample("plain", {}, "2", 1764000000.5),
    ]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        pytest.param(r"a\"b", 'a"b', id="quote"),
        pytest.param(r"a\\b", "a\\b", id="backslash"),
        pytest.param(r"a\nb", "a\nb", id="line-break"),
        pytest.param(r"a\\nb", "a\\nb", id="backslash-then-n"),
        pytest.param("通义/mini", "通义/mini", id="not-ascii"),
        pytest.param("{a} 5, b=", "{a} 5, b=", id="looks-like-syntax"),
        pytest.param("", "", id="empty"),
    ],
)
def test_label_values_mean_what_was_escaped(written: str, meant: str) -> None:
    assert parse_exposition(f'plain{{model_name="{written}",z="1",}} 4', NAMES) == [
        Sample("plain", {"model_name": meant, "z": "1"}, "4")
    ]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('plain{a="1" 3', id="open-brace"),
        pytest.param('plain{a=1} 3', id="no-quotes"),
        pytest.param('plain{a="1"}', id="no-value"),
        pytest.param("plain 1 2 3", id="too-many-words"),
    ],
)
def test_a_broken_wanted_line_is_said_by_number(line: str) -> None:
    with pytest.raises(ExpositionInvalid, match=r"line 2, plain"):
        parse_exposition(f"# comment\n{line}\n", NAMES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7.0), ("7.0", 7.0), (".5", 0.5), ("5.", 5.0), ("+3", 3.0), ("1e3", 1000.0), ("2.5E-1", 0.25), ("-0", 0.0),
        ("NaN", None), ("+Inf", None), ("-Inf", None), ("inf", None), ("-3", None), ("0x1p4", None), ("1_000", None),
        ("1e999", None), ("", None), ("ten", None),
    ],
)  # fmt: skip
def test_a_value_is_a_finite_number_of_at_least_zero(text: str, value: float | None) -> None:
    assert Sample("plain", {}, text).value == value
