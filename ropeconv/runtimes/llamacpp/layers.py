"""Which layers of a GGUF model rotate, and which of them have a sliding window."""

from __future__ import annotations

from ...errors import BadSource
from ...rope.spec import LayerKind
from .archs import Arch, Window
from .keys import ArchKeys

DEFAULT_WINDOW = 4096  # gemma2.cpp, exaone4.cpp; the other architectures require the key


def layer_kinds(file: ArchKeys, arch: Arch) -> tuple[LayerKind, ...]:
    """The kind of each layer: "global" (extended), "local" (window layers with frequencies of their own) or "none".

    Raises BadSource for impossible layer counts, and for models in which no layer rotates.
    """
    count = file.whole("block_count") - file.whole("nextn_predict_layers", 0)
    if not 0 <= count <= 10_000:
        raise BadSource(f"the header has block_count {count}; fetch the file again")
    if arch.only_layers and count != arch.only_layers:
        raise BadSource(f"{arch.name} rotates only with {arch.only_layers} layers, and this file has {count}")
    if arch.name.startswith("granite") and file.get("rope.scaling.finetuned") is False:
        raise BadSource("rope.scaling.finetuned is false, which turns RoPE off in granite: nothing can be extended")
    pattern = file.get("attention.rope_pattern") if arch.pattern else None
    if isinstance(pattern, list):
        return _kinds([bool(value) for value in pattern[:count]], "global", "none")
    if arch.nope_interval:
        return _kinds([(i + 1) % arch.nope_interval == 0 for i in range(count)], "none", "global")
    window = arch.window
    if window is None or not _has_window(file, window, count):
        return _kinds([True] * count, "global", "none")
    local = _window_layers(file, window, count)
    if window.rotates == "window":
        return _kinds(local, "global", "none")
    if window.scaling == "same" and window_theta(file) in (None, file.number("rope.freq_base", 10000.0)):
        return _kinds([True] * count, "global", "none")
    return _kinds(local, "local", "global")


def layer_windows(file: ArchKeys, arch: Arch) -> tuple[int | None, ...]:
    """Per layer the sliding window that llama.cpp gives it, whatever it rotates with, in tokens; None without one."""
    count = len(layer_kinds(file, arch))
    if arch.window is None or not _has_window(file, arch.window, count):
        return (None,) * count
    size = file.whole("attention.sliding_window", DEFAULT_WINDOW)
    return tuple(size if inside else None for inside in _window_layers(file, arch.window, count))


def _kinds(flags: list[bool], yes: LayerKind, no: LayerKind) -> tuple[LayerKind, ...]:
    return tuple(yes if flag else no for flag in flags)


def _has_window(file: ArchKeys, window: Window, count: int) -> bool:
    if window.present == "key":
        return file.whole("attention.sliding_window", 0) > 0
    return window.present == "always" or count == int(window.present)


def _window_layers(file: ArchKeys, window: Window, count: int) -> list[bool]:
    pattern = file.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return [bool(value) for value in pattern[:count]] + [False] * (count - len(pattern))
    interval = file.whole("attention.sliding_window_pattern", window.interval)
    return [interval == 0 or i % interval < interval - 1 for i in range(count)]


def window_theta(file: ArchKeys) -> float | None:
    """The base of the window layers from rope.freq_base_swa; None where the file has no such key."""
    return file.number("rope.freq_base_swa", 0.0) or None
