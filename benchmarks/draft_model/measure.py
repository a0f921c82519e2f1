"""How long the draft's accepted chains are, on texts that the target itself writes, with a whole and with a scribbled cache.

    python -m benchmarks.draft_model.measure DIRECTORY
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.draft_model import export
from benchmarks.draft_model.language import DRAFT_VOCABULARY, EARLY_LETTERS, LETTERS, NEWLINE, continued, first_lines
from benchmarks.draft_model.network import Draft, Target

SEED = 5
TEXTS, PROMPT_LINES, TOKENS, STEPS = 12, 2, 64, 3
LONG_LINES = 25  # of a longer prompt


@dataclass(frozen=True)
class Text:
    tokens: list[int]
    prompt: int  # how many of them are the prompt
    line: int  # tokens of a line, its end included


Lost = Callable[[Text, int], range]  # rows of a text that the cache has lost when a chain starts at a row

LOSSES: dict[str, Lost] = {
    "whole": lambda text, row: range(0),
    "rows of the last line lost": lambda text, row: range(max(0, row - text.line), row),
    "rows of the output lost": lambda text, row: range(text.prompt, row),
    "rows of the prompt lost": lambda text, row: range(min(text.prompt, row)),
    "all rows lost": lambda text, row: range(row),
}


def report(target: Target, draft: Draft) -> str:
    lines = [
        f"parameters: target {size(target):,}, draft {size(draft):,}",
        f"{TEXTS} prompts each, {TOKENS} greedy tokens, {STEPS} steps; the row that a chain starts from is never lost",
    ]
    prompts = {
        f"{PROMPT_LINES} lines": (PROMPT_LINES, LETTERS),
        f"{PROMPT_LINES} lines of early letters": (PROMPT_LINES, EARLY_LETTERS),
        f"{LONG_LINES} lines": (LONG_LINES, LETTERS),
    }
    for name, (count, letters) in prompts.items():
        texts = own_texts(target, [first_lines(random.Random(f"{SEED} {i}"), count, letters) for i in range(TEXTS)], count)
        kept = sum(kept_rule(text) for text in texts) / (TEXTS * TOKENS)
        lines.append(f"{name}: {sum(text.prompt for text in texts) / TEXTS:.0f} tokens, target keeps the rule for {kept:.1%}")
        losses = LOSSES if name == next(iter(prompts)) else {"whole": LOSSES["whole"]}
        lines += [f"  accept length, {which}: {accept_length(target, draft, texts, lost):.2f}" for which, lost in losses.items()]
    return "\n".join(lines)


@torch.no_grad()
def own_texts(target: Target, prompts: list[list[int]], lines: int) -> list[Text]:
    """Prompts of so many lines and the target's greedy continuations. What fills the shorter ones stands behind them, unseen."""
    texts = [list(prompt) for prompt in prompts]
    for _ in range(TOKENS):
        longest = max(len(text) for text in texts)
        logits, _ = target(torch.tensor([text + [NEWLINE] * (longest - len(text)) for text in texts]))
        for index, text in enumerate(texts):
            text.append(int(logits[index, len(text) - 1].argmax()))
    return [Text(text, len(prompt), len(prompt) // lines) for text, prompt in zip(texts, prompts, strict=True)]


def kept_rule(text: Text) -> int:
    """How many of the output's tokens are as the language has them."""
    right = continued(text.tokens[: text.prompt], len(text.tokens))
    return sum(said == wanted for said, wanted in zip(text.tokens, right, strict=True)) - text.prompt


@torch.no_grad()
def accept_length(target: Target, draft: Draft, texts: list[Text], lost: Lost) -> float:
    """Tokens for each round, as a server counts them: the accepted proposals and the one that the target adds."""
    tokens, rounds = 0, 0
    for text in texts:
        accepted = accepted_from(target, draft, text, lost)
        row = text.prompt - 1  # the prefill gave the token behind it
        while row in accepted:
            tokens += accepted[row] + 1
            rounds += 1
            row += accepted[row] + 1
    return tokens / rounds


def accepted_from(target: Target, draft: Draft, text: Text, lost: Lost) -> dict[int, int]:
    """How much of a chain is accepted, for every row of the output that has room for a whole one."""
    # 1. One copy of the text for each row, in which the cache has lost what it has lost when a chain starts there.
    known = torch.tensor([text.tokens])
    _, states = target(known)
    embedded = target.embed_tokens(known)[:, 1:]
    rows = range(text.prompt - 1, len(text.tokens) - STEPS - 1)
    scribbled = torch.zeros(len(rows), states.shape[1] - 1, dtype=torch.bool)
    for index, row in enumerate(rows):
        scribbled[index, list(lost(text, row))] = True
    chain = draft(embedded.expand(len(rows), -1, -1), states[:, :-1].expand(len(rows), -1, -1), STEPS, scribbled)
    # 2. The embeddings are those of the text itself, which is right as far as the proposals are.
    proposable = len(DRAFT_VOCABULARY)
    return {
        row: matching(
            [DRAFT_VOCABULARY[int(logits[index, row, :proposable].argmax())] for logits in chain], text.tokens[row + 2 :]
        )
        for index, row in enumerate(rows)
    }


def matching(proposed: list[int], right: list[int]) -> int:
    for count, (said, token) in enumerate(zip(proposed, right, strict=False)):
        if said != token:
            return count
    return len(proposed)


def size(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(report(*export.load_pair(Path(sys.argv[1]))))
