"""The draft of a family: what its classes in the installed transformers compute, in the form of a
file of families.

The classes are run by `ropeconv/features/derivation`, on a config that states nothing.
"""

import json
from typing import Any

from ropeconv.features.derivation.derivation import Derivation, DerivationProcess
from ropeconv.formats.files import scratch

from .library import config_classes, modeling_files
from .walk import default_config


def draft(model_type: str, process: DerivationProcess | None = None) -> dict[str, Any]:
    """The family of a model type, without what its classes do not show.

    process: one that runs; None to start one.

    Raises ValueError where transformers does not have it, or its class cannot be described.
    """
    if model_type not in config_classes():
        raise ValueError(f"the installed transformers has no model type {model_type}")
    if process is None:
        with DerivationProcess() as started:
            return draft(model_type, started)
    return draft_of(model_type, ask(model_type, process))


def draft_of(model_type: str, answer: Derivation) -> dict[str, Any]:
    """Return the draft of a family for a model type, as the tables of a family's file.

    Args:
        model_type: The model type.
        answer: The facts that were derived from its class in transformers.

    Raises:
        ValueError: Its class cannot be described.
    """
    if answer.error:
        raise ValueError(f"the class of {model_type} has no draft: {answer.error}")
    return {
        "name": model_type,
        "display_name": answer.class_name.removesuffix("ForCausalLM"),
        "model_types": list(dict.fromkeys((model_type, text_type(model_type)))),
        "source": f"transformers {'/'.join(modeling_files(model_type)[0].parts[-3:])}",
        **answer.family,
    }


def ask(model_type: str, process: DerivationProcess) -> Derivation:
    """Return what the class of a model type reads from a config that states nothing."""
    whole: dict[str, Any] = {"model_type": model_type}
    inner = text_type(model_type)
    if inner != model_type:
        whole["text_config"] = {"model_type": inner}
    with scratch() as folder:
        (folder / "config.json").write_text(json.dumps(whole), "utf-8")
        return process.ask(folder, own_code=False)


def text_type(model_type: str) -> str:
    """The type of the text model of a type: its own, or that of the one inside."""
    config = default_config(model_type)
    if config is None:
        return model_type
    text = config.get_text_config()
    return str(text.model_type) if text is not config else model_type
