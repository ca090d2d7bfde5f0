"""Reads the RoPE of a GGUF file on disk as llama.cpp does: architecture, rope tensors, and the Reading of both."""

from __future__ import annotations

import numpy as np

from ...errors import BadSource
from ...formats.gguf import GgufFile
from ...formats.gguf.types import F32, TYPES
from ...rope.forms import Vector
from .archs import Arch, arch_of_header
from .other_kinds import other_kind
from .read_header import ROPE_TENSORS, Reading, read


def arch_of(file: GgufFile) -> Arch:
    """The architecture of a file. Raises BadSource where it is no language model with RoPE, or an unknown one."""
    other = other_kind(file)
    if other:
        raise BadSource(f"{file.name} {other}")
    return arch_of_header(file)


def rope_tensors(file: GgufFile) -> dict[str, Vector]:
    """The divisors in a file's rope tensors, float64, by the tensor's name.

    Raises BadSource for types on which llama.cpp aborts, and for divisors that are not positive.
    """
    found = {}
    for name in ROPE_TENSORS:
        info = file.tensors.get(name)
        if info is None:
            continue
        if info.type != F32:
            raise BadSource(
                f"{name} is {TYPES[info.type].name}, on which llama.cpp aborts, and not F32; fetch the file again"
            )
        if len(info.shape) > 1 or info.size > 1 << 16:
            raise BadSource(f"{name} has the shape {info.shape}, and one number per pair belongs there")
        found[name] = np.frombuffer(file.read(name), "<f4").astype(np.float64)
        if not (found[name] > 0).all():
            raise BadSource(f"{name} has divisors that are not positive; fetch the file again")
    return found


def read_file(file: GgufFile) -> Reading:
    """The RoPE that llama.cpp computes from a file. Raises BadSource where it would refuse the file or abort."""
    return read(file, rope_tensors(file), arch_of(file))
