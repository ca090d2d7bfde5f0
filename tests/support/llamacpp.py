"""Checkpoints that can become GGUF, and llama.cpp's logits beside those of transformers."""

import functools
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ropeconv.bake.plan import Plan
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.engines.transformers.load import load_stock
from ropeconv.engines.transformers.patch import patch, scale_queries
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.models.config import detect
from ropeconv.models.registry import by_model_type
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import LogN, QueryScaling
from ropeconv.runtimes.llamacpp.purpose import gives_no_logits
from ropeconv.runtimes.llamacpp.read_header import arch_of
from ropeconv.validate.sampling import Bucket
from ropeconv.validate.validation import BucketResult, bucket_result, measure

from .baking import apply, make_plan
from .models import SOURCES, TINY, TRAINED, VOCABULARY, make, what_decides
from .stored import stored
from .tiny_gguf import hidden_states

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTH = 4 * TRAINED

# what llama.cpp assumes, and weights small enough for attention to matter where embeddings are tied
CHANGES: dict[str, dict[str, Any]] = {
    "gemma2": {"tie_word_embeddings": True, "initializer_range": 0.02},
    "gemma3_text": {"tie_word_embeddings": True, "initializer_range": 0.02},
    "cohere": {"tie_word_embeddings": True, "use_qk_norm": False},
    "cohere2": {"tie_word_embeddings": True},
    "qwen3_moe": {"norm_topk_prob": True},
    "gemma": {"tie_word_embeddings": True, "initializer_range": 0.02},
    "gemma3n_text": {
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "num_hidden_layers": 22,
        "num_kv_shared_layers": 2,
        "layer_types": (
            (["sliding_attention"] * 4 + ["full_attention"]) * 4
            + ["sliding_attention", "full_attention"]
        ),
        "intermediate_size": [96] * 22,
        "laurel_rank": 64,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 316,
    },
    "gemma4_text": {
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "final_logit_softcapping": 30.0,
        "use_double_wide_mlp": True,
        "top_k_experts": 4,
    },
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    "olmoe": {"num_key_value_heads": 2},
    "dots1": {"num_key_value_heads": 2},
    "qwen3_next": {"linear_num_value_heads": 4},
    "qwen3_5_text": {"linear_num_value_heads": 4},
    "qwen3_5_moe_text": {"linear_num_value_heads": 4},
    "lfm2": {
        "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 40,
        "block_ffn_dim_multiplier": 1.3,
    },
    "lfm2_moe": {"tie_word_embeddings": True, "initializer_range": 0.1},
    "afmoe": {
        "mup_enabled": True,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "llama4_text": {"use_qk_norm": True, "attention_chunk_size": 8192},
    "laguna": {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention"] + ["sliding_attention"] * 3,
    },
    "falcon_h1": {
        "embedding_multiplier": 1.2,
        "lm_head_multiplier": 0.8,
        "key_multiplier": 0.9,
        "mlp_multipliers": [1.1, 0.7],
        "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 0.7,
        "ssm_out_multiplier": 0.6,
        "ssm_multipliers": [0.9, 0.8, 0.7, 1.1, 1.2],
        "mamba_n_groups": 2,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
    },
    # llama.cpp rotates keys of the indexer by a Hadamard matrix, whose width is a power of two; with
    # few heads, many scores are 0, and which of them are chosen is chance
    "deepseek_v32": {"index_head_dim": 128, "index_n_heads": 16},
    "glm_moe_dsa": {"index_head_dim": 128, "index_n_heads": 16},
    "eurobert": {"mask_token_id": 3},
    # llama.cpp has one base for all layers of Mellum
    "mellum": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
        }
    },
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2},
}
EXPORTED = tuple(name for name in TINY if by_model_type()[name].gguf is not None)
"""Model types that become GGUF."""


