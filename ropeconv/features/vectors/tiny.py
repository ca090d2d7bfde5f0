"""Tiny models: 2 layers with random weights, as published checkpoints of an architecture.

`shape_of` finds the config of an architecture or of a MODEL, and `write_tiny` writes the folder.
The class of transformers only tells which tensors there are; numpy fills them, so the weights
depend only on their names.
"""

from __future__ import annotations

import copy
import json
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ropeconv.errors import BadSource, UsageError
from ropeconv.formats.drafts import write_file
from ropeconv.formats.jsontext import JsonObject
from ropeconv.formats.package_data import package_data
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models.config import text_part
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.spec import RopeSpec

from .tokenizer import tokenizer_files

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

TRAINED = 64
"""The trained length of every tiny model, in tokens."""
QUERY_KEY_DEVIATION = 1.5
"""The standard deviation of queries and keys; that of scores of attention is about its square."""
LOGIT_DEVIATION = 3.0
"""The standard deviation of the logits."""


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tiny model of an architecture."""

    config: dict[str, Any]
    """Keys of its config beside the common ones."""

    remove: tuple[str, ...] = ()
    """Common keys that its class does not have."""


class Shapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of shapes.toml, which explains its fields."""

    kept: tuple[str, ...]
    common: dict[str, Any]
    families: dict[str, Shape]


@cache
def shapes() -> Shapes:
    """Return the shapes of all architectures."""
    return package_data(Path(__file__).with_name("shapes.toml"), Shapes)


@dataclass(frozen=True)
class TinyModel:
    """A tiny model that can be written."""

    model_type: str

    settings: JsonObject
    """The keys of its config."""

    subject: str
    """The architecture or MODEL that it stands for, as the user named it."""

    notes: tuple[str, ...] = ()
    """How it differs from MODEL, as sentences."""


def shape_of(subject: str) -> TinyModel:
    """Return the tiny model of an architecture, or of a MODEL with its RoPE.

    Args:
        subject: A model type such as "llama", or what `open_source` opens.

    Raises:
        UsageError: For an architecture without a shape.
        BadSource: For a MODEL that cannot be read.
    """
    known = shapes().families
    if subject in known:
        return TinyModel(subject, _settings(subject), subject)

    # a word that is neither an architecture nor a file
    listed = ", ".join(sorted(known))
    is_word = subject.isidentifier() and not Path(subject).exists()
    if is_word:
        raise UsageError(
            f"'{subject}' is not an architecture of `vectors`; give a model, or one of {listed}"
        )

    # a model
    source = open_source(subject)
    if isinstance(source, GgufSource):
        raise UsageError(f"{subject} is a GGUF file; give the checkpoint, or one of {listed}")
    config = text_part(source.config(), source.family)
    model_type = str(config.get("model_type", ""))
    if model_type not in known:
        raise BadSource(
            f"'{subject}' has the model type '{model_type}', which `vectors` does not make tiny;"
            f" give a model of {listed}"
        )
    spec = inspect_source(source).spec
    notes = []
    if spec.scaled:
        notes.append(f"{subject} is scaled already; the packet starts from its unscaled RoPE.")
    settings = _settings_with_rope(model_type, config, spec)
    return TinyModel(model_type, settings, subject, tuple(notes))


def _settings_with_rope(model_type: str, config: JsonObject, spec: RopeSpec) -> JsonObject:
    """Return the config keys of a tiny model with the RoPE of a published one.

    The RoPE is without scaling, since the trained length of the tiny model is another one.

    Args:
        model_type: The architecture of both.
        config: The config of the published model.
        spec: Its RoPE.
    """
    settings = _settings(model_type)
    for name in shapes().kept:
        if name in config and config[name] is not None:
            settings[name] = config[name]

    # the base, at the top or, as transformers 5 writes it, in a dictionary
    base = spec.unscaled().rope_theta
    if "rope_parameters" in settings:
        settings["rope_parameters"]["rope_theta"] = base
    else:
        settings["rope_theta"] = base

    # the share of a head that rotates, since heads of the tiny model have another width
    share = spec.rotary_dim / spec.head_dim
    for name in ("partial_rotary_factor", "rotary_pct"):
        if name in settings:
            settings[name] = share
    return settings


