"""Published configs at their real size: the installed transformers builds them, on no memory, and is asked."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from ropeconv.engines.probe import Probe
from ropeconv.errors import UnsupportedBake
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.checks import compare

from ..conftest import CONFIGS
from ..models.test_published_configs import FACTS, REFUSED
from ..support.baking import AS_IS, make_plan, recipe_of, write_config
from ..support.extent import sample

METHODS = ("yarn", "mixed", "as-is")
# transcribed with the text model's type at the top; the published file says mistral3 there
TOP_TYPE = {"mistralai--Ministral-3-3B-2512": "mistral3"}


def recipe(name: str, method: str) -> Recipe:
    """Four times what a published config declares, by the factor over what it was trained for; or as it is."""
    trained, declared = FACTS[name][5:7]
    return AS_IS if method == "as-is" else recipe_of(method, 4.0 * declared / trained)


NAMES = [name for name, facts in FACTS.items() if facts[0] not in REFUSED]


@pytest.mark.parametrize(("name", "method"), sample(list(product(NAMES, METHODS)), 10))
def test_the_real_config_computes_the_schedule(name: str, method: str, probe: Probe, tmp_path: Path) -> None:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    config["model_type"] = TOP_TYPE.get(name, config["model_type"])
    source = tmp_path / "config.json"
    source.write_text(json.dumps(config))
    if FACTS[name][0] == "llama4" and method == "yarn":
        with pytest.raises(UnsupportedBake, match="cancels any attention factor"):
            make_plan(source, recipe(name, method), replace=method != "as-is")
        return
    plan = make_plan(source, recipe(name, method), replace=method != "as-is")
    write_config(plan, tmp_path)
    compare(probe.ask(tmp_path, plan.schedule.context), plan.schedule, plan.before, plan.result.encoding)
