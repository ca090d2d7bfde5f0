"""What each layer of a config.json keeps in the key-value cache: numbers per token, and the window where it has one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .config import Geometry, geometry, text_part
from .family import Family, Kind
from .layers import key_layers, layer_names, own_settings
from .schema import Config, positive_int

STATES = ("linear_attention", "conv", "mamba", "recurrent")
"""Layer types that keep a state of fixed size instead of keys and values."""
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128}
"""Keys of multi-head latent attention, with the defaults of transformers' classes."""

INDEX_WIDTH = 128
"""The default of transformers' classes for the width of an indexer's keys."""


@dataclass(frozen=True)
class CachedLayers:
    """Layers that keep the same in the key-value cache.

    count: how many layers. keys, values: numbers that one of them keeps per token. window: in tokens, how many it keeps
    at most; None for the whole context.
    """

    count: int
    keys: int
    values: int
    window: int | None = None


@dataclass(frozen=True)
class CacheGeometry:
    """The cached layers of a model.

    layers: in groups. states: number of layers with a state of fixed size instead. repeated: what `repeated_by` keeps,
    a runtime that caches keys and values for every query head; both empty where none does.
    """

    layers: tuple[CachedLayers, ...]
    states: int = 0
    repeated: tuple[CachedLayers, ...] = ()
    repeated_by: str = ""


def cache_geometry(config: Config, family: Family) -> CacheGeometry | None:
    """The cached layers of a config.json; None where there are none, or no number of heads is stated.

    config: the whole config. family: its family. Raises BadSource for numbers that are none.
    """
    part, sizes = text_part(config, family), geometry(config, family)
    heads = positive_int(part, family.keys.heads, family.defaults.heads)
    if heads is None or family.encoder or not family.cache.per_token:
        return None
    repeated = (0, 0)
    if family.mla:
        rank, nope, v = (positive_int(part, (key,), default) or 0 for key, default in LATENT.items())
        repeated = (heads * (nope + sizes.head_dim), heads * v) if family.cache.repeated_by else (0, 0)
        kept: dict[Kind, tuple[int, int]] = {"global": (rank, sizes.head_dim)}
    else:
        if family.hooks.repeats_keys(part):
            repeated = (heads * sizes.head_dim, heads * sizes.head_dim)
        kept = {kind: _kept(part, family, sizes, kind, heads) for kind in ("global", "local")}
    windows = _windows(part, family, sizes)
    makers, indexed = key_layers(part, family, len(sizes.layers)), _indexed(part, family, len(sizes.layers))
    sides = [kept.get(kind, kept["global"]) for kind in sizes.layers]
    counted: Counter[tuple[int | None, tuple[int, int]]] = Counter()
    for layer, (keys, values) in enumerate(sides):
        if windows[layer] != 0 and makers[layer] == layer:
            counted[windows[layer], (keys + indexed[layer], values)] += family.hooks.runs(part, layer)
    groups = sorted(counted.items(), key=lambda item: (item[0][0] is not None, item[0][0] or 0))
    return CacheGeometry(
        tuple(CachedLayers(count, *sides, window) for (window, sides), count in groups),
        windows.count(0),
        tuple(CachedLayers(count, *repeated, window) for (window, _), count in groups) if any(repeated) else (),
        family.cache.repeated_by if any(repeated) else "",
    )


def kv_heads(part: Config, family: Family, heads: int, kind: Kind = "global") -> int:
    """Heads of keys and values of a layer.

    part: the text part of a config. family: of the model. heads: of queries. kind: of the layer.
    """
    keys = family.cache.global_heads
    count = positive_int(part, family.keys.kv_heads, family.defaults.kv_heads) or heads
    if kind != "local" and keys and all(part.get(switch) for switch in keys[1:]):
        count = positive_int(part, keys[:1]) or count
    return family.hooks.kv_heads(part, count, kind)


def _kept(part: Config, family: Family, sizes: Geometry, kind: Kind, heads: int) -> tuple[int, int]:
    """Numbers that a layer of a kind keeps of the keys and of the values of a token. heads: of queries."""
    local = kind == "local"
    own = own_settings(part).get(sizes.layers.index("global"), {}) if not local and "global" in sizes.layers else {}
    count = positive_int(own, ("num_key_value_heads",)) or kv_heads(part, family, heads, kind)
    width = sizes.local_head_dim if local else sizes.head_dim
    return count * width, count * family.hooks.value_width(part, width)


def _indexed(part: Config, family: Family, count: int) -> list[int]:
    """The numbers per token that the indexer of each layer keeps, 0 for a layer that has none."""
    rules = family.cache
    width = positive_int(part, (rules.index_key,), INDEX_WIDTH) or 0 if rules.index_key else 0
    listed = part.get("indexer_types")
    own = [kind == "full" for kind in listed] if isinstance(listed, list) else []
    own = own or [max(layer - 1, 0) % rules.index_interval == 0 for layer in range(count)]
    return [width if has else 0 for has in own[:count]] + [0] * (count - len(own))


def _windows(part: Config, family: Family, sizes: Geometry) -> list[int | None]:
    """The window of each layer in tokens, None for the whole context, 0 for a layer without keys and values."""
    names = layer_names(part, family, len(sizes.layers))
    return [0 if name in STATES else size for name, size in zip(names, sizes.windows, strict=False)]


HEADS, HEAD_DIM, CONTEXT = 8, 128, 4096


def sample_config(family: Family) -> Config:
    """The config of a model of a family, in the schema that publishers use: as few keys as its RoPE needs."""
    keys = family.keys
    config: Config = {"model_type": family.model_types[0], keys.hidden[0]: HEADS * HEAD_DIM, keys.heads[0]: HEADS}
    config[keys.layers[0]] = family.defaults.layers or 2
    config[keys.context[0]] = CONTEXT
    config[keys.theta[0]] = config["rope_theta"] = family.defaults.theta
    if family.mla:
        config |= {keys.head_dim[0]: 64, "qk_nope_head_dim": 128}
    elif family.writing.head_dim:
        config[keys.head_dim[0]] = HEAD_DIM
    if keys.partial and family.defaults.partial_rotary_factor != 1:
        config[keys.partial[0]] = family.defaults.partial_rotary_factor
    if not family.halves:
        return config
    whole: Config = {"model_type": config.pop("model_type")}
    for path in family.halves:
        *outer, last = path.split(".")
        part = whole
        for key in outer:
            part = part.setdefault(key, {})
        part[last] = dict(config)
    return whole
