"""Writes `ropeconv/models/null_keys.json`: what a key that is null means to the class of a family.

A key that is absent has the default of its class. For null, some classes fail, and others compute
without the default: with the hidden size over the heads for `head_dim`, or with the whole head for
`partial_rotary_factor`.
"""

import copy
import json
from typing import Any

from ropeconv.models.family import Family
from ropeconv.models.registry import package_families
from ropeconv.runtimes.read_config import ORIGINAL

from .config_keys import FILE as BESIDE
from .library import config_classes

FILE = BESIDE.with_name("null_keys.json")
SIZES: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 32,
    "max_position_embeddings": 4096,
    "rope_theta": 500000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""A small config, whose hidden size over its heads is 48 and not `head_dim`."""
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}

PLAIN: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}


def meanings(family: Family) -> dict[str, str]:
    """Return what null means to the class of a family, by key, where it is not the default.

    Returns:
        "refused" where the class fails on null, "unset" where it computes without its default, and
        "refused-yarn" where it does that and fails with yarn and longrope.
    """
    model_type = family.text_type
    if model_type not in config_classes() or family.halves:
        return {}
    stated = rotating(model_type, {})
    if not stated:  # the small config does not suit this class
        return {}

    found = {}
    for key in (*family.keys.head_dim, *family.keys.partial):
        absent = {name: value for name, value in SIZES.items() if name != key}
        default = _rotating(model_type, absent)
        with_null = rotating(model_type, {key: None})
        if with_null is None:
            if default:  # else the class fails without the key too, or its default is null
                found[key] = "refused"
            continue
        if key in family.keys.head_dim and not family.mla:
            has_yarn = rotating(model_type, {"rope_scaling": YARN}) is not None
            if has_yarn and rotating(model_type, {key: None, "rope_scaling": YARN}) is None:
                found[key] = "refused-yarn"
                continue
        if default and with_null != default:
            found[key] = "unset"

    # without a scaling most classes read no trained length, and accept null as its value
    if rotating(model_type, PLAIN) and rotating(model_type, {**PLAIN, ORIGINAL: None}) is None:
        found[ORIGINAL] = "refused"
    return found


def rotating(model_type: str, changes: dict[str, Any]) -> set[int] | None:
    """Return how many dimensions rotate in the small config; None where its class fails."""
    return _rotating(model_type, {**SIZES, **changes})


def _rotating(model_type: str, settings: dict[str, Any]) -> set[int] | None:
    """Return how many dimensions rotate in a config; None where its class fails."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        config = CONFIG_MAPPING[model_type].from_dict(copy.deepcopy(settings))
        causal = type(config) in AutoModelForCausalLM._model_mapping
        with torch.device("meta"):
            model = (AutoModelForCausalLM if causal else AutoModel).from_config(config)
    except Exception:
        return None
    dimensions = set()
    for name, module in model.named_modules():
        if "vision" in name or "otary" not in type(module).__name__:
            continue
        for vector, values in module.named_buffers(recurse=False):
            if vector.endswith("inv_freq") and "original" not in vector:
                dimensions.add(2 * values.numel())
    return dimensions


def text() -> str:
    """The content of the file, a line for each family with such a key."""
    by_family = {family.name: meanings(family) for family in package_families()}
    lines = []
    for name, found in by_family.items():
        if found:
            lines.append(f"{json.dumps(name)}: {json.dumps(found)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
