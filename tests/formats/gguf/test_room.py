"""Room at the front of a file, against the fallocate command of util-linux."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ropeconv.formats.gguf.edit import PAGE
from ropeconv.formats.gguf.room import can_insert, move_data

DATA = os.urandom(3 * PAGE)


def inserts(folder: Path) -> bool:
    """Whether the filesystem inserts ranges, by another program than the one under test."""
    probe = folder / "probe"
    probe.write_bytes(bytes(2 * PAGE))
    command = ["fallocate", "--insert-range", "--offset", "0", "--length", str(PAGE), str(probe)]
    return shutil.which("fallocate") is not None and subprocess.run(command, check=False).returncode == 0


def test_room_is_inserted_and_taken_away_where_the_filesystem_can(tmp_path: Path) -> None:
    assert can_insert(tmp_path / "model.gguf") == inserts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["probe"]
    if not inserts(tmp_path):
        pytest.skip("this filesystem inserts no ranges")
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with path.open("r+b") as file:
        move_data(file.fileno(), PAGE)
        assert path.read_bytes() == bytes(PAGE) + DATA
        move_data(file.fileno(), -PAGE)
        assert path.read_bytes() == DATA
        with pytest.raises(OSError) as problem:
            move_data(file.fileno(), 7)
    assert problem.value.errno == errno.EINVAL
    assert path.read_bytes() == DATA


def test_a_folder_that_is_not_there_has_no_room(tmp_path: Path) -> None:
    assert can_insert(tmp_path / "none" / "model.gguf") is False
