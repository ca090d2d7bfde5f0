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
    """Return the model type around the text model of a config; None for a text model of its own.

    `{"model_type": "llava", "text_config": {"model_type": "llama"}}` gives "llava". It is "" where
    the model around the text model has no model_type.

    Args:
        config: The whole config.json.
        family: The family of its text model.
    """
    inner = text_config(config)
    if inner is None:
        return None
    # encoder-decoder models have their text models in objects too, such as "decoder"
    if family.halves:
        return None

    outer_type = config.get("model_type")
    inner_type = inner.get("model_type", outer_type)
    if inner_type == outer_type or inner_type not in family.model_types:
        return None
    return str(outer_type or "")


def is_where_transformers_reads(config: Config, family: Family, wrapper: str) -> bool | None:
    """Return whether the class of a wrapper reads the text model where a config has it.

    None for a class that is not known.
    """
    known = wrapper_types().get(wrapper)
    if known is None:
        return None
    if first_present(config, (known.path,)) is not text_config(config):
        return False
    return not known.text or known.text in family.model_types
