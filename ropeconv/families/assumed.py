"""The family that a user says a model is of, whatever its `model_type` (`--family`)."""

from __future__ import annotations

import difflib

import msgspec

from ..errors import UsageError
from .family import Family
from .keys import Config, text_config
from .registry import by_name

LAYOUTS = {"half": "pairs (i, i + r/2) rotate", "interleaved": "pairs (2i, 2i + 1) rotate"}
KINDS = {"global": "rotates", "local": "rotates by its own base and is not extended", "none": "does not rotate"}


def assumed_family(config: Config, name: str) -> Family:
    """The family of that name, as one that has the model type of a config too. Raises UsageError for another name."""
    family = by_name().get(name)
    if family is None:
        near = difflib.get_close_matches(name, by_name(), 3)
        meant = f"did you mean {' or '.join(near)}" if near else "`ropeconv families` lists them"
        raise UsageError(f"--family {name} is not known; {meant}, or describe it in a file (docs/families.md)")
    model_type = _model_type(config)
    if model_type in family.model_types:
        return family
    return msgspec.structs.replace(family, model_types=(*family.model_types, model_type), assumed=model_type)


def _model_type(config: Config) -> str:
    inner = (text_config(config) or {}).get("model_type")
    return str(inner or config.get("model_type") or "")


def assumption(family: Family) -> str:
    """A sentence on what is assumed about a model that is treated as this family; empty for a model that is of it."""
    if not family.assumed:
        return ""
    keys, weights, window = family.keys, family.weights, family.window
    said = [
        f"its RoPE is that of {family.display_name}",
        LAYOUTS[family.layout] + (", multi-head latent attention" if family.mla else ""),
        f"head_dim from {', '.join(keys.head_dim)}" + _otherwise(family),
        f"a layer of type {' and '.join(f'{name} {KINDS[kind]}' for name, kind in family.layers.types.items())}"
        if family.layers.types
        else f"the layers that {family.layers.flags} flags rotate"
        if family.layers.flags
        else "every layer rotates",
        f"queries and keys from {weights.fused or f'{weights.q} and {weights.k}'}",
    ]
    said += [f"norms of them are {weights.q_norm} and {weights.k_norm} ({weights.norm})"] if weights.q_norm else []
    said += [f"a window in {window.key}"] if window.key else []
    return f"model_type {family.assumed!r} is taken as {family.name}: {'; '.join(said)}"


def _otherwise(family: Family) -> str:
    if family.defaults.head_dim:
        return f", else {family.defaults.head_dim}"
    return f", else {family.keys.hidden[0]} / {family.keys.heads[0]}"
