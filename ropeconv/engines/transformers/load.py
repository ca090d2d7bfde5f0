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
from ...export.checkpoint import GgufCheckpoint
from ...extras import require
from ...families.keys import text_config
from ...formats.copying import human
from ...formats.jsontext import parse
from ...formats.scratch import scratch
from ...sources import Source
from .device import DeviceSpec, free_gpu_bytes
from .distributed import tp_kwargs, world_size


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
    given: dict[str, Any] = {key: getattr(torch, at.dtype), "trust_remote_code": trust}
    if world_size() > 1:
        given |= tp_kwargs()
    elif at.device_map or at.device != "cpu":
        require("accelerate", f"--device-map {at.device_map}" if at.device_map else f"--device {at.device}")
        given["device_map"] = at.device_map or at.device
    given["config"] = config or stock_config(folder, at.stands_for, trust)
    model, found = _class_for(given["config"]).from_pretrained(folder, output_loading_info=True, **given)
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
    """Raises BadSource where the weights of a checkpoint are not those of the class that it was loaded with.

    found: what transformers says about loading it. folder: the checkpoint. stands_for: the model type of the class.
    """
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
    from transformers import CONFIG_MAPPING, AutoConfig

    if stands_for:
        config = parse((folder / "config.json").read_text("utf-8"), "config.json")
        if config.get("model_type") not in CONFIG_MAPPING:
            return AutoConfig.for_model(**{**config, "model_type": stands_for})
    return AutoConfig.from_pretrained(folder, trust_remote_code=trust)


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
def folder_of(source: Source, dtype: str = "auto") -> Iterator[Path]:
    """The local folder of a checkpoint, as `local_folder`; of a GGUF file a temporary one, with dequantised weights.

    dtype: of these weights, as torch names it; auto for that of `source`. Raises UnsupportedBake for a
    GGUF file that cannot be converted, RopeconvError where the disk is too small.
    """
    if not isinstance(source, GgufCheckpoint):
        yield local_folder(source)
        return
    made = source if dtype == "auto" else source.in_dtype(dtype)
    size = sum(file.size for file in made.files())
    with scratch() as folder:
        free = shutil.disk_usage(folder).free
        if size > free:
            raise RopeconvError(
                f"the weights of {source.reference} take {human(size)} as {made.dtype}, and {human(free)} are free in "
                f"{folder.parent.parent}; set TMPDIR to a larger disk, or give --dtype bfloat16"
            )
        made.write(folder)
        yield folder


def local_folder(source: Source) -> Path:
    """The local folder of a checkpoint, whose files are fetched. Raises BadSource where it is not in the HF layout."""
    if source.kind == "hub":
        for file in source.copied_files()[0]:
            source.path(file.name)
        return source.path("config.json").parent
    if source.kind != "folder":
        raise BadSource(
            f"{source.reference} is not in the HF layout; bake it with --as-is first and validate against that"
        )
    return Path(source.reference)
