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
from ..formats.gguf.edit import Edit, write_new
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
    """Return a base and divisors of its frequencies by which llama.cpp computes a schedule.

    llama.cpp divides the frequencies of a base b by the tensor rope_freqs, and
    frequency_i = b^(-2i/r) / divisor_i has a solution for every base. Here r is `rotary_dim`, and i
    counts the pairs of dimensions.

    The base is `base_ratio` times that of the source. Outputs have the base of the source or that
    of their method. So the reference has another base and other divisors than any output, and a
    fault in the numbers of an output is not in the reference.

    Args:
        file: The GGUF file of the source.
        spec: The RoPE of the source.
        schedule: The frequencies and the attention factor to compute.
        base_ratio: The base of the reference over that of the source, such as 8.
    """
    plain = Plain(base_ratio * spec.rope_theta)  # the form of RoPE with a base only
    keys = overrides(replace(schedule, form=plain), arch_of(file).name)
    assert keys is not None, "a plain base has keys"

    # divisor = frequency of the base / wanted frequency, [rotary_dim / 2]; a pair that must not
    # rotate has a wanted frequency of 0, to which a divisor of 1e30 comes near enough
    rotates = schedule.inv_freq > 0
    wanted = np.where(rotates, schedule.inv_freq, 1.0)  # no division by 0
    divisors = np.where(rotates, plain.inv_freq(spec.rotary_dim) / wanted, 1e30)

    # llama.cpp may expect a longer tensor: in step35 as long as its layers with a window need it,
    # which rotate more pairs; a divisor of 1 changes nothing
    stored = stored_pairs(ArchKeys(file, arch_of(file)), spec.rotary_dim)
    padding = np.ones(stored - len(divisors))
    divisors = np.concatenate([divisors, padding])
    return Divisors(divisors.astype("<f4").tobytes(), keys)


def write_divisors(
    file: GgufFile, spec: RopeSpec, schedule: Schedule, folder: Path, base_ratio: float
) -> LlamaCppEngine:
    """Copy a GGUF file with other frequencies, and return llama.cpp with the copy, not yet loaded.

    llama.cpp computes the frequencies of a base, and divides them by the numbers of the tensor
    rope_freqs. The copy has that tensor, and the base is given when it is loaded, so that together
    they give the schedule (`compute_divisors`).

    Args:
        file: The file, whose own scaling is taken away.
        spec: The RoPE of the source.
        schedule: The frequencies and the attention factor.
        folder: Where the copy is written.
        base_ratio: The base of the copy over that of the source, such as 8.
    """
    divisors = compute_divisors(file, spec, schedule, base_ratio)

    # the copy, whose rope_freqs replaces one that the file may have
    replaced: frozenset[str] = frozenset()
    if ROPE_FREQS in file.tensors:
        replaced = frozenset({ROPE_FREQS})
    edit = Edit(added={ROPE_FREQS: divisors.tensor}, removed=replaced)
    for shard, path in enumerate(file.paths):
        write_new(file, shard, edit, folder / path.name)

    # llama.cpp loads the first shard, which names the others; metadata keys give the base
    first_shard = folder / file.path.name
    return LlamaCppEngine(first_shard, divisors.keys)


def replace_divisors(copy: GgufFile, divisors: Divisors) -> None:
    """Write other divisors into a temporary file that has some already."""
    # new tensors are in the first shard, see `write_new`
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
