"""safetensors: headers and their lengths."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from random import Random

from ..bytes_mutations import damaged
from ..folders import data_bytes, safetensors, small_header, write_checkpoint
from ..formats import Commands, register
from ..json_mutations import Raw, changed, text_of

COMMANDS: Commands = [
    ["inspect", "model"],
    ["apply", "model", "--yarn", "4", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--dry-run"],
    ["apply", "model", "--yarn", "4", "--encoding", "weights", "-o", "out"],
    ["apply", "model", "--mixed", "4", "--encoding", "buffers", "-o", "out"],
    ["apply", "model", "--yarn", "4", "--to", "gguf", "-o", "out.gguf"],
    ["bound", "model", "--weights"],
    ["restore", "model", "--dry-run"],
    ["compare", "model", "model"],
]
KEYS = ("dtype", "shape", "data_offsets", "__metadata__", "format", "model.layers.0.self_attn.q_proj.weight")
VALUES = (
    "F32",
    "BF16",
    "F4",
    "F8_E4M3",
    "I64",
    "BOOL",
    "f32",
    [0, 0],
    [4, 0],
    [2**62, 4],
    [2**40],
    [0, 2**64],
    Raw("1.0"),
)
LENGTHS = (0, 1, 7, 100_000_000, 100_000_001, 2**31, 2**32, 2**63, 2**64 - 1)


@register("safetensors")
def write(random: Random, folder: Path) -> Commands:
    model = write_checkpoint(folder / "model")
    place, entries = model / "model.safetensors", small_header()
    kind = random.random()
    if kind < 0.7:
        made = changed(random, copy.deepcopy(entries), KEYS, VALUES)
        place.write_bytes(safetensors(text_of(random, made), data_bytes(entries)))
    elif kind < 0.9:
        place.write_bytes(damaged(random, place.read_bytes()))
    else:
        text = json.dumps(entries).encode()
        length = random.choice((*LENGTHS, len(text) - 1, len(text) + 1, len(text) + data_bytes(entries)))
        place.write_bytes(struct.pack("<Q", length) + place.read_bytes()[8:])
    return random.sample(COMMANDS, 2)