def _settings(model_type: str) -> JsonObject:
    """Return the config keys of the tiny model of an architecture."""
    shape = shapes().families[model_type]
    settings = copy.deepcopy({**shapes().common, **shape.config})
    for name in shape.remove:
        settings.pop(name, None)
    # TOML has no null, for which shapes.toml writes false
    for name in ("sliding_window", "sliding_window_pattern"):
        if settings.get(name) is False:
            settings[name] = None
    return settings


def write_tiny(tiny: TinyModel, folder: Path, seed: int) -> None:
    """Write the checkpoint of a tiny model: config, weights in float32, and tokenizer.

    The values of the weights are rounded to bfloat16, so that engines that compute in it load the
    same weights.

    Args:
        tiny: From `shape_of`.
        folder: An empty folder.
        seed: The seed of the random weights.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    settings = dict(tiny.settings)
    try:
        config = AutoConfig.for_model(tiny.model_type, **settings)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        model = model.to(torch.float32)
    except (ValueError, TypeError, KeyError) as problem:
        raise RopeconvError(
            f"the installed transformers does not make a tiny {tiny.model_type} ({problem}); update"
            " transformers"
        ) from None
    fill(model, seed)
    model.save_pretrained(folder)

    # The config as publishers write it: rope_theta at the top level. transformers has saved it in
    # `rope_parameters` (the schema of release 5), which is removed unless `settings` have it too.
    path = folder / "config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    saved.pop("rope_parameters", None)
    saved.update(settings)
    saved["dtype"] = "float32"
    files = {"config.json": json.dumps(saved, indent=2) + "\n"}
    files |= tokenizer_files(int(saved["vocab_size"]))
    for name, text in files.items():
        write_file(folder / name, text)


def fill(model: PreTrainedModel, seed: int) -> None:
    """Fill the parameters of a model with random numbers, each by its name and the seed."""
    import torch

    # whether the embeddings are the last projection too
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is model.get_input_embeddings().weight
    for name, parameter in model.named_parameters():
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        values = _values(name, parameter, generator, is_tied).astype(np.float32)
        with torch.no_grad():
            # rounded to bfloat16, so that engines in that precision load the same weights
            rounded = torch.from_numpy(values).to(torch.bfloat16).float()
            parameter.copy_(rounded)


def _values(
    name: str, parameter: Tensor, generator: np.random.Generator, is_tied: bool
) -> np.ndarray[Any, Any]:
    """Return random numbers for a parameter of a tiny model.

    Each part of the model must change the logits, so that a mistake of an engine is noticed: one
    that ignores a bias, for example, or multiplies by weight where a norm has 1 + weight. Biases
    and weights of norms vary by 0.3 for that, which also keeps the weights of norms positive.

    Args:
        name: The name of the parameter.
        parameter: The parameter as its class makes it; only its shape, and the first number of a
            norm, are used.
        generator: Draws the numbers.
        is_tied: Whether the embeddings are the last projection too.
    """
    shape = tuple(parameter.shape)
    if name.endswith("bias"):
        return np.asarray(0.3 * generator.standard_normal(shape))
    if len(shape) == 1:
        # the class begins with ones or zeros: norms multiply by the weight, or by 1 + weight
        start = float(parameter.detach().flatten()[0])
        if start not in (0.0, 1.0):
            start = 0.0
        return np.asarray(start + 0.3 * generator.random(shape))

    # [outputs, inputs]: a standard deviation of 1 / sqrt(inputs) keeps the size of hidden states
    inputs = shape[-1]
    deviation = inputs**-0.5
    # queries and keys are larger, so that attention prefers some tokens
    is_query_or_key = any(part in name for part in ("q_proj", "k_proj", "qkv", "query_key", "q_b"))
    if is_query_or_key:
        deviation *= QUERY_KEY_DEVIATION
    # the last projection too, so that logits differ
    is_head = "lm_head" in name or "embed_out" in name
    is_tied_head = is_tied and "embed" in name
    if is_head or is_tied_head:
        deviation *= LOGIT_DEVIATION
    return np.asarray(deviation * generator.standard_normal(shape))
