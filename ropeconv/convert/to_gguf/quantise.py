"""Quantisation: how llama.cpp's quantiser makes a GGUF file of one with floats.

`choose_quantisation` reads the options, `Quantisation.plan` asks llama.cpp which type each tensor
gets, and `Quantisation.run` writes the file. Both run llama.cpp in a process of its own.
"""

import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...environment import Requirement, without_secrets
from ...errors import UnsupportedBake, UsageError
from ...formats.files import scratch
from ...formats.gguf.edit import RewrittenHeader
from ...formats.gguf.header import TYPES, GgufValue, TensorInfo, pad_size, string, u32
from ...options import TargetOptions
from ...rope.errors import RopeconvError
from .imatrix import ImportanceMatrix

PROGRAM = Path(__file__).with_name("quantise_program.py")

FTYPES: dict[str, tuple[int, float]] = {
    "q4_0": (2, 4.6),
    "q4_1": (3, 5.1),
    "q5_0": (8, 5.6),
    "q5_1": (9, 6.1),
    "q2_k": (10, 3.2),
    "q2_k_s": (21, 3.0),
    "q3_k_s": (11, 3.6),
    "q3_k_m": (12, 4.0),
    "q3_k_l": (13, 4.3),
    "q4_k_s": (14, 4.7),
    "q4_k_m": (15, 4.9),
    "q5_k_s": (16, 5.6),
    "q5_k_m": (17, 5.7),
    "q6_k": (18, 6.6),
    "iq1_s": (24, 1.9),
    "iq1_m": (31, 2.0),
    "iq2_xxs": (19, 2.4),
    "iq2_xs": (20, 2.6),
    "iq2_s": (28, 2.8),
    "iq2_m": (29, 2.9),
    "iq3_xxs": (23, 3.3),
    "iq3_xs": (22, 3.5),
    "iq3_s": (26, 3.5),
    "iq3_m": (27, 3.7),
    "iq4_xs": (30, 4.4),
    "iq4_nl": (25, 4.6),
    "tq1_0": (36, 2.2),
    "tq2_0": (37, 2.5),
    "mxfp4_moe": (38, 4.6),
    "q1_0": (40, 1.6),
    "q2_0": (41, 2.7),
}
"""By name, the number in llama.h's llama_ftype, and the bits per weight of a usual model."""
Q8_0 = (7, 8.5)
"""The same for q8_0, which ropeconv writes itself unless types of single tensors are given."""

BY_IMPORTANCE = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
"""Types for which llama.cpp needs an importance matrix (`tensor_requires_imatrix`)."""
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
NEVER_NEEDED = (*EMBEDDINGS, "output.weight")
TYPES_OF_NO_WEIGHT = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")
"""Types of ggml that no weight of a file can have."""
MOST_TEXT = 127
"""The most bytes of a text that llama.cpp's quantiser adds to a header."""


def quantiser(outtype: str) -> Requirement:
    """Return what quantising to a type needs."""
    return Requirement("llama_cpp", f"--outtype {outtype}")


