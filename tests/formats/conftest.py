"""What tests of formats share: a file that any filesystem changes in place, changes of it, and
calls that fail.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.formats.gguf.edit import Change, Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import u32
from ropeconv.formats.gguf.inplace import Neighbour, change_by_phases

from ..support.gguf_files import write

EDIT = Edit(
    {"llama.context_length": u32(4096)},
    changes={"blk.0.attn_norm.weight": Change(512, lambda old: old[::-1])},
    added={"rope_freqs.weight": bytes(128)},
)
"""Something of every kind: a key, a changed tensor, and a new one."""


def fails(number: int) -> Callable[..., Any]:
    """Return a call of the system that fails with an error number."""

    def call(*given: object, **named: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def stopped(path: Path, edit: Edit, step: str, beside: Neighbour | None = None) -> None:
    """Leave a change in place as a kill after one of its steps does."""
    walk = change_by_phases(GgufFile.open(path), edit, beside)
    while next(walk) != step:
        pass
    walk.close()  # type: ignore[attr-defined]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A GGUF file with a reserve, alone in its folder, which any filesystem changes in place."""
    (tmp_path / "folder").mkdir()
    write_new(
        GgufFile.open(write(tmp_path / "plain.gguf")), 0, Edit(), tmp_path / "folder" / "model.gguf"
    )
    return tmp_path / "folder" / "model.gguf"
