"""Encoding `tensor`: any frequency vector as divisors of the base, in rope_freqs or two lists."""

import numpy as np

from ...errors import UnsupportedBake
from ...formats.gguf.edit import Edit
from ...formats.gguf.header import string, u32
from ...rope.forms import Plain, Vector, divisors
from ...rope.schedule import Schedule
from ...runtimes.llamacpp.archs import arch_of_header
from ...runtimes.llamacpp.read_header import FREQS, LONG, SHORT, stored_pairs
from ...runtimes.llamacpp.scaling import ArchKeys
from ..gguf_encoding import (
    GgufModel,
    fitting_keys,
    gguf_encoding,
    put_vector,
    start,
    with_attention_factor,
)


@gguf_encoding("tensor", order=2)
def tensor(schedule: Schedule, model: GgufModel) -> Edit:
    """Write the schedule as rope tensors, by whose numbers llama.cpp divides the base frequencies.

    One list of divisors is the tensor rope_freqs. Two lists, for long and for short prompts, are
    the pair rope_factors_long and rope_factors_short. Each architecture loads the one or the other.

    Args:
        schedule: The frequencies, `inv_freq`, and perhaps others for short prompts,
            `short_inv_freq`.
        model: The GGUF file before.

    Returns:
        The keys and rope tensors to set.

    Raises:
        UnsupportedBake: Where llama.cpp uses no divisors.
    """
    # the divisors, theta^(-2i/r) / inv_freq_i; the base theta is a float of 32 bits in the file
    arch = arch_of_header(model)
    spec = model.reading().spec
    base = Plain(float(np.float32(spec.rope_theta))).inv_freq(spec.rotary_dim)
    long = divisors(base, schedule.inv_freq)
    short = long
    two_lists = schedule.short_inv_freq is not None
    if schedule.short_inv_freq is not None:
        short = divisors(base, schedule.short_inv_freq)

    # Some architectures always load the pair. Others load it only with the scaling type longrope:
    # that is taken where two lists need it, or where the file has the pair already.
    always_loads_pair = arch.factors == "always"
    loads_pair_by_type = arch.factors == "longrope"
    loads_single_list = arch.freqs == "used"
    as_pair = always_loads_pair
    if loads_pair_by_type:
        as_pair = two_lists or LONG in model.vectors

    # neither the pair nor the single list can be written
    target = f"the GGUF architecture {arch.name}"
    if not as_pair and not loads_single_list:
        if arch.carriers:  # other architectures that compute the same network
            carriers = ", ".join(f"--carrier {name}" for name in arch.carriers)
            repair = f"name a carrier ({carriers})"
        elif two_lists:
            repair = f"{fitting_keys(arch)}, without --keep-short"
        else:
            repair = fitting_keys(arch)
        raise UnsupportedBake(
            "a frequency vector", target, "llama.cpp loads no rope_freqs for it", repair
        )
    if two_lists and not as_pair:
        repair = "give one list: leave --keep-short out"
        raise UnsupportedBake("a pair of factor lists", target, "it supports one list", repair)

    # the length of the tensors, which may be for more pairs than these layers rotate
    stored = stored_pairs(ArchKeys(model, arch), spec.rotary_dim)
    long = _fill(long, stored)
    short = _fill(short, stored)

    # The divisors are the whole scaling, so the scaling type is "none", but where llama.cpp loads
    # the pair only under "longrope".
    scaling = f"{arch.name}.rope.scaling"
    kind = "longrope" if as_pair and loads_pair_by_type else "none"
    edit = start(model, schedule).merge(Edit({f"{scaling}.type": string(kind)}))
    if as_pair:
        original = u32(schedule.original_context)
        edit = edit.merge(Edit({f"{scaling}.original_context_length": original}))
        edit = edit.merge(put_vector(model, LONG, long))
        edit = edit.merge(put_vector(model, SHORT, short))
    else:
        edit = edit.merge(put_vector(model, FREQS, long))
    return with_attention_factor(model, schedule, edit)


def _fill(vector: Vector, stored: int) -> Vector:
    """A list of divisors with ones for pairs that only rotate in layers that do not use it."""
    return np.concatenate([vector, np.ones(stored - len(vector))])