@dataclass(frozen=True)
class Quantisation:
    """How llama.cpp's quantiser makes the output, as the options of llama-quantize say."""

    outtype: str
    """A key of FTYPES, or q8_0."""

    imatrix: ImportanceMatrix | None = None

    tensor_types: tuple[tuple[str, int], ...] = ()
    """Patterns of names in lower case, each with ggml's number of a type; the first that fits."""

    output_type: int | None = None
    """The type of output.weight; None for llama.cpp's choice."""

    embedding_type: int | None = None
    """The type of the embeddings; None for llama.cpp's choice."""

    @property
    def file_type(self) -> int:
        """The `general.file_type` of the output."""
        return FTYPES.get(self.outtype, Q8_0)[0]

    @property
    def usual_bits(self) -> float:
        """The bits per weight of a usual model."""
        return FTYPES.get(self.outtype, Q8_0)[1]

    @property
    def keys(self) -> dict[str, str | int]:
        """The metadata keys about the importance matrix, as llama-quantize adds them.

        For instance {"quantize.imatrix.entries_count": 196, ...}. For the file, llama-quantize
        writes the path, and ropeconv only the name.
        """
        if self.imatrix is None:
            return {}
        keys: dict[str, str | int] = {"quantize.imatrix.file": _shortened(self.imatrix.name)}
        if self.imatrix.dataset:
            keys["quantize.imatrix.dataset"] = _shortened(self.imatrix.dataset)
        keys["quantize.imatrix.entries_count"] = len(self.imatrix.entries)
        if self.imatrix.chunks > 0:
            keys["quantize.imatrix.chunks_count"] = self.imatrix.chunks
        return keys

    @property
    def values(self) -> dict[str, GgufValue]:
        """These keys with their types in the header."""
        return {
            key: u32(value) if isinstance(value, int) else string(value)
            for key, value in self.keys.items()
        }

    def plan(self, header: RewrittenHeader) -> dict[str, int]:
        """Return the ggml type that llama.cpp's quantiser would give to each tensor of a file.

        Args:
            header: The header of the GGUF file before quantisation, whose weights are floats.

        Returns:
            The numbers of the types by the names of the tensors, in the order of the output.

        Raises:
            UnsupportedBake: For a tensor that llama.cpp would not quantise, such as for lack of an
                importance matrix.
            RopeconvError: Where llama.cpp fails.
        """
        with scratch() as folder:
            # A dry run of llama.cpp reads only the header of its input. So the input is the header,
            # then a hole of the size of the tensors. The output needs a name, but is not written.
            floats = folder / "header.gguf"
            head = header.bytes_with_reserve(0)
            floats.write_bytes(head)
            with floats.open("r+b") as file:
                file.truncate(len(head) + header.data_size)
            never_written = folder / "none.gguf"
            type_names = self._quantise(floats, never_written, dry_run=True)

        # from names, {"blk.0.attn_q.weight": "q4_K"}, to numbers of ggml; -1 for an unknown name
        number_of_type = {kind.name.lower(): number for number, kind in TYPES.items()}
        types = {}
        for tensor, type_name in type_names.items():
            types[tensor] = number_of_type.get(type_name.lower(), -1)
        lists_all_tensors = types.keys() == header.tensors.keys()
        if not lists_all_tensors or -1 in types.values():
            raise RopeconvError(
                "llama.cpp's quantiser does not list the types of the tensors as version 0.3.36 of"
                " llama-cpp-python does; install that"
            )

        self._check_tensors(header.tensors, types)
        # each pattern of --tensor-type must match the name of some tensor
        self._check_patterns(header.tensors)
        return types

    def run(self, source: Path, target: Path) -> None:
        """Quantise a GGUF file to a new one.

        Args:
            source: The file.
            target: The new file.

        Raises:
            RopeconvError: Where llama.cpp fails.
        """
        self._quantise(source, target, dry_run=False)

    def _quantise(self, source: Path, target: Path, dry_run: bool) -> dict[str, str]:
        """Run llama.cpp's quantiser in a separate process, and return the type of each tensor.

        Args:
            source: The GGUF file before quantisation, whose weights are floats.
            target: The file to write.
            dry_run: Whether only the types are computed, and nothing is written.

        Returns:
            The types that llama.cpp logs, such as {"output.weight": "q6_K"}.

        Raises:
            RopeconvError: Where llama.cpp fails.
        """
        with scratch() as folder:
            imatrix_path = ""  # none
            if self.imatrix is not None:
                imatrix_path = str(folder / "imatrix.npz")
                np.savez(imatrix_path, **dict(self.imatrix.entries))  # type: ignore[arg-type]
            return _run_program(
                self.outtype,
                source,
                target,
                file_type=self.file_type,
                imatrix=imatrix_path,
                tensor_types=self.tensor_types,
                output_type=self.output_type,
                embedding_type=self.embedding_type,
                keys=self.keys,
                dry_run=dry_run,
                from_quantised=False,  # the source has floats
            )

    def _check_tensors(self, tensors: Mapping[str, TensorInfo], types: Mapping[str, int]) -> None:
        """Raise UnsupportedBake for a tensor that llama.cpp would not quantise.

        Args:
            tensors: The tensors before quantisation, by name.
            types: The ggml type that each tensor gets, by name.

        Raises:
            UnsupportedBake: For a tensor that is quantised already, for a type that needs an
                importance matrix, and for an importance matrix of another model.
        """
        # the importance of each column of a weight, by the name of the weight
        importance = {} if self.imatrix is None else self.imatrix.entries
        matrix_is_used = False
        for name, type in types.items():
            info = tensors[name]
            is_copied = type == info.type
            if is_copied:
                continue

            # a tensor that is quantised already: its type stores several numbers in one block
            stored = TYPES[info.type]
            is_quantised = stored.block > 1
            if is_quantised:
                self._refuse(
                    f"{name} is {stored.name} in the checkpoint, which is not quantised again",
                    "pass --outtype mxfp4_moe, or auto",
                )

            # a weight with an entry in the importance matrix, or without the entry that it needs
            if name in importance:
                matrix_is_used = True
                self._check_entry(importance[name], info)
            elif self._needs_importance(name, type):
                reason = f"{name} becomes {TYPES[type].name}, which needs an importance matrix"
                if self.imatrix is not None:
                    reason += f", and {self.imatrix_name} has no entry for it"
                self._refuse(
                    reason,
                    "pass --imatrix FILE with that of this model, which `ropeconv imatrix` makes",
                )

        # an importance matrix of another model
        if importance and not matrix_is_used:
            self._refuse(
                f"{self.imatrix_name} has no weight of this model",
                "give the importance matrix of this model",
            )

    def _check_entry(self, entry: NDArray[np.float32], weight: TensorInfo) -> None:
        """Refuse an entry of the importance matrix that has not a number for each column."""
        if weight.name in EMBEDDINGS:  # llama.cpp does not check these
            return
        # the shape is [columns, rows] or [columns, rows, experts]; each expert has its own numbers
        experts = prod(weight.shape[2:])  # 1 for a weight without experts
        columns = weight.shape[0] * experts
        if entry.size != columns:
            self._refuse(
                f"{self.imatrix_name} has {entry.size:,} numbers for {weight.name}, and the model"
                f" has {columns:,} columns",
                "give the importance matrix of this model",
            )

    def _check_patterns(self, tensors: Collection[str]) -> None:
        """Refuse a pattern that fits the name of no tensor, which llama.cpp ignores.

        Raises:
            UsageError: For the first such pattern.
        """
        for pattern, type_number in self.tensor_types:
            # llama.cpp's patterns are those of ECMAScript; Python's have no [[:digit:]]
            is_known_to_python = "[:" not in pattern
            if not is_known_to_python:
                continue
            if any(re.search(pattern, name) for name in tensors):
                continue
            type_name = TYPES[type_number].name.lower()
            example = next(iter(tensors))
            raise UsageError(
                f"--tensor-type {pattern}={type_name} fits no tensor of this model; correct the"
                f" name ({example} is one), or leave it out"
            )

    @property
    def imatrix_name(self) -> str:
        """The name of the file with the importance matrix; empty without one."""
        return "" if self.imatrix is None else self.imatrix.name

    def _refuse(self, reason: str, repair: str) -> None:
        raise UnsupportedBake(f"--outtype {self.outtype}", "llama.cpp's quantiser", reason, repair)

    def _needs_importance(self, name: str, type: int) -> bool:
        """Whether llama.cpp refuses to quantise a tensor to a type without an importance matrix."""
        if name in NEVER_NEEDED:
            return False
        kind = TYPES[type].name
        return kind in BY_IMPORTANCE or (kind == "Q2_K" and self.outtype == "q2_k_s")


