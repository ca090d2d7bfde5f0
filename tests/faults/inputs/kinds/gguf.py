"""GGUF: the structure of the file, and the values of its keys."""

from __future__ import annotations

import copy
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import gguf

from ropeconv.runtimes.llamacpp import arch_table
from tests.support.gguf_files import write as write_file

from ..formats import Commands, commands, register
from ..json_mutations import damaged

COMMANDS = commands("""
inspect m.gguf; inspect m.gguf --json; apply m.gguf --yarn 4 -o out.gguf;
apply m.gguf --mixed 4 --replace -o out.gguf; apply m.gguf --linear 2 --on-top --dry-run --json;
apply m.gguf --yarn 4 --replace --in-place; restore m.gguf -o out.gguf; compare m.gguf m.gguf;
advise m.gguf --context 256
""")
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
SCALED: dict[str, Any] = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16,
    "rope.scaling.attn_factor": 1.1, "rope.scaling.yarn_log_multiplier": 0.1, "attention.temperature_scale": 0.1,
}  # fmt: skip
ARCHS: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "phi3": {}, "granite": {}, "llama4": {}, "mistral3": {},
    "gemma3": {"attention.sliding_window": 512}, "gpt-oss": {"attention.sliding_window": 128},
    "deepseek2": {"attention.kv_lora_rank": 16, "attention.key_length": 64, "attention.key_length_mla": 64},
}  # fmt: skip
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
ODD = (
    0, 1, 2, 3, 4, 5, 8, 9, 10, 14, 24, 28, 30, 31, 32, 33, 36, 39, 40, 45, 48, 64, 128, 130, 255, 4096, 1 << 14,
    1 << 16, 1 << 26, 10**7, 0x03000000, 1 << 31, 1 << 32, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
NAMES = (
    b"", b"rope_freqs.weight", b"rope_factors_long.weight", b"\xff", b"x" * 64, b"x" * 70_000, b"\0", b"\n\x1b[0m",
    b"general.architecture", b"llama.",
)  # fmt: skip
FLOATS = (0.0, -1.0, 1.0, 4.0, float("nan"), float("inf"), -float("inf"), 1e30, 1e-30, 3e38)
WHOLES = (
    0, 1, 2, 3, 4, 64, 128, 2_048, 2_050, 4096, 10_000, 10_001, 1 << 20, 400_000, 1 << 28, 3 * 10**8, (1 << 31) - 1,
    1 << 31,
)  # fmt: skip
WORDS = (
    b"", b"yarn", b"linear", b"none", b"longrope", b"llama", b"4", b"\xff\xfe", b"\0", b"\x1b[31m\n", b"x" * 300,
    "é".encode(), b"\xed\xa0\x80", b"../../x", b"{}", b"null",
)  # fmt: skip


@dataclass
class Parts:
    """A GGUF file in parts. keys: name, type, bytes. tensors: name, shape, type, offset. Names are bytes."""

    keys: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, list[int], int, int]]
    data: bytes

    def joined(self, odd: Callable[[int, int], int] = lambda size, number: number) -> bytes:
        """The bytes of the file. odd: the integer in place of one of the header, from its size in bytes and itself."""
        out = bytearray(b"GGUF")

        def put(size: int, *numbers: int) -> None:
            for number in numbers:
                out.extend(odd(size, number).to_bytes(size, "little"))

        put(4, 3)
        put(8, len(self.tensors), len(self.keys))
        for name, kind, raw in self.keys:
            put(8, len(name))
            out += name
            put(4, kind)
            out += raw
        for name, shape, kind, offset in self.tensors:
            put(8, len(name))
            out += name
            put(4, len(shape))
            put(8, *shape)
            put(4, kind)
            put(8, offset)
        return bytes(out) + bytes(-len(out) % 32) + self.data


def text(value: bytes) -> bytes:
    """A string as GGUF has it."""
    return struct.pack("<Q", len(value)) + value


def taken_apart(path: Path) -> Parts:
    """The parts of a right file, as gguf-py reads them."""
    reader = gguf.GGUFReader(path)
    fields = [one for name, one in reader.fields.items() if not name.startswith("GGUF.")]
    keys = [
        (one.name.encode(), int(one.parts[2][0]), b"".join(part.tobytes() for part in one.parts[3:])) for one in fields
    ]
    tensors = [
        (one.name.encode(), [int(size) for size in one.shape], int(one.tensor_type), one.data_offset)
        for one in reader.tensors
    ]
    start = min(offset for *_, offset in tensors)
    return Parts(keys, [(*rest, offset - start) for *rest, offset in tensors], path.read_bytes()[start:])  # type: ignore[misc]


