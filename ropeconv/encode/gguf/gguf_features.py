"""What a GGUF model uses of RoPE, as `runtimes.gguf_readers` names it."""

from __future__ import annotations

import numpy as np

from ...runtimes.gguf_readers import Feature
from ...runtimes.llamacpp.keys import ArchKeys
from ...runtimes.llamacpp.layers import window_theta
from ...runtimes.llamacpp.read_header import FREQS, LONG, SHORT, WINDOW_NORM, Reading
from .gguf_model import GgufModel

STOCK = (10000.0, 500000.0)
COMPAT_CONTEXT = 131072
GEMMA3_LAYERS = (34, 48, 62)
CLOSE = 1e-6


def gguf_features(model: GgufModel) -> frozenset[Feature]:
    """What a model uses of RoPE. Raises BadSource where llama.cpp would refuse it.

    model: as planned, after all edits.
    """
    reading = model.reading()
    file = ArchKeys(model, reading.arch)
    found: set[Feature] = {"theta"}
    scaling = file.text("rope.scaling.type", "linear")
    factor = 1.0 if scaling == "none" else file.number("rope.scaling.factor", 1.0) or 1.0
    if factor != 1 and scaling in ("linear", "yarn"):
        found.add("yarn" if scaling == "yarn" else "linear")
    found |= _attention(file, reading, "yarn" in found)
    found |= _keys(file)
    found |= _tensors(file, model)
    theta = file.number("rope.freq_base", 10000.0)
    if _own_window_theta(file, theta):
        found.add("window_theta")
    if not found & {"linear", "yarn"} and theta in STOCK:
        found.add("stock_theta")
    if file.get("rope.scaling.type") is None and file.get("rope.scaling.factor") is None:
        found |= {"no_scaling_keys"} if file.whole("context_length") >= COMPAT_CONTEXT else set()
    if reading.arch.name == "gemma3" and file.whole("block_count") in GEMMA3_LAYERS:
        found |= set() if "linear" in found and factor == 8 else {"gemma3_not_8"}
    return frozenset(found)


def _attention(file: ArchKeys, reading: Reading, yarn: bool) -> set[Feature]:
    """How the file says the attention factor."""
    given = abs(file.number("rope.scaling.attn_factor", 1.0) - 1) > CLOSE
    if not yarn:
        return {"attn_factor"} if given else set()
    if not given:
        return {"yarn_attention_factor"}
    return {"attention_factor_1"} if abs(reading.spec.attention_factor - 1) < CLOSE else {"attn_factor"}


def _keys(file: ArchKeys) -> set[Feature]:
    found: set[Feature] = set()
    betas = (file.number("rope.scaling.yarn_beta_fast", 32.0), file.number("rope.scaling.yarn_beta_slow", 1.0))
    if file.arch.betas and betas != (32.0, 1.0):
        found.add("betas")
    if file.arch.log_multiplier and file.number("rope.scaling.yarn_log_multiplier", 0.0):
        found.add("log_multiplier")
    if file.arch.query_length and file.number("attention.temperature_scale", 0.0):
        found.add("temperature_scale")
    if abs(file.number(WINDOW_NORM, 1.0, prefix="") - 1) > CLOSE:
        found.add("window_norms")
    return found


def _tensors(file: ArchKeys, model: GgufModel) -> set[Feature]:
    """The rope tensors whose divisors are not all 1, and whether their shape is unusual."""
    found: set[Feature] = set()
    freqs = model.vectors.get(FREQS)
    if freqs is not None and not np.all(freqs == 1):
        found.add("rope_freqs")
    if any(name in model.vectors and not np.all(model.vectors[name] == 1) for name in (LONG, SHORT)):
        found.add("factors")
    heads = file.get("attention.head_count")
    if freqs is not None and (not isinstance(heads, int) or 2 * len(freqs) * heads != file.whole("embedding_length")):
        found.add("rope_freqs_shape")
    return found


def _own_window_theta(file: ArchKeys, theta: float) -> bool:
    """Whether rope.freq_base_swa says something else than what holds without it."""
    window = file.arch.window
    return window is not None and window_theta(file, window, theta) != (window.theta or theta)
