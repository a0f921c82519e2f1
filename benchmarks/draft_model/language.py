"""The language of the trained pair: each line is the line above with every letter moved on by one (z is followed by a).

    kotelm
    lpufmn
    mqvgno

A model can continue such a text only by looking back: it finds the place in the line above that stands one letter before what it
has just written, and takes the letter behind it. A line three above is of no use, and a text repeats only after 26 lines. So
what a draft proposes hangs on the keys and values of the last twenty or so tokens, prompt or output alike: lose them, and its
proposals are wrong. Copied words would be easier to learn, but there every older copy stands in for a lost one.

Tokens are bytes. Nothing here needs torch, so that tests and benchmarks make their prompts from it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

VOCABULARY = 258  # the bytes, <s>, </s>
BEGIN, END = 256, 257
NEWLINE = ord("\n")
FIRST_LETTER, LETTERS = ord("a"), 26
SHORTEST_LINE, LONGEST_LINE = 6, 16
DRAFT_VOCABULARY = (NEWLINE, *range(FIRST_LETTER, FIRST_LETTER + LETTERS))  # what a draft may propose


def first_line(rng: random.Random) -> list[int]:
    return [FIRST_LETTER + rng.randrange(LETTERS) for _ in range(rng.randint(SHORTEST_LINE, LONGEST_LINE))] + [NEWLINE]


def continued(text: Sequence[int], tokens: int) -> list[int]:
    """A text of one line or more, carried on by the rule and cut at `tokens`."""
    longer = list(text)
    width = longer.index(NEWLINE) + 1
    while len(longer) < tokens:
        longer.append(moved_on(longer[-width]))
    return longer[:tokens]


def moved_on(token: int) -> int:
    return token if token == NEWLINE else FIRST_LETTER + (token - FIRST_LETTER + 1) % LETTERS


def document(rng: random.Random, tokens: int) -> list[int]:
    return continued(first_line(rng), tokens)


def first_lines(rng: random.Random, lines: int) -> list[int]:
    """A prompt: the first whole lines of a text. Two are enough to tell the rule and where a line ends."""
    line = first_line(rng)
    return continued(line, lines * len(line))
