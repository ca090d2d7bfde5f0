"""Make llama.cpp compute a schedule from a GGUF file in another way than an output does.

llama.cpp divides the frequencies of a base by the tensor rope_freqs. `write_divisors` uses that
with another base than the model has, so that no number of the reference is one of the output while
the result is the same: a fault of one way is not repeated by the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..engines.engine import Progress
from ..engines.llamacpp import LlamaCppEngine, overrides
from ..engines.llamacpp_program import Override
from ..formats.files import scratch
from ..formats.gguf.edit import Edit, write_shards
from ..formats.gguf.file import GgufFile
from ..rope.forms import Plain
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.archs import arch_table
from ..runtimes.llamacpp.read_header import FREQS as ROPE_FREQS
from ..runtimes.llamacpp.read_header import WINDOW_NORM, arch_of, stored_pairs
from ..runtimes.llamacpp.scaling import ArchKeys
from .sampling import TokenRun

Logits = NDArray[np.float32]
"""Logits after tokens, [tokens, vocabulary]."""

REFERENCE_BASE_RATIO = 8.0
"""The base of a reference with divisors, over that of its source.

A runtime that ignores the divisors then has frequencies that are far from right.
"""
SECOND_BASE_RATIO = 4.0
"""The same for a second reference, which shows how far two ways of rounding are apart."""


@dataclass(frozen=True)
class Divisors:
    """A tensor rope_freqs and metadata keys, with which llama.cpp computes a schedule."""

    tensor: bytes
    """The divisors, little-endian float32 [rotary_dim / 2]; longer where llama.cpp wants that."""

    keys: dict[str, Override]
    """Types and values of the keys, given when the file is loaded."""


def compute_divisors(
    file: GgufFile, spec: RopeSpec, schedule: Schedule, base_ratio: float
) -> Divisors:
    """Return a base and divisors that make llama.cpp compute the frequencies of a schedule.

    llama.cpp computes b^(-2i/r) / divisor_i for pair i of the r rotated dimensions. The divisors
    are the tensor rope_freqs, and the base b is a metadata key. Every base b has divisors that give
    the wanted frequencies. A base that no output has is chosen here, so that the numbers differ
    from the numbers in the output, which may be wrong.

    Args:
        file: The GGUF file of the source.
        spec: The RoPE of the source.
        schedule: The wanted frequencies and attention factor.
        base_ratio: The chosen base over the base of the source, such as 8.
    """
    # the base, as metadata keys for llama.cpp
    plain_rope = Plain(base_ratio * spec.rope_theta)
    keys = overrides(replace(schedule, form=plain_rope), arch_of(file).name, spec)
    assert keys is not None, "a plain base has keys"

    # the divisors: frequency of the base / wanted frequency, [rotary_dim / 2]
    base_frequencies = plain_rope.inv_freq(spec.rotary_dim)
    rotates = schedule.inv_freq > 0
    wanted_frequencies = np.where(rotates, schedule.inv_freq, 1.0)  # no division by 0
    # pairs that must not rotate: a frequency divided by 1e30 is nearly 0
    divisors = np.where(rotates, base_frequencies / wanted_frequencies, 1e30)

    # Step 3.5: layers with a sliding window rotate more pairs, and llama.cpp expects a tensor of
    # their length for all layers. The divisors that are added are 1, which changes nothing.
    stored_count = stored_pairs(ArchKeys(file, arch_of(file)), spec.rotary_dim)
    padding = np.ones(stored_count - len(divisors))
    divisors = np.concatenate([divisors, padding])
    return Divisors(divisors.astype("<f4").tobytes(), keys)


def write_divisors(
    file: GgufFile, spec: RopeSpec, schedule: Schedule, folder: Path, base_ratio: float
) -> LlamaCppEngine:
    """Copy a GGUF file, with the frequencies of a schedule in place of the scaling of the file.

    llama.cpp computes frequencies from a base, and divides them by the tensor rope_freqs. The
    tensor is written into the copy. The base is a metadata key that llama.cpp gets when it loads
    the copy.

    Args:
        file: The file.
        spec: The RoPE of the source.
        schedule: The frequencies and the attention factor.
        folder: Where the copy is written.
        base_ratio: The base for the copy over the base of the source, such as 8.

    Returns:
        An engine that will load the copy with that base.
    """
    divisors = compute_divisors(file, spec, schedule, base_ratio)

    # a tensor rope_freqs of the file is removed, since another one is added
    removed: frozenset[str] = frozenset()
    if ROPE_FREQS in file.tensors:
        removed = frozenset({ROPE_FREQS})
    edit = Edit(added={ROPE_FREQS: divisors.tensor}, removed=removed)

    # llama.cpp is given the first shard, and finds the other shards by their names
    first_shard = write_shards(file, edit, folder)
    return LlamaCppEngine(first_shard, divisors.keys)


def replace_divisors(copy: GgufFile, divisors: Divisors) -> None:
    """Write other divisors into a temporary file that has some already."""
    # new tensors are in the first shard, see `write_shards`
    offset = copy.header.data_start + copy.header.tensors[ROPE_FREQS].offset
    with copy.path.open("r+b") as file:
        file.seek(offset)
        file.write(divisors.tensor)


def run_logits(
    engine: LlamaCppEngine, runs: list[TokenRun], progress: Progress | None = None
) -> Logits:
    """Return the logits of all runs, one after another, from one process of llama.cpp."""
    with engine.opened():
        parts = []
        for run in runs:
            positions = run.positions if run.has_gaps else None
            parts.append(engine.logits_array(run.ids, run.kept, progress, positions))
    return np.concatenate(parts)


def run_with_divisors(
    file: GgufFile,
    spec: RopeSpec,
    schedule: Schedule,
    base_ratio: float,
    runs: list[TokenRun],
    progress: Progress | None = None,
) -> Logits:
    """Return the logits of a copy of a file, made by `write_divisors`."""
    with scratch() as folder:
        return run_logits(write_divisors(file, spec, schedule, folder, base_ratio), runs, progress)


def scales_otherwise(source: GgufFile, output: GgufFile, schedule: Schedule) -> bool:
    """Return whether a method changes more than frequencies and one factor on cos and sin.

    Neither keys nor divisors can scale queries by position, or norms, or YaRN's own log factor.
    """
    multiplier = f"{arch_of(source).name}.rope.scaling.yarn_log_multiplier"
    scales_norms = output.get(WINDOW_NORM) is not None
    return bool(schedule.log_n) or scales_norms or bool(source.get(multiplier))


def takes_divisors(file: GgufFile, spec: RopeSpec, schedule: Schedule) -> bool:
    """Return whether divisors can hold every frequency of a schedule.

    The architecture has to read rope_freqs, whose one list is for all layers and all lengths.
    """
    reads_divisors = arch_of(file).freqs == "used"
    has_one_list = "local" not in spec.layers and not has_two_lists(spec, schedule)
    return reads_divisors and has_one_list


def takes_any_position(file: GgufFile, spec: RopeSpec, schedule: Schedule) -> bool:
    """Return whether blocks of tokens can be at far positions, with nothing between them.

    The model must keep nothing but keys and values: the states of Mamba have no gaps. It must not
    choose its frequencies by the length of the text either.
    """
    return not (keeps_states(file) or has_two_lists(spec, schedule))


def keeps_states(file: GgufFile) -> bool:
    """Return whether a model keeps states, which llama.cpp cannot continue at a far position.

    Every layer of Falcon-H1 has one beside its attention, so the layers without attention do not
    tell.
    """
    return arch_of(file).name in arch_table().states


def has_two_lists(spec: RopeSpec, schedule: Schedule) -> bool:
    """Return whether a model has other frequencies for short texts, before or after the method."""
    return schedule.short_inv_freq is not None or spec.current().short_inv_freq is not None
