"""config.json of every family, alone and in a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from ropeconv.families.registry import by_model_type, families
from tests.support.models import FAMILIES, part_at

from ..folders import small_config, write_checkpoint
from ..formats import Commands, commands, register
from ..json_mutations import changed, text_of
from .checkpoint import ON_MODEL

SCALINGS: tuple[dict[str, Any], ...] = (
    {"rope_type": "linear", "factor": 4.0},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32, "mscale": 1.0},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 16},
    {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
     "original_max_position_embeddings": 16, "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e4},
    {"full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
     "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
)  # fmt: skip
OTHERS = (
    "architectures auto_map layer_types no_rope_layers original_max_position_embeddings partial_rotary_factor "
    "rope_parameters rope_scaling rope_theta sliding_window use_sliding_window text_config torch_dtype dtype "
    "tie_word_embeddings max_sequence_length quantization_config model_type transformers_version rotary_dim alibi "
    "quant_method attn_implementation use_kernels "
    "llama_4_scaling mrope_section long_mscale short_mscale attn_factor attention_factor mscale_all_dim truncate"
).split()


def known_keys() -> tuple[str, ...]:
    """Every name of a config key in the tables of the families, and those that the package reads by itself."""
    found: set[str] = set(OTHERS)

    def add(item: Any) -> None:
        if isinstance(item, str) and item.replace("_", "").isalnum() and item.islower():
            found.add(item)
        for inner in item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ():
            add(inner)

    for family in families():
        for part in (family.keys, family.layers, family.window, family.query_temperature, family.cache, family.gguf):
            add(msgspec.to_builtins(part))
    return tuple(sorted(found))


KEYS = known_keys()
ON_CONFIG = commands("""
inspect config.json
inspect config.json --json
apply config.json --yarn 4 --dry-run
apply config.json --mixed 4 --dry-run --json --explain
apply config.json --linear 2 --on-top --dry-run
apply config.json --as-is -o out
apply config.json --yarn 8 --replace --keep-short -o out
apply config.json --ntk 128k --replace --runtime vllm --dry-run
compare config.json config.json
plot config.json --yarn 4 -o plot.png
advise config.json --context 256
bound config.json
""")


@register("config.json")
def write(random: Random, folder: Path) -> Commands:
    whole = random.random() < 0.3
    config = small_config("llama" if whole else random.choice(list(FAMILIES)))
    if random.random() < 0.5:
        config[random.choice(("rope_scaling", "rope_parameters"))] = dict(random.choice(SCALINGS))
    if random.random() < 0.1:
        config = {"model_type": random.choice(("llava", "gemma3", "mistral3")), "text_config": config}
    text = text_of(random, changed(random, config, KEYS))
    if not whole:
        (folder / "config.json").write_bytes(text)
        return random.sample(ON_CONFIG, 3)
    write_checkpoint(folder / "model")
    (folder / "model" / "config.json").write_bytes(text)
    return random.sample(ON_MODEL, 2)


SIZES = (1, 2, 3, 64, 127, 2_048, 2_049, 4_096, 9_999, 1 << 20, 1 << 23, (1 << 31) - 1)
SHARES = (1e-9, 1e-4, 0.001, 0.0312, 0.25, 0.3, 0.5, 0.999, 1.0)
LAYERS = (1, 2, 3, 127, 2_000, 9_999, 10_000)


@register("derived sizes")
def write_sizes(random: Random, folder: Path) -> Commands:
    """Sizes that each are possible, and that together make heads, layers, lengths and bases which are not."""
    name = random.choice(list(FAMILIES))
    family, config = by_model_type()[name], small_config(name)
    parts = [part_at(config, path) for path in family.halves] or [config]
    for part in parts if random.random() < 0.7 else parts[-1:]:
        keys = (*family.keys.hidden, *family.keys.heads, *family.keys.kv_heads, *family.keys.context)
        for key in random.sample(keys, random.randrange(1, len(keys) + 1)):
            part_at(part, key.rpartition(".")[0])[key.rpartition(".")[2]] = random.choice(SIZES)
        if random.random() < 0.8:
            for key in (*family.keys.head_dim, *family.keys.local_head_dim):
                part.pop(key, None)
        for key in (*family.keys.partial, *family.keys.rotary_dim):
            part[key] = random.choice(SHARES if key in family.keys.partial else SIZES)
        count = part[random.choice(family.keys.layers)] = random.choice(LAYERS)
        for key in (family.layers.key, family.layers.flags, family.layers.indices, "mlp_layer_types", "indexer_types"):
            if key and random.random() < 0.4:
                names = list(family.layers.types or ["full_attention"])
                entry = random.choice(names) if "types" in key else random.choice((0, 1, count))
                part[key] = [entry] * random.choice((count, count, *LAYERS))
        if random.random() < 0.3:
            own = {"head_dim": random.choice((64, 2_048, 2_049)), "num_key_value_heads": random.choice(SIZES)}
            part["per_layer_config"] = {
                str(layer): own for layer in (*range(random.choice((1, 10_000))), int("9" * random.choice((1, 4_000))))
            }
        if random.random() < 0.5:
            part[random.choice(("rope_scaling", "rope_parameters"))] = {
                "rope_type": random.choice(("linear", "yarn", "llama3", "dynamic", "longrope", "proportional")),
                "factor": random.choice((5e-324, 1e-300, 1e-9, 1.0, 4.0, 1e6)), "alpha": random.choice((1.0, 1e9)),
                "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": random.choice((1.0000000001, 1e4, 1e30)),
                "original_max_position_embeddings": random.choice((1, 6, 4_096, (1 << 31) - 1)),
                "short_factor": [1e-300] * 32, "long_factor": [3e38] * 32,
                "mrope_section": random.choice(([], [8] * 3, [2_048] * 3)),
            }  # fmt: skip
    if random.random() < 0.1:
        config = {"model_type": random.choice(("llava", "gemma3", "mistral3")), "text_config": config}
    (folder / "config.json").write_bytes(json.dumps(config).encode())
    return random.sample(ON_CONFIG, 2)
