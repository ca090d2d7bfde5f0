"""What the config class of a model type says about its RoPE: keys, defaults, layer types and
windows.
"""

import inspect
import re
from typing import Any

from ropeconv.models.schema import ROPE

Facts = dict[str, Any]

QUANTITIES = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "layers": "num_hidden_layers",
    "context": "max_position_embeddings",
}
"""The entries of `Keys` that a class may rename, with their usual names."""
WINDOWS = ("sliding_window", "attention_chunk_size", "local_attention")
INTERVAL = re.compile(r"""kwargs\.(?:pop|get)\(\s*"(\w+_(?:pattern|interval))\"""")
FIRST = re.compile(r">= self\.(\w+)")
NOT_IN_TABLE = ("type", "rope_theta", "partial_rotary_factor")
"""Keys of the RoPE settings that a table of defaults needs not have: one of another schema, and
what others state.
"""
STATES = ("linear_attention", "conv", "mamba", "recurrent")


def class_default(config: Any, name: str) -> Any:
    """The default of a field as the class declares it, before other fields change it; None where it
    has none.
    """
    return getattr(type(config), type(config).attribute_map.get(name, name), None)


def rope_parameters(config: Any, layer_type: str = "full_attention") -> Facts:
    """The RoPE settings of the default config, those of one layer type where each has its own."""
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return dict(rope.get(layer_type) or nested[0]) if nested else dict(rope)


def keys(config: Any) -> Facts:
    """The table [keys]: what the class names otherwise than most classes do."""
    names = type(config).attribute_map
    facts: Facts = {
        key: [names[usual], usual]
        for key, usual in QUANTITIES.items()
        if names.get(usual, usual) != usual
    }
    if getattr(config, "qk_rope_head_dim", None):
        facts["head_dim"] = ["qk_rope_head_dim"]
    elif rope_parameters(config).get("partial_rotary_factor") is not None:
        facts["partial"] = ["partial_rotary_factor"]
    return facts


def defaults(config: Any) -> Facts:
    """The table [defaults]."""
    rope = rope_parameters(config)
    local = rope_parameters(config, "sliding_attention").get("rope_theta")
    by_formula = hasattr(config, "qk_rope_head_dim") or rope.get("rope_type") == "proportional"
    partial = None if by_formula else rope.get("partial_rotary_factor")
    head_dim = getattr(config, "qk_rope_head_dim", None) or class_default(config, "head_dim")
    facts: Facts = {
        "theta": rope.get("rope_theta"),
        "local_theta": local if local != rope.get("rope_theta") else None,
        "context": getattr(config, "max_position_embeddings", None),
        "head_dim": head_dim if isinstance(head_dim, int) else None,
        "kv_heads": class_default(config, "num_key_value_heads"),
        "partial_rotary_factor": partial,
        "scaling": scaling(rope),
    }
    return {key: value for key, value in facts.items() if isinstance(value, (int, float, dict))}


def scaling(rope: Facts) -> Facts | None:
    """The scaling in RoPE settings, as a table of defaults has it; None for the unscaled
    formula.
    """
    if rope.get("rope_type", "default") == "default":
        return None
    return {key: value for key, value in rope.items() if key in ROPE and key not in NOT_IN_TABLE}


def layers(config: Any, rotating: dict[str, bool]) -> Facts:
    """The table [layers]. rotating: whether the layers of each layer type rotate, where that was
    found out.
    """
    names = getattr(config, "layer_types", None)
    if isinstance(getattr(config, "no_rope_layers", None), list):
        interval = config.no_rope_layers.index(0) + 1 if 0 in config.no_rope_layers else 0
        return {
            "flags": "no_rope_layers",
            "interval_key": "no_rope_layer_interval",
            "interval": interval,
        }
    if not names:
        return {}
    rope = config.rope_parameters or {}
    still = {
        name
        for name in names
        if not rotating.get(name, True) or name in STATES or rope.get(name, rope) is None
    }
    nested = isinstance(rope.get("full_attention"), dict)
    kinds = {
        name: (
            "none"
            if name in still
            else "local"
            if nested and name != "full_attention"
            else "global"
        )
        for name in dict.fromkeys(names)
    }
    facts: Facts = {"types": kinds} if set(kinds.values()) != {"global"} else {}
    interval = next((n for n in range(2, len(names)) if _every(names, n)), 0)
    if interval:
        facts["interval"] = interval
        facts |= {"last": names[interval - 1]} if names[interval - 1] != "full_attention" else {}
        facts |= {"rest": names[0]} if names[0] != "sliding_attention" else {}
        named = INTERVAL.findall(inspect.getsource(type(config)))
        facts |= {"interval_key": named[0]} if named else {}
    return facts


def _every(names: list[str], interval: int) -> bool:
    last = names[interval - 1]
    rest = names[0]
    return last != rest and names == [
        last if (i + 1) % interval == 0 else rest for i in range(len(names))
    ]


def window(config: Any) -> Facts:
    """The table [window]."""
    fields = inspect.get_annotations(type(config))
    key = next((name for name in WINDOWS if name in fields), None)
    if key is None:
        return {}
    facts: Facts = {"key": key}
    if isinstance(class_default(config, key), int):
        facts["default"] = class_default(config, key)
    if hasattr(config, "use_sliding_window"):
        facts["switch"] = "use_sliding_window"
    first = next(
        (name for name in FIRST.findall(inspect.getsource(type(config))) if name in fields), None
    )
    if first:
        facts |= {"first_key": first, "first": class_default(config, first)}
    if not getattr(config, "layer_types", None):
        facts["layers"] = "all"
    return facts
