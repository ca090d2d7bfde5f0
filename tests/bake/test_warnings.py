"""What a plan warns of, on published configs: little, what matters most first, and with the source's number."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.bake.planner import make_plan
from ropeconv.encode import Target
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..conftest import CONFIGS

MORE = CONFIGS.parent / "more_configs"


def warned(path: Path, method: str, value: float, **options: bool) -> tuple[str, ...]:
    recipe = Recipe(REGISTRY[method](value))  # type: ignore[call-arg]
    return make_plan(open_source(str(path)), recipe, Target(**options)).warnings  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama--Llama-2-7b-hf", "meta-llama--Meta-Llama-3-8B", "Qwen--Qwen3-8B", "Qwen--Qwen2.5-7B-Instruct",
        "mistralai--Mistral-7B-Instruct-v0.3", "google--gemma-2-9b", "openai--gpt-oss-20b",
        "codellama--CodeLlama-7b-hf", "mistralai--Mistral-Nemo-Instruct-2407",
        "ibm-granite--granite-3.3-8b-instruct", "tiiuae--falcon-40b",
    ],
)  # fmt: skip
def test_an_extension_of_a_common_model_has_no_warnings(name: str) -> None:
    scaled = {"replace": True} if "gpt-oss" in name else {}
    factor = 64.0 if scaled else 4.0
    assert warned(CONFIGS / f"{name}.json", "yarn", factor, **scaled) == ()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (MORE / "CohereForAI--c4ai-command-r7b-12-2024.json", "the 24 layers that rotate see 4,096 tokens"),
        (CONFIGS / "mistralai--Mistral-7B-v0.1.json", "every layer that rotates sees 4,096 tokens"),
    ],
)
def test_layers_that_cannot_gain_come_first(path: Path, said: str) -> None:
    found = warned(path, "yarn", 4.0)
    assert said in found[0]


def test_a_doubt_about_the_trained_context_is_said() -> None:
    (found,) = warned(CONFIGS / "Qwen--Qwen2-7B.json", "yarn", 4.0)
    assert "may have been trained for 32,768" in found
    assert "--original-context 32768" in found


def test_code_of_the_checkpoint_is_said_last() -> None:
    found = warned(CONFIGS / "MiniMaxAI--MiniMax-M2.5.json", "yarn", 4.0)
    assert found[-1].startswith("auto_map names code of the checkpoint")
