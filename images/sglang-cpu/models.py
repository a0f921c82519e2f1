"""Builds the tiny models that SGLang serves on a CPU, deterministically:  python models.py DIRECTORY

Two sets, each with a `target` and the drafts `eagle3` and `eagle` (four layers, 64 wide, 512 tokens, fp32; under 1 MB each):

random  every weight random, attention heavy: the next token depends on the whole context, so a wrong mask, a lost KV row or a
        stale position changes the output. The drafts are random too and almost always rejected.
halves  tokens 2…255 are predictable and tokens 256…511 are not: each half is a cycle that the target walks, and the drafts know
        the first cycle alone. Prompts from one half or the other steer the acceptance. The target hardly looks at its context,
        so equal outputs on this set alone prove little: use both.

A trained draft would show accepted tokens on an attention-heavy target too; random weights can't.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 512, 64, 128, 4, 4, 2
HEAD = HIDDEN // HEADS
HALF = VOCABULARY // 2
FIRST_PREDICTABLE = 2  # tokens 0 and 1 are <s> and </s>

Weights = dict[str, Tensor]


def main(directory: Path) -> None:
    build_random(directory / "random")
    build_halves(directory / "halves")


def build_random(directory: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    target = {
        "model.embed_tokens.weight": normal(rng, VOCABULARY, HIDDEN, std=1.0),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": normal(rng, VOCABULARY, HIDDEN, std=0.3),
    }
    for index in range(LAYERS):
        target |= layer(rng, f"model.layers.{index}.", std=0.3)
    eagle3 = layer(rng, "midlayer.", std=0.3, inputs=2 * HIDDEN) | {
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "fc.weight": normal(rng, HIDDEN, 3 * HIDDEN, std=0.1),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": normal(rng, VOCABULARY, HIDDEN, std=0.3),
    }
    eagle = layer(rng, "layers.0.", std=0.3) | {
        "fc.weight": torch.cat([normal(rng, HIDDEN, HIDDEN, std=0.05), torch.eye(HIDDEN)], 1),
    }
    save_set(directory, target, eagle3, eagle)


def build_halves(directory: Path) -> None:
    rng = torch.Generator().manual_seed(1)
    # 1. Embeddings: the predictable half lives in dimensions 0…31, the other in 32…62, and the last one is constant.
    embedding = torch.zeros(VOCABULARY, HIDDEN)
    embedding[:HALF, :32] = unit_rows(rng, HALF, 32)
    embedding[HALF:, 32:63] = unit_rows(rng, HALF, 31)
    embedding[:, 63] = 0.5
    embedding *= 4
    # 2. The head: each token's row is the embedding of the token before it in its half's cycle.
    head = torch.zeros(VOCABULARY, HIDDEN)
    for first, end in ((FIRST_PREDICTABLE, HALF), (HALF, VOCABULARY)):
        cycle = first + torch.randperm(end - first, generator=rng)
        head[cycle.roll(-1)] = embedding[cycle]
    head[:, 63] = 0
    head *= 2
    # 3. The target adds a little noise by its layers.
    target = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(HIDDEN), "lm_head.weight": head}
    for index in range(LAYERS):
        target |= layer(rng, f"model.layers.{index}.", std=0.06)
    # 4. EAGLE3's draft: one attention head copies the embedding of the newest token; its value projection is too narrow for the
    #    unpredictable half, whose drafts are therefore wrong.
    eagle3 = layer(rng, "midlayer.", std=0.0, inputs=2 * HIDDEN) | copying_attention("midlayer.") | {
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "fc.weight": torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, 2 * HIDDEN)], 1),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    # 5. EAGLE's draft passes the embedding on, with the unpredictable half's dimensions shuffled.
    passed = torch.zeros(HIDDEN, HIDDEN)
    passed[:32, :32] = torch.eye(32)
    passed[32:63, 32:63] = torch.eye(31)[torch.randperm(31, generator=rng)]
    eagle = layer(rng, "layers.0.", std=0.0) | {"fc.weight": torch.cat([passed, torch.zeros(HIDDEN, HIDDEN)], 1)}
    save_set(directory, target, eagle3, eagle)


def copying_attention(prefix: str) -> Weights:
    """Queries and keys look at the constant dimension alone; values carry dimensions 0…31 of the embedding."""
    query, key = torch.zeros(HEADS * HEAD, 2 * HIDDEN), torch.zeros(KV_HEADS * HEAD, 2 * HIDDEN)
    value, output = torch.zeros(KV_HEADS * HEAD, 2 * HIDDEN), torch.zeros(HIDDEN, HEADS * HEAD)
    for head in range(HEADS):
        query[head * HEAD : head * HEAD + HEAD // 2, 63] = 16.0
    for head in range(KV_HEADS):
        key[head * HEAD : head * HEAD + HEAD // 2, 63] = 16.0
        for d in range(HEAD):
            value[head * HEAD + d, head * HEAD + d] = 1.0
            output[head * HEAD + d, 2 * head * HEAD + d] = 40.0
    names = {"q_proj": query, "k_proj": key, "v_proj": value, "o_proj": output}
    return {f"{prefix}self_attn.{name}.weight": weight for name, weight in names.items()}


def layer(rng: torch.Generator, prefix: str, *, std: float, inputs: int = HIDDEN) -> Weights:
    """One Llama layer; `inputs` is the width of what its attention reads (EAGLE3 reads embedding and hidden state)."""
    return {
        f"{prefix}self_attn.q_proj.weight": normal(rng, HEADS * HEAD, inputs, std=std / 2),
        f"{prefix}self_attn.k_proj.weight": normal(rng, KV_HEADS * HEAD, inputs, std=std / 2),
        f"{prefix}self_attn.v_proj.weight": normal(rng, KV_HEADS * HEAD, inputs, std=std / 2),
        f"{prefix}self_attn.o_proj.weight": normal(rng, HIDDEN, HEADS * HEAD, std=std / 2),
        f"{prefix}mlp.gate_proj.weight": normal(rng, INTERMEDIATE, HIDDEN, std=std / 2),
        f"{prefix}mlp.up_proj.weight": normal(rng, INTERMEDIATE, HIDDEN, std=std / 2),
        f"{prefix}mlp.down_proj.weight": normal(rng, HIDDEN, INTERMEDIATE, std=std / 2),
        f"{prefix}input_layernorm.weight": torch.ones(HIDDEN),
        f"{prefix}post_attention_layernorm.weight": torch.ones(HIDDEN),
    }


def normal(rng: torch.Generator, *shape: int, std: float) -> Tensor:
    return torch.randn(*shape, generator=rng) * std


def unit_rows(rng: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(rows, columns, generator=rng), dim=1)


def save_set(directory: Path, target: Weights, eagle3: Weights, eagle: Weights) -> None:
    save(directory / "target", config("LlamaForCausalLM", LAYERS), target)
    # Four layers leave only two distinct layers of SGLang's default choice of three for the draft's input: name them.
    auxiliary = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}
    maps = {"d2t": torch.zeros(VOCABULARY, dtype=torch.long), "t2d": torch.ones(VOCABULARY, dtype=torch.bool)}
    eagle3_config = config("LlamaForCausalLMEagle3", 1, draft_vocab_size=VOCABULARY, eagle_config=auxiliary)
    save(directory / "eagle3", eagle3_config, eagle3 | maps)
    # EAGLE's draft has no norm in front of its attention.
    without_norm = {name: weight for name, weight in eagle.items() if name != "layers.0.input_layernorm.weight"}
    save(directory / "eagle", config("LlamaForCausalLMEagle", 1), without_norm)


def config(architecture: str, layers: int, **further: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture], "model_type": "llama", "torch_dtype": "float32", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "bos_token_id": 0, "eos_token_id": 1, "attention_bias": False, "mlp_bias": False, **further,
    }  # fmt: skip


def save(directory: Path, model_config: dict[str, Any], weights: Weights) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(model_config, indent=1))
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})
    save_tokenizer(directory)


def save_tokenizer(directory: Path) -> None:
    """Byte-level BPE on a few sentences, filled up to the vocabulary with words that never occur."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sentence = "the quick brown fox jumps over the lazy dog number {} and then {}"
    tokenizer.train_from_iterator((sentence.format(i, "runs away " * (i % 5)) for i in range(400)), trainer)
    tokenizer.add_tokens([f"<pad{i}>" for i in range(VOCABULARY - tokenizer.get_vocab_size())])
    tokenizer.save(str(directory / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        "model_max_length": 2048, "chat_template": template,
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
