"""The language of the trained pair: each line is the line above with every letter moved on by one (z is followed by a).

    kotelm
    lpufmn
    mqvgno

A model can continue such a text only by looking back: it finds the place in the line above that stands one letter before what it
has just written, and takes the letter behind it. A line three above is of no use, and a text repeats only after 26 lines. So
what a draft proposes hangs on the keys and values of the last twenty or so tokens, prompt or output alike: lose them, and its
proposals are wrong. Copied words would be easier to learn, but there every older copy stands in for a lost one.

A draft of one layer learns this almost as well as its target, and a chain that is always accepted is no more like a real server
than one that never is. So the draft's vocabulary ends at t, as published drafts know a part of their target's tokens alone:
wherever the text has u…z, the chain is cut. A prompt whose letters come early in the alphabet is accepted for longer.

Tokens are bytes. Nothing here needs torch, so that tests and benchmarks make their prompts from it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

VOCABULARY = 258  # the bytes, <s>, </s>
BEGIN, END = 256, 257
NEWLINE = ord("\n")
LETTERS = tuple(range(ord("a"), ord("z") + 1))
EARLY_LETTERS = LETTERS[:12]  # first lines of these meet no u within eight lines
ALPHABET = (NEWLINE, *LETTERS)
DRAFT_VOCABULARY = ALPHABET[: ALPHABET.index(ord("t")) + 1]
SHORTEST_LINE, LONGEST_LINE = 6, 16


def first_line(rng: random.Random, letters: Sequence[int] = LETTERS) -> list[int]:
    return [rng.choice(letters) for _ in range(rng.randint(SHORTEST_LINE, LONGEST_LINE))] + [NEWLINE]


def moved_on(token: int) -> int:
    return token if token == NEWLINE else LETTERS[(token - LETTERS[0] + 1) % len(LETTERS)]


def continued(text: Sequence[int], tokens: int) -> list[int]:
    """A text of one line or more, carried on by the rule and cut at `tokens`."""
    longer = list(text)
    width = longer.index(NEWLINE) + 1
    while len(longer) < tokens:
        longer.append(moved_on(longer[-width]))
    return longer[:tokens]


def document(rng: random.Random, tokens: int) -> list[int]:
    return continued(first_line(rng), tokens)


def first_lines(rng: random.Random, lines: int, letters: Sequence[int] = LETTERS) -> list[int]:
    """A prompt: the first whole lines of a text. Two are enough to tell the rule and where a line ends."""
    line = first_line(rng, letters)
    return continued(line, lines * len(line))
