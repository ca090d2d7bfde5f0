"""The memory of a machine: its GPUs, its unified memory, or its RAM.

`this_machine` finds those of this computer, and `given_memory` reads the value of `--memory`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ...errors import UsageError

MachineKind = Literal["gpu", "unified", "ram", "given"]
MIB = 1 << 20
GIB = 1 << 30
UNITS = {"": 30, "k": 10, "m": 20, "g": 30, "t": 40}
"""Powers of two by the first letter of a unit. GPUs and RAM are sold in these: a card with "24 GB"
has 24,564 MiB.
"""
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
SECONDS = 10
"""The time that a program gets to list the GPUs."""


@dataclass(frozen=True)
class Machine:
    """The memory in which a model is to run."""

    kind: MachineKind

    name: str
    """Its name for people, such as "NVIDIA H200", "RAM" or "--memory"."""

    bytes: int
    """The memory of one device."""

    count: int = 1
    """The devices with that memory."""

    @property
    def on_cpu(self) -> bool:
        """Whether a CPU computes."""
        return self.kind == "ram"

    @property
    def sentence(self) -> str:
        """The memory in words, such as `24.0 GiB RAM` or `2 x 80.0 GiB (NVIDIA H100)`."""
        words = size(self.bytes)
        if self.kind == "given":
            return words
        if self.kind == "ram":
            return f"{words} RAM"
        if self.count > 1:
            words = f"{self.count} x {words}"
        return f"{words} ({self.name})"


def size(number: int) -> str:
    """Return a number of bytes in GiB, such as `12.3 GiB`; smaller ones in MiB or KiB."""
    if number < 0.05 * MIB:  # 0.0 MiB would say that there is nothing
        return f"{number / 1024:.1f} KiB"
    if number < GIB:
        return f"{number / MIB:.1f} MiB"
    return f"{number / GIB:.1f} GiB"


def given_memory(text: str) -> Machine:
    """Return the machine of `--memory`, such as `24GB`, `24` or `512 MiB`.

    Raises:
        UsageError: It is not a size.
    """
    problem = UsageError(f"--memory {text}: '{text}' is not a size; write it like 24GB")
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise problem
    number, unit = match.groups()
    exponent = UNITS[unit.lower()]  # 30 for GB and GiB
    size = int(float(number) * 2**exponent)
    if not 0 < size < 1 << 60:
        raise problem
    return Machine(kind="given", name="--memory", bytes=size)


@cache
def this_machine() -> Machine:
    """Return the memory of this computer: of its GPUs, else the unified one of a Mac, else RAM."""
    gpus = _cuda_gpus() or _nvidia_gpus() or _amd_gpus()
    if gpus:
        # different GPUs: the largest ones
        counts = Counter(gpus)
        name, size = max(counts, key=lambda gpu: gpu[1])
        return Machine(kind="gpu", name=name, bytes=size, count=counts[name, size])
    if sys.platform == "darwin":
        return Machine(kind="unified", name="unified memory", bytes=_apple_bytes())
    return Machine(kind="ram", name="RAM", bytes=ram_bytes())


def _cuda_gpus() -> list[tuple[str, int]]:
    """Return the GPUs that torch sees, with their memory; none where torch is not imported."""
    torch = sys.modules.get("torch")  # importing it takes seconds, and nvidia-smi knows the same
    if torch is None or not torch.cuda.is_available():
        return []
    gpus = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        gpus.append((properties.name, int(properties.total_memory)))
    return gpus


def _nvidia_gpus() -> list[tuple[str, int]]:
    """Return the GPUs that the driver of NVIDIA lists."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in ("", "-1"):  # CUDA programs see no GPU then
        return []
    gpus = []
    for line in _output_of(NVIDIA_SMI).splitlines():
        name, _, mebibytes = line.rpartition(",")
        if mebibytes.strip().isdigit():
            gpus.append((name.strip(), int(mebibytes) << 20))
    return gpus


def _amd_gpus(drm: Path = Path("/sys/class/drm")) -> list[tuple[str, int]]:
    """Return the GPUs whose memory the driver of AMD (amdgpu) states.

    Args:
        drm: Where Linux describes graphics devices.
    """
    gpus = []
    for path in sorted(drm.glob("card*/device/mem_info_vram_total")):
        text = _text_of(path).strip()
        # an integrated GPU states the part of the RAM that is set aside for it, below 4 GiB
        if text.isdigit() and int(text) >= 4 * GIB:
            gpus.append(("AMD GPU", int(text)))
    return gpus


def _apple_bytes() -> int:
    """Return the unified memory that a GPU of Apple may use, in bytes.

    Metal recommends two thirds of the memory, and three quarters from 36 GB on
    (`recommendedMaxWorkingSetSize`, which llama.cpp and MLX print); `iogpu.wired_limit_mb` is the
    limit that a user has set.
    """
    limit = _output_of(("sysctl", "-n", "iogpu.wired_limit_mb")).strip()
    if limit.isdigit() and int(limit) > 0:
        return int(limit) << 20
    total = _output_of(("sysctl", "-n", "hw.memsize")).strip()
    size = int(total) if total.isdigit() else ram_bytes()
    if size >= 36 * GIB:
        return size * 3 // 4
    return size * 2 // 3


def ram_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the RAM of this machine in bytes, within the limit of its control group.

    Args:
        proc: Where Linux describes processes.
        cgroup: Where it describes control groups.
    """
    total = 0
    for line in _text_of(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            total = int(value.split()[0]) << 10
    if not total:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    # the limit of a container, in versions 2 and 1 of control groups
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _text_of(cgroup / name).strip()
        if limit.isdigit():  # "max" without a limit
            total = min(total, int(limit))
    return total


def _text_of(path: Path) -> str:
    """Return the text of a file; empty where it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _output_of(command: tuple[str, ...]) -> str:
    """Return what a program prints; empty where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
