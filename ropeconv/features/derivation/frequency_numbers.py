"""The numbers of the frequencies that a class computes, and of the factors beside them.

`find_base` is the inverse of inv_freq[i] = base ** (-i / pairs): which base gives the frequencies
that were measured. `measure_numbers` is the answer that `derivation.py` compares with what ropeconv
reads from the same config, so that no family is made that says something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .asked_model import Config
from .config_changes import set_rope_type
from .model_runs import ModelRuns
from .rotation import Attention, Rotation

if TYPE_CHECKING:
    from ropeconv.models.family import Kind

LEAST_DIFFERENCE = 2e-3
"""The relative difference from which on two lengths or scales differ; float32 shows less."""
TYPES_WITHOUT_FACTOR = (None, "default", "linear", "llama3", "proportional")
"""The rope types that multiply cosines and sines by no attention factor; None is the default."""


def first_rotation(layers: Sequence[Attention | None] | None) -> Rotation | None:
    """Return the rotation of queries in the first layer that rotates; None without one.

    Args:
        layers: The attention of each layer; None for a model that was not run.
    """
    for item in layers or ():
        if item is not None and item.rotates:
            return item.queries
    return None


def first_width(layers: Sequence[Attention | None] | None) -> int | None:
    """Return how many dimensions rotate in the first layer that rotates; None without one."""
    rotation = first_rotation(layers)
    return rotation.width if rotation is not None else None


def find_base(layer: Attention | None) -> float | None:
    """Return the base from which a layer's frequencies are computed; None for scaled frequencies.

    Unscaled frequencies are base ** (-i / pairs) for the pair i; those of the slowest pairs may be
    0. The base is estimated from pair 1, and from the last pair that rotates, which gives more
    digits. Most bases are whole numbers, so each estimate is tried rounded too. The first one that
    gives all frequencies is the result.

    Args:
        layer: How queries and keys of the layer rotate, as measured; None without attention.

    Returns:
        The base with six digits; None for scaled frequencies, or where the layer does not rotate.
    """
    rotation = first_rotation([layer])
    if rotation is None:
        return None
    pairs = len(rotation.inv_freq)
    inv_freq = np.asarray(rotation.inv_freq)
    inv_freq = inv_freq[inv_freq > 0]
    count = len(inv_freq)
    if count < 2:
        return None
    first_is_plain = abs(inv_freq[0] - 1) <= 1e-3  # base ** 0
    if not first_is_plain:
        return None

    # inv_freq[i] = base ** (-i / pairs), so base = inv_freq[i] ** (-pairs / i)
    from_second = float(inv_freq[1] ** -pairs)
    from_last = float(inv_freq[-1] ** (-pairs / (count - 1)))
    for base in (round(from_last), from_last, round(from_second), from_second):
        if base <= 0:
            continue
        if np.allclose(inv_freq, base ** (-np.arange(count) / pairs), rtol=2e-4):
            return float(f"{base:.6g}")
    return None


def layers_with_base(layers: Sequence[Attention | None], base: float) -> list[bool]:
    """Return whether each layer rotates by the plain frequencies of a base.

    Args:
        layers: The attention of each layer.
        base: The base.
    """
    found = []
    for layer in layers:
        base_of_layer = find_base(layer)
        found.append(base_of_layer is not None and abs(base_of_layer / base - 1) < 1e-3)
    return found


def measure_numbers(
    runs: ModelRuns,
    rotating: Attention,
    kinds: Sequence[Kind],
    rotations: dict[Kind, Rotation],
) -> Config:
    """Return the RoPE that a class of transformers computes from a config, as numbers.

    They are compared with the numbers that ropeconv reads from the same config.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        kinds: The kind of each layer: "global", "local" with frequencies of its own, or "none".
        rotations: The rotation of each kind.

    Returns:
        A dictionary with these keys:

        - layers: the kind of each layer.
        - inv_freq: the frequencies of each kind of layers.
        - rotary_dim: the number of dimensions of a head that rotate.
        - head_dim: the width of a head; with latent attention (MLA), of its rotating part.
        - heads: the number of heads of queries.
        - factor: the attention factor.
        - positions: the positions of the tokens in the runs.
        - grows: {"global": [1.0, 1.0, 1.1, ...]} for kinds of layers whose queries get longer with
          their position, as in Llama 4: the length of a query at each position, divided by the
          length at the first position.
    """
    assert rotating.keys is not None  # a layer that rotates rotates its keys too
    rotary_dim = rotating.keys.width
    head_dim = rotary_dim if runs.is_latent else rotating.width

    inv_freq = {}
    relative_lengths = {}
    for kind, rotation in rotations.items():
        inv_freq[kind] = list(rotation.inv_freq)
        if _changes_length(rotation):
            relative_lengths[kind] = list(rotation.relative_lengths)
    return {
        "layers": list(kinds),
        "inv_freq": inv_freq,
        "rotary_dim": rotary_dim,
        "head_dim": head_dim,
        "heads": rotating.heads,
        "factor": _attention_factor(runs),
        "positions": list(runs.observer.positions),
        "grows": relative_lengths,
    }


def _changes_length(rotation: Rotation) -> bool:
    """Whether the length of a query depends on its position, as with log-n scaling."""
    return bool(np.abs(np.asarray(rotation.relative_lengths) - 1).max() > LEAST_DIFFERENCE)


def _attention_factor(runs: ModelRuns) -> float:
    """Return the attention factor, by which YaRN multiplies cosines and sines; 1 without scaling.

    It is the measured factor on keys. A class may multiply keys by another number too, so the
    factor is divided by that of the same model without scaling.
    """
    factor = runs.factor_on("keys")
    rope = getattr(runs.text, "rope_parameters", None) or {}
    dictionaries = [item for item in (rope, *rope.values()) if isinstance(item, dict)]
    if all(item.get("rope_type") in TYPES_WITHOUT_FACTOR for item in dictionaries):
        return 1.0
    factor_without_scaling = runs.factor_with(set_rope_type(runs.text, "default", {}))
    return factor / factor_without_scaling


def note_unknown_scales(
    runs: ModelRuns,
    attention: Sequence[Attention | None],
    rotating: Attention,
    not_derived: list[str],
) -> None:
    """Append a sentence to a list for each scale of the scores that no family describes.

    There are two: queries that grow with their position in layers without RoPE (Llama 4), and
    scores that are divided by another number than the square root of the width of a head.

    Args:
        runs: The model, which can be built from a changed config and run again.
        attention: The attention of each layer.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        not_derived: A list to which a sentence is appended for each of them.
    """
    if any(_changes_length_without_rotating(layer) for layer in attention):
        not_derived.append("the scale of queries by their position in layers that do not rotate")

    # attention(Q, K, V) = softmax(s Q K^T) V. The measured scale has the attention factor in it,
    # once for queries and once for keys.
    measured_scale = runs.softmax_scale()
    if measured_scale is None:
        not_derived.append("the scale of its scores before the softmax")
        return
    scale = measured_scale / _attention_factor(runs) ** 2
    usual_scale = rotating.width**-0.5
    if abs(scale / usual_scale - 1) > LEAST_DIFFERENCE:
        not_derived.append(
            f"the key of the scale of its scores, which is {scale:.4g} and not 1 over the square"
            f" root of {rotating.width}"
        )


def _changes_length_without_rotating(layer: Attention | None) -> bool:
    """Whether queries of a layer get longer with their position, and do not rotate."""
    if layer is None or layer.rotates or layer.queries is None:
        return False
    return _changes_length(layer.queries)
