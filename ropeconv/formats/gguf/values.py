"""Values of a GGUF header, kept as bytes and decoded on request; and functions that make them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RopeconvError

STRING, ARRAY = 8, 9
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
NAMES = {
    0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool", 8: "str", 9: "array", 10: "u64",
    11: "i64", 12: "f64",
}  # fmt: skip
SIZES = {kind: struct.calcsize("<" + code) for kind, code in FORMATS.items()}


@dataclass(frozen=True)
class Value:
    """A value of a GGUF header. kind: the number of its type in GGUF. raw: its bytes, without that number."""

    kind: int
    raw: bytes

    @property
    def type_name(self) -> str:
        """`u32`, `f32`, `str`, `array`, ... as llama.cpp names them."""
        return NAMES[self.kind]

    def decode(self) -> Any:
        """The value as a number, a bool, a str, or a list of these. Bytes that are not UTF-8 become U+FFFD."""
        if self.kind == STRING:
            return self.raw[8:].decode("utf-8", "replace")
        if self.kind != ARRAY:
            return struct.unpack("<" + FORMATS[self.kind], self.raw)[0]
        element, count = struct.unpack_from("<IQ", self.raw)
        if element != STRING:
            return list(struct.unpack_from(f"<{count}{FORMATS[element]}", self.raw, 12))
        found, at = [], 12
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self.raw, at)
            found.append(self.raw[at + 8 : at + 8 + length].decode("utf-8", "replace"))
            at += 8 + length
        return found

    def count(self) -> int:
        """Number of elements of an array, without decoding them; 1 for other values."""
        return int(struct.unpack_from("<Q", self.raw, 4)[0]) if self.kind == ARRAY else 1


def u32(value: int) -> Value:
    """An unsigned 32-bit number as a value. Raises RopeconvError where it does not fit."""
    return Value(4, _packed("I", value))


def f32(value: float) -> Value:
    """A 32-bit float as a value. Raises RopeconvError where it does not fit."""
    return Value(6, _packed("f", value))


def _packed(code: str, value: float) -> bytes:
    try:
        return struct.pack("<" + code, value)
    except (struct.error, OverflowError):
        raise RopeconvError(
            f"{value:g} does not fit into the 32 bits that GGUF has for it; choose a smaller context, factor or theta"
        ) from None


def boolean(value: bool) -> Value:
    """A bool as a value of a header."""
    return Value(7, struct.pack("<?", value))


def string(value: str) -> Value:
    """A string as a value of a header, in UTF-8."""
    data = value.encode()
    return Value(STRING, struct.pack("<Q", len(data)) + data)


def array(kind: int, values: Sequence[Any]) -> Value:
    """An array of numbers or bools as a value. kind: the number of the type of its elements in GGUF."""
    return Value(ARRAY, struct.pack(f"<IQ{len(values)}{FORMATS[kind]}", kind, len(values), *values))


def bools(values: Sequence[bool]) -> Value:
    """An array of bools as a value of a header."""
    return array(7, values)


def i32_array(values: Sequence[int]) -> Value:
    """An array of signed 32-bit numbers as a value of a header."""
    return array(5, values)


def f32_array(values: Sequence[float]) -> Value:
    """An array of 32-bit floats as a value of a header."""
    return array(6, values)


def strings(values: Sequence[bytes]) -> Value:
    """An array of strings as a value of a header. values: in UTF-8."""
    parts = [struct.pack("<IQ", STRING, len(values))]
    for value in values:
        parts += (struct.pack("<Q", len(value)), value)
    return Value(ARRAY, b"".join(parts))
