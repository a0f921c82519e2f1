"""Builds LoRA adapters with random weights for a Llama model, deterministically:  python adapters.py MODEL DIRECTORY NAME=RANK...

Each is a folder `DIRECTORY/NAME` as PEFT writes it, for all projections of every layer, and strong enough to change what the
model says. MODEL is a folder with its config.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

STRENGTH = 0.2
"""Standard deviation of what an adapter adds to a projection whose input has one of 1."""


def main(model: Path, directory: Path, ranks: dict[str, int]) -> None:
    config = json.loads((model / "config.json").read_text())
    for seed, (name, rank) in enumerate(ranks.items()):
        save_adapter(directory / name, config, rank, torch.Generator().manual_seed(seed))


def save_adapter(directory: Path, config: dict[str, Any], rank: int, rng: torch.Generator) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for projection, (inputs, outputs) in projections(config).items():
            prefix = f"base_model.model.model.layers.{layer}.{projection}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(rank, inputs, generator=rng) / inputs**0.5
            weights[f"{prefix}.lora_B.weight"] = torch.randn(outputs, rank, generator=rng) * STRENGTH / rank**0.5
    dtype = getattr(torch, config["torch_dtype"])
    save_file({name: weight.to(dtype) for name, weight in weights.items()}, directory / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none",
        "target_modules": [projection.split(".")[-1] for projection in projections(config)],
    }  # fmt: skip
    (directory / "adapter_config.json").write_text(json.dumps(settings, indent=1))


def projections(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Width of input and output."""
    hidden, middle, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, middle),
        "mlp.up_proj": (hidden, middle),
        "mlp.down_proj": (middle, hidden),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), {name: int(rank) for name, rank in (each.split("=") for each in sys.argv[3:])})
