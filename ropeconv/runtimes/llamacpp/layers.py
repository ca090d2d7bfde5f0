"""Which layers of a GGUF model rotate, have attention at all, or have a sliding window.

Source: src/llama-kv-cache.cpp (the constructor), src/llama-hparams.cpp (n_embd_k_gqa),
src/llama-model.cpp (defaults).
"""

from collections import Counter
from typing import TypeVar

from ...errors import BadSource
from ...models.config import CachedLayers
from ...rope.spec import MOST_LAYERS, LayerKind
from .archs import Arch, ArchWindow, HeaderKeys, arch_table
from .scaling import ArchKeys

T = TypeVar("T")
DEFAULT_WINDOW = 4096
"""The window of gemma2.cpp and exaone4.cpp in tokens; the other architectures require the key."""


def layer_kinds(file: ArchKeys) -> tuple[LayerKind, ...]:
    """Return the kind of each layer: "global" (extended), "local" (other frequencies) or "none".

    Raises:
        BadSource: For impossible layer counts, and where a key turns RoPE off.
    """
    arch = file.arch
    count = _layer_count(file)

    # some architectures, such as granite, do not rotate where rope.scaling.finetuned is false
    key_can_disable_rope = arch.finetuned
    if key_can_disable_rope and file.get("rope.scaling.finetuned") is False:
        raise BadSource(
            f"rope.scaling.finetuned is false, which disables RoPE in {arch.name}: nothing can be"
            " extended"
        )

    do_not_rotate = _layers_without_rotation(file, count)
    have_own_theta = _layers_with_own_theta(file, count)
    kinds: list[LayerKind] = []
    for layer in range(count):
        if do_not_rotate[layer]:
            kinds.append("none")
        elif have_own_theta[layer]:
            kinds.append("local")
        else:
            kinds.append("global")
    return tuple(kinds)


def layer_windows(file: ArchKeys) -> tuple[int | None, ...]:
    """Return the sliding window that llama.cpp gives each layer, in tokens; None without one."""
    count = len(layer_kinds(file))
    window = window_in_use(file, count)
    if window is None:
        return (None,) * count

    size = window.size or file.whole("attention.sliding_window", DEFAULT_WINDOW)
    inside = _window_layers(file, window, count)
    return tuple(size if has_window else None for has_window in inside)


def layers_with_attention(file: ArchKeys, count: int) -> list[bool]:
    """Return whether each of `count` layers has attention.

    The others have a state space (Mamba) or linear attention, and no RoPE.
    """
    # Jamba and others list the heads of keys of each layer, with 0 for a layer without attention
    if not file.arch.full_attention_interval:
        heads = file.get("attention.head_count_kv")
        if not isinstance(heads, list):
            return [True] * count
        return _one_per_layer([bool(number) for number in heads], count, missing=True)

    # Qwen3-Next and others have attention in every n-th layer, unless there is a flag for each
    recurrent = file.get("attention.recurrent_layers")
    interval = file.whole("full_attention_interval", file.arch.full_attention_interval)
    if interval < 1:
        raise BadSource(
            f"the header has full_attention_interval {interval}; download the file again"
        )
    if isinstance(recurrent, list):
        return _one_per_layer([not flag for flag in recurrent], count, missing=True)
    if isinstance(recurrent, bool):
        return [not recurrent] * count
    return [(layer + 1) % interval == 0 for layer in range(count)]


def _layer_count(file: ArchKeys) -> int:
    """Return the layers of the model itself, without those that predict further tokens."""
    arch = file.arch
    count = file.whole("block_count") - file.whole("nextn_predict_layers", 0)
    if not 0 <= count <= MOST_LAYERS:
        raise BadSource(f"the header has block_count {count}; fetch the file again")
    if arch.only_layers and count != arch.only_layers:
        raise BadSource(
            f"{arch.name} rotates only with {arch.only_layers} layers, and this file has {count}"
        )
    return count


