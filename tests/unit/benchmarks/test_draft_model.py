"""The trained pair is the one that was measured, and its language is the one that prompts are made of."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from benchmarks.draft_model.language import NEWLINE, continued, document, first_lines

MODELS = Path(__file__).resolve().parents[3] / "images" / "sglang-cpu" / "trained"


def test_weights_are_those_that_were_measured() -> None:
    listed = {}
    for line in (MODELS / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    found = {
        str(path.relative_to(MODELS)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in MODELS.glob("*/*")
    }
    assert found == listed
    assert {name for name in listed if name.endswith(".safetensors")} == {"eagle3/model.safetensors", "target/model.safetensors"}


@pytest.mark.parametrize(
    ("text", "tokens", "longer"),
    [
        ("kotelm\n", 20, "kotelm\nlpufmn\nmqvgno"),
        ("az\nba\n", 9, "az\nba\ncb\n"),
        ("kotelm\nlpu", 12, "kotelm\nlpufm"),
        ("kotelm\n", 4, "kote"),
    ],
)
def test_each_line_is_the_line_above_with_every_letter_moved_on(text: str, tokens: int, longer: str) -> None:
    assert bytes(continued(text.encode(), tokens)).decode() == longer


def test_a_prompt_is_the_start_of_a_text() -> None:
    prompt = first_lines(random.Random("x"), 2)
    assert prompt.count(NEWLINE) == 2
    assert prompt[-1] == NEWLINE
    assert document(random.Random("x"), 100)[: len(prompt)] == prompt
