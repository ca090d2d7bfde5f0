"""GGUF headers, read and checked, and the tensor types of ggml.

Values are left as bytes and decoded on request. Read `parse_header` first.

A file is `"GGUF" u32 version | u64 tensors | u64 keys | keys | tensor infos | padding | data`.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

Source of the types: llama.cpp ggml/include/ggml.h and ggml/src/ggml.c, commit 0c1e570.
"""

import mmap
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import TOO_MANY, BadSource
from ...rope.errors import RopeconvError, shown

# numbers of types of values
UINT16 = 2
UINT32 = 4
INT32 = 5
FLOAT32 = 6
BOOL = 7
STRING = 8
ARRAY = 9
FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
NAMES = {
    0: "u8",
    1: "i8",
    2: "u16",
    3: "i16",
    4: "u32",
    5: "i32",
    6: "f32",
    7: "bool",
    8: "str",
    9: "array",
    10: "u64",
    11: "i64",
    12: "f64",
}
SIZES = {kind: struct.calcsize("<" + code) for kind, code in FORMATS.items()}


@dataclass(frozen=True)
class GgufValue:
    """A value of a GGUF header."""

    kind: int
    """The number of its type in GGUF."""

    raw: bytes
    """Its bytes, without that number."""

    def decode(self) -> Any:
        """Return the value as a number, a bool, a str, or a list of these.

        The form of the bytes: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Bytes of a
        text that are not UTF-8 become U+FFFD.
        """
        if self.kind == STRING:
            return self.raw[8:].decode("utf-8", "replace")  # behind its length, a u64
        if self.kind != ARRAY:
            return struct.unpack("<" + FORMATS[self.kind], self.raw)[0]

        # an array begins with the type of its elements (u32) and their number (u64): 12 bytes
        element, count = struct.unpack_from("<IQ", self.raw)
        if element != STRING:
            return list(struct.unpack_from(f"<{count}{FORMATS[element]}", self.raw, 12))

        # each string has its own length in front, so they can only be read one after another
        texts = []
        at = 12
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self.raw, at)
            start = at + 8
            stop = start + length
            texts.append(self.raw[start:stop].decode("utf-8", "replace"))
            at = stop
        return texts

    def count(self) -> int:
        """Return the number of elements of an array, without decoding them; 1 for other values."""
        if self.kind != ARRAY:
            return 1
        return int(struct.unpack_from("<Q", self.raw, 4)[0])


def u32(value: int) -> GgufValue:
    """An unsigned 32-bit number.

    Raises:
        RopeconvError: Where it does not fit.
    """
    return GgufValue(UINT32, _pack("I", value))


def f32(value: float) -> GgufValue:
    """A 32-bit float.

    Raises:
        RopeconvError: Where it does not fit.
    """
    return GgufValue(FLOAT32, _pack("f", value))


def _pack(code: str, value: float) -> bytes:
    """The bytes of a number. Raises RopeconvError where it does not fit."""
    try:
        return struct.pack("<" + code, value)
    except (struct.error, OverflowError):
        raise RopeconvError(
            f"{value:g} does not fit into the 32 bits that GGUF has for it; choose a smaller"
            " context, factor or theta"
        ) from None


def boolean(value: bool) -> GgufValue:
    return GgufValue(BOOL, struct.pack("<?", value))


def string(value: str) -> GgufValue:
    """A string, in UTF-8."""
    data = value.encode()
    return GgufValue(STRING, struct.pack("<Q", len(data)) + data)


def array(kind: int, values: Sequence[object]) -> GgufValue:
    """An array of numbers or bools.

    Args:
        kind: The number of the type of its elements in GGUF.
        values: The elements.
    """
    count = len(values)
    return GgufValue(ARRAY, struct.pack(f"<IQ{count}{FORMATS[kind]}", kind, count, *values))


def strings(values: Sequence[bytes]) -> GgufValue:
    """An array of strings."""
    parts = [struct.pack("<IQ", STRING, len(values))]
    for value in values:
        parts += (struct.pack("<Q", len(value)), value)
    return GgufValue(ARRAY, b"".join(parts))


