"""Memory: where a model is loaded on machines with several GPUs, and what is refused before it is
loaded.
"""

import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ropeconv.engines.transformers import load
from ropeconv.engines.transformers.load import (
    DeviceSpec,
    choose_place,
    fits,
    load_stock,
    weight_bytes,
)
from ropeconv.engines.transformers.memory import host_bytes
from ropeconv.models.folder import FolderSource
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs import validation
from ropeconv.verbs.validation import choose_validation

from ..support.baking import YARN, make_plan

CUDA = DeviceSpec("cuda", "bfloat16")


@pytest.fixture
def size(llama: Path) -> int:
    """The weights of the tiny Llama in bfloat16, in bytes: two for each that torch counts."""
    return 2 * sum(weight.numel() for weight in load_stock(llama, "cpu").parameters())


def gpus(monkeypatch: pytest.MonkeyPatch, *free: float) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number=0: (int(free[number]), 1 << 40))


def test_memory_is_that_of_one_device(
    llama: Path, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FolderSource(llama)
    has_accelerate = True
    assert weight_bytes(source, "bfloat16") == size
    monkeypatch.setattr(load, "installed", lambda package: has_accelerate)
    gpus(monkeypatch, *[size / 2] * 8)
    assert not fits(source, CUDA), "free memory of several GPUs was added up"
    assert choose_place(source, CUDA) == replace(CUDA, device_map="auto")
    has_accelerate = False
    assert choose_place(source, CUDA) == replace(CUDA, layer_by_layer=True)
    gpus(monkeypatch, size / 2, 2 * size)
    assert choose_place(source, CUDA).device == "cuda:1"
    assert choose_place(source, replace(CUDA, device="cuda:0")).layer_by_layer, (
        "the user chose this GPU"
    )
    gpus(monkeypatch, size, size / 2)
    assert choose_place(source, CUDA) == CUDA
    assert not fits(source, replace(CUDA, dtype="float32"))


def test_apply_validates_on_a_gpu_that_is_large_enough(
    llama: Path, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(llama, YARN, tmp_path / "out")
    monkeypatch.setattr(validation, "_has_gpu", lambda: True)
    monkeypatch.setattr(load, "installed", lambda package: False)
    gpus(monkeypatch, size / 3, size / 3)
    assert choose_validation(plan, "auto").device == "cpu"
    gpus(monkeypatch, size / 3, 2 * size)
    assert choose_validation(plan, "auto").device == "cuda"
    monkeypatch.setattr(validation, "_has_gpu", lambda: False)
    assert choose_validation(plan, "auto").device == "cpu"


def test_a_model_larger_than_the_memory_is_refused_before_it_is_loaded(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "free_bytes", lambda device: 1 << 18)
    with pytest.raises(RopeconvError, match=r"float32, .*free on cpu; .*--dtype bfloat16"):
        load_stock(llama, "cpu")
    monkeypatch.setattr("ropeconv.engines.transformers.layers.free_bytes", lambda device: 1 << 10)
    with pytest.raises(RopeconvError, match=r"even layer by layer.*cpu"):
        load_stock(llama, DeviceSpec("cpu", "float32", layer_by_layer=True))


def test_memory_of_the_machine_is_within_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path / "proc"
    cgroup = tmp_path / "cgroup"
    for path, text in (
        (proc / "meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"),
        (proc / "self" / "status", "Name: python\nVmSize: 3000 kB\nVmData: 1000 kB\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    limits = {
        resource.RLIMIT_AS: resource.RLIM_INFINITY,
        resource.RLIMIT_DATA: resource.RLIM_INFINITY,
    }
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], resource.RLIM_INFINITY))
    assert host_bytes(proc, cgroup) == 8000 << 10
    limits[resource.RLIMIT_DATA] = 7000 << 10
    assert host_bytes(proc, cgroup) == 6000 << 10
    limits[resource.RLIMIT_AS] = 5000 << 10
    assert host_bytes(proc, cgroup) == 2000 << 10
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("900000\n")
    assert host_bytes(proc, cgroup) == 2000 << 10
    (cgroup / "memory.max").write_text("1000000\n")
    (cgroup / "memory.stat").write_text("anon 100\ninactive_file 50000\n")
    assert host_bytes(proc, cgroup) == 150_000


@pytest.mark.parametrize("chosen", ["", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocator_of_a_gpu_has_expandable_segments_unless_the_user_chose_others(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
    for name in names:
        monkeypatch.setenv(name, "")  # restored at the end
        monkeypatch.delenv(name)
    if chosen:
        monkeypatch.setenv(chosen, "max_split_size_mb:64")
    load.DeviceSpec("cpu", "auto").resolve()
    expected = (
        {chosen: "max_split_size_mb:64"}
        if chosen
        else dict.fromkeys(names, "expandable_segments:True")
    )
    assert {name: value for name, value in os.environ.items() if name in names} == expected
