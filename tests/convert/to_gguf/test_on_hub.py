"""Weights on the Hub are fetched when a conversion is written, and not for its plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ...support.gguf_files import contents
from ...support.hub_server import serving
from ...support.llamacpp import checkpoint

WEIGHTS = "model.safetensors"
PROGRAM = """
import sys
from pathlib import Path
import ropeconv
from ropeconv.rope.methods.method import REGISTRY
source, out = sys.argv[1:3]
target = ropeconv.Target(out=Path(out), to="gguf", outtype="q8_0")
plan = ropeconv.make_plan(ropeconv.open_source(source), ropeconv.Recipe(REGISTRY["yarn"](4.0)), target)
if "write" in sys.argv:
    ropeconv.apply(plan, check=False)
"""


def test_only_headers_are_read_until_a_conversion_is_written(tmp_path: Path) -> None:
    model = checkpoint("llama", tmp_path / "model")
    size = (model / WEIGHTS).stat().st_size
    assert size > 1 << 18
    with serving() as hub:
        hub.repos["them/llama"] = model

        def sent(*given: str) -> int:
            hub.sent.clear()
            env = {**os.environ, **hub.environment(tmp_path / "home")}
            subprocess.run([sys.executable, "-c", PROGRAM, *given], cwd=tmp_path, env=env, check=True)
            return hub.sent.get(WEIGHTS, 0)

        assert 0 < sent("them/llama", "hub.gguf") <= 1 << 17
        assert sent("them/llama", "hub.gguf", "write") >= size
        assert sent("model", "disk.gguf", "write") == 0
    assert contents(tmp_path / "hub.gguf") == contents(tmp_path / "disk.gguf")