def dequantise(source: Path, target: Path) -> None:
    """Write a copy of a GGUF file with all weights in float32, as llama.cpp dequantises them.

    Args:
        source: The file, or the first of several shards.
        target: The new file, which is one file.

    Raises:
        RopeconvError: Where llama.cpp fails.
    """
    _run_program(
        "f32",
        source,
        target,
        file_type=0,  # LLAMA_FTYPE_ALL_F32 of llama.h
        imatrix="",
        tensor_types=(),
        output_type=None,
        embedding_type=None,
        keys={},
        dry_run=False,
        from_quantised=True,
    )


def _run_program(outtype: str, source: Path, target: Path, **settings: object) -> dict[str, str]:
    """Run PROGRAM with settings, and return the type of each tensor that llama.cpp logs.

    Args:
        outtype: The type for messages.
        source: A GGUF file.
        target: The file that is written.
        settings: All other settings of the program.

    Raises:
        RopeconvError: llama.cpp fails.
    """
    quantiser(outtype).check()
    given = {"source": str(source), "target": str(target), **settings}
    # -P keeps modules of the current folder out
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), json.dumps(given)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=without_secrets(),
    )
    if done.returncode != 0:
        reason = _last_error(done.stderr)
        raise RopeconvError(f"llama.cpp did not quantise to {outtype}: {reason[:300]}")
    types: dict[str, str] = json.loads(done.stdout)
    return types


