"""Loads checkpoints with the installed transformers, as `from_pretrained` does."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import BadSource, RopeconvError
from ...extras import require
from ...families.keys import text_config
from ...formats.copying import human
from ...formats.scratch import scratch
from ...pretrained import load_config, load_model, make_config, parsed
from ...sources import Source
from ...sources.converted import ConvertedSource
from .device import DeviceSpec, free_gpu_bytes
from .distributed import tp_kwargs, world_size

SMALL = 64 << 20
"""Bytes of the largest file that a tokenizer is read from."""


def load_stock(folder: Path, where: str | DeviceSpec, trust: bool = False, config: Any = None) -> Any:
    """A language model as the installed transformers loads it, with its weights in the wanted precision.

    Models without a class that gives logits of the next token, which are encoders, are loaded without any head.

    folder: the checkpoint. where: device and precision, or a device for float32. trust: run the modelling file of the
    checkpoint. config: of transformers, in place of the checkpoint's; None for its own.
    """
    import torch
    import transformers
    from transformers.utils import logging

    at = DeviceSpec(where, "float32") if isinstance(where, str) else where
    logging.disable_progress_bar()
    # dtype at loading, never a cast: .to(bfloat16) would cast inv_freq as well
    key = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    given: dict[str, Any] = {key: getattr(torch, at.dtype)}
    if world_size() > 1:
        given |= tp_kwargs()
    elif at.device_map or at.device != "cpu":
        require("accelerate", f"--device-map {at.device_map}" if at.device_map else f"--device {at.device}")
        given["device_map"] = at.device_map or at.device
    given["config"] = config or stock_config(folder, at.stands_for, trust)
    model, found = load_model(_class_for(given["config"]), folder, trust, at.pickles, **given)
    if at.stands_for:
        _check_complete(found, folder, at.stands_for)
    return model.eval()


def _class_for(config: Any) -> Any:
    """The class that loads a model with its logits, else one without a head: an auto class where that knows the config.

    Those of Evolla miss it, which has two model types, so that the class in its `architectures` is taken.
    """
    import transformers

    named = getattr(config, "auto_map", None) or {}
    with_head = tuple(
        getattr(transformers, f"AutoModelFor{task}") for task in ("CausalLM", "ImageTextToText", "Seq2SeqLM")
    )
    fitting = [auto for auto in with_head if type(config) in auto._model_mapping or auto.__name__ in named]
    if not named and type(config) not in transformers.AutoModel._model_mapping:
        fitting += [getattr(transformers, name) for name in config.architectures or () if hasattr(transformers, name)]
    return next(iter(fitting), transformers.AutoModel)


def _check_complete(found: dict[str, Any], folder: Path, stands_for: str) -> None:
    """Raises BadSource where the weights of a checkpoint are not those of the class that it was loaded with."""
    for kind, words in (("missing_keys", "lacks"), ("unexpected_keys", "has"), ("mismatched_keys", "has")):
        names = sorted(map(str, found.get(kind) or ()))
        if names:
            raise BadSource(
                f"{folder} {words} {names[0]}, unlike a {stands_for} model, so it is not of the family that it was "
                "treated as; apply again with another --family"
            )


def stock_config(folder: Path, stands_for: str, trust: bool = False) -> Any:
    """The config of a checkpoint, as the installed transformers reads it.

    folder: the checkpoint. stands_for: the model type to read it with where transformers lacks its own; empty for
    others. trust: run the configuration file of the checkpoint.
    """
    from transformers import CONFIG_MAPPING

    if stands_for:
        config = parsed(folder / "config.json")
        if config.get("model_type") not in CONFIG_MAPPING:
            return make_config(config, stands_for)
    return load_config(folder, trust)


def load_widened(folder: Path, at: DeviceSpec) -> Any:
    """A model that computes in float32, with weights rounded to the precision of `at`. folder: the checkpoint."""
    import torch

    model = load_stock(folder, replace(at, dtype="float32"))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(getattr(torch, at.dtype)))
    return model


def fits_in_gpu(source: Source, width: int) -> bool:
    """Whether weights of `width` bytes each fit into the free memory of all GPUs; True on machines without one."""
    free = free_gpu_bytes()
    return not free or 1.1 * width * sum(math.prod(info.shape) for info in source.tensors.values()) < free


def stored_dtype(config: dict[str, Any]) -> str:
    """The dtype that a config.json declares, "float32" where it declares none."""
    text = text_config(config)
    part = config if text is None else text
    return str(part.get("dtype") or part.get("torch_dtype") or config.get("torch_dtype") or "float32")


@contextmanager
def folder_of(source: Source, dtype: str = "auto", weights: bool = True) -> Iterator[Path]:
    """The local folder of a checkpoint, whose files are fetched; a temporary one where some have to be made.

    dtype: of weights that are dequantised, as torch names it; auto for that of `source`. weights: whether they are
    needed, and not only config and tokenizer. Raises BadSource for a config.json alone, UnsupportedBake for a GGUF file
    that cannot be converted, RopeconvError where the disk is too small.
    """
    if source.kind == "config" and weights:
        raise BadSource(f"{source.reference} is a config.json without weights; give the folder of the model")
    if dtype != "auto" and isinstance(source, ConvertedSource):
        source = source.in_dtype(dtype)
    names = _needed(source, weights)
    if not source.is_generated("config.json"):
        if source.kind == "hub":
            for name in names:
                source.path(name)
        yield source.path("config.json").parent
        return
    made = {file.name: file.size for file in source.files() if file.name in names and source.is_generated(file.name)}
    with scratch() as folder:
        free = shutil.disk_usage(folder).free
        if sum(made.values()) > free:
            stored = stored_dtype(source.config())
            narrows = isinstance(source, ConvertedSource) and source.in_dtype("bfloat16").dtype != stored
            smaller = ", or give --dtype bfloat16" if narrows else ""
            raise RopeconvError(
                f"the weights of {source.reference} take {human(sum(made.values()))} as {stored}, and {human(free)} "
                f"are free in {folder.parent.parent}; set TMPDIR to a larger disk{smaller}"
            )
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name in made:
                source.copy(name, folder / name)
            else:
                (folder / name).symlink_to(source.path(name).resolve())
        yield folder


def _needed(source: Source, weights: bool) -> set[str]:
    """Names of the files of a checkpoint that are loaded. weights: with its weights."""
    left_out = set() if weights else set(source.weights())
    kept = (file for file in source.copied_files()[0] if file.name not in left_out)
    return {file.name for file in kept if weights or file.size < SMALL}
