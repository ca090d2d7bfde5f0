"""DeviceSpec: the device and precision of a run; and errors for memory that ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import RopeconvError, UsageError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class DeviceSpec:
    """Where models run, and in which precision.

    device: as torch names it. dtype: "float32", "bfloat16" or "float16". device_map: of accelerate, to use several
    devices; empty for one. stands_for: the model type of checkpoints whose own transformers does not have. pickles: the
    user trusts pickled weights, kernels of the Hub and code of tokenizers.
    """

    device: str
    dtype: str
    device_map: str = ""
    stands_for: str = ""
    pickles: bool = False


def device_spec(device: str = "auto", dtype: str = "auto", device_map: str = "", stored: str = "float32") -> DeviceSpec:
    """An available device and a precision.

    device: "auto" takes the first available of cuda, mps and cpu. dtype: "auto" is float32 on a CPU, and elsewhere
    `stored`. device_map: as in DeviceSpec. stored: the precision of the checkpoint. Raises UsageError for a device that
    is not available and an unknown dtype.
    """
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [name for name, present in there.items() if present]
    if device == "auto":
        device = available[0]
    if device.split(":")[0] not in available:
        raise UsageError(f"unknown device {device!r}; available: {', '.join(available)}")
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}; choose {', '.join(DTYPES)}")
    if dtype == "auto":
        dtype = "float32" if device == "cpu" or stored not in DTYPES else stored
    return DeviceSpec(device, dtype, device_map)


def free_gpu_bytes() -> int:
    """Free memory of all GPUs in bytes; 0 without one."""
    import torch

    return sum(int(torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count()))


def out_of_memory(work: Callable[[], Any]) -> Any:
    """Runs `work` and returns its result. Raises RopeconvError, with what to change, where it runs out of memory."""
    try:
        return work()
    except (MemoryError, RuntimeError) as problem:
        if "out of memory" not in str(problem).lower() and not isinstance(problem, MemoryError):
            raise
        raise RopeconvError(
            "the memory of this device is not enough; pass a smaller --chunk or --length, --dtype bfloat16, "
            "or --device-map auto to use several devices"
        ) from None