def _layers_without_rotation(file: ArchKeys, count: int) -> list[bool]:
    """Return for each of `count` layers whether it has no RoPE, for one of four reasons.

    Args:
        file: The keys of the header, such as attention.sliding_window.
        count: The number of layers.
    """
    arch = file.arch
    not_rotating: set[int] = set()  # the numbers of the layers

    # 1. the header lists the layers that rotate, in architectures that read this list
    if arch.pattern:
        pattern = file.get("attention.rope_pattern")
        if isinstance(pattern, list):
            for layer, rotates in enumerate(pattern[:count]):
                if not rotates:
                    not_rotating.add(layer)

    # 2. Llama 4: every fourth layer does not rotate (or another interval of the architecture)
    window = window_in_use(file, count)  # the rules about layers with a window; None without
    for layer in range(count):
        if _is_in_nope_interval(arch, layer, count, has_windows=window is not None):
            not_rotating.add(layer)

    # 3. Command R7B: only layers with a window rotate. In some architectures the first layers,
    # which have no experts, rotate too.
    if window is not None and window.rotates == "window":
        dense_layers = 0
        if arch.leading_dense:
            dense_layers = file.whole("leading_dense_block_count", 0)
        for layer, has_window in enumerate(_window_layers(file, window, count)):
            is_dense = layer < dense_layers
            if not has_window and not is_dense:
                not_rotating.add(layer)

    # 4. Jamba: a layer without attention has nothing to rotate
    for layer, has_attention in enumerate(layers_with_attention(file, count)):
        if not has_attention:
            not_rotating.add(layer)
    return [layer in not_rotating for layer in range(count)]


def _is_in_nope_interval(arch: Arch, layer: int, count: int, has_windows: bool) -> bool:
    """Whether a layer is the one of every `nope_interval` that does not rotate."""
    interval = arch.nope_interval
    if arch.nope_with_window and not has_windows:
        # llama4.cpp: the interval is then the number of layers
        interval = 0 if arch.nope_first else count
    if not interval:
        return False
    if arch.nope_first:
        return layer % interval == 0
    return (layer + 1) % interval == 0


def _layers_with_own_theta(file: ArchKeys, count: int) -> list[bool]:
    """Return for each of `count` layers whether it has RoPE frequencies of its own.

    A context extension does not change these layers. In Gemma 3 they are the layers with a window,
    whose base is 10,000 and not 1,000,000.

    Args:
        file: The keys of the header, such as rope.freq_base.
        count: The number of layers.
    """
    # DeepSeek V4 (deepseek4.cpp): the layers without compressed keys and values, whose ratio of
    # compression is 0. It is the only architecture whose other layers have a base of another key.
    arch = file.arch
    is_deepseek4 = arch.theta_key != "rope.freq_base"
    if is_deepseek4:
        ratios = file.get("attention.compress_ratios")
        if not isinstance(ratios, list) or len(ratios) < count:
            raise BadSource(
                f"the header of {arch.name} needs attention.compress_ratios with one number per"
                " layer"
            )
        return [ratio == 0 for ratio in ratios[:count]]

    # Llama: no layer has a window
    window = window_in_use(file, count)  # the rules about layers with a window
    if window is None:
        return [False] * count

    # Command R7B: only layers with a window rotate, so there is one set of frequencies
    only_windows_rotate = window.rotates == "window"
    if only_windows_rotate:
        return [False] * count

    # Gemma 2: layers with a window have the same base and scaling as the other layers
    theta = file.number("rope.freq_base", 10000.0)
    has_same_theta = window_theta(file, window, theta) == theta
    has_same_scaling = window.scaling == "same"
    if has_same_theta and has_same_scaling:
        return [False] * count

    # Gemma 3: layers with a window have another base, or no scaling
    return _window_layers(file, window, count)


def window_in_use(file: ArchKeys, count: int) -> ArchWindow | None:
    """Return the window rule of the architecture; None where `count` layers have no window."""
    window = file.arch.window
    if window is None or window.present == "always":
        return window

    if window.present == "key":
        is_present = file.whole("attention.sliding_window", 0) > 0
    elif window.present == "unless 0":
        is_present = file.get("attention.sliding_window") != 0
    else:
        is_present = count == int(window.present)
    return window if is_present else None


def _window_layers(file: ArchKeys, window: ArchWindow, count: int) -> list[bool]:
    """Return for each of `count` layers whether it has a sliding window.

    The key attention.sliding_window_pattern has a flag for each layer, or a number n: one layer in
    n has no window. For n = 3 the result is [True, True, False, True, True, False, ...].

    Args:
        file: The keys of the header.
        window: How llama.cpp reads the key for the architecture. Its `pattern` is "none" if it does
            not read the key, "flags" if the key must be a list, and "any" for a list or a number.
        count: The number of layers.
    """
    key = "attention.sliding_window_pattern"
    reads_key = window.pattern != "none"
    needs_flags = window.pattern == "flags"

    # a flag for each layer; layers beyond a short list have no window
    value = file.get(key) if reads_key else None
    if isinstance(value, list):
        return _one_per_layer([bool(flag) for flag in value], count, missing=False)
    if needs_flags:
        raise BadSource(f"{file.arch.name} needs {key} with one flag per layer")

    # the number n: of the key, or a constant of llama.cpp; 0 means that all layers have a window
    interval = window.interval
    if value is not None:
        interval = file.whole(key)
    if interval == 0:
        return [True] * count
    # The layer without a window is the last of each n layers, as in Gemma 3; or the first one, if
    # `dense_first` (llama_hparams::set_swa_pattern).
    index_without_window = 0 if window.dense_first else interval - 1
    return [layer % interval != index_without_window for layer in range(count)]


