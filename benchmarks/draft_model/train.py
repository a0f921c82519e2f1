"""Trains the target and its EAGLE-3 draft and writes them as SGLang loads them:  python -m benchmarks.draft_model.train DIRECTORY

One CPU thread and fixed seeds: the same torch on the same kind of processor gives the same weights, and any other gives a pair
that measures alike. The draft learns as EAGLE-3's does, by a chain of three steps in which each later step reads the draft's own
output instead of the target's states (training-time test), towards the target's distribution.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.draft_model import export, measure
from benchmarks.draft_model.language import ALPHABET, LONGEST_LINE, document
from benchmarks.draft_model.network import Draft, Target

Model = TypeVar("Model", bound=nn.Module)

SEED = 20261130
TARGET_STEPS, TARGET_RATE = 350, 3e-3
DRAFT_STEPS, DRAFT_RATE = 250, 3e-3
BATCH, TOKENS = 16, 192
CHAIN = 3  # steps of the training-time test
LATER_STEP_WEIGHT = 0.8  # of each chain step's loss, against the step before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    target, draft = Target(), Draft()
    initialise(target)
    initialise(draft)
    train_target(target, rng)
    target = rounded(target)
    train_draft(draft, target, rng)
    draft = rounded(draft)
    export.save_pair(directory, target, draft)
    print(measure.report(target, draft))


def train_target(target: Target, rng: random.Random) -> None:
    def loss(tokens: Tensor) -> Tensor:
        logits, _ = target(tokens)
        first = LONGEST_LINE  # the first line can't be foreseen
        return functional.cross_entropy(logits[:, first:-1].flatten(0, 1), tokens[:, first + 1 :].flatten())

    optimise("target", target.parameters(), loss, rng, steps=TARGET_STEPS, rate=TARGET_RATE)


def train_draft(draft: Draft, target: Target, rng: random.Random) -> None:
    known = torch.tensor(ALPHABET)

    def loss(tokens: Tensor) -> Tensor:
        # 1. What the target says and holds at every token; row p of the draft reads the states of p and the embedding of p + 1.
        with torch.no_grad():
            logits, states = target(tokens)
            wanted = logits[..., known].softmax(-1)
            embedded = target.embed_tokens(tokens)[:, 1:]
        chain = draft(embedded, states[:, :-1], CHAIN)
        # 2. Step s at row p is to say what the target says at token p + s; rows whose chain leaves the text don't count.
        total = torch.zeros(())
        for step, proposed in enumerate(chain, start=1):
            right = wanted[:, LONGEST_LINE + step :]
            said = proposed[:, LONGEST_LINE : LONGEST_LINE + right.shape[1]]
            total = total - LATER_STEP_WEIGHT ** (step - 1) * (right * said.log_softmax(-1)).sum(-1).mean()
        return total

    optimise("draft", draft.parameters(), loss, rng, steps=DRAFT_STEPS, rate=DRAFT_RATE)


def optimise(
    name: str, parameters: Iterable[Tensor], loss: Callable[[Tensor], Tensor], rng: random.Random, *, steps: int, rate: float
) -> None:
    """AdamW, short warm-up, cosine decay, on texts drawn anew for every step."""
    parameters = list(parameters)
    optimiser = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / 50) * max(0.02, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    began = time.monotonic()
    for step in range(steps):
        value = loss(torch.tensor([document(rng, TOKENS) for _ in range(BATCH)]))
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"{name} step {step} loss {value.item():.3f} after {time.monotonic() - began:.0f} s", flush=True)


def initialise(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if "embed" in name:
            nn.init.normal_(weight, std=0.5)
        elif weight.dim() > 1:
            scale = 0.3 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(weight, std=scale * weight.shape[1] ** -0.5)


def rounded(model: Model) -> Model:
    """The model with the weights that bfloat16 leaves of it: what is measured is what is stored."""
    result = copy.deepcopy(model).to(torch.bfloat16).to(torch.float32)
    return result.requires_grad_(requires_grad=False)


if __name__ == "__main__":
    main()
