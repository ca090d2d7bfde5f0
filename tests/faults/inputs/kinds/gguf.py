"""GGUF: the structure of the file, and the values of its keys."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

from ropeconv.runtimes.llamacpp import arch_table

from ..bytes_mutations import damaged
from ..formats import Commands, register
from ..gguf_parts import STRING, Parts, seeds, taken_apart, text, value

COMMANDS: Commands = [
    ["inspect", "m.gguf"],
    ["inspect", "m.gguf", "--json"],
    ["apply", "m.gguf", "--yarn", "4", "-o", "out.gguf"],
    ["apply", "m.gguf", "--mixed", "4", "--replace", "-o", "out.gguf"],
    ["apply", "m.gguf", "--linear", "2", "--on-top", "--dry-run", "--json"],
    ["apply", "m.gguf", "--yarn", "4", "--replace", "--in-place"],
    ["restore", "m.gguf", "-o", "out.gguf"],
    ["compare", "m.gguf", "m.gguf"],
    ["advise", "m.gguf", "--context", "256"],
]
OF_ARCH = (
    "attention.head_count attention.head_count_kv attention.key_length attention.key_length_mla "
    "attention.key_length_swa attention.rope_pattern attention.sliding_window attention.sliding_window_pattern "
    "attention.temperature_length attention.temperature_scale attention.value_length attention.value_length_mla "
    "block_count context_length embedding_length nextn_predict_layers rope.dimension_count rope.dimension_sections "
    "rope.freq_base rope.freq_base_swa rope.scale_linear rope.scaling.attn_factor rope.scaling.factor "
    "rope.scaling.finetuned rope.scaling.original_context_length rope.scaling.type rope.scaling.yarn_beta_fast "
    "rope.scaling.yarn_beta_slow rope.scaling.yarn_ext_factor rope.scaling.yarn_log_multiplier vocab_size"
).split()
OTHERS = (
    "general.alignment general.architecture general.base_model.count general.file_type general.name "
    "general.quantization_version ropeconv.json ropeconv.reserved ropeconv.window_norm_scale split.count split.no "
    "split.tensors.count tokenizer.chat_template tokenizer.ggml.merges tokenizer.ggml.model tokenizer.ggml.scores "
    "tokenizer.ggml.tokens"
).split()
NAMES = (b"", b"rope_freqs.weight", b"rope_factors_long.weight", b"\xff", b"x" * 63, b"x" * 64, b"\0", b"\n\x1b[0m")
SHAPES = (
    [], [0], [1], [2], [32], [130], [1 << 62], [1 << 32, 1 << 32], [1 << 63, 2], [1] * 4, [1] * 5, [1 << 40], [128, 0],
    [0, 128], [128, 128], [128, 128, 1], [1 << 14],
)  # fmt: skip
TYPES = (0, 1, 2, 4, 5, 8, 9, 10, 14, 24, 28, 30, 31, 36, 39, 40, 45, 255, 1 << 31)
OFFSETS = (0, 1, 31, 32, 1 << 40, 1 << 63, (1 << 64) - 1)
CLAIMS = (0, 1, 3, 10**7, 1 << 31, 1 << 62, 1 << 63, (1 << 64) - 1)
ALIGNMENTS = (0, 1, 2, 3, 8, 16, 48, 64, 256, 4096, 1 << 16, 1 << 26, 1 << 31)


def _with_arch(parts: Parts, arch: bytes) -> bytes:
    """Renames the architecture of a file in every key, and returns it."""
    old = next(raw[8:] for name, _, raw in parts.keys if name == b"general.architecture")
    keys = [(arch + name[len(old) :] if name.startswith(old + b".") else name, *rest) for name, *rest in parts.keys]
    parts.keys = [(name, kind, text(arch) if name == b"general.architecture" else raw) for name, kind, raw in keys]
    return arch


@register("gguf keys")
def write_keys(random: Random, folder: Path) -> Commands:
    parts = taken_apart(random.choice(seeds()))
    arch = _with_arch(parts, random.choice((*arch_table().arch, "llama")).encode())
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        kind = random.random()
        if kind < 0.15:
            del parts.keys[random.randrange(len(parts.keys))]
            continue
        name = random.choice(parts.keys)[0] if kind < 0.4 else arch + b"." + random.choice(OF_ARCH).encode()
        name = random.choice(OTHERS).encode() if kind > 0.8 else name
        kept = [key for key in parts.keys if key[0] != name]
        kept.insert(random.randrange(len(kept) + 1), (name, *value(random)))
        parts.keys = kept
    (folder / "m.gguf").write_bytes(parts.joined())
    return random.sample(COMMANDS, 2)


def _other_tensor(random: Random, parts: Parts) -> None:
    place = random.randrange(len(parts.tensors))
    name, shape, kind, offset = parts.tensors[place]
    changed = random.choice(("name", "shape", "type", "offset", "twice", "gone"))
    if changed == "gone":
        del parts.tensors[place]
    elif changed == "twice":
        parts.tensors.insert(place, parts.tensors[place])
    else:
        parts.tensors[place] = (
            random.choice(NAMES) if changed == "name" else name,
            list(random.choice((*SHAPES, [*shape, 1], [*shape, 0]))) if changed == "shape" else shape,
            random.choice(TYPES) if changed == "type" else kind,
            random.choice((*OFFSETS, offset + 32)) if changed == "offset" else offset,
        )


@register("gguf")
def write(random: Random, folder: Path) -> Commands:
    file = random.choice(seeds())
    if random.random() < 0.3:
        header = len(file) - len(taken_apart(file).data)
        made = damaged(random, file[:header]) + file[header:]
        (folder / "m.gguf").write_bytes(made)
        return random.sample(COMMANDS, 2)
    parts = taken_apart(file)
    for _ in range(random.choice((1, 1, 2))):
        kind = random.random()
        if kind < 0.5 and parts.tensors:
            _other_tensor(random, parts)
        elif kind < 0.6:
            parts.claimed["version"] = random.choice((0, 1, 2, 2, 3, 4, 0x03000000, 1 << 31))
        elif kind < 0.75:
            parts.claimed[random.choice(("tensors", "keys"))] = random.choice(CLAIMS)
        elif kind < 0.85:
            parts.keys.append((b"general.alignment", 4, struct.pack("<I", random.choice(ALIGNMENTS))))
        elif kind < 0.95:
            parts.keys.append(random.choice(parts.keys))
        else:
            odd = random.choice((b"", b"\xff", b"x" * 70_000, b"\n\x1b[0m", b"general.architecture", b"llama."))
            parts.keys.append((odd, STRING, text(b"x")))
    (folder / "m.gguf").write_bytes(parts.joined())
    return random.sample(COMMANDS, 2)


DERIVED = (1, 2, 64, 2_048, 2_050, 10_000, 10_001, 1 << 20, 1 << 28, (1 << 31) - 1, (1 << 32) - 1)
FRACTIONS = (1e-38, 1e-9, 0.5, 1.0, 4.0, 1e6, 3e38)


@register("gguf derived sizes")
def write_sizes(random: Random, folder: Path) -> Commands:
    """Sizes that each are possible, and that together make heads, layers, lengths and bases which are not."""
    parts = taken_apart(random.choice(seeds()))
    arch = _with_arch(parts, random.choice((*arch_table().arch, "llama")).encode())
    wholes = (
        "embedding_length attention.head_count attention.head_count_kv rope.dimension_count context_length block_count "
        "nextn_predict_layers rope.scaling.original_context_length attention.sliding_window"
    ).split()
    made = {name: struct.pack("<I", random.choice(DERIVED)) for name in random.sample(wholes, random.randrange(1, 6))}
    kinds = dict.fromkeys(made, 4)
    for name in random.sample(("rope.scaling.factor", "rope.scaling.alpha", "rope.freq_base"), random.randrange(3)):
        made[name], kinds[name] = struct.pack("<f", random.choice(FRACTIONS)), 6
    gone = {*made, *random.choice(((), ("attention.key_length", "rope.dimension_count")))}
    parts.keys = [key for key in parts.keys if key[0].removeprefix(arch + b".").decode() not in gone]
    parts.keys += [(arch + b"." + name.encode(), kinds[name], raw) for name, raw in made.items()]
    (folder / "m.gguf").write_bytes(parts.joined())
    return random.sample(COMMANDS, 2)
