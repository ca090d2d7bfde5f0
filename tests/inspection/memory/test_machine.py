"""The memory of machines: sizes that users write, and GPUs and RAM that programs state."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.errors import UsageError
from ropeconv.inspection.memory import machine
from ropeconv.inspection.memory.fit import chosen_machine
from ropeconv.inspection.memory.machine import given_memory, ram_bytes, this_machine
from ropeconv.options import MachineOptions

GIB = 1 << 30
Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a program that prints a text before all others, and forgets what was found before."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_cuda_gpus", list)
    monkeypatch.setattr(machine, "_amd_gpus", list)
    this_machine.cache_clear()

    def write(name: str, body: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    return write


@pytest.fixture(autouse=True)
def forget() -> None:
    this_machine.cache_clear()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * GIB),
        ("24", 24 * GIB),
        ("24 GiB", 24 * GIB),
        ("1.5g", 3 * GIB // 2),
        ("512MiB", GIB // 2),
        ("2T", 2048 * GIB),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert given_memory(text).bytes == size


@pytest.mark.parametrize("text", ["", "0", "-1GB", "24XB", "GB", "1e3GB", "9" * 30])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        given_memory(text)


def test_the_largest_of_the_gpus_that_the_driver_lists(program: Program) -> None:
    lines = "NVIDIA A2, 15356", "NVIDIA H100, 81559", "NVIDIA H100, 81559"
    program("nvidia-smi", "\n".join(f"echo '{line}'" for line in lines))
    found = this_machine()
    assert (found.kind, found.name, found.bytes, found.count) == (
        "gpu",
        "NVIDIA H100",
        81559 << 20,
        2,
    )


def test_hidden_gpus_do_not_count(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program("nvidia-smi", "echo 'NVIDIA H100, 81559'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert this_machine().kind != "gpu"


def test_a_driver_that_fails_lists_none(program: Program) -> None:
    program("nvidia-smi", "echo 'NVIDIA H100, 81559'; exit 9")
    assert this_machine().kind != "gpu"


@pytest.mark.parametrize(
    ("gib", "limit", "share"), [(16, 0, 2 / 3), (64, 0, 3 / 4), (64, 57344, 56 / 64)]
)
def test_a_mac_gives_its_gpu_a_share(
    program: Program, monkeypatch: pytest.MonkeyPatch, gib: int, limit: int, share: float
) -> None:
    program("nvidia-smi", "exit 1")
    body = f'case "$2" in *wired*) echo {limit};; *) echo {gib * GIB};; esac'
    program("sysctl", body)
    monkeypatch.setattr(sys, "platform", "darwin")
    found = this_machine()
    assert (found.kind, found.bytes) == ("unified", int(gib * GIB * share))


def test_ram_is_named_as_ram_within_the_limit_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       33554432 kB\nMemFree: 1 kB\n")
    assert ram_bytes(tmp_path, tmp_path / "none") == 32 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert ram_bytes(tmp_path, tmp_path) == 32 * GIB
    (tmp_path / "memory.max").write_text(f"{8 * GIB}\n")
    assert ram_bytes(tmp_path, tmp_path) == 8 * GIB


def test_the_option_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPECONV_MEMORY", "16GB")
    assert chosen_machine(MachineOptions()).bytes == 16 * GIB
    assert chosen_machine(MachineOptions(memory="8GB")).bytes == 8 * GIB
    monkeypatch.delenv("ROPECONV_MEMORY")
    assert chosen_machine(MachineOptions()) is this_machine()