class TensorType(NamedTuple):
    """A tensor type of ggml."""

    name: str
    block: int
    """Elements per block."""

    size: int
    """Bytes per block."""

    def bytes(self, shape: Iterable[int]) -> int:
        """Return the size in bytes of a tensor of a shape."""
        return prod(shape) // self.block * self.size


# ggml's numbers of tensor types
F32 = 0
F16 = 1
Q8_0 = 8
BF16 = 30
MXFP4 = 39

TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 36),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}


ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_NAME = 64
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 16
"""llama.cpp accepts any power of two; published files have 32."""
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 16
"""Published files have some hundred keys, and up to some thousand tensors."""
MAX_ELEMENTS = 1 << 20
MAX_VALUES = 1 << 26
"""Bytes of all values. A vocabulary of 262,144 tokens with its merges has 15 million."""
MAX_HEADER = MAX_VALUES + (1 << 24)
"""The most bytes of a header, or of those of all shards.

These are the values, and some hundred thousand for keys and tensors.
"""
SHORTEST_FILE = 24  # bytes: the magic, the version and two counts

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
U32_MAX = (1 << 32) - 1


@dataclass(frozen=True)
class TensorInfo:
    """The entry of a tensor in a GGUF header."""

    name: str
    shape: tuple[int, ...]
    """As in GGUF, fastest dimension first."""

    type: int
    """ggml's number."""

    offset: int
    """Bytes from the beginning of the data."""

    size: int
    """In bytes."""


@dataclass(frozen=True)
class GgufHeader:
    """The header of a file."""

    version: int
    values: dict[str, GgufValue]
    """Keys, not decoded."""

    tensors: dict[str, TensorInfo]
    alignment: int
    """The alignment of the data, in bytes."""

    data_start: int
    """Where the data begins, in bytes."""

    size: int
    """The size of the whole file, in bytes."""

    def get(self, key: str, default: object = None) -> Any:
        """Return the decoded value of a key; `default` where it is absent.

        Raises:
            BadSource: For arrays that are longer than any vocabulary.
        """
        value = self.values.get(key)
        if value is None:
            return default
        if value.count() > MAX_ELEMENTS:
            raise BadSource(
                f"the header has {value.count():,} values under {key!r}, too many there; fetch the"
                " file again"
            )
        return value.decode()

    def whole(self, key: str, default: int = 0) -> int:
        """Return the whole number of a key, or `default` where it is absent.

        Raises:
            BadSource: For another value.
        """
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadSource(
                f"the header has {key} = {shown(value)}, where a whole number belongs; fetch the"
                " file again"
            )
        return value

    @property
    def data_size(self) -> int:
        """The size in bytes of all tensors with the padding between them."""
        last = max(self.tensors.values(), key=lambda info: info.offset, default=None)
        if last is None:
            return 0
        return last.offset + last.size


def read_header(path: Path) -> GgufHeader:
    """Return the header of a GGUF file.

    Raises:
        BadSource: When it is truncated, claims more than the file has, or would be rejected by
            llama.cpp.
    """
    size = path.stat().st_size
    if size < SHORTEST_FILE:
        return parse_header(b"", size, path.name)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return parse_header(view, len(view), path.name)


def parse_header(view: mmap.mmap | bytes, size: int, name: str) -> GgufHeader:
    """Return the header of a GGUF file, from its first bytes.

    Args:
        view: The first bytes of the file, or all of them.
        size: The bytes of the whole file.
        name: The name of the file, for messages.

    Raises:
        MoreBytesNeeded: The header is longer than `view`, and the file has more bytes.
        BadSource: The header is damaged, or llama.cpp would reject it.
    """
    if size < SHORTEST_FILE:
        raise BadSource(f"{name} is {size} bytes, too short for GGUF; download it again")
    return _HeaderReader(view, size, name).header()


