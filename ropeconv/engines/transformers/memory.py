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
    """Return the memory of models that are no longer used to the devices."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def gpu_bytes() -> list[int]:
    """Return the free memory of each CUDA GPU in bytes."""
    import torch

    return [int(torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count())]


def host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes of memory this process may still take.

    It is the free memory of the machine, or less within the limits of `ulimit` and, on Linux, of
    control groups, as in a container.

    Args:
        proc: Where Linux describes processes.
        cgroup: Where it describes control groups.
    """
    # the memory that each limit leaves; the least of them counts
    free = [_sizes(proc / "meminfo").get("MemAvailable", sys.maxsize)]

    # the limits of `ulimit`, and the memory of this process that counts for each
    status = _sizes(proc / "self" / "status")
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft_limit, _ = resource.getrlimit(limit)
        if soft_limit != resource.RLIM_INFINITY:
            free.append(soft_limit - status.get(used, 0))

    # the limit of the control group, as in a container
    for limit_file, use_file in CGROUPS:
        limit_text = _text(cgroup / limit_file).strip()
        if not limit_text.isdigit():  # such as "max"
            continue
        in_use = int(_text(cgroup / use_file))
        # pages of files that were not used lately are freed when memory is needed
        statistics = _sizes((cgroup / use_file).with_name("memory.stat"))
        can_be_freed = statistics.get("inactive_file", 0)
        free.append(int(limit_text) - in_use + can_be_freed)
    return max(0, min(free))


def free_bytes(device: str) -> int:
    """Return the free memory of one device in bytes.

    Args:
        device: The device as torch names it; "cuda" is the first GPU.
    """
    kind, _, number = device.partition(":")
    if kind == "cuda":
        return gpu_bytes()[int(number or 0)]
    return host_bytes()


def _text(path: Path) -> str:
    """Return the text of a file; empty where it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _sizes(path: Path) -> dict[str, int]:
    """Return the sizes in a file of Linux by name, in bytes.

    A line is `VmSize: 1024 kB`, or in the files of control groups `inactive_file 4096`.
    """
    sizes = {}
    for line in _text(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) < 2 or not words[1].isdigit():
            continue
        name, number, *units = words
        bytes_per_unit = 1024 if units and units[-1] == "kB" else 1
        sizes[name] = int(number) * bytes_per_unit
    return sizes
