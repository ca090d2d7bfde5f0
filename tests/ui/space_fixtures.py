"""The Hub of a Space, with models of several owners."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .space_hub import SpaceHub, serving_visitors

SHOUT = "<img src=x onerror=\"document.title='executed'\"><script>document.title='executed'</script>"
"""What would change the title of a page that takes it for markup."""


@contextmanager
def serving_models(root: Path, llama: Path) -> Iterator[SpaceHub]:
    """them/llama for everybody, closed/llama for anna alone, and them/shout, which says markup wherever it can."""
    for name in ("llama", "closed", "shout"):
        shutil.copytree(llama, root / name)
    (root / "closed" / "SECRET.md").write_text("of closed/llama")
    config = json.loads((root / "shout" / "config.json").read_text())
    (root / "shout" / "config.json").write_text(json.dumps(config | {"architectures": [SHOUT], "torch_dtype": SHOUT}))
    card = f"---\nlicense: {json.dumps(SHOUT)}\ntags: [{json.dumps(SHOUT)}]\n---\n# {SHOUT}\n"
    (root / "shout" / "README.md").write_text(card)
    with serving_visitors(root / "hub") as found:
        found.repos |= {"them/llama": root / "llama", "closed/llama": root / "closed", "them/shout": root / "shout"}
        found.readers["closed/llama"] = {"anna"}
        found.private.add("closed/llama")
        yield found
