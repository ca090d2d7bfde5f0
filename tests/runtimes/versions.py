"""Checkpoints with stored frequencies on versions of transformers that are not the installed one.

`scripts/test` runs this after the lab, which installs the versions; what configs alone say is
executed there.
"""

import os
from pathlib import Path

import pytest

from scripts.laboratory.execute import environment
from scripts.laboratory.runtimes.transformers import RUNTIME

from ..convert.test_buffers import RECIPES, agrees, calm
from ..support.baking import apply, make_plan

VERSIONS = RUNTIME.quick[:-1]


@pytest.mark.parametrize(
    ("layout", "kind"),
    [("llama", "clamped"), ("mistral", "full"), ("qwen2", "clamped"), ("qwen3", "full")],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_stored_frequencies(version: str, layout: str, kind: str, tmp_path: Path) -> None:
    """The checkpoint's own code, wherever the table says that it runs."""
    source = calm(layout, tmp_path / layout)
    plan = make_plan(source, RECIPES[kind], tmp_path / f"{layout}_{kind}", encoding="buffers")
    path = os.pathsep.join(map(str, environment(RUNTIME, version).path))
    if plan.transformers_status(version) != "exact":
        with pytest.raises(AssertionError, match="Error"):
            agrees(source, apply(plan), path)
        return
    agrees(source, apply(plan), path)
