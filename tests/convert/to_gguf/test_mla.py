"""DeepSeek's pair of mscales: from config.json to llama.cpp's keys and back, and its logits."""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.formats.gguf.file import GgufFile

from ...support.baking import AS_IS, apply, inspected, make_plan, recipe_of
from ...support.extent import sample
from ...support.llamacpp import bake, beyond, checkpoint, of_llamacpp, of_transformers
from ...support.models import TRAINED
from ...support.optional import MISSING, skip

if "llama_cpp" in MISSING:
    skip("llama_cpp")

PAIRS = ((1.0, 1.0), (0.707, 0.707), (1.0, 0.707), None)
"""mscale and mscale_all_dim: of DeepSeek V3, of V2-Lite, of neither, and none at all."""
RECIPES = {
    "as it is": (AS_IS, {}, 4.0),
    "replaced": (recipe_of("yarn", 8.0), {"replace": True}, 8.0),
    "on top": (recipe_of("yarn", 2.0, on_top=True), {}, 8.0),
}
CASES = [
    (model_type, pair, name)
    for model_type in ("deepseek_v2", "deepseek_v3")
    for pair in PAIRS
    for name in RECIPES
]


def scaled(folder: Path, model_type: str, pair: tuple[float, float] | None) -> Path:
    source = checkpoint(model_type, folder)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    rope: dict[str, Any] = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
    rope["original_max_position_embeddings"] = TRAINED
    if pair is not None:
        rope |= {"mscale": pair[0], "mscale_all_dim": pair[1]}
    config.pop("rope_scaling", None)
    config |= {"rope_parameters": rope, "max_position_embeddings": 4 * TRAINED}
    (source / "config.json").write_text(json.dumps(config))
    return source


@pytest.mark.parametrize(("model_type", "pair", "name"), sample(CASES, 2))
def test_a_pair_of_mscales_becomes_keys_and_comes_back(
    model_type: str, pair: tuple[float, float] | None, name: str, tmp_path: Path
) -> None:
    recipe, options, factor = RECIPES[name]
    source = scaled(tmp_path / "source", model_type, pair)
    out = tmp_path / "model.gguf"
    plan = bake(source, recipe, out, **options)
    assert plan.result.verdicts[0].status == "exact"
    header = GgufFile.open(out).header
    assert header.get("deepseek2.rope.scaling.factor") == factor
    if pair is not None and pair[0] == pair[1]:
        multiplier = header.get("deepseek2.rope.scaling.yarn_log_multiplier")
        assert multiplier == pytest.approx(0.1 * pair[1], rel=1e-6)

    reference = of_transformers(source, None if recipe is AS_IS else plan)
    unscaled = beyond(
        reference, of_transformers(checkpoint(model_type, tmp_path / "unscaled"), None)
    )
    for bucket, control in zip(beyond(reference, of_llamacpp(out)), unscaled, strict=True):
        assert bucket.kl_mean < 1e-6
        assert control.kl_mean > 1000 * bucket.kl_mean

    apply(make_plan(out, AS_IS, tmp_path / "back", to="safetensors"))
    rope = json.loads((tmp_path / "back" / "config.json").read_text())["rope_parameters"]
    written = (rope.get("mscale"), rope.get("mscale_all_dim"))
    assert written == ((None, None) if pair is None else pytest.approx(pair, rel=2e-6))
    assert inspected(tmp_path / "back").spec.attention_factor == pytest.approx(
        plan.schedule.attention_factor
    )
