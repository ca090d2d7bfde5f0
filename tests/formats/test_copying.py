"""Copies: equal bytes, whatever the kernel offers."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from ropeconv.formats import jsontext
from ropeconv.formats.copying import copy_file, copy_part, human, link_file
from ropeconv.formats.safetensors import header_bytes
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(3_000_000))
    return path


@pytest.mark.parametrize("trouble", [None, errno.EXDEV, errno.ENOSYS, errno.EINVAL])
def test_a_copy_is_equal(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: int | None) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(trouble, "no")

    if trouble is not None:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    done: list[int] = []
    copy_file(source, tmp_path / "target", done.append)
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert sum(done) == 3_000_000


def test_a_kernel_that_stops_halfway(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = os.copy_file_range, []

    def half(*arguments: int) -> int:
        calls.append(1)
        return whole(*arguments[:2], 1_000_000, *arguments[3:]) if len(calls) == 1 else 0

    monkeypatch.setattr(os, "copy_file_range", half)
    copy_file(source, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == source.read_bytes()


def _sparse(path: Path, *data: tuple[int, int], size: int) -> Path:
    """A file with random bytes at some places, as (first byte, number), and holes elsewhere."""
    with path.open("wb") as file:
        for start, count in data:
            file.seek(start)
            file.write(os.urandom(count))
        file.truncate(size)
        os.fsync(file.fileno())
    if path.stat().st_blocks * 512 > size // 2:
        pytest.skip("this filesystem has no sparse files")
    return path


LARGE = 1 << 27


@pytest.mark.parametrize("trouble", [None, errno.ENOSYS])
@pytest.mark.parametrize(
    "data",
    [(), ((0, 8192),), ((LARGE - 5, 5),), ((4096, 4096), (LARGE // 2 + 77, 1_000_000), (LARGE - 10_000_000, 5000))],
)
def test_holes_stay_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: tuple[tuple[int, int], ...], trouble: int | None
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(trouble, "no")

    if trouble is not None:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    source, target = _sparse(tmp_path / "source", *data, size=LARGE), tmp_path / "target"
    done: list[int] = []
    copy_file(source, target, done.append)
    assert sum(done) == LARGE
    assert subprocess.run(["cmp", source, target], check=False).returncode == 0
    with target.open("rb") as file:
        os.fsync(file.fileno())
    assert target.stat().st_blocks <= source.stat().st_blocks + 64


def test_a_part_of_a_sparse_file(tmp_path: Path) -> None:
    """A range that begins and ends in a hole, to another alignment, by a reader that has something in its buffer."""
    source, target = _sparse(tmp_path / "source", (1 << 20, 70_000), (3 << 20, 10), size=8 << 20), tmp_path / "target"
    with source.open("rb") as reader, target.open("wb") as writer:
        writer.write(b"head")
        reader.read(10)
        copy_part(reader, 1000, writer, 4, (4 << 20) + 1)
        writer.write(b"tail")
        assert reader.read(5) == source.read_bytes()[reader.tell() - 5 : reader.tell()]
    assert target.read_bytes() == b"head" + source.read_bytes()[1000 : 1001 + (4 << 20)] + b"tail"


def test_a_source_that_was_cut_off_is_not_made_longer(tmp_path: Path) -> None:
    source, target = _sparse(tmp_path / "source", (0, 4096), size=8 << 20), tmp_path / "target"
    with source.open("rb") as reader, target.open("wb") as writer:
        copy_part(reader, 0, writer, 0, 16 << 20)
    assert target.stat().st_size == 8 << 20


def test_an_output_has_the_holes_of_its_source(llama: Path, tmp_path: Path) -> None:
    """A checkpoint whose weights are a gigabyte of zeros that take no room."""
    tensors = {"model.layers.0.self_attn.q_proj.weight": ("F16", (1 << 19, 1 << 10))}
    head = header_bytes(((name, dtype, shape) for name, (dtype, shape) in tensors.items()), {"format": "pt"})
    (llama / "model.safetensors").write_bytes(head)
    os.truncate(llama / "model.safetensors", len(head) + (1 << 30))
    apply(make_plan(llama, Recipe(REGISTRY["yarn"](4.0)), tmp_path / "out"))
    made = tmp_path / "out" / "model.safetensors"
    assert made.stat().st_size == len(head) + (1 << 30)
    assert made.stat().st_blocks * 512 < 1 << 20


def test_links_resolve_symlinks(source: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(source)
    assert link_file(tmp_path / "alias", tmp_path / "linked")
    assert (tmp_path / "linked").samefile(source)
    assert not (tmp_path / "linked").is_symlink()


def test_json_keeps_order_and_indentation() -> None:
    text = '{\n    "b": 1.0,\n    "a": "\u00e9"\n}\n'
    assert jsontext.dump(jsontext.parse(text, "x"), like=text) == text


@pytest.mark.parametrize(("size", "text"), [(999, "999.0 B"), (7_300_000_000, "7.3 GB"), (5 * 10**15, "5000.0 TB")])
def test_sizes_to_be_read(size: int, text: str) -> None:
    assert human(size) == text
