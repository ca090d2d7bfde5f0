"""Models as anybody would load them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import BadSource, RopeconvError
from ...sources import Source
from .distributed import shared, world

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Place:
    """Where models run, and in which precision. device_map: accelerate's, over several devices; empty for one."""

    device: str
    dtype: str
    device_map: str = ""


def place(device: str = "auto", dtype: str = "auto", device_map: str = "", stored: str = "float32") -> Place:
    """The first of cuda, mps and cpu that is there, and a precision.

    stored: the checkpoint's own, taken on accelerators; a CPU computes in float32. Raises RopeconvError for names that
    are not known or not there.
    """
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        device = next(name for name, present in there.items() if present)
    if not there.get(device.split(":")[0], False):
        raise RopeconvError(
            f"--device {device} is not here; choose {', '.join(n for n, here in there.items() if here)}"
        )
    if dtype not in DTYPES:
        raise RopeconvError(f"--dtype {dtype} is not known; choose {', '.join(DTYPES)}")
    if dtype == "auto":
        dtype = "float32" if device == "cpu" or stored not in DTYPES else stored
    return Place(device, dtype, device_map)


def load_stock(folder: Path, where: str | Place, trust: bool = False, config: Any = None) -> Any:
    """A checkpoint as the installed transformers loads it. trust: with the code that it brings. config: in the place
    of its own.
    """
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    at = Place(where, "float32") if isinstance(where, str) else where
    logging.disable_progress_bar()
    # dtype at loading, never a cast: .to(bfloat16) would cast inv_freq as well
    key = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    given: dict[str, Any] = {key: getattr(torch, at.dtype), "trust_remote_code": trust}
    if world() > 1:
        given |= shared()
    elif at.device_map or at.device != "cpu":
        given["device_map"] = at.device_map or at.device
    if config is not None:
        given["config"] = config
    return AutoModelForCausalLM.from_pretrained(folder, **given).eval()


def load_widened(folder: Path, at: Place) -> Any:
    """A checkpoint that computes in float32 with the weights that it has in the precision of `at`."""
    import torch

    model = load_stock(folder, replace(at, dtype="float32"))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(getattr(torch, at.dtype)))
    return model


def room() -> int:
    """Free memory of all GPUs in bytes; 0 without one."""
    import torch

    return sum(int(torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count()))


def fits(source: Source, width: int) -> bool:
    """Whether a checkpoint with numbers of `width` bytes fits into the GPUs; true without one."""
    return not room() or 1.1 * width * sum(math.prod(info.shape) for info in source.tensors.values()) < room()


def stored_dtype(config: dict[str, Any]) -> str:
    """The precision that a config declares."""
    part = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    return str((part or {}).get("dtype") or (part or {}).get("torch_dtype") or config.get("torch_dtype") or "float32")


def local_folder(source: Source) -> Path:
    """A folder with all files of a source. Raises BadSource for other layouts."""
    if source.kind == "hub":
        for file in source.carried()[0]:
            path = source.path(file.name)
        return Path(path).parent
    if source.kind != "folder":
        raise BadSource(
            f"{source.reference} is not in the HF layout; bake it with --as-is first and validate against that"
        )
    return Path(source.reference)


def out_of_memory(work: Callable[[], Any]) -> Any:
    """Runs `work`; raises RopeconvError with the ways out where memory ends."""
    try:
        return work()
    except (MemoryError, RuntimeError) as problem:
        if "out of memory" not in str(problem).lower() and not isinstance(problem, MemoryError):
            raise
        raise RopeconvError(
            "the memory of this device is not enough; pass a smaller --chunk or --length, --dtype bfloat16, "
            "or --device-map auto to use several devices"
        ) from None