def _last_error(log: str) -> str:
    """Return the last line of llama.cpp's log about an error, which has the reason."""
    reason = "no message"
    for line in log.splitlines():
        if re.search("error|fail", line, re.IGNORECASE):
            reason = line.strip()
    return reason


def _shortened(text: str) -> str:
    """A text that llama.cpp's quantiser can add to a header."""
    return text.encode()[:MOST_TEXT].decode(errors="ignore")


def choose_quantisation(
    options: TargetOptions, imatrix: ImportanceMatrix | None = None
) -> Quantisation | None:
    """Return how llama.cpp quantises the output; None where ropeconv writes it itself.

    Args:
        options: The options of the output.
        imatrix: The importance matrix.

    Raises:
        UsageError: For a type that is not known, and options that have no effect.
    """
    outtype = options.outtype or "auto"
    given = {
        "--imatrix": imatrix,
        "--tensor-type": options.tensor_type,
        "--output-tensor-type": options.output_tensor_type,
        "--token-embedding-type": options.token_embedding_type,
    }
    flags = [flag for flag, value in given.items() if value]

    # ropeconv writes q8_0 and floats itself, unless q8_0 comes with types of single tensors
    is_made_by_llamacpp = outtype in FTYPES
    if outtype == "q8_0" and flags:
        is_made_by_llamacpp = True
    if not is_made_by_llamacpp:
        if flags:
            raise UsageError(
                f"{flags[0]} is for llama.cpp's quantiser; add an --outtype such as q4_k_m, or"
                " leave it out"
            )
        return None

    return Quantisation(
        outtype=outtype,
        imatrix=imatrix,
        tensor_types=tuple(_parse_tensor_type(text) for text in options.tensor_type),
        output_type=_optional_type("--output-tensor-type", options.output_tensor_type),
        embedding_type=_optional_type("--token-embedding-type", options.token_embedding_type),
    )


def _parse_tensor_type(text: str) -> tuple[str, int]:
    """The pattern and ggml's number of the type: "attn_v=q8_0" gives ("attn_v", 8)."""
    pattern, equals, type_name = text.rpartition("=")
    if not equals or not pattern:
        raise UsageError(f"--tensor-type {text}: write it like attn_v=q8_0")
    try:
        re.compile(pattern)
    except re.error as problem:
        raise UsageError(f"--tensor-type {text}: {pattern} is not a pattern ({problem})") from None
    # llama-quantize compares names with the pattern in lower case
    return pattern.lower(), _type_number("--tensor-type", type_name)


def _optional_type(flag: str, word: str | None) -> int | None:
    return None if word is None else _type_number(flag, word)


def _type_number(flag: str, word: str) -> int:
    """ggml's number of a type. Raises UsageError for a word that is none."""
    numbers = {}
    for number, kind in TYPES.items():
        if kind.name not in TYPES_OF_NO_WEIGHT:
            numbers[kind.name.lower()] = number
    if word.lower() not in numbers:
        known = ", ".join(numbers)
        raise UsageError(f"{flag}: '{word}' is not a type of ggml; choose {known}")
    return numbers[word.lower()]


def size_of(tensors: Mapping[str, TensorInfo], types: Mapping[str, int]) -> int:
    """Return the bytes of all tensors with the padding between them.

    Args:
        tensors: The tensors with their shapes.
        types: ggml's number of the type that each of them gets.
    """
    sizes = quantised_sizes(tensors, types)
    return sum(pad_size(size, 32) for size in sizes.values())


def quantised_sizes(tensors: Mapping[str, TensorInfo], types: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of each tensor in another type, in the order of the types."""
    return {name: TYPES[type].bytes(tensors[name].shape) for name, type in types.items()}
