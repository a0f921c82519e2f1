"""The target and the EAGLE-3 draft as SGLang runs them (models/llama.py, models/llama_eagle3.py), in plain torch for training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.draft_model.language import ALPHABET, VOCABULARY


@dataclass(frozen=True)
class Shape:
    """A head of 128 is what FlashAttention-3, FlashInfer and Triton builds all have, so one pair serves a CPU and a GPU."""

    hidden: int = 128
    intermediate: int = 256
    layers: int = 4
    heads: int = 2
    kv_heads: int = 1
    head: int = 128
    rope_theta: float = 10000.0
    epsilon: float = 1e-5


SHAPE = Shape()
CAPTURED = (0, 1, 2)  # layers whose outputs the draft reads; the last one's can't be had


class Attention(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(inputs, SHAPE.heads * SHAPE.head, bias=False)
        self.k_proj = nn.Linear(inputs, SHAPE.kv_heads * SHAPE.head, bias=False)
        self.v_proj = nn.Linear(inputs, SHAPE.kv_heads * SHAPE.head, bias=False)
        self.o_proj = nn.Linear(SHAPE.heads * SHAPE.head, SHAPE.hidden, bias=False)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as [batch, head, row, dimension], the first two turned by position."""
        q = self.q_proj(x).unflatten(-1, (SHAPE.heads, SHAPE.head)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (SHAPE.kv_heads, SHAPE.head)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (SHAPE.kv_heads, SHAPE.head)).transpose(1, 2)
        groups = SHAPE.heads // SHAPE.kv_heads
        return rotate(q, positions), rotate(k, positions).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.project(x, positions)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(mixed)

    def output(self, mixed: Tensor) -> Tensor:
        result: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(-2))
        return result


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(SHAPE.hidden, SHAPE.intermediate, bias=False)
        self.up_proj = nn.Linear(SHAPE.hidden, SHAPE.intermediate, bias=False)
        self.down_proj = nn.Linear(SHAPE.intermediate, SHAPE.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


def norm() -> nn.RMSNorm:
    return nn.RMSNorm(SHAPE.hidden, eps=SHAPE.epsilon)


class TargetLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.self_attn, self.mlp = Attention(SHAPE.hidden), Mlp()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Target(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, SHAPE.hidden)
        self.layers = nn.ModuleList(TargetLayer() for _ in range(SHAPE.layers))
        self.norm = norm()
        self.lm_head = nn.Linear(SHAPE.hidden, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and side by side the outputs of the captured layers."""
        positions = torch.arange(tokens.shape[1])
        x = self.embed_tokens(tokens)
        captured = []
        for index, layer in enumerate(self.layers):
            x = layer(x, positions)
            if index in CAPTURED:
                captured.append(x)
        return self.lm_head(self.norm(x)), torch.cat(captured, -1)


class Draft(nn.Module):
    """Row p holds the target's states at token p and the embedding of token p + 1; it proposes token p + 2.

    Step s > 1 of a chain reads the step before's output in place of the target's states, which don't exist yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(len(CAPTURED) * SHAPE.hidden, SHAPE.hidden, bias=False)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = norm(), norm(), norm()
        self.self_attn, self.mlp = Attention(2 * SHAPE.hidden), Mlp()
        self.norm = norm()
        self.lm_head = nn.Linear(SHAPE.hidden, len(ALPHABET), bias=False)

    def forward(self, embedded: Tensor, states: Tensor, steps: int, scribbled: Tensor | None = None) -> list[Tensor]:
        """Logits of every chain at once, step by step: those of step s at row p propose token p + s + 1.

        All chains share the first step's keys and values, as in SGLang's cache: a chain that starts at row p sees rows 0…p of
        step 1 and one row for each later step. `embedded` holds the embeddings of tokens 1, 2, … Where `scribbled` [batch, row]
        marks a row, its keys and values are noise of their own size.
        """
        rows = states.shape[1]
        hidden, logits = self.fc(states), []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        visible = torch.ones(rows, rows, dtype=torch.bool).tril()
        for step in range(steps):
            # 1. The chain from row p has its step s at position p + s - 1, with the embedding of token p + s.
            positions = torch.arange(rows) + step
            known = functional.pad(embedded[:, step:], (0, 0, 0, step))
            x = torch.cat([self.input_layernorm(known), self.hidden_norm(hidden)], -1)
            q, k, v = self.self_attn.project(x, positions)
            if step == 0 and scribbled is not None:
                noise = torch.Generator().manual_seed(7)
                lost = scribbled[:, None, :, None]
                k = torch.where(lost, torch.randn(k.shape, generator=noise) * k.std(), k)
                v = torch.where(lost, torch.randn(v.shape, generator=noise) * v.std(), v)
            keys.append(k)
            values.append(v)
            # 2. Attention over the first step's rows and over the chain's own later ones.
            scores = [(q @ keys[0].transpose(-1, -2)).masked_fill(~visible, float("-inf"))]
            scores += [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
            weights = (torch.cat(scores, -1) * SHAPE.head**-0.5).softmax(-1)
            mixed = weights[..., :rows] @ values[0]
            for index, value in enumerate(values[1:]):
                mixed = mixed + weights[..., rows + index, None] * value
            # 3. The rest of the layer; its output before the last norm is the next step's state.
            hidden = hidden + self.self_attn.output(mixed)
            hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
            logits.append(self.lm_head(self.norm(hidden)))
        return logits


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding, halves as in Llama."""
    half = SHAPE.head // 2
    frequencies = SHAPE.rope_theta ** (-torch.arange(half) / half)
    angles = positions[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
