"""Weights on the Hub are fetched when a conversion is written, and not for its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from gguf import GGUFReader

from ..conftest import run_in
from ..support.hub_server import Hub, serving
from ..support.llamacpp import checkpoint

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as found:
        yield found


def test_only_headers_are_read_until_a_conversion_is_written(
    hub: Hub, tmp_path: Path, tiny: Callable[[str], Path]
) -> None:
    model = checkpoint("llama", tmp_path / "model")
    hub.repos["them/llama"] = model
    run = partial(run_in, tmp_path, env=hub.environment(tmp_path / "home"))
    size = (model / WEIGHTS).stat().st_size
    assert size > 1 << 18
    for arguments in (
        ("advise", "them/llama", "--context", "256"),
        ("apply", "them/llama", "--yarn", "4", "--to", "gguf", "--outtype", "q8_0", "--dry-run"),
    ):
        hub.sent.clear()
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        assert 0 < hub.sent[WEIGHTS] <= 1 << 17, arguments
    done = run("apply", "them/llama", "--yarn", "4", "--to", "gguf", "--outtype", "q8_0", "-o", "hub.gguf")
    assert done.returncode == 0, done.stderr
    assert hub.sent[WEIGHTS] >= size
    done = run("apply", "model", "--yarn", "4", "--to", "gguf", "--outtype", "q8_0", "-o", "disk.gguf")
    assert done.returncode == 0, done.stderr
    lengths = {name: (tmp_path / name).stat().st_size for name in ("hub.gguf", "disk.gguf")}
    assert abs(lengths["hub.gguf"] - lengths["disk.gguf"]) < 1000  # the keys name the source
    tensors = [{one.name: one.data.tobytes() for one in GGUFReader(tmp_path / name).tensors} for name in lengths]
    assert tensors[0] == tensors[1]
