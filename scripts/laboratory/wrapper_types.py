"""Writes the model types around a text model that transformers has: `scripts/lab wrappers`.

The installed transformers is asked where each of its classes keeps the text model, and every class
is built there with two bases of the text model (`computes_from`). The sources of every version of
the lab are read for the first one that has the class.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from ropeconv.engines.probe_program import keep_on_cpu
from ropeconv.runtimes.runtime import version_key

from .environment import ROOT, wheel_sources
from .key_files import MODEL_TYPE
from .runtimes.transformers import RUNTIME

PLACE = Path(__file__).parents[2] / "ropeconv" / "models" / "wrapper_types.json"
PATHS = ("text_config", "thinker_config.text_config")
BASES = (54321.0, 98765.0)
"""Bases that no model has."""
TEXT_MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
}
"""A text model for classes that take any."""

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


def main() -> None:
    """Write the file, with a line per model type."""
    versions = sorted(RUNTIME.versions, key=version_key)
    sources = {
        version: wheel_sources(
            "transformers", version, ROOT / "sources" / f"transformers-{version}"
        )
        for version in versions
    }
    write(record(sources))


def record(sources: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Return the types with their path, first version, text model, and the version that was run.

    Args:
        sources: The sources of transformers by version, the oldest first.
    """
    since: dict[str, str] = {}
    for version, root in sources.items():
        for path in (root / "transformers" / "models").glob("*/configuration_*.py"):
            for model_type in MODEL_TYPE.findall(path.read_text("utf-8")):
                since.setdefault(model_type, version)
    types = {}
    for name, (path, text) in sorted(installed().items()):
        if name not in since:
            continue
        entry: dict[str, Any] = {"path": path, "since": since[name]}
        if text:
            entry["text"] = text
        types[name] = entry
    return with_runs(types)


def with_runs(types: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the types with the version of transformers whose class of each was run."""
    from transformers import __version__

    found = {}
    for name, entry in types.items():
        entry = {key: value for key, value in entry.items() if key != "run"}
        if computes_from(name, entry["path"], "text" not in entry):
            entry["run"] = str(__version__)
        if reads_flat(name):
            entry["flat"] = True
        found[name] = entry
    return found


def reads_flat(name: str) -> bool:
    """Return whether the config class of a type reads keys of its text model at the top too.

    Configs of Qwen2-VL were published so before there was a text_config.

    Args:
        name: The model type.
    """
    from transformers import CONFIG_MAPPING

    sizes = {"hidden_size": 1280, "num_attention_heads": 10, "max_position_embeddings": 7777}
    with suppress(Exception):  # classes fail on some of these sizes
        text = CONFIG_MAPPING[name].from_dict({"model_type": name, **sizes}).get_text_config()
        return getattr(text, "max_position_embeddings", None) == sizes["max_position_embeddings"]
    return False


def computes_from(name: str, path: str, any_text: bool) -> bool:
    """Return whether the class of a type computes frequencies from the base of its text model.

    The model around the text model is built twice, without weights, with two bases.

    Args:
        name: The model type.
        path: The keys of the text model's config, with a dot between them.
        any_text: Whether the class takes every text model.
    """
    texts: list[dict[str, Any]] = [{}]
    if any_text and path == "text_config":
        texts.insert(0, {"text_config": TEXT_MODEL})
    for text in texts:
        with suppress(Exception):  # classes fail on their own defaults, or need other packages
            first = frequencies(name, path, text, BASES[0])
            second = frequencies(name, path, text, BASES[1])
            return any(not first[buffer].equal(second[buffer]) for buffer in first)
    return False


def frequencies(name: str, path: str, text: dict[str, Any], base: float) -> dict[str, Tensor]:
    """Return the frequencies of a whole model, by the names of their buffers.

    Args:
        name: The model type, such as "llava".
        path: The keys of the text model's config, with a dot between them.
        text: Arguments of the config class, such as {"text_config": ...}.
        base: The rope_theta that the text model gets.
    """
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[name](**copy.deepcopy(text))
    inner: Any = config
    for key in path.split("."):
        inner = getattr(inner, key)
    settings = inner.rope_parameters
    for item in (settings, *settings.values()):  # or settings of each type of layers
        if isinstance(item, dict) and "rope_theta" in item:
            item["rope_theta"] = base

    found = {}
    for place, module in build_whole(config, inner).named_modules():
        for buffer, value in module.named_buffers(recurse=False):
            if buffer.endswith("inv_freq") and value.device.type != "meta":
                found[f"{place}.{buffer}"] = value
    return found


def build_whole(config: Any, inner: Any) -> Module:
    """Return a model around a text model without weights, whose rotary modules are on the CPU."""
    import torch
    from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, PreTrainedModel

    candidates = []
    rotary_classes = []
    for kind in (type(config), type(inner)):
        name = kind.__module__.replace(".configuration_", ".modeling_")
        if find_spec(name) is None:
            # a config class of its own whose model class is that of another type: GLM-GA is loaded
            # as GLM 4.6V (transformers models/auto/modeling_auto.py)
            candidates.append(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[kind])
            continue
        code = importlib.import_module(name)
        for member in vars(code).values():
            if not inspect.isclass(member) or not issubclass(member, torch.nn.Module):
                continue
            if "Rotary" in member.__name__:
                rotary_classes.append(member)
            is_whole = getattr(member, "config_class", None) is type(config)
            if is_whole and "PreTrained" not in member.__name__:
                candidates.append(member)

    # the class that generates first; some types have only a model without a head
    candidates.sort(key=lambda member: "ForConditionalGeneration" not in member.__name__)
    with ExitStack() as undo:
        # random numbers for weights would take minutes
        undo.enter_context(patch.object(PreTrainedModel, "init_weights", lambda self: None))
        for rotary in rotary_classes:
            undo.enter_context(patch.object(rotary, "__init__", rotary.__init__))  # to restore it
            keep_on_cpu(rotary)
        for member in candidates:
            with suppress(Exception), torch.device("meta"):
                return member._from_config(config)
    raise LookupError(f"no class of {type(config).__name__} can be built")


def installed() -> dict[str, tuple[str, str]]:
    """Return where the installed transformers has the text model in the config of each type.

    Such as {"llava": ("text_config", "")}: the keys with a dot between them, and the only type of
    the text model; empty where any type can be there.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    found = {}
    for name in CONFIG_MAPPING_NAMES:
        for path in PATHS:
            inner: Any = CONFIG_MAPPING[name]
            for key in path.split("."):
                inner = getattr(inner, "sub_configs", {}).get(key)
            if inner is not None:
                fixed = "" if inner.__name__ == "AutoConfig" else str(inner.model_type)
                found[name] = (path, fixed)
    return found


def write(types: dict[str, dict[str, Any]]) -> None:
    """Write the file of the package."""
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in types.items())
    PLACE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
