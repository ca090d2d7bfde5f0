"""Free memory of GPUs and of the machine."""

import gc
import resource
import sys
from pathlib import Path

CGROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""Files with the limit and the use of a control group, of versions 2 and 1."""


def release() -> None:
    """Returns the memory of models that are no longer used to the devices."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def gpu_bytes() -> list[int]:
    """Free memory of each CUDA GPU in bytes."""
    import torch

    return [int(torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count())]


def host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Free memory of this machine in bytes, within the limits of the process (`ulimit`, control
    groups).

    proc, cgroup: where Linux describes processes and control groups. On other systems, only
    `ulimit` counts.
    """
    status = _sizes(proc / "self" / "status")
    free = [_sizes(proc / "meminfo").get("MemAvailable", sys.maxsize)]
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            free.append(most - status.get(used, 0))
    for limit_file, use_file in CGROUPS:
        if (most_text := _text(cgroup / limit_file).strip()).isdigit():
            stat = _sizes((cgroup / use_file).with_name("memory.stat"))
            free.append(
                int(most_text) - int(_text(cgroup / use_file)) + stat.get("inactive_file", 0)
            )
    return max(0, min(free))


def free_bytes(device: str) -> int:
    """Free memory of one device in bytes. device: as torch names it; "cuda" is the first GPU."""
    kind, _, number = device.partition(":")
    return gpu_bytes()[int(number or 0)] if kind == "cuda" else host_bytes()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _sizes(path: Path) -> dict[str, int]:
    """The sizes in a file of Linux by name, in bytes."""
    rows = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {
        row[0]: int(row[1]) << (10 if row[-1] == "kB" else 0)
        for row in rows
        if len(row) > 1 and row[1].isdigit()
    }