def window_theta(file: ArchKeys, window: ArchWindow, theta: float) -> float:
    """Return the base of the window layers; `theta` is that of the other layers."""
    if not window.own_theta:
        return theta
    return file.number("rope.freq_base_swa", 0.0) or window.theta or theta


def cached_layers(keys: HeaderKeys, arch: Arch) -> tuple[CachedLayers, ...]:
    """Return how many layers have a key-value cache of which width, to compute its size.

    For 32 equal layers with 8 heads of keys and values of 128 numbers each, and without a window,
    it is (CachedLayers(32, 1024, 1024, None),): the number of layers, the width of keys and of
    values, and the window.

    Args:
        keys: The keys of the header, such as llama.attention.head_count_kv.
        arch: Its architecture.

    Raises:
        BadSource: Where a key that llama.cpp requires is absent or no number.
    """
    header = ArchKeys(keys, arch)  # finds keys without "llama."; `whole` reads a whole number
    windows = layer_windows(header)  # of each layer, in tokens; None without one
    count = len(windows)
    has_cache = _layers_with_own_cache(header, count)  # layers may share the cache of another one

    # the defaults of llama.cpp: as many heads of keys as of queries, and heads that together are as
    # wide as the embedding
    query_heads = _per_layer(header, "attention.head_count", count, [0] * count)
    key_heads = _per_layer(header, "attention.head_count_kv", count, query_heads)
    most_heads = max(query_heads, default=0)
    default_width = 0
    if most_heads:
        default_width = header.whole("embedding_length") // most_heads

    # with multi-head latent attention (MLA) the values are a part of the keys, and need no memory
    is_latent = False
    if header.whole("attention.key_length_mla", 0):
        is_latent = header.whole("attention.value_length_mla", 0) > 0

    # count equal layers: with the same width of all keys of a token, of all its values, and the
    # same window
    groups = Counter[tuple[int, int, int | None]]()
    for layer, window in enumerate(windows):
        heads = key_heads[layer]
        if not heads or not has_cache[layer]:
            continue
        has_window = window is not None
        key_width = _head_width(header, "key_length", has_window, default_width)
        value_width = _head_width(header, "value_length", has_window, default_width)
        if is_latent:
            value_width = 0
        groups[heads * key_width, heads * value_width, window] += 1

    def sort_key(group: tuple[int, int, int | None]) -> tuple[bool, tuple[int, int, int | None]]:
        """Put layers without a window first: None cannot be compared with a number."""
        _, _, window = group
        return window is not None, group

    return tuple(CachedLayers(groups[group], *group) for group in sorted(groups, key=sort_key))


def count_states(keys: HeaderKeys, arch: Arch) -> int:
    """Return how many layers keep a state of fixed size in place of keys and values.

    Args:
        keys: The keys of the header.
        arch: Its architecture.
    """
    if arch.name not in arch_table().states:
        return 0
    file = ArchKeys(keys, arch)
    attention = layers_with_attention(file, _layer_count(file))
    return attention.count(False)


def _layers_with_own_cache(file: ArchKeys, count: int) -> list[bool]:
    """Return which of `count` layers have attention, and keys and values of their own."""
    if file.arch.kv_layers.isdigit():
        own = int(file.arch.kv_layers)  # later layers take the keys of earlier ones
    elif file.arch.kv_layers:
        own = count - file.whole(file.arch.kv_layers, 0)
    else:
        own = count
    attention = layers_with_attention(file, count)
    return [attention[layer] and layer < own for layer in range(count)]


def _per_layer(file: ArchKeys, key: str, count: int, default: list[int]) -> list[int]:
    """Return a key with one number, or one for each of `count` layers."""
    value = file.get(key)
    if not isinstance(value, list):
        if value is None:
            return default
        return [file.whole(key)] * count
    if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in value):
        raise BadSource(
            f"the header has numbers in {file.prefix}{key} that are not valid; download the file"
            " again"
        )
    return _one_per_layer(value, count, missing=0)


def _one_per_layer(values: list[T], count: int, missing: T) -> list[T]:
    """Return one value for each of `count` layers, from a list that may be shorter or longer."""
    return [values[layer] if layer < len(values) else missing for layer in range(count)]


def _head_width(file: ArchKeys, name: str, has_window: bool, default: int) -> int:
    """Return the width of the keys or values of a head ("key_length" or "value_length").

    It may be another one in layers with a window.
    """
    width = file.whole(f"attention.{name}", default)
    if has_window:
        return file.whole(f"attention.{name}_swa", width)
    return width
