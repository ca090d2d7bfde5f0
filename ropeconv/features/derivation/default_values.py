"""The values that a class uses where a config leaves keys out: the table [defaults].

The experiment for the base removes every key of RoPE settings and measures the frequencies again.
Sizes and the context are read from the config of transformers, which has the defaults.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropeconv.models.schema import ROPE

from .asked_model import SIZE_KEYS, Config, class_default
from .config_changes import ROPE_DICTIONARY_KEYS, leave_out
from .frequency_numbers import find_base
from .layer_kinds import FULL_TYPE
from .model_runs import ModelRuns
from .rotation import Attention

if TYPE_CHECKING:
    from ropeconv.models.family import Kind

USUAL_BASE = 10000.0
"""The base that a family file need not state."""
SAME_BASE = 1e-4
"""The relative difference of bases that are one number, within what float32 shows."""


def describe_defaults(runs: ModelRuns, rotating: Attention, keys: Config) -> Config:
    """Return the table [defaults] of a family file.

    For Gemma 3: {"theta": 1000000.0, "local_theta": 10000.0, "context": 131072, "head_dim": 256}.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        keys: The table [keys] of the family file, such as {"theta": ["rotary_emb_base"]}.
    """
    facts = _default_bases(runs, keys)
    facts["context"] = _default_context(runs)
    facts |= _default_sizes(runs, rotating, keys)
    share = _default_share(runs, rotating, keys)
    if share is not None and share != 1:
        facts["partial_rotary_factor"] = share
    return facts


def _default_context(runs: ModelRuns) -> int:
    """Return the context of the class in tokens; that of this config where the class has none."""
    usual_key, *_ = SIZE_KEYS["context"]
    for context in (class_default(runs.text, usual_key), getattr(runs.text, usual_key, None)):
        if isinstance(context, int):
            return context
    return runs.context


def _default_bases(runs: ModelRuns, keys: Config) -> Config:
    """Return the bases, and a scaling if any, that a class uses for a config without RoPE settings.

    For Gemma 3: {"theta": 1000000.0, "local_theta": 10000.0}, the base of layers that see the whole
    context, and the base of layers with a sliding window. A base of 10000 for the former is usual,
    and left out.

    Args:
        runs: The model, which can be built from a changed config and run again.
        keys: The table [keys] of the family file, such as {"theta": ["rotary_emb_base"]}.
    """
    # run the class without RoPE settings, and see how the first layer of each kind rotates
    theta_keys = keys.get("theta", ["rope_theta"])
    change = leave_out((*theta_keys, *ROPE_DICTIONARY_KEYS))
    layers = runs.measure_changed(change)
    first_layer_of_kind: dict[Kind, Attention | None] = {}
    if layers is not None:  # None: the class does not run without RoPE settings
        for kind, layer in zip(runs.kinds_of_first_layers, layers, strict=False):
            first_layer_of_kind.setdefault(kind, layer)

    facts: Config = {}
    scaling = _default_scaling(runs)
    if scaling:
        facts["scaling"] = scaling

    # "global": layers that see the whole context. Frequencies that the class scales by default do
    # not show their base, so it is read from the scaling.
    theta = find_base(first_layer_of_kind.get("global"))
    if "rope_theta" in scaling:
        theta = scaling["rope_theta"]
    if theta is not None and abs(theta / USUAL_BASE - 1) > SAME_BASE:
        facts["theta"] = _stated_base(runs, theta)

    # "local": layers with a sliding window, and with frequencies of their own
    local_theta = find_base(first_layer_of_kind.get("local"))
    if local_theta is not None:
        facts["local_theta"] = _stated_base(runs, local_theta)
    return facts


def _default_sizes(runs: ModelRuns, rotating: Attention, keys: Config) -> Config:
    """Return the sizes that config.json does not state, as the class has them by default.

    For example {"head_dim": 256, "kv_heads": 4}.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        keys: The table [keys] of the family file, such as {"theta": ["rotary_emb_base"]}.
    """
    assert rotating.queries is not None
    facts: Config = {}

    # the width of a head, where it is not hidden_size // heads as in most models
    if not _is_stated(runs, keys, "head_dim"):
        hidden_size = runs.size("hidden") or 0
        heads = runs.size("heads") or rotating.heads
        usual_width = hidden_size // heads if heads else None
        width = rotating.width
        if runs.is_latent:  # for latent attention (MLA), a family states the rotating part only
            width = rotating.queries.width
        if width != usual_width:
            facts["head_dim"] = width

    # Gemma 4: heads of another width in layers with a sliding window
    has_local_key = "local_head_dim" in keys
    if has_local_key and not _is_stated(runs, keys, "local_head_dim"):
        facts["local_head_dim"] = runs.widths["local"]

    # all other sizes
    for quantity in ("kv_heads", "hidden", "heads", "layers"):
        value = runs.size(quantity)
        if value is not None and not _is_stated(runs, keys, quantity):
            facts[quantity] = value
    return facts


def _is_stated(runs: ModelRuns, keys: Config, quantity: str) -> bool:
    """Whether config.json states a size.

    Args:
        runs: The model.
        keys: The table [keys] of the family file, with the keys of sizes that are not the usual.
        quantity: The size, such as "head_dim" or "layers".
    """
    usual_key = SIZE_KEYS[quantity][:1] if quantity in SIZE_KEYS else ()
    keys_of_size = keys.get(quantity, usual_key)
    return any(runs.subject.text_part.get(name) for name in keys_of_size)


def _stated_base(runs: ModelRuns, base: float) -> float:
    """Return the base that the class states, for one that was measured: 1e6 for 999998.7.

    Where the class states none that is so near, the measured one is returned.
    """
    # the RoPE settings that the class makes for a config without any: one dictionary for all
    # layers, {"rope_theta": 1e6, ...}, or one for each layer type, {"full_attention": {...}, ...}
    defaults = runs.subject.changed(leave_out(("rope_theta", *ROPE_DICTIONARY_KEYS)))
    rope = getattr(defaults, "rope_parameters", None) or {}
    nested = [settings for settings in rope.values() if isinstance(settings, dict)]
    for settings in (rope, *nested):
        stated = settings.get("rope_theta")
        if isinstance(stated, (int, float)) and abs(stated / base - 1) < SAME_BASE:
            return float(stated)
    return base


def _default_scaling(runs: ModelRuns) -> Config:
    """Return the RoPE dictionary that the class uses for a config without one; {} if unscaled.

    For gpt-oss: {"rope_type": "yarn", "factor": 32.0, ...}.
    """
    # the config that the class makes of a config.json without RoPE settings
    try:
        defaults = runs.subject.changed(leave_out(("rope_theta", *ROPE_DICTIONARY_KEYS)))
    except Exception:  # of any kind: a class that needs these settings has no default for them
        return {}

    # a class with a dictionary for each layer type: that of layers which see the whole context
    rope = getattr(defaults, "rope_parameters", None)
    if isinstance(rope, dict) and isinstance(rope.get(FULL_TYPE), dict):
        rope = rope[FULL_TYPE]
    if not isinstance(rope, dict):
        return {}
    is_unscaled = rope.get("rope_type", "default") == "default"
    if is_unscaled:
        return {}
    # `type` is an older name of rope_type; keys that ropeconv does not know are left out
    return {key: value for key, value in rope.items() if key in ROPE and key != "type"}


def _default_share(runs: ModelRuns, rotating: Attention, keys: Config) -> float | None:
    """Return the share of a head that rotates by default, such as 0.5.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
        keys: The table [keys] of the family file, such as {"partial": ["rotary_pct"]} for the key
            of the share, or {"rotary_dim": ["rotary_dim"]} for the key of the number of dimensions.

    Returns:
        The share; None where config.json states it, and for latent attention (MLA), for which a
        family describes only the rotating part of a head.
    """
    assert rotating.queries is not None
    if runs.is_latent:
        return None

    # config.json may state the share or the number of dimensions that rotate
    part = runs.subject.text_part
    names = [*keys.get("partial", ()), *keys.get("rotary_dim", ())]
    if any(part.get(name) is not None for name in names):
        return None
    rope = part.get("rope_parameters") or {}
    if rope.get("partial_rotary_factor"):
        return None

    rotary_dim = rotating.queries.width  # dimensions of a head that rotate
    head_dim = rotating.width
    return rotary_dim / head_dim
