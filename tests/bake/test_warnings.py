"""What a plan warns of, on published configs: little, what matters most first, and with the source's number."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.planner import make_plan
from ropeconv.bake.warnings import warnings
from ropeconv.encode import Target
from ropeconv.inspection import Problem, inspect_source
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..conftest import CONFIGS

MORE = CONFIGS.parent / "more_configs"


LLAMA_2 = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
MISTRAL = CONFIGS / "mistralai--Mistral-7B-v0.1.json"


def warned(path: Path, method: str, *values: Any, replace: bool = False, **modifiers: Any) -> tuple[str, ...]:
    recipe = Recipe(REGISTRY[method](*values), **modifiers)
    return make_plan(open_source(str(path)), recipe, Target(replace=replace)).warnings


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
    scaled = "gpt-oss" in name
    assert warned(CONFIGS / f"{name}.json", "yarn", 64.0 if scaled else 4.0, replace=scaled) == ()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (MORE / "CohereForAI--c4ai-command-r7b-12-2024.json", "the 24 layers that rotate see 4,096 tokens"),
        (MISTRAL, "every layer that rotates sees 4,096 tokens"),
    ],
)
def test_layers_that_cannot_gain_come_first_and_only_of_an_extension(path: Path, said: str) -> None:
    assert said in warned(path, "yarn", 4.0)[0]
    assert not any(said in one for one in warned(path, "as-is"))


@pytest.mark.parametrize(
    ("method", "value", "context", "said"),
    [("theta", 5e5, None, True), ("theta", 5e5, 4096, False), ("ntk", 4.0, None, False)],
)
def test_a_context_that_stays_is_said_of_a_base_without_a_context(
    method: str, value: float, context: int | None, said: bool
) -> None:
    words = "the context stays 4,096; pass --context to declare a longer one"
    assert (words in warned(LLAMA_2, method, value, context=context)) is said


@pytest.mark.parametrize(("frequency", "said"), [(0.0, True), (1e-3, False)])
def test_a_model_in_which_nothing_rotates_is_said(frequency: float, said: bool) -> None:
    found = warned(LLAMA_2, "inv-freq", (frequency,) * 64, context=8192)
    assert any("no pair rotates" in one for one in found) is said


def test_a_doubt_about_the_trained_context_is_said() -> None:
    (found,) = warned(CONFIGS / "Qwen--Qwen2-7B.json", "yarn", 4.0)
    assert "may have been trained for 32,768" in found
    assert "--original-context 32768" in found


def test_code_of_the_checkpoint_is_said_last() -> None:
    found = warned(CONFIGS / "MiniMaxAI--MiniMax-M2.5.json", "yarn", 4.0)
    assert found[-1].startswith("auto_map names code of the checkpoint")


def test_problems_of_the_source_come_in_the_order_of_their_weight() -> None:
    problems = tuple(Problem(code, code) for code in ("stale-inv-freq", "other", "trained", "load"))
    seen = dataclasses.replace(inspect_source(open_source(str(LLAMA_2))), problems=problems, custom_code="code")
    recipe = Recipe(REGISTRY["linear"](4.0))
    assert warnings(seen, recipe, seen.spec, recipe.schedule(seen.spec)) == [
        "load",
        "trained",
        "stale-inv-freq",
        "code",
    ]
