"""Every model type of the installed transformers: whether it rotates, and what ropeconv says about
it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ropeconv.errors import BadSource, UnknownModelType
from ropeconv.models.config import detect

from .library import config_classes
from .rotates import rotary_code

State = Literal["known", "refused", "unknown"]


@dataclass(frozen=True)
class ModelType:
    """A model type of the installed transformers.

    rotates: whether its classes rotate queries and keys. text: whether it is a model of text by
    itself, without one inside. state: what ropeconv says. detail: the name of the family, or the
    reason for which it is refused.
    """

    name: str
    rotates: bool
    text: bool
    state: State
    detail: str


def walk() -> list[ModelType]:
    """All model types of the installed transformers, sorted by name."""
    return [model_type(name) for name in sorted(config_classes())]


def model_type(name: str) -> ModelType:
    """One model type, as the config with the defaults of its class is taken by `detect`."""
    config = default_config(name)
    whole = {"model_type": name} if config is None else config.to_dict()
    inner = None if config is None else config.get_text_config()
    text = inner is config and hasattr(inner, "vocab_size")
    state, detail = said(whole)
    return ModelType(name, bool(rotary_code(name)), text, state, detail)


def default_config(name: str) -> Any:
    """Return the config of a model type with the defaults of its class.

    It is None for a class that has no default for one of its parts.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(name)
        config.get_text_config()
        config.to_dict()
    except (ValueError, TypeError, AttributeError, StrictDataclassError):
        return None
    return config


def said(config: dict[str, Any]) -> tuple[State, str]:
    """Return what ropeconv says about a config, with the name of its family, or why it is
    refused.
    """
    try:
        family = detect(config)
    except UnknownModelType:
        return "unknown", ""
    except BadSource as problem:
        return "refused", str(problem)
    return ("refused", family.refuse) if family.refuse else ("known", family.name)
