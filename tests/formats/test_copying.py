"""Copies: equal bytes, whatever the kernel offers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ropeconv.formats import jsontext
from ropeconv.formats.copying import copy_file, human, link_file


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
