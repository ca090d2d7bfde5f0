"""What tests of formats share: a file that any filesystem changes in place, and calls of the system that fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.formats.gguf import Edit, GgufFile
from ropeconv.formats.gguf.write import write_new

from ..support.gguf_files import write


def fails(number: int) -> Callable[..., Any]:
    def call(*given: object, **named: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A GGUF file with a reserve, which any filesystem changes in place."""
    write_new(GgufFile.open(write(tmp_path / "plain.gguf")), 0, Edit(), tmp_path / "model.gguf")
    return tmp_path / "model.gguf"
