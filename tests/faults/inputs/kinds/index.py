"""model.safetensors.index.json."""

from __future__ import annotations

from pathlib import Path
from random import Random

from ..folders import index_of_small, write_checkpoint
from ..formats import Commands, register
from ..json_mutations import changed, text_of

COMMANDS: Commands = [
    ["inspect", "model"],
    ["apply", "model", "--yarn", "4", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--encoding", "weights", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--encoding", "weights", "--fold-dtype", "f32", "-o", "out"],
    ["apply", "model", "--mixed", "4", "--encoding", "buffers", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--to", "gguf", "-o", "out.gguf"],
    ["bound", "model", "--weights"],
]
KEYS = ("metadata", "total_size", "weight_map", "model.layers.0.self_attn.q_proj.weight", "x")
VALUES = (
    "model.safetensors",
    "./model.safetensors",
    "config.json",
    "model-00001-of-00002.safetensors",
    "..",
    ".",
    "a\0b",
    "C:\\x",
)


@register("index")
def write(random: Random, folder: Path) -> Commands:
    model = write_checkpoint(folder / "model")
    made = changed(random, index_of_small(), KEYS, VALUES)
    (model / "model.safetensors.index.json").write_bytes(text_of(random, made))
    return random.sample(COMMANDS, 2)
