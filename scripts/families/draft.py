"""The draft of a family: what its classes in the installed transformers say, in the form of a file
of families.
"""

import re
from typing import Any

from . import config_facts, model_facts
from .library import config_classes, modeling_files
from .rotates import rotary_source
from .walk import default_config

INTERLEAVED = re.compile(r"0?::2|1::2|view_as_complex|rotate_every_two")


def draft(model_type: str) -> dict[str, Any]:
    """The family of a model type, without what its classes do not say.

    Raises ValueError where transformers does not have it, or builds it from parts that have no
    defaults.
    """
    if model_type not in config_classes():
        raise ValueError(f"the installed transformers has no model type {model_type}")
    config = default_config(model_type)
    if config is None:
        raise ValueError(
            f"the config class of {model_type} has no defaults for a part of it; name that part"
        )
    text = config.get_text_config()
    text = (
        text if text is config else default_config(text.model_type) or text
    )  # the class's own, not this model's
    try:
        return _family(model_type, text)
    except (AttributeError, RuntimeError) as problem:
        raise ValueError(
            f"the class of {model_type} cannot be made from its defaults: {problem}"
        ) from None


def _family(model_type: str, text: Any) -> dict[str, Any]:
    """The draft of a family. text: the default config of its text model."""
    model = model_facts.build(text)
    attentions = list(model_facts.attentions(model))
    kinds = model_facts.rotating(model, text.model_type)
    rotating = next(
        (attention for attention in attentions if kinds.get(attention.layer_type, True)), None
    )
    mla = hasattr(text, "kv_lora_rank")
    family: dict[str, Any] = {
        "name": model_type,
        "display_name": type(text).__name__.removesuffix("Config"),
        "model_types": list(dict.fromkeys((model_type, text.model_type))),
        "source": f"transformers {'/'.join(modeling_files(model_type)[0].parts[-3:])}",
        "layout": "interleaved" if INTERLEAVED.search(rotary_source(text.model_type)) else "half",
        "mla": mla,
        "keys": config_facts.keys(text),
        "defaults": config_facts.defaults(text),
        "layers": config_facts.layers(text, kinds),
        "window": config_facts.window(text),
        "weights": model_facts.weights(rotating, text) if rotating else {},
    }
    if mla:
        family["weights"]["rows"] = "last"
    return {key: value for key, value in family.items() if value not in ({}, False)}