@functools.cache
def tokenizer_json() -> str:
    """A byte-level BPE of 320 tokens, trained on this file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(Path(__file__).read_text().splitlines() * 4, trainer)
    return str(tokenizer.to_str())


def lively(folder: Path) -> Path:
    """Puts numbers into what transformers begins with zeros and ones, such as norms: those would
    hide errors.
    """
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, tensor in tensors.items():
        if name.endswith(".bias"):
            tensors[name] = 0.3 * torch.randn(tensor.shape, generator=generator)
        elif "norm" in name or bool((tensor == tensor.flatten()[0]).all()):
            tensors[name] = tensor + 0.3 * torch.rand(tensor.shape, generator=generator)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def like_gemma3n(folder: Path, count: int) -> None:
    """Adds the keys of layers that take those of others, as published: transformers 5 drops them.
    Tames the others.

    llama.cpp divides the variance of the activations that it cuts by n - 1, not n, which is seen in
    layers as narrow as these: with usual norms KL 4e-4, without the MLP 2e-8. count: layers that
    have keys of their own.
    """
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name in [
        name
        for name in tensors
        if name.endswith("q_norm.weight") and int(name.split(".")[2]) >= count
    ]:
        for part in ("k_norm", "k_proj", "v_proj"):
            layer, first = (
                text.replace("q_norm", part)
                for text in (name, "model.layers.0.self_attn.q_norm.weight")
            )
            tensors[layer] = tensors[first].clone()
    for name in tensors:
        tensors[name] *= (
            0.05 if "post_feedforward_layernorm" in name else 0.25 if "q_norm" in name else 1.0
        )
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def checkpoint(model_type: str, folder: Path, **changes: Any) -> Path:
    """A tiny checkpoint with a tokenizer; a change to None stands as null in its config."""
    settings = {**CHANGES.get(model_type, {}), **changes}

    def write(place: Path) -> None:
        lively(make(model_type, place, **settings))
        if model_type == "gemma3n_text":
            like_gemma3n(place, settings["num_hidden_layers"] - settings["num_kv_shared_layers"])
        config = json.loads((place / "config.json").read_text())
        config |= {key: None for key, value in settings.items() if value is None}
        (place / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (place / "tokenizer.json").write_text(tokenizer_json())
        special = {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        (place / "tokenizer_config.json").write_text(json.dumps(special))

    return stored(
        write, folder, (*SOURCES, __file__), "with a tokenizer", *what_decides(model_type, settings)
    )


def bake(source: Path, recipe: Recipe, out: Path, **options: Any) -> Plan:
    """Plans and applies."""
    if source.is_dir():
        options = {"to": "gguf", "outtype": "f32", **options}
    plan = make_plan(source, recipe, out, **options)
    apply(plan)
    return plan


def sequence(length: int = LENGTH) -> list[int]:
    """Random tokens, the same every time."""
    return torch.randint(
        4, VOCABULARY, (length,), generator=torch.Generator().manual_seed(0)
    ).tolist()


def of_llamacpp(path: Path, **options: Any) -> torch.Tensor:
    """Logits at every position, [LENGTH, vocabulary]; of an encoder its states, [LENGTH, width]."""
    file = GgufFile.open(path)
    if gives_no_logits(file, arch_of(file)):
        return torch.from_numpy(hidden_states(path, sequence()))
    return LlamaCppEngine(path, **options).logits(sequence(), list(range(LENGTH)))


def of_transformers(
    source: Path, plan: Plan | None, queries: LogN | QueryScaling | None = None
) -> torch.Tensor:
    """Logits of the source at every position, scaled at run time as the plan's schedule says, or
    left alone. The last states of an encoder stand for its logits.

    queries: what they are scaled by.
    """
    encoder = detect(json.loads((source / "config.json").read_text())).encoder
    return of_model(load_stock(source, "cpu"), plan, encoder, queries)


def of_model(
    model: "PreTrainedModel",
    plan: Plan | None,
    encoder: bool,
    queries: LogN | QueryScaling | None = None,
) -> torch.Tensor:
    """The same of a model of transformers, which stays scaled."""
    if plan is not None:
        patch(model, plan.schedule, plan.before.mla)
    if queries is not None:
        scale_queries(ExitStack(), model, queries, "self_attn.q_proj")
    settings = {"output_hidden_states": True} if encoder else {"use_cache": False}
    with torch.no_grad():
        output = model(input_ids=torch.tensor([sequence()]), **settings)
    states = output.hidden_states[-1] if encoder else output.logits
    return states[0].float()


def figures(reference: torch.Tensor, other: torch.Tensor) -> BucketResult:
    """The figures of a comparison of logits."""
    return bucket_result(Bucket("", [0]), measure(reference, other), 0.0)


def beyond(reference: torch.Tensor, other: torch.Tensor) -> tuple[BucketResult, BucketResult]:
    """Figures at one to two, and at two to four times the trained length."""
    other = other[:, : reference.shape[1]]
    # of the tokens that a Chameleon never answers with, llama.cpp leaves out those of the first row
    left_out = reference == torch.finfo(reference.dtype).min
    other = torch.where(left_out, reference, other)
    ranges = (slice(TRAINED, 2 * TRAINED), slice(2 * TRAINED, 4 * TRAINED))
    first, second = (figures(reference[rows], other[rows]) for rows in ranges)
    return first, second


def is_computed(source: Path, recipe: Recipe, out: Path, **options: Any) -> None:
    """llama.cpp computes what transformers does beyond the trained length, and not the unscaled."""
    plan = bake(source, recipe, out, **options)
    expected = of_transformers(source, plan)
    computed = of_llamacpp(out)
    unscaled = of_transformers(source, None)
    for right, wrong in zip(beyond(expected, computed), beyond(expected, unscaled), strict=True):
        assert right.kl_mean < 2e-6
        assert wrong.kl_mean > 1000 * right.kl_mean
