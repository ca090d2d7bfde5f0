"""config.json of every family, alone and in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.support.models import FAMILIES

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


KEYS = tuple(sorted({*OTHERS, *(key for name in FAMILIES for key in small_config(name))}))
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
