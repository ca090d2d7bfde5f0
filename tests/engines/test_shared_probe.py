"""One probe for many outputs: it starts when it is asked, stays, and is started anew after its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.bake import apply, make_plan
from ropeconv.encode import Target
from ropeconv.engines.probe import Probe, SharedProbe
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source


@pytest.mark.skipif(not Probe.available(), reason="transformers is not installed")
def test_a_process_serves_several_outputs(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    probe, source = SharedProbe(), open_source(str(tiny("llama")))
    recipe = Recipe(REGISTRY["yarn"](4.0))
    assert "process" not in vars(probe)
    probe.stop()
    probe.prefetch("llama")
    assert "process" not in vars(probe)
    pids = []
    for number in range(3):
        if number == 2:
            probe.process.kill()
            probe.process.wait()
        done = apply(
            make_plan(source, Recipe(recipe.method, context=300 + number), Target(out=tmp_path / str(number))),
            probe=probe,
        )
        assert done.check is not None
        pids.append(probe.process.pid)
    assert pids[0] == pids[1] != pids[2]
    assert probe.process.poll() is None
    probe.process.kill()
    probe.process.communicate()
