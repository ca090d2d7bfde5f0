"""Models around a text model: their model types, and where each of them keeps its text model.

A statement about a text model does not hold for an untested model around it, whose class may keep
the settings of the text model elsewhere. The published Qwen3-ASR has them in thinker_config, and
the class of transformers for it reads text_config and computes the default base.
"""

from functools import cache

import msgspec

from ..formats.package_data import package_data
from .family import Family
from .schema import Config, first_present, text_config


class WrapperType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model type of transformers whose config has a text model inside."""

    path: str
    """The keys of the text model's config, with a dot between them."""

    since: str
    """The first version of transformers in the lab that has it."""

    text: str = ""
    """The only model type of the text model; empty where its class takes every one."""

    run: str = ""
    """The version of transformers whose class was run, which computed its frequencies from there.

    Empty for a class that could not be run.
    """

    flat: bool = False
    """Whether its config class reads the keys of the text model at the top too (Qwen2-VL)."""


@cache
def wrapper_types() -> dict[str, WrapperType]:
    """Return the types by name, from `wrapper_types.json`, which `scripts/lab wrappers` writes."""
    return package_data("models/wrapper_types.json", dict[str, WrapperType])


def wrapper_of(config: Config, family: Family) -> str | None:
    """Return the model type of a multimodal model, such as "llava"; None for a text model.

    `{"model_type": "llava", "text_config": {"model_type": "llama"}}` gives "llava". It is "" for a
    multimodal config without a model_type.

    Args:
        config: The whole config.json.
        family: The family of the text model, such as Llama's.
    """
    text = text_config(config)
    if text is None:
        return None
    # an encoder-decoder model has its two text models in objects too; `halves` are their keys
    is_encoder_decoder = bool(family.halves)
    if is_encoder_decoder:
        return None

    # a text model may also be written with an object of its own type inside
    outer_type = config.get("model_type")
    text_type = text.get("model_type", outer_type)
    if text_type == outer_type:
        return None
    # the family describes the outer type, and reads the object as a part of it
    if text_type not in family.model_types:
        return None
    return str(outer_type or "")


def transformers_finds_text_model(config: Config, family: Family, wrapper: str) -> bool | None:
    """Return whether the class of a wrapper reads the text model where a config has it.

    None for a class that is not known.
    """
    known = wrapper_types().get(wrapper)
    if known is None:
        return None
    if first_present(config, (known.path,)) is not text_config(config):
        return False
    return not known.text or known.text in family.model_types
