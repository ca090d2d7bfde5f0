"""Metadata keys that are computed from several settings, by the names that `computed` in the family files uses."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

from ..errors import BadSource, UnsupportedBake, shown
from ..families import Family
from ..families.cached_layers import STATES, kv_heads
from ..families.config import positive_int
from ..families.layers import layer_kinds, layer_names, own_settings
from ..formats.gguf import Value, f32_array, u32
from ..formats.gguf.values import array
from .conversions import Sizes
from .expression import count, number, whole

UINT32 = 4
"""GGUF's number of the type."""
Computed = Callable[[Sizes, Family], Value]
COMPUTED: dict[str, Computed] = {}


def computed(function: Computed) -> Computed:
    """Registers a function under its name."""
    COMPUTED[function.__name__] = function
    return function


@computed
def kv_heads_of_layers(sizes: Sizes, family: Family) -> Value:
    """Heads of keys and values of each layer, 0 for a layer with a state instead."""
    return array(UINT32, heads_of_layers(sizes, family))


def heads_of_layers(sizes: Sizes, family: Family) -> list[int]:
    """Heads of keys and values of each layer, 0 for a layer with a state instead. sizes, family: of the checkpoint."""
    part, kinds = sizes.config, layer_kinds(sizes.config, family, sizes.layers)
    names = layer_names(part, family, sizes.layers)
    found, settings = [], own_settings(part)
    for layer, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        own = positive_int(settings.get(layer, {}), family.keys.kv_heads)
        found.append(0 if name in STATES else own or kv_heads(part, family, sizes.heads, kind))
    return found


@computed
def adjusted_feed_forward(sizes: Sizes, family: Family) -> Value:
    """LFM 2: two thirds of the stated size, times a factor, rounded up; as stated where that is switched off."""
    part = sizes.config
    size = count(part, "block_ff_dim | intermediate_size")
    if part.get("block_auto_adjust_ff_dim", True):
        factor = number(part["block_ffn_dim_multiplier"], "block_ffn_dim_multiplier")
        unit = count(part, "block_multiple_of")
        if unit == 0:
            raise BadSource("config.json has block_multiple_of = 0; write 1 for sizes that are not rounded")
        size = unit * -(-int(factor * int(2 * size / 3)) // unit)
    return u32(size)


@computed
def feed_forward_of_layers(sizes: Sizes, family: Family) -> Value:
    """One size, or one for each layer: Gemma 3n lists them, Gemma 4 may double it in layers that take others' keys."""
    part = sizes.config
    size, shared = part.get("intermediate_size"), count(part, "num_kv_shared_layers")
    if isinstance(size, list):
        return array(UINT32, [whole(one, "intermediate_size") for one in size])
    size = count(part, "intermediate_size")
    if not part.get("use_double_wide_mlp"):
        return u32(size)
    return array(UINT32, [size * (1 + (layer >= sizes.layers - shared)) for layer in range(sizes.layers)])


@computed
def sparsity_scales(sizes: Sizes, family: Family) -> Value:
    """Gemma 3n: how many standard deviations an activation lies above the mean in each layer, for its share of zeros.

    llama.cpp does not read the key (src/models/models.h). Raises UnsupportedBake for other shares than it computes.
    """
    computes = [0.95 if layer < 10 else 0.0 for layer in range(sizes.layers)]
    shares = sizes.config.get("activation_sparsity_pattern") or (
        computes if sizes.layers > 10 else [0.0] * sizes.layers
    )
    if shares != computes:
        what = f"activation_sparsity_pattern = {shown(shares)}"
        raise UnsupportedBake(what, "GGUF as gemma3n", "llama.cpp computes 0.95 in ten layers", "keep safetensors")
    return f32_array([NormalDist().inv_cdf(share) if share else float("-inf") for share in computes])