@cache
def _seeds() -> tuple[Parts, ...]:
    """Whole small files by gguf-py: every kind of architecture, without and with scaling."""
    with tempfile.TemporaryDirectory() as folder:
        place, kinds = Path(folder, "a.gguf"), [(arch, more) for arch in ARCHS for more in ({}, SCALED)]
        return tuple(taken_apart(write_file(place, arch, {**ARCHS[arch], **more})) for arch, more in kinds)


def _seed(random: Random) -> Parts:
    return copy.deepcopy(random.choice(_seeds()))


def _number(random: Random, kind: int) -> bytes:
    form = "<" + FORMATS[kind]
    if kind in (6, 12):
        return struct.pack(form, random.choice(FLOATS))
    size = struct.calcsize(form)
    whole = random.choice(WHOLES).to_bytes(8, "little")[:size]
    known = (b"\xff" * size, b"\xff" * (size - 1) + b"\x7f", b"\0" * (size - 1) + b"\x80", random.randbytes(size))
    return random.choice((*known, whole, whole))


def _value(random: Random) -> tuple[int, bytes]:
    """The type and the bytes of an odd value."""
    kind = random.choice((*FORMATS, STRING, STRING, ARRAY, ARRAY))
    if kind == STRING:
        return kind, text(random.choice(WORDS))
    if kind != ARRAY:
        return kind, _number(random, kind)
    element, count = random.choice((*FORMATS, STRING, ARRAY, 13)), random.choice((0, 1, 2, 3, 40))
    claimed = count if random.random() < 0.95 else random.choice((1 << 63, (1 << 64) - 1, 1 << 31, count + 1))
    entries = (_number(random, element) if element in FORMATS else text(random.choice(WORDS)) for _ in range(count))
    return kind, struct.pack("<IQ", element, claimed) + b"".join(entries)


def _of_any_arch(random: Random) -> tuple[Parts, bytes]:
    """A file whose architecture has another name, which begins its keys too."""
    parts, arch = _seed(random), random.choice((*arch_table().arch, "llama")).encode()
    old = next(raw[8:] for name, _, raw in parts.keys if name == b"general.architecture")
    keys = [(arch + name[len(old) :] if name.startswith(old + b".") else name, *rest) for name, *rest in parts.keys]
    parts.keys = [(name, kind, text(arch) if name == b"general.architecture" else raw) for name, kind, raw in keys]
    return parts, arch


@register("gguf keys")
def write_keys(random: Random, folder: Path) -> Commands:
    parts, arch = _of_any_arch(random)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        kind = random.random()
        if kind < 0.15:
            del parts.keys[random.randrange(len(parts.keys))]
            continue
        name = random.choice(parts.keys)[0] if kind < 0.4 else arch + b"." + random.choice(OF_ARCH).encode()
        name = random.choice(OTHERS).encode() if kind > 0.8 else name
        kept = [key for key in parts.keys if key[0] != name]
        old = {key: known for key, known, _ in parts.keys}.get(name, 4)
        made = (old, _number(random, old)) if old in FORMATS and kind > 0.6 else _value(random)
        kept.insert(random.randrange(len(kept) + 1), (name, *made))
        parts.keys = kept
    (folder / "m.gguf").write_bytes(parts.joined())
    return random.sample(COMMANDS, 2)


@register("gguf")
def write(random: Random, folder: Path) -> Commands:
    """Entries that are gone, doubled or renamed, integers of the header that are others, and damaged headers."""
    parts = _seed(random)
    entries: Any = random.choice((parts.keys, parts.tensors))
    place = random.randrange(len(entries))
    one = entries[place]
    others = ([], [one, one], [(random.choice(NAMES), *one[1:])], [one], [one], [one])
    entries[place : place + 1] = random.choice(others)
    share = random.choice((0.0, 0.02, 0.05))
    file = parts.joined(
        lambda size, number: random.choice(ODD) % (1 << 8 * size) if random.random() < share else number
    )
    if random.random() < 0.3:
        header = len(file) - len(parts.data)
        file = damaged(random, file[:header]) + file[header:]
    (folder / "m.gguf").write_bytes(file)
    return random.sample(COMMANDS, 2)
