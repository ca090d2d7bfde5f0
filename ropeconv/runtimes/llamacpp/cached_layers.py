"""What llama.cpp keeps in the key-value cache for each layer of a GGUF model.

Source: src/llama-kv-cache.cpp (the constructor), src/llama-hparams.cpp (n_embd_k_gqa), src/llama-model.cpp (defaults).
"""

from __future__ import annotations

from collections import Counter

from ...errors import BadSource
from ...families.cached_layers import CachedLayers
from .archs import Arch, Keys
from .keys import ArchKeys
from .layers import layer_windows, layers_with_attention


def cached_layers(keys: Keys, arch: Arch) -> tuple[CachedLayers, ...]:
    """The layers with a key-value cache, in groups, from the keys of a header.

    keys: of the header. arch: its architecture. With multi-head latent attention the values are a view of the keys.
    Raises BadSource where a key that llama.cpp requires is absent or no number.
    """
    file, counted = ArchKeys(keys, arch), Counter[tuple[int, int, int | None]]()
    windows = layer_windows(file, arch)
    kept = _layers_with_own_keys(file, arch, len(windows))
    queries = _per_layer(file, "attention.head_count", len(windows), [0] * len(windows))
    heads = _per_layer(file, "attention.head_count_kv", len(windows), queries)
    most = max(queries, default=0)
    width = file.whole("embedding_length") // most if most else 0
    latent = bool(file.whole("attention.key_length_mla", 0) and file.whole("attention.value_length_mla", 0))
    for window, count, own in zip(windows, heads, kept, strict=True):
        k, v = (_width(file, name, window is not None, width) for name in ("key_length", "value_length"))
        if count and own:
            counted[(count * k, 0 if latent else count * v, window)] += 1
    groups = sorted(counted.items(), key=lambda item: (item[0][2] is not None, item[0]))
    return tuple(CachedLayers(number, *group) for group, number in groups)


def _layers_with_own_keys(file: ArchKeys, arch: Arch, count: int) -> list[bool]:
    """Which layers keep keys and values: those with attention that do not take them from an earlier layer."""
    shared = 0 if not arch.kv_layers or arch.kv_layers.isdigit() else file.whole(arch.kv_layers, 0)
    last = int(arch.kv_layers) if arch.kv_layers.isdigit() else count - shared
    return [own and i < last for i, own in enumerate(layers_with_attention(file, arch, count))]


def _per_layer(file: ArchKeys, key: str, count: int, default: list[int]) -> list[int]:
    """A key with one number, or one for each of `count` layers."""
    value = file.get(key)
    if not isinstance(value, list):
        return default if value is None else [file.whole(key)] * count
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in value):
        raise BadSource(f"the header has numbers in {file.prefix}{key} that are none; download the file again")
    return [*value[:count], *[0] * (count - len(value))]


def _width(file: ArchKeys, name: str, inside: bool, default: int) -> int:
    own = file.whole(f"attention.{name}", default)
    return file.whole(f"attention.{name}_swa", own) if inside else own