def read_value(kind: int, raw: bytes) -> GgufValue:
    """Return a value from the number of its type and its bytes, as a GGUF header has them.

    Type 4 (u32) and b"\\x01\\0\\0\\0" give the number 1.

    Args:
        kind: ggml's number of the type.
        raw: The bytes of the value, without the type.

    Raises:
        BadSource: Where the bytes are not a value of that type.
    """
    # The reader of headers can do this, for bytes as a header has them: the type as u32, and then
    # the value. An unknown type may be a number that does not fit into a u32; the largest u32
    # stands for it, which is unknown too, so that the reader refuses it.
    type_number = kind if kind in NAMES else U32_MAX
    type_and_value = U32.pack(type_number) + raw
    reader = _HeaderReader(type_and_value, len(type_and_value), name="the value")
    value = reader.value("it")  # the word for its key in messages
    if reader.at != reader.size:
        raise BadSource(
            f"{reader.size - reader.at:,} bytes are left behind a value; write it again"
        )
    return value


class MoreBytesNeeded(RopeconvError):
    """More of a file is needed to read its header: at least `stop` bytes."""

    def __init__(self, stop: int) -> None:
        super().__init__(f"the first {stop:,} bytes are needed")
        self.stop = stop


class _HeaderReader:
    """Reads a header. Counts are checked against the file size before they are used."""

    def __init__(self, view: mmap.mmap | bytes, size: int, name: str) -> None:
        self.view = view
        self.size = size
        self.name = name
        self.at = 0
        self.bytes_of_values = 0  # those of all values so far

    def header(self) -> GgufHeader:
        """Read the whole header."""
        version = self._magic()
        tensor_count = self._number(U64)
        key_count = self._number(U64)

        # the shortest key: the length of its name (8), its type (4) and one byte of value
        self._check_count(key_count, least=13, noun="keys", most=MAX_KEYS)
        values: dict[str, GgufValue] = {}
        for _ in range(key_count):
            key = self._text("a key")
            if key in values:
                raise self._bad(f"has the key {key!r} twice")
            values[key] = self.value(key)

        # only now the alignment is known, and with it where each tensor has to begin
        alignment = self._alignment(values.get(ALIGNMENT))

        # the shortest entry: length of the name (8), number of dimensions (4), type (4), offset (8)
        self._check_count(tensor_count, least=24, noun="tensors", most=MAX_TENSORS)
        infos: dict[str, TensorInfo] = {}
        expected = 0
        for _ in range(tensor_count):
            info = self._tensor(expected)
            if info.name in infos:
                raise self._bad(f"has the tensor {info.name!r} twice")
            infos[info.name] = info
            expected = info.offset + pad_size(info.size, alignment)

        data_start = pad_size(self.at, alignment)
        for info in infos.values():
            stop = data_start + info.offset + info.size
            if stop > self.size:
                raise BadSource(
                    f"{self.name} ends at {self.size} bytes, and {info.name} needs {stop};"
                    " download it again"
                )
        return GgufHeader(
            version=version,
            values=values,
            tensors=infos,
            alignment=alignment,
            # a file without tensors may end before the padding
            data_start=min(data_start, self.size),
            size=self.size,
        )

    def _magic(self) -> int:
        """Read the first bytes, and return the version."""
        magic = self._take(4)
        if magic != b"GGUF":
            hint = ""
            # "ggml", "ggmf", "ggjt" and "ggla" as llama.cpp wrote them: little-endian numbers
            if magic in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
                hint = ", an older format; convert the model again"
            raise self._bad(f"begins with {magic!r} and not with b'GGUF'{hint}")

        # the version of a big-endian file is in the upper half of this number (3 as 0x03000000)
        version = self._number(U32)
        if version & 0xFFFF == 0:
            raise self._bad(
                "is big-endian, which is not supported; convert the model again on a little-endian"
                " machine"
            )
        if version not in (2, 3):
            raise self._bad(
                f"has GGUF version {version}, and 2 and 3 are supported; convert the model again"
            )
        return version

    def _bad(self, clause: str) -> BadSource:
        """The error for a header; a clause without a fix gets one."""
        if ";" in clause:
            return BadSource(f"{self.name} {clause}")
        return BadSource(f"{self.name} {clause}; download it again")

    def _check_count(self, count: int, least: int, noun: str, most: int) -> None:
        """Refuse a count of things of at least `least` bytes that cannot be there."""
        if count * least > self.size - self.at:
            raise self._bad(
                f"claims {count} {noun}, more than a file of {self.size} bytes can hold"
            )
        if count > most:
            raise self._bad(f"claims {count} {noun}, and no model has more than {most}; {TOO_MANY}")

    def _take(self, length: int) -> bytes:
        """Read some bytes."""
        stop = self.at + length
        if stop > self.size:
            raise self._bad(f"is cut off: its header continues beyond its {self.size} bytes")
        self._require_bytes(stop)
        data = self.view[self.at : stop]
        self.at = stop
        return data

    def _require_bytes(self, stop: int) -> None:
        """Raise MoreBytesNeeded if fewer than `stop` bytes of the file were read.

        Raises BadSource for more bytes than any header has.
        """
        if stop > MAX_HEADER:
            raise self._bad(
                f"has a header of more than {MAX_HEADER:,} bytes, and no model has as many;"
                f" {TOO_MANY}"
            )
        if stop > len(self.view):
            raise MoreBytesNeeded(stop)

    def _number(self, form: struct.Struct) -> int:
        """Read a number."""
        return int(form.unpack(self._take(form.size))[0])

    def _text(self, noun: str) -> str:
        """Read a short string."""
        length = self._number(U64)
        if length > 0xFFFF:
            raise self._bad(f"has {noun} of {length} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._bad(f"has {noun} that is not UTF-8") from None

    def value(self, key: str) -> GgufValue:
        """Return the value at the present place of the header, with its bytes undecoded.

        Args:
            key: The key of the value, for messages.

        Raises:
            BadSource: The value is damaged, or larger than in any model.
            MoreBytesNeeded: Only the first bytes of the file were read, and the value ends later.
        """
        # pass over the value, whose length follows from its type and the lengths inside
        kind = self._number(U32)
        start = self.at
        if kind == ARRAY:
            self._skip_array(key)
        elif kind == STRING:
            self._skip_strings(1, key)
        elif kind in SIZES:
            self._skip_bytes(SIZES[kind], key)
        else:
            raise self._bad(f"has a value of unknown type {kind} under {key!r}")

        length = self.at - start
        self._refuse_long(length, key)
        self.bytes_of_values += length
        self._require_bytes(self.at)
        return GgufValue(kind, self.view[start : self.at])

    def _refuse_long(self, length: int, key: str) -> None:
        """Raise BadSource if the values, with `length` bytes more, are larger than in any model."""
        if self.bytes_of_values + length > MAX_VALUES:
            raise self._bad(
                f"has more than {MAX_VALUES} bytes of values up to {key!r}, and no model has as"
                f" many; {TOO_MANY}"
            )

    def _skip_bytes(self, length: int, key: str) -> None:
        """Pass over bytes of a value, without reading them."""
        if length > self.size - self.at:
            raise self._bad(f"is cut off within {key!r}, or its length there is wrong")
        self.at += length

    def _skip_array(self, key: str) -> None:
        """Pass over an array: the type of its elements, their number, and the elements."""
        element = self._number(U32)
        count = self._number(U64)
        if element == STRING:
            self._skip_strings(count, key)
        elif element in SIZES:
            self._skip_bytes(count * SIZES[element], key)
        else:
            raise self._bad(f"has an array of type {NAMES.get(element, element)} under {key!r}")

    def _skip_strings(self, count: int, key: str) -> None:
        """Move `self.at` behind the strings of an array, without reading their text.

        A string in GGUF is its length, in 8 bytes, and its text.

        Args:
            count: The number of strings.
            key: The key of the array, for messages.

        Raises:
            BadSource: A string ends beyond the end of the file.
            MoreBytesNeeded: `self.view`, the bytes of the file that were read, ends too early.
        """
        # a wrong count, such as 2**60, is refused before the loop: each string takes 8 bytes
        most_bytes = min(self.size - self.at, MAX_VALUES)
        if count * 8 > most_bytes:
            raise self._bad(f"claims {count} strings under {key!r}, more than a header can hold")

        # vocabularies have some hundred thousand strings, and local names take half the time
        unpack: Callable[[mmap.mmap | bytes, int], tuple[int]] = U64.unpack_from
        view = self.view
        at = self.at  # where the next string begins
        last_readable = len(view) - 8  # the last place where a length can be read
        for _ in range(count):
            if at > last_readable:
                self._raise_for_missing_length(at, key)
            (length,) = unpack(view, at)
            at += 8 + length

        if at > self.size:
            raise self._bad(f"is cut off within {key!r}, or a length there is wrong")
        self.at = at

    def _raise_for_missing_length(self, string_start: int, key: str) -> None:
        """Raise an exception because the length of a string is behind the bytes that were read.

        For a file on the Hub, only the first bytes are read. MoreBytesNeeded has the number of
        bytes to read before the header is parsed again.

        Args:
            string_start: The place of the string, which begins with its length.
            key: The key of the array. The first of its strings is at `self.at`.

        Raises:
            BadSource: The file ends before the string, or the strings before it are longer than
                in any model, since one of their lengths is wrong.
            MoreBytesNeeded: The file has the string.
        """
        end_of_length = string_start + 8
        if end_of_length > self.size:
            raise self._bad(f"is cut off within {key!r}")
        bytes_of_strings_before = string_start - self.at
        self._refuse_long(bytes_of_strings_before, key)
        self._require_bytes(end_of_length)

    def _alignment(self, value: GgufValue | None) -> int:
        """Return the alignment of tensors in bytes, from the value of general.alignment.

        Without the key (None) it is 32, as in gguf-py.
        """
        if value is None:
            return DEFAULT_ALIGNMENT
        # 0 stands for a value of another type, which llama.cpp refuses too
        alignment = 0
        if value.kind == UINT32:
            alignment = value.decode()
        is_power_of_two = alignment > 0 and alignment & (alignment - 1) == 0
        if not is_power_of_two:
            raise self._bad(
                f"has {ALIGNMENT} {shown(value.decode())}, which must be a power of two (u32)"
            )
        if alignment > MAX_ALIGNMENT:
            raise self._bad(
                f"has {ALIGNMENT} {alignment}, and at most {MAX_ALIGNMENT} is read here; convert it"
                " again"
            )
        return int(alignment)

    def _tensor(self, expected: int) -> TensorInfo:
        """Read the entry of a tensor.

        It is: length of the name | name | number of dimensions | length of each | type | offset.

        Args:
            expected: The offset that it must have, in bytes from the data of the first tensor.
        """
        # these are the limits of ggml's own reader, which needs a zero byte behind a name
        # (GGML_MAX_NAME, GGML_MAX_DIMS in ggml.h; gguf.cpp)
        name = self._text("a tensor name")
        if len(name.encode()) >= MAX_NAME:
            raise self._bad(
                f"has a tensor name of {len(name)} letters, and {MAX_NAME - 1} are allowed"
            )

        dims = self._number(U32)
        if dims > MAX_DIMS:
            raise self._bad(f"gives {name!r} {dims} dimensions, and {MAX_DIMS} are allowed")
        shape = tuple(self._number(U64) for _ in range(dims))
        number = self._number(U32)
        kind = TYPES.get(number)
        if kind is None:
            raise self._bad(f"holds {name!r} in the unknown tensor type {number}")

        # a row is whole blocks, such as 32 weights of Q8_0; ggml counts elements in an int64
        row_length = shape[0] if shape else 1
        has_whole_blocks = row_length % kind.block == 0
        is_too_large = prod(shape) >= 1 << 62
        if not has_whole_blocks or is_too_large:
            raise self._bad(f"gives {name!r} the shape {shape}, impossible for {kind.name}")

        # llama.cpp loads only files whose tensors follow one another in the order of their entries
        offset = self._number(U64)
        if offset != expected:
            raise self._bad(
                f"has {name!r} at offset {offset} and not at {expected}: its tensors overlap or"
                " leave gaps"
            )
        return TensorInfo(
            name=name, shape=shape or (1,), type=number, offset=offset, size=kind.bytes(shape)
        )


def pad_size(size: int, alignment: int) -> int:
    """Return a size in bytes, rounded up to a multiple of the alignment."""
    return (size + alignment - 1) // alignment * alignment
