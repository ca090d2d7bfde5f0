"""Reads a config.json by the rules of its family: the family, the text part, widths, and which layers rotate."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import BadSource, UnknownModelType
from ..rope.errors import counted, shown
from ..rope.spec import WIDEST_HEAD
from .family import Family, Kind
from .layers import kinds_of, layer_kinds, layer_names, layer_windows, own_settings, settings_name
from .registry import assumed_family, assumption, by_model_type, refused
from .schema import LAYER_SHARES, Config, check_config, check_quantisation, first_present, positive_int, text_config
from .suggest import Shapes, suggestion

__all__ = [
    "STORED_ROPE",
    "Config",
    "Geometry",
    "detect",
    "first_present",
    "geometry",
    "halves",
    "nested_settings",
    "positive_int",
    "rotary_share",
    "text_part",
    "text_parts",
]

STORED_ROPE = "_stored_rope"  # ends the model types of checkpoints that bring their rotary code


@dataclass(frozen=True)
class Geometry:
    """Sizes of a model that decide what rotates.

    head_dim, rotary_dim: dimensions of a head, and how many of them rotate; local_head_dim, local_rotary_dim in local
    layers. context: declared tokens. layers: the kind of each layer. windows: how many tokens each layer sees, None for
    all. chunked: whether these are chunks. notes: a sentence per class default that was used.
    """

    head_dim: int
    rotary_dim: int
    local_head_dim: int
    local_rotary_dim: int
    context: int
    layers: tuple[Kind, ...]
    windows: tuple[int | None, ...]
    chunked: bool
    notes: tuple[str, ...]


def detect(config: Config, assumed: str = "", shapes: Callable[[], Shapes] = dict) -> Family:
    """The family of a config.json, whose keys are checked.

    Every config from outside comes by here, before any of its keys is read.

    assumed: the name of the family that the user says it is of; empty to go by its `model_type`. shapes: of the tensors
    of the model by name, for a suggestion where that is not known.

    Raises UnknownModelType where no family has its `model_type`, BadSource where that is absent or cannot be extended,
    and where a key that is read has another type or a number out of range, UsageError for an assumed family that is not
    known.
    """
    family = assumed_family(config, assumed) if assumed else _by_model_type(config, shapes)
    for part in text_parts(config, family):
        check_config(part, family)
    check_quantisation(config)
    return family


def _by_model_type(config: Config, shapes: Callable[[], Shapes]) -> Family:
    """The family of a config by its `model_type`. Raises as `detect` does."""
    text = text_config(config)
    names = [part.get("model_type") for part in (text, config) if part is not None]
    for name in names:
        family = by_model_type().get(name) if isinstance(name, str) else None
        if family is not None:
            _refuse_without_rope(config if text is None else text, family)
            return family
    name = names[-1]
    if name is None:
        raise BadSource("config.json has no model_type, so the architecture is unknown; add it, or give another folder")
    if isinstance(name, str) and name.endswith(STORED_ROPE):
        raise BadSource(
            f"model_type {shown(name)} is a checkpoint of ropeconv whose RoPE is in its tensors and its own code; "
            "`ropeconv restore` brings its source back, and `apply --replace` bakes another method from that"
        )
    for known in names:
        if isinstance(known, str) and known in refused():
            raise BadSource(f"model_type {shown(known)} {refused()[known]}")
    raise UnknownModelType(
        f"model_type {shown(name)} is not known to ropeconv, and guessing its RoPE would be wrong sooner or later; "
        + suggestion(config, shapes())
    )


def _refuse_without_rope(part: Config, family: Family) -> None:
    for need in family.rotates:
        value = first_present(part, (need.key,), need.default)
        if value != need.value:
            raise BadSource(
                f"this {family.name} config has {need.key} = {shown(value)}, so it has no rotary position embedding "
                "and nothing to extend"
            )


def text_part(config: Config, family: Family) -> Config:
    """The dictionary with the language model's keys: the config itself, its `text_config`, or that of its decoder."""
    return text_parts(config, family)[0]


def text_parts(config: Config, family: Family) -> list[Config]:
    """The dictionaries with a language model's keys: one, or one for each of `Family.halves`.

    A `text_config` of this family counts whatever the model around it is (LLaVA over Llama, Mistral 3 over Mistral).
    Raises BadSource where a half is absent.
    """
    if family.halves:
        return [_half(config, path) for path in family.halves]
    inner = text_config(config)
    own = inner is not None and inner.get("model_type", config.get("model_type")) in family.model_types
    return [inner if inner is not None and own else config]


def halves(config: Config, family: Family) -> Iterator[tuple[str, Config]]:
    """Of a model with an encoder and a decoder, each further half by its key, as a config in which it is read first."""
    for path in family.halves[1:]:
        whole = copy.deepcopy(config)
        text_part(whole, family).update(_half(config, path))
        yield path, whole


def _half(config: Config, path: str) -> Config:
    found = first_present(config, (path,))
    if not isinstance(found, dict):
        raise BadSource(f"config.json has no {path}; add it, or give the folder of the whole model")
    return found


