"""Verdicts on versions of transformers that are not the installed one; `scripts/compat` installs and runs them.

ROPECONV_COMPAT names a folder with one installation per version. Every family, several methods: what the table
says is exact has to compute the schedule, what it says is ignored or refused must not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropeconv.engines.probe.client import Probe
from ropeconv.errors import Disagreement
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.runtime import version_key
from ropeconv.validate.checks.frequencies import compare

from ..baking import apply, make_plan
from ..encode.test_buffers import RECIPES as STORED
from ..encode.test_buffers import calm, confirm, measure
from ..models import CANCELS, FAMILIES

ROOT = Path(os.environ["ROPECONV_COMPAT"])
VERSIONS = sorted((path.name for path in ROOT.iterdir() if path.is_dir()), key=version_key)
RECIPES = {
    "yarn": Recipe(REGISTRY["yarn"](4.0)),
    "yarn, own attention factor": Recipe(REGISTRY["yarn"](4.0), attention_factor=1.3),
    "yarn, whole pairs": Recipe(REGISTRY["yarn"](4.0, truncate=False)),
    "mixed": Recipe(REGISTRY["mixed"](4.0)),
    "mixed, own attention factor": Recipe(REGISTRY["mixed"](4.0), attention_factor=1.2),
    "theta": Recipe(REGISTRY["theta"](5e5), context=256),
    "linear": Recipe(REGISTRY["linear"](4.0)),
    "by-parts": Recipe(REGISTRY["by-parts"](4.0)),
}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Iterator[tuple[str, Probe]]:
    """A version and its process."""
    with Probe(env={**os.environ, "PYTHONPATH": str(ROOT / request.param)}) as process:
        yield request.param, process


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - CANCELS))
def test_verdict(
    version: tuple[str, Probe], model_type: str, name: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    number, process = version
    plan = make_plan(tiny(model_type), RECIPES[name])
    (tmp_path / "config.json").write_text(next(s.text or "" for s in plan.files if s.name == "config.json"))
    answer = process.ask(tmp_path, plan.schedule.context)
    assert answer["transformers"] == number
    word = plan.predicted(number)
    if word == "exact":
        compare(answer, plan.schedule, plan.before, plan.result.encoding)
    else:
        with pytest.raises(
            Disagreement, match="does not load" if "error" in answer else "computes other|attention factor"
        ):
            compare(answer, plan.schedule, plan.before, plan.result.encoding)
        assert ("error" in answer) == (word == "refused")


@pytest.mark.parametrize(
    ("layout", "kind"), [("llama", "clamped"), ("mistral", "full"), ("qwen2", "clamped"), ("qwen3", "full")]
)
@pytest.mark.parametrize("number", VERSIONS)
def test_stored_frequencies(number: str, layout: str, kind: str, tmp_path: Path) -> None:
    """The checkpoint's own code, wherever the table says that it runs."""
    source = calm(layout, tmp_path / layout)
    plan = make_plan(source, STORED[kind], tmp_path / f"{layout}_{kind}", encoding="buffers")
    if plan.predicted(number) == "refused":
        with pytest.raises(AssertionError, match="Error"):
            measure(source, apply(plan), str(ROOT / number))
        return
    confirm(measure(source, apply(plan), str(ROOT / number)))
