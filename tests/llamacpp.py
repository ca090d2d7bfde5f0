"""Checkpoints that can become GGUF, and llama.cpp's logits beside those of transformers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ropeconv.bake.plan import Plan
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers.load import load_stock
from ropeconv.engines.transformers.patch import patch
from ropeconv.families.registry import by_model_type
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.rule.measures import Figures, compare_logits

from .baking import apply, make_plan
from .models import TINY, TRAINED, VOCABULARY, make

LENGTH = 4 * TRAINED

# what llama.cpp assumes, and weights small enough for attention to matter where embeddings are tied
CHANGES: dict[str, dict[str, Any]] = {
    "gemma2": {"tie_word_embeddings": True, "initializer_range": 0.02},
    "gemma3_text": {"tie_word_embeddings": True, "initializer_range": 0.02},
    "cohere": {"tie_word_embeddings": True, "use_qk_norm": False},
    "cohere2": {"tie_word_embeddings": True},
    "qwen3_moe": {"norm_topk_prob": True},
    "gemma": {"tie_word_embeddings": True, "initializer_range": 0.02},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    "olmoe": {"num_key_value_heads": 2},
    "dots1": {"num_key_value_heads": 2},
    "qwen3_next": {"linear_num_value_heads": 4},
    "qwen3_5_text": {"linear_num_value_heads": 4},
}
EXPORTED = tuple(name for name in TINY if by_model_type()[name].gguf is not None)
"""Model types that become GGUF."""


@functools.cache
def tokenizer_json() -> str:
    """A byte-level BPE of 320 tokens, trained on this file."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(Path(__file__).read_text().splitlines() * 4, trainer)
    return str(made.to_str())


def lively(folder: Path) -> Path:
    """Puts numbers into biases and norms, which transformers begins with zeros and ones: those would hide errors."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if name.endswith(".bias"):
            tensors[name] = 0.3 * torch.randn(tensor.shape, generator=generator)
        elif "norm" in name:
            tensors[name] = tensor + 0.3 * torch.rand(tensor.shape, generator=generator)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def checkpoint(model_type: str, folder: Path, **changes: Any) -> Path:
    """A tiny checkpoint with a tokenizer; a change to None stands as null in its config."""
    settings = {**CHANGES.get(model_type, {}), **changes}
    lively(make(model_type, folder, **settings))
    config = json.loads((folder / "config.json").read_text())
    config |= {key: None for key, value in settings.items() if value is None}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "tokenizer.json").write_text(tokenizer_json())
    special = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def bake(source: Path, recipe: Recipe, out: Path, **options: Any) -> Plan:
    """Plans and applies."""
    if source.is_dir():
        options = {"to": "gguf", "outtype": "f32", **options}
    plan = make_plan(source, recipe, out, **options)
    apply(plan)
    return plan


def sequence(length: int = LENGTH) -> list[int]:
    """Random tokens, the same every time."""
    return torch.randint(4, VOCABULARY, (length,), generator=torch.Generator().manual_seed(0)).tolist()


def of_llamacpp(path: Path, **options: Any) -> torch.Tensor:
    """Logits at every position, [LENGTH, vocabulary]."""
    return torch.from_numpy(LlamaCppEngine(path, **options).logits(sequence(), list(range(LENGTH))))


def of_transformers(source: Path, plan: Plan | None) -> torch.Tensor:
    """Logits of the source at every position, scaled at run time as the plan's schedule says, or left alone."""
    model = load_stock(source, "cpu")
    if plan is not None:
        patch(model, plan.schedule, plan.before)
    with torch.no_grad():
        return model(input_ids=torch.tensor([sequence()]), use_cache=False).logits[0].float()


def beyond(reference: torch.Tensor, other: torch.Tensor) -> tuple[Figures, Figures]:
    """Figures at one to two, and at two to four times the trained length."""
    other = other[:, : reference.shape[1]]
    ranges = (slice(TRAINED, 2 * TRAINED), slice(2 * TRAINED, 4 * TRAINED))
    first, second = (compare_logits(reference[rows], other[rows]) for rows in ranges)
    return first, second
