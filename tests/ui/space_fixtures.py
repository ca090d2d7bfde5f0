"""The Hub and the Space of a module, with models of several owners."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .space_hub import SpaceHub, serving_visitors
from .space_program import Caller, Space, space

SHOUT = "<img src=x onerror=\"document.title='executed'\"><script>document.title='executed'</script>"
"""What would change the title of a page that takes it for markup."""
LIMITS = "minutes=0.5, memory=1 << 30, upload=2 << 20"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]) -> Iterator[SpaceHub]:
    """them/llama for everybody, closed/llama for anna alone, and them/shout, which says markup wherever it can."""
    root = tmp_path_factory.mktemp("models")
    for name in ("llama", "closed", "shout"):
        shutil.copytree(tiny("llama"), root / name)
    (root / "closed" / "SECRET.md").write_text("of closed/llama")
    config = json.loads((root / "shout" / "config.json").read_text())
    (root / "shout" / "config.json").write_text(json.dumps(config | {"architectures": [SHOUT], "torch_dtype": SHOUT}))
    card = f"---\nlicense: {json.dumps(SHOUT)}\ntags: [{json.dumps(SHOUT)}]\n---\n# {SHOUT}\n"
    (root / "shout" / "README.md").write_text(card)
    with serving_visitors(tmp_path_factory.mktemp("hub")) as found:
        found.repos |= {"them/llama": root / "llama", "closed/llama": root / "closed", "them/shout": root / "shout"}
        found.readers["closed/llama"] = {"anna"}
        found.private.add("closed/llama")
        yield found


@pytest.fixture(scope="module")
def running(hub: SpaceHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Space]:
    """The Space, with limits that tests can reach."""
    with space(hub, tmp_path_factory.mktemp("space"), LIMITS) as found:
        yield found


@pytest.fixture
def caller(running: Space) -> Caller:
    """Somebody who is not signed in."""
    return Caller(running)
