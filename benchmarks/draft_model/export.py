"""The trained pair as SGLang loads it: bfloat16 weights, configuration, a tokenizer whose tokens are bytes, checksums."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from benchmarks.draft_model.language import BEGIN, DRAFT_VOCABULARY, END, VOCABULARY
from benchmarks.draft_model.network import CAPTURED, SHAPE, Draft, Target

CHECKSUMS, WEIGHTS = "SHA256SUMS", "model.safetensors"


def save_pair(directory: Path, target: Target, draft: Draft) -> None:
    heads = {"lm_head.weight"}
    weights = {name if name in heads else f"model.{name}": weight for name, weight in target.state_dict().items()}
    save(directory / "target", config("LlamaForCausalLM", SHAPE.layers), weights)
    draft_config = config(
        "LlamaForCausalLMEagle3",
        1,
        draft_vocab_size=len(DRAFT_VOCABULARY),
        # SGLang's own choice of three layers needs more than four.
        eagle_config={"eagle_aux_hidden_state_layer_ids": list(CAPTURED), "use_aux_hidden_state": True},
    )
    save(directory / "eagle3", draft_config, draft_weights(draft))
    files = sorted(path for path in directory.glob("*/*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(directory)}\n" for path in files]
    (directory / CHECKSUMS).write_text("".join(sums))


def load_pair(directory: Path) -> tuple[Target, Draft]:
    """What save_pair wrote, in fp32, without gradients."""
    target, draft = Target(), Draft()
    stored = load_file(directory / "target" / WEIGHTS)
    target.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in stored.items()})
    stored = load_file(directory / "eagle3" / WEIGHTS)
    head = torch.zeros_like(draft.lm_head.weight)
    head[: len(DRAFT_VOCABULARY)] = stored.pop("lm_head.weight")
    del stored["d2t"], stored["t2d"]
    weights = {name.removeprefix("midlayer."): weight.float() for name, weight in stored.items()}
    draft.load_state_dict(weights | {"lm_head.weight": head})
    return target.requires_grad_(requires_grad=False), draft.requires_grad_(requires_grad=False)


def draft_weights(draft: Draft) -> dict[str, Tensor]:
    """Names as in published EAGLE-3 drafts. d2t holds, for each token of the draft, how far the target's token is from it.

    The draft was trained on the whole alphabet; its head loses the letters that it shall not propose.
    """
    own = {"fc.weight", "norm.weight", "lm_head.weight"}
    weights = {name if name in own else f"midlayer.{name}": weight for name, weight in draft.state_dict().items()}
    proposable = torch.tensor(DRAFT_VOCABULARY)
    known = torch.zeros(VOCABULARY, dtype=torch.bool)
    known[proposable] = True
    weights["lm_head.weight"] = weights["lm_head.weight"][: len(DRAFT_VOCABULARY)]
    return weights | {"d2t": proposable - torch.arange(len(DRAFT_VOCABULARY)), "t2d": known}


def config(architecture: str, layers: int, **further: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": SHAPE.hidden, "intermediate_size": SHAPE.intermediate, "num_hidden_layers": layers,
        "num_attention_heads": SHAPE.heads, "num_key_value_heads": SHAPE.kv_heads, "head_dim": SHAPE.head,
        "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "rms_norm_eps": SHAPE.epsilon,
        "rope_theta": SHAPE.rope_theta, "tie_word_embeddings": False, "bos_token_id": BEGIN, "eos_token_id": END,
        "attention_bias": False, "mlp_bias": False, **further,
    }  # fmt: skip


def save(directory: Path, model_config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(model_config, indent=1) + "\n")
    stored = {name: weight.to(torch.bfloat16) if weight.is_floating_point() else weight for name, weight in weights.items()}
    save_file({name: weight.contiguous() for name, weight in stored.items()}, directory / WEIGHTS, {"format": "pt"})
    (directory / WEIGHTS).chmod(0o644)
    save_tokenizer(directory)


def save_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab=byte_characters(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 8192,
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def byte_characters() -> dict[str, int]:
    """The character that a byte-level tokenizer has for each byte: itself where it prints, else one from 256 upward."""
    printing = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte if byte in printing else 256 + others.index(byte)): byte for byte in range(256)}
