"""Values of a GGUF header, kept as bytes and decoded on request, and the tensor types of ggml.

Source of the types: llama.cpp ggml/include/ggml.h and ggml/src/ggml.c, commit 0c1e570.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ...rope.errors import RopeconvError

UINT16, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY = 2, 5, 4, 6, 7, 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
NAMES = {
    0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 8: "str", 9: "array", 10: "u64",
    11: "i64", 12: "f64",
}  # fmt: skip
SIZES = {kind: struct.calcsize("<" + code) for kind, code in FORMATS.items()}


@dataclass(frozen=True)
class GgufValue:
    """A value of a GGUF header. kind: the number of its type in GGUF. raw: its bytes, without that number."""

    kind: int
    raw: bytes

    @property
    def type_name(self) -> str:
        """`u32`, `f32`, `str`, `array`, ... as llama.cpp names them."""
        return NAMES[self.kind]

    def decode(self) -> Any:
        """Return the value as a number, a bool, a str, or a list of these. Bytes that are not UTF-8 become U+FFFD."""
        if self.kind == STRING:
            return self.raw[8:].decode("utf-8", "replace")
        if self.kind != ARRAY:
            return struct.unpack("<" + FORMATS[self.kind], self.raw)[0]
        element, count = struct.unpack_from("<IQ", self.raw)
        if element != STRING:
            return list(struct.unpack_from(f"<{count}{FORMATS[element]}", self.raw, 12))
        texts, at = [], 12
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self.raw, at)
            texts.append(self.raw[at + 8 : at + 8 + length].decode("utf-8", "replace"))
            at += 8 + length
        return texts

    def count(self) -> int:
        """Return the number of elements of an array, without decoding them; 1 for other values."""
        return int(struct.unpack_from("<Q", self.raw, 4)[0]) if self.kind == ARRAY else 1


def u32(value: int) -> GgufValue:
    """An unsigned 32-bit number. Raises RopeconvError where it does not fit."""
    return GgufValue(UINT32, _packed("I", value))


def f32(value: float) -> GgufValue:
    """A 32-bit float. Raises RopeconvError where it does not fit."""
    return GgufValue(FLOAT32, _packed("f", value))


def _packed(code: str, value: float) -> bytes:
    try:
        return struct.pack("<" + code, value)
    except (struct.error, OverflowError):
        raise RopeconvError(
            f"{value:g} does not fit into the 32 bits that GGUF has for it; choose a smaller context, factor or theta"
        ) from None


def boolean(value: bool) -> GgufValue:
    return GgufValue(BOOL, struct.pack("<?", value))


def string(value: str) -> GgufValue:
    """A string, in UTF-8."""
    data = value.encode()
    return GgufValue(STRING, struct.pack("<Q", len(data)) + data)


def array(kind: int, values: Sequence[object]) -> GgufValue:
    """An array of numbers or bools. kind: the number of the type of its elements in GGUF."""
    return GgufValue(ARRAY, struct.pack(f"<IQ{len(values)}{FORMATS[kind]}", kind, len(values), *values))


def strings(values: Sequence[bytes]) -> GgufValue:
    parts = [struct.pack("<IQ", STRING, len(values))]
    for value in values:
        parts += (struct.pack("<Q", len(value)), value)
    return GgufValue(ARRAY, b"".join(parts))


class TensorType(NamedTuple):
    """A tensor type of ggml. block: elements per block. size: bytes per block."""

    name: str
    block: int
    size: int

    def bytes(self, shape: Iterable[int]) -> int:
        """Return the size in bytes of a tensor of a shape."""
        return prod(shape) // self.block * self.size


F32, F16, Q8_0, BF16, MXFP4 = 0, 1, 8, 30, 39

TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4), 1: TensorType("F16", 1, 2), 2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20), 6: TensorType("Q5_0", 32, 22), 7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34), 9: TensorType("Q8_1", 32, 36), 10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110), 12: TensorType("Q4_K", 256, 144), 13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210), 15: TensorType("Q8_K", 256, 292), 16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74), 18: TensorType("IQ3_XXS", 256, 98), 19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18), 21: TensorType("IQ3_S", 256, 110), 22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136), 24: TensorType("I8", 1, 1), 25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4), 27: TensorType("I64", 1, 8), 28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56), 30: TensorType("BF16", 1, 2), 34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66), 39: TensorType("MXFP4", 32, 17), 40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18), 42: TensorType("Q2_0", 64, 18),
}  # fmt: skip