def geometry(config: Config, family: Family) -> Geometry:
    """The sizes of a model: head width, rotated width, declared context and layer kinds.

    Raises BadSource when a needed key is absent or not a number.
    """
    part, keys, defaults = text_part(config, family), family.keys, family.defaults
    notes = [assumption(family)] if family.assumed else []
    count = (positive_int(part, keys.layers, defaults.layers) or 0) * family.layers.blocks
    kinds = layer_kinds(part, family, count)
    own = own_settings(part).get(kinds.index("global"), {}) if "global" in kinds else {}
    head_dim = positive_int(own, ("head_dim",)) or positive_int(part, keys.head_dim)
    if head_dim is None:
        head_dim = _head_dim(part, family)
        notes.append(f"head_dim is absent: {head_dim}")
    local_head_dim = positive_int(part, keys.local_head_dim, defaults.local_head_dim) or head_dim
    context = positive_int(part, keys.context)
    if context is None:
        if defaults.context is None:
            raise BadSource(f"config.json has no {keys.context[0]}; add it")
        context = defaults.context
        notes.append(f"{keys.context[0]} is absent: the class default {context} holds")
    return Geometry(
        head_dim=head_dim,
        rotary_dim=_rotary_dim(part, family, head_dim),
        local_head_dim=local_head_dim,
        local_rotary_dim=_rotary_dim(part, family, local_head_dim, "local"),
        context=context,
        layers=kinds,
        windows=layer_windows(part, family, kinds),
        chunked=family.window.chunked,
        notes=tuple(notes),
    )


def _head_dim(part: Config, family: Family) -> int:
    keys = family.keys
    if family.defaults.head_dim is not None:
        return family.defaults.head_dim
    hidden, heads = positive_int(part, keys.hidden), positive_int(part, keys.heads)
    if hidden is None or heads is None:
        raise BadSource(f"config.json has neither head_dim nor {keys.hidden[0]} and {keys.heads[0]}; add them")
    if hidden < heads:
        raise BadSource(
            f"config.json has {keys.hidden[0]} = {hidden}, less than its {counted(heads, 'head')}; correct it"
        )
    width = family.hooks.head_dim(hidden, heads)
    if width > WIDEST_HEAD:
        raise BadSource(
            f"config.json has {keys.hidden[0]} = {hidden} for {counted(heads, 'head')}, which makes heads of "
            f"{width:,} dimensions, and published models have up to 576; correct it"
        )
    return width


def rotary_share(part: Config, family: Family, kind: Kind = "global") -> Any:
    """The share of a head that rotates: from rope_parameters, the top level, or the class default, in this order.

    part: the text part of a config. kind: of the layers, which may have settings of their own.
    """
    defaults = family.defaults
    local = kind == "local" and defaults.local_partial is not None
    default = defaults.local_partial if local else defaults.partial_rotary_factor
    found = nested_settings(part, family, kind)
    if found and family.keys.partial:
        if found.get("partial_rotary_factor") is not None:
            return found["partial_rotary_factor"]
        default = default if defaults.unstated_partial is None else defaults.unstated_partial
    listed = part.get(LAYER_SHARES)
    if listed and family.keys.partial:
        kinds = kinds_of(part, family, layer_names(part, family, len(listed)))
        return next((share for share, own in zip(listed, kinds, strict=False) if own == kind), default)
    return first_present(part, family.keys.partial, default)


def nested_settings(part: Config, family: Family, kind: Kind) -> Config:
    """The `rope_parameters` of a kind of layers, empty where there are none.

    part: the text part of a config. family: of the model, which says whether they are nested per layer type.
    """
    new = part.get("rope_parameters")
    if family.writing.nested and isinstance(new, dict):
        new = new.get(settings_name(part, family, kind))
    return new if isinstance(new, dict) else {}


def _rotary_dim(part: Config, family: Family, head_dim: int, kind: Kind = "global") -> int:
    explicit = positive_int(part, family.keys.rotary_dim) if family.keys.rotary_dim else None
    if explicit is not None:
        return _paired(explicit, head_dim)
    share = rotary_share(part, family, kind)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise BadSource(
            f"config.json has a partial rotary factor of {shown(share)}; write a number above 0 and up to 1"
        )
    rotary_dim = int(head_dim * share)
    if rotary_dim < 2:
        raise BadSource(f"config.json leaves {rotary_dim} of {head_dim} dimensions to rotate; nothing can be extended")
    return _paired(rotary_dim, head_dim)


def _paired(rotary_dim: int, head_dim: int) -> int:
    """The number of rotating dimensions, which has to be even. head_dim: of the head, for the message."""
    if rotary_dim % 2:
        raise BadSource(f"config.json rotates {rotary_dim} of {head_dim} dimensions, which rotate in pairs; correct it")
    if rotary_dim > head_dim:
        raise BadSource(f"config.json rotates {rotary_dim} dimensions of heads that have {head_dim}; correct it")
    return rotary_dim
