"""Every family and method against the installed transformers: its own buffers, after a forward pass, from the baked
config, against the formulas that tests/rope has checked, for the base and the sizes that the family is published with.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ropeconv.engines.probe import Probe
from ropeconv.errors import Disagreement, UnsupportedBake
from ropeconv.rope.forms import Plain
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.runtime import find
from ropeconv.validate.checks import compare, ulp_distance

from ..conftest import CONFIGS
from ..models.test_published_configs import FACTS, REFUSED
from ..support.baking import AS_IS, make_plan, recipe_of, replaced, write_config
from ..support.extent import sample
from ..support.families import crossed
from ..support.models import CANCELS, FAMILIES, TINY, TRAINED, of_extended


def published_theta(model_type: str) -> float:
    from transformers import AutoConfig

    given = of_extended(FAMILIES[model_type].get("rope_parameters", {})).get("rope_theta")
    if given:
        return float(given)
    rope = AutoConfig.for_model(model_type).get_text_config().rope_parameters
    return float(of_extended(rope)["rope_theta"])


def expected(model_type: str, recipe: Recipe) -> np.ndarray:
    """The frequencies of all pairs of a tiny checkpoint. Those that stand still have 0.

    Of r dimensions of which a share p rotates, theta^(-2i/r) is (theta^p)^(-2i/(p r)).
    """
    share = TINY[model_type].rotating_share
    rotary = int(TINY[model_type].rotary_dim * share)
    spec = RopeSpec(rotary, rotary, Plain(published_theta(model_type) ** share), TRAINED, TRAINED)
    if recipe.method.name == "theta":
        recipe = recipe_of("theta", recipe.method.base**share, context=recipe.context)
    return np.append(recipe.schedule(spec).inv_freq, np.zeros((TINY[model_type].rotary_dim - rotary) // 2))


CASES: dict[str, tuple[Recipe, float]] = {
    "yarn": (recipe_of("yarn", 4.0), 0.1 * math.log(4) + 1),
    "yarn no-truncate": (recipe_of("yarn", 8.0, 32.0, 1.0, False), 0.1 * math.log(8) + 1),
    "yarn A=1.3": (recipe_of("yarn", 4.0, attention_factor=1.3), 1.3),
    "mixed": (recipe_of("mixed", 4.0), 1.0),
    "mixed A=1.2": (recipe_of("mixed", 4.0, attention_factor=1.2), 1.2),
    "by-parts": (recipe_of("by-parts", 4.0), 1.0),
    "ntk-fixed": (recipe_of("ntk-fixed", 4.0), 1.0),
    "linear": (recipe_of("linear", 4.0), 1.0),
    "theta": (recipe_of("theta", 5e5, context=256), 1.0),
}


@pytest.mark.parametrize(
    ("model_type", "name", "encoding"),
    [(of, *cell) for of, cell in crossed(list(product(CASES, ("auto", "factors"))), 3)],
)
def test_transformers_computes_the_method(
    model_type: str, name: str, encoding: str, tiny: Callable[[str], Path], probe: Probe, tmp_path: Path
) -> None:
    recipe, attention_factor = CASES[name]
    if model_type in CANCELS and attention_factor != 1:
        with pytest.raises(UnsupportedBake, match="any attention factor"):
            make_plan(tiny(model_type), recipe, encoding=encoding)
        return
    if {name, recipe.method.name, encoding} & {*TINY[model_type].refused}:
        with pytest.raises(
            UnsupportedBake,
            match="its class does not support them|no rope type has its formula|it computes other frequencies",
        ):
            make_plan(tiny(model_type), recipe, encoding=encoding)
        return
    plan = make_plan(tiny(model_type), recipe, encoding=encoding)
    write_config(plan, tmp_path)
    answer = probe.ask(tmp_path, plan.schedule.context)
    assert "error" not in answer
    reader = find(f"transformers@{answer['transformers']}")[0]
    assert plan.result.verdict_of(reader).status == "exact"
    module, inv_freq = answer["modules"]["global"], expected(model_type, recipe)
    if plan.result.encoding == "factors":
        assert ulp_distance(np.array(module["inv_freq"]), inv_freq) <= 2
    np.testing.assert_allclose(module["inv_freq"], inv_freq, rtol=3e-6)
    np.testing.assert_allclose(module["short"], module["inv_freq"], rtol=0)
    assert module["attention_factor"] == pytest.approx(attention_factor, rel=1e-6)
    if "local" in answer["modules"]:
        local = answer["modules"]["local"]
        assert local["attention_factor"] == 1
        theta = TINY[model_type].local_theta or published_theta(model_type)
        rotary = TINY[model_type].local_rotary_dim or TINY[model_type].rotary_dim
        np.testing.assert_allclose(local["inv_freq"], theta ** -(np.arange(0, rotary, 2) / rotary), rtol=3e-6)
    compare(answer, plan.schedule, plan.before, plan.result.encoding)


@pytest.mark.parametrize("change", ["factor", "theta", "attention_factor"])
def test_the_check_notices_a_wrong_encoding(llama: Path, change: str, probe: Probe, tmp_path: Path) -> None:
    yarn = recipe_of("yarn", 4.0)
    wrong = {"factor": recipe_of("yarn", 4.01), "attention_factor": replace(yarn, attention_factor=1.1387)}
    plan, other = (make_plan(llama, recipe) for recipe in (yarn, wrong.get(change, yarn)))
    write_config(other, tmp_path)
    if change == "theta":
        replaced(tmp_path / "config.json", "10000.0", "10001.0")
    with pytest.raises(Disagreement):
        compare(probe.ask(tmp_path, 256), plan.schedule, plan.before, "native")


# Published configs at their real size: the installed transformers builds them, on no memory, and is asked


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
