"""A Hub with a large GGUF file, for what is read of it and for what it should not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..support.hub_server import running, talk_to
from .gguf_hub import Hostile, hostile, large


@pytest.fixture
def big_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    """A Hub with one large GGUF file, which this process and commands talk to."""
    (tmp_path / "repo" / "quants").mkdir(parents=True)
    large(tmp_path / "repo" / "quants" / "big.gguf")
    made = Hostile()
    made.repos["me/tiny"] = tmp_path / "repo"
    with running(made, hostile(made)) as ready:
        talk_to(ready, tmp_path / "home" / "hub", monkeypatch)
        yield ready
