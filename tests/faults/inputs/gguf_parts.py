"""GGUF files as keys, tensor entries and data, which can be changed one by one and put together again."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.support.gguf_files import write

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


@dataclass
class Parts:
    """A GGUF file in parts. keys: name, type, bytes. tensors: name, shape, type, offset. Names are bytes."""

    keys: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, list[int], int, int]]
    data: bytes
    claimed: dict[str, int] = field(default_factory=dict)

    def joined(self) -> bytes:
        """The bytes of the file. `claimed` has numbers that its beginning states in place of the right ones."""
        start = {"version": 3, "tensors": len(self.tensors), "keys": len(self.keys)} | self.claimed
        out = b"GGUF" + struct.pack("<IQQ", start["version"], start["tensors"], start["keys"])
        for name, kind, raw in self.keys:
            out += text(name) + struct.pack("<I", kind) + raw
        for name, shape, kind, offset in self.tensors:
            out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset % (1 << 64))
        return out + bytes(-len(out) % 32) + self.data


def text(value: bytes) -> bytes:
    """A string as GGUF has it."""
    return struct.pack("<Q", len(value)) + value


def value(random: Random) -> tuple[int, bytes]:
    """The type and the bytes of an odd value."""
    kind = random.choice((*FORMATS, STRING, STRING, ARRAY, ARRAY))
    if kind == STRING:
        return kind, text(_words(random))
    if kind != ARRAY:
        return kind, _number(random, kind)
    element, count = random.choice((*FORMATS, STRING, ARRAY, 13)), random.choice((0, 1, 2, 3, 40))
    one = _number if element in FORMATS else lambda chance, _: text(_words(chance))
    claimed = count if random.random() < 0.95 else random.choice((1 << 63, (1 << 64) - 1, 1 << 31, count + 1))
    return kind, struct.pack("<IQ", element, claimed) + b"".join(one(random, element) for _ in range(count))


def _number(random: Random, kind: int) -> bytes:
    form = "<" + FORMATS[kind]
    if kind in (6, 12):
        odd = (0.0, -1.0, 1.0, 4.0, float("nan"), float("inf"), -float("inf"), 1e30, 1e-30, 3e38)
        return struct.pack(form, random.choice(odd))
    size = struct.calcsize(form)
    whole = random.choice((0, 1, 2, 3, 4, 64, 128, 4096, 10_000, 1 << 20, 400_000, 3 * 10**8, (1 << 31) - 1, 1 << 31))
    known = (b"\xff" * size, b"\xff" * (size - 1) + b"\x7f", b"\0" * (size - 1) + b"\x80", random.randbytes(size))
    return random.choice((*known, whole.to_bytes(8, "little")[:size], whole.to_bytes(8, "little")[:size]))


def _words(random: Random) -> bytes:
    known = (
        b"",
        b"yarn",
        b"linear",
        b"none",
        b"longrope",
        b"llama",
        b"4",
        b"\xff\xfe",
        b"\0",
        b"\x1b[31m\n",
        b"x" * 300,
    )
    return random.choice((*known, "é".encode(), b"\xed\xa0\x80", b"../../x", b"{}", b"null"))


@cache
def seeds() -> tuple[bytes, ...]:
    """Whole small files by gguf-py: every kind of architecture, without and with scaling."""
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for arch, extra in ARCHS.items():
            for more in ({}, SCALED):
                made.append(write(Path(folder, "a.gguf"), arch, {**extra, **more}).read_bytes())
    return tuple(made)


def taken_apart(file: bytes) -> Parts:
    """The parts of a right file."""
    tensors, keys = struct.unpack_from("<QQ", file, 8)
    made, at = Parts([], [], b""), 24
    for _ in range(keys):
        name, at = _text(file, at)
        (kind,) = struct.unpack_from("<I", file, at)
        end = _end(file, at + 4, kind)
        made.keys.append((name, kind, file[at + 4 : end]))
        at = end
    for _ in range(tensors):
        name, at = _text(file, at)
        (dims,) = struct.unpack_from("<I", file, at)
        *shape, kind, offset = struct.unpack_from(f"<{dims}QIQ", file, at + 4)
        made.tensors.append((name, shape, kind, offset))
        at += 16 + 8 * dims
    made.data = file[(at + 31) // 32 * 32 :]
    return made


def _text(file: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", file, at)
    return file[at + 8 : at + 8 + length], at + 8 + length


def _end(file: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return _text(file, at)[1]
    if kind != ARRAY:
        return at + struct.calcsize("<" + FORMATS[kind])
    element, count = struct.unpack_from("<IQ", file, at)
    at += 12
    for _ in range(count):
        at = _end(file, at, element)
    return at
