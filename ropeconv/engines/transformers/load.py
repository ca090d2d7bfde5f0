"""Models as anybody would load them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import BadSource
from ...sources import Source
from .device import DeviceSpec, free_gpu_bytes
from .distributed import tp_kwargs, world_size


def load_stock(folder: Path, where: str | DeviceSpec, trust: bool = False, config: Any = None) -> Any:
    """A checkpoint as the installed transformers loads it. trust: with the code that it brings. config: in the place
    of its own.
    """
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    at = DeviceSpec(where, "float32") if isinstance(where, str) else where
    logging.disable_progress_bar()
    # dtype at loading, never a cast: .to(bfloat16) would cast inv_freq as well
    key = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    given: dict[str, Any] = {key: getattr(torch, at.dtype), "trust_remote_code": trust}
    if world_size() > 1:
        given |= tp_kwargs()
    elif at.device_map or at.device != "cpu":
        given["device_map"] = at.device_map or at.device
    if config is not None:
        given["config"] = config
    return AutoModelForCausalLM.from_pretrained(folder, **given).eval()


def load_widened(folder: Path, at: DeviceSpec) -> Any:
    """A checkpoint that computes in float32 with the weights that it has in the precision of `at`."""
    import torch

    model = load_stock(folder, replace(at, dtype="float32"))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(getattr(torch, at.dtype)))
    return model


def fits_in_gpu(source: Source, width: int) -> bool:
    """Whether a checkpoint with numbers of `width` bytes fits into the GPUs; true without one."""
    return (
        not free_gpu_bytes()
        or 1.1 * width * sum(math.prod(info.shape) for info in source.tensors.values()) < free_gpu_bytes()
    )


def stored_dtype(config: dict[str, Any]) -> str:
    """The precision that a config declares."""
    part = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    return str((part or {}).get("dtype") or (part or {}).get("torch_dtype") or config.get("torch_dtype") or "float32")


def local_folder(source: Source) -> Path:
    """A folder with all files of a source. Raises BadSource for other layouts."""
    if source.kind == "hub":
        for file in source.copied_files()[0]:
            source.path(file.name)
        return source.path("config.json").parent
    if source.kind != "folder":
        raise BadSource(
            f"{source.reference} is not in the HF layout; bake it with --as-is first and validate against that"
        )
    return Path(source.reference)
