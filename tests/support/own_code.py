"""Tiny checkpoints of models that are published with modelling code of their own.

transformers has no class with their names, but one that computes the same: Orion is a StableLM
whose heads rotate whole. Two checkpoints have the same random weights: `write_twin` makes that of
the class, and `write_published` the same in the names and with the config of the publisher, which
llama.cpp's converter reads. `data/own_code.toml` says how they differ. `reference` runs the twin.
"""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch

from ropeconv.bake.plan import Plan

from .llamacpp import lively, of_model, tokenizer_json
from .models import COMMON, FAMILIES, auto_class, by_transformers, in_two_files

Tensors = dict[str, torch.Tensor]

DATA = Path(__file__).parents[1] / "data" / "own_code.toml"
HEAD_DIM: int = COMMON["head_dim"]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}


class Fused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of every layer that has the rows of several tensors of the twin."""

    name: str
    parts: tuple[str, ...]
    by_heads: bool = False
    """Whether the parts take turns head by head; otherwise they follow each other."""


class OwnCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a published checkpoint differs from its twin in transformers."""

    architecture: str
    """The class in the published config."""

    same_as: str
    """The model type of the twin."""

    why: str
    """Where the published code says that it computes the same."""

    arch: str = ""
    """Its architecture in llama.cpp, where that is not the name of its table: the record has a row
    for a model type with that name."""

    family: str = ""
    """The family to name with `--family`. Where tensors have other names than in any family, it is
    empty: llama.cpp's converter runs first, and ropeconv extends its file."""

    encoder: bool = False
    """Whether hidden states are compared, and not logits."""

    settings: dict[str, Any] = {}
    """Settings of the twin beside those of all tiny checkpoints."""

    null: tuple[str, ...] = ()
    """Settings of the twin that are null."""

    removed: tuple[str, ...] = ()
    """Keys of the twin's config that the published one does not have."""

    keys: dict[str, Any] = {}
    """Keys of the published config."""

    equal: tuple[tuple[str, str], ...] = ()
    """Parts of the names of tensors that are not published, and of those whose values they have."""

    left_out: tuple[str, ...] = ()
    """Patterns for whole names of tensors of the twin that are not published: nothing that is
    compared reads them, or the published code computes them."""

    neighbours: str = ""
    """A pattern for tensors whose pairs (i, i + d/2) of rows become (2i, 2i + 1)."""

    fused: tuple[Fused, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    """Patterns and what replaces them in the names of the other tensors, one after the other."""

    added: dict[str, tuple[int, ...]] = {}
    """Shapes of tensors that take no part in what is compared; their values are random."""

    ternary: str = ""
    """A pattern for matrices that the published code rounds to three values. The checkpoints have
    the full values, and `reference` rounds them with transformers."""

    indexed: bool = False
    """Whether the published weights are two files with an index, which the converter reads."""


MODELS = msgspec.convert(tomllib.loads(DATA.read_text("utf-8")), dict[str, OwnCode])


def write_twin(model: OwnCode, folder: Path) -> Path:
    """Write the checkpoint of the class in transformers, with a tokenizer."""
    folder.mkdir()
    settings = {**COMMON, **FAMILIES[model.same_as], **model.settings}
    settings = {key: value for key, value in settings.items() if value is not None}
    settings |= dict.fromkeys(model.null)
    by_transformers(model.same_as, folder, settings, 0)
    lively(folder)

    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for part, source in model.equal:
        for name in tensors:
            if part in name:
                tensors[name] = tensors[name.replace(part, source)].clone()
    safetensors.torch.save_file(tensors, path, {"format": "pt"})

    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
    return folder


def write_published(model: OwnCode, twin: Path, folder: Path) -> Path:
    """Write a twin as its publisher would: other names, other packing, another config."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(twin / name, folder / name)

    config = json.loads((twin / "config.json").read_text())
    # a class for images has the keys of the published language model in a part of its config
    config = config.get("text_config", config)
    layers = config["num_hidden_layers"]
    for key in model.removed:
        config.pop(key, None)
    config |= model.keys
    config["architectures"] = [model.architecture]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    tensors = safetensors.torch.load_file(twin / "model.safetensors")
    published = _publish(model, tensors, layers)
    safetensors.torch.save_file(published, folder / "model.safetensors", {"format": "pt"})
    if model.indexed:
        in_two_files(folder)
    return folder


def _publish(model: OwnCode, tensors: Tensors, layers: int) -> Tensors:
    """The published tensors of a twin."""
    copies = tuple(part for part, _ in model.equal)
    kept: Tensors = {}
    for name, tensor in tensors.items():
        if any(part in name for part in copies):
            continue
        if any(re.fullmatch(pattern, name) for pattern in model.left_out):
            continue
        if model.neighbours and re.search(model.neighbours, name):
            tensor = _interleave(tensor)
        kept[name] = tensor

    published: Tensors = {}
    for fused in model.fused:
        for layer in range(layers):
            parts = [kept.pop(part.format(layer=layer)) for part in fused.parts]
            published[fused.name.format(layer=layer)] = _fuse(parts, fused.by_heads)
    for name, tensor in kept.items():
        for pattern, replacement in model.names:
            name = re.sub(pattern, replacement, name)
        published[name] = tensor

    generator = torch.Generator().manual_seed(2)
    for name, shape in model.added.items():
        for layer in range(layers):
            published[name.format(layer=layer)] = torch.randn(shape, generator=generator)
    return {name: tensor.contiguous() for name, tensor in published.items()}


def _interleave(tensor: torch.Tensor) -> torch.Tensor:
    """Reorder the rows of heads that rotate pairs (i, i + d/2) for a model that rotates
    (2i, 2i + 1).
    """
    halves = tensor.unflatten(0, (-1, 2, HEAD_DIM // 2))
    return halves.transpose(1, 2).reshape(tensor.shape)


def _fuse(parts: list[torch.Tensor], by_heads: bool) -> torch.Tensor:
    """One tensor with the rows of several."""
    if not by_heads:
        return torch.cat(parts)
    heads = [part.unflatten(0, (-1, HEAD_DIM)) for part in parts]
    return torch.cat(heads, dim=1).flatten(0, 1)


def of_twin(model: OwnCode, twin: Path, plan: Plan | None) -> torch.Tensor:
    """Return what transformers computes for a twin at every position: logits, or states of an encoder.

    plan: the one whose schedule is patched in; None for an unscaled model.
    """
    from transformers import AutoModel
    from transformers.utils import logging

    # the head of a decoder that stands for an encoder is not loaded, about which transformers warns
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    # not load_stock, which loads diffusion models without their head, as it does encoders
    auto = AutoModel if model.encoder else auto_class(model.same_as)
    loaded = auto.from_pretrained(twin, dtype=torch.float32).eval()
    if model.ternary:
        _round_to_three_values(loaded, model.ternary)
    return of_model(loaded, plan, model.encoder)


def _round_to_three_values(loaded: Any, pattern: str) -> None:
    """Round the matrices whose names have the pattern as transformers does when it runs a BitNet."""
    from transformers.integrations.bitnet import WeightQuant

    for name, parameter in loaded.named_parameters():
        if re.search(pattern, name):
            parameter.data = WeightQuant.apply(parameter.data)
