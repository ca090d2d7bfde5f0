"""What the encodings of a checkpoint refuse, each beside the nearest request that they take, and the defaults."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ropeconv.encode.checkpoint.encodings.buffers import TENSOR
from ropeconv.encode.target import FoldTarget
from ropeconv.formats.safetensors import Tensor
from ropeconv.rope.recipe import Recipe

from .made_requests import CONFIG, MIXED, WEIGHTS, YARN, encoded, recipe, refusal


def test_stored_frequencies_are_for_a_language_model_with_weights_and_one_list() -> None:
    made = encoded("buffers", MIXED)
    assert list(made.added) == [TENSOR]
    assert made.added[TENSOR].dtype == np.float32
    inner = {"model_type": "llava", "text_config": CONFIG}
    assert "there is code for the language model only; use --encoding auto" in refusal("buffers", MIXED, inner)
    pair = recipe("mixed", 4.0, keep_short=True)
    assert "there is one tensor of frequencies; use --encoding auto" in refusal("buffers", pair)
    assert "the frequencies become one of the tensors" in refusal("buffers", MIXED, tensors={})
    twice = {**WEIGHTS, TENSOR: Tensor(TENSOR, "F32", (4,), 0, 16)}
    assert f"a checkpoint with {TENSOR}" in refusal("buffers", MIXED, tensors=twice)
    assert "there is code for Llama, Mistral" in refusal("buffers", MIXED, {**CONFIG, "model_type": "olmo2"})


@pytest.mark.parametrize("switched", [True, False])
def test_stored_frequencies_scale_queries_in_layers_without_a_window(switched: bool) -> None:
    windowed = {**CONFIG, "model_type": "qwen2", "use_sliding_window": switched, "sliding_window": 32}
    log_n = recipe("mixed", 4.0, log_n="full")
    if switched:
        assert "the code has no use_sliding_window" in refusal("buffers", log_n, windowed)
    else:
        assert encoded("buffers", log_n, windowed).config["stored_rope"]["log_n"] == {"kind": "full", "length": 64}
    assert "log_n" not in encoded("buffers", MIXED, windowed).config["stored_rope"]


def test_stored_frequencies_have_classes_and_settings_of_their_own() -> None:
    of = recipe("yarn", 4.0, log_n="full", attention_factor=1.25)
    made = encoded("buffers", of, {**CONFIG, "architectures": ["LlamaForCausalLM"], "other": 1})
    name, module = "StoredRopeLlama", "modeling_stored_rope"
    assert made.config == {
        **CONFIG, "model_type": "llama_stored_rope", "max_position_embeddings": 256, "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "stored_rope": {"attention_factor": 1.25, "log_n": {"kind": "full", "length": 64}},
        "architectures": [f"{name}ForCausalLM"],
        "auto_map": {
            "AutoConfig": f"{module}.{name}Config", "AutoModel": f"{module}.{name}Model",
            "AutoModelForCausalLM": f"{module}.{name}ForCausalLM",
        },
        "other": 1,
    }  # fmt: skip
    keys = list(made.config)
    assert keys[keys.index("architectures") + 1] == "auto_map"
    assert keys[keys.index("rope_parameters") + 1] == "stored_rope"
    assert (made.written_as, made.context, list(made.texts)) == ("buffers", 256, [f"{module}.py"])
    assert made.notes == (f"needs trust_remote_code: it comes with {module}.py, about a screen of code, which people "
                          "will want to read",)  # fmt: skip
    assert {one.runtime.partition("@")[0] for one in made.verdicts if one.status == "exact"} >= {"transformers"}


def test_the_modelling_file_is_made_for_its_family() -> None:
    def text(model_type: str, of: Recipe = MIXED) -> str:
        (found,) = encoded("buffers", of, {**CONFIG, "model_type": model_type}).texts.values()
        compile(found, model_type, "exec")
        return found

    full = recipe("mixed", 4.0, log_n="full")
    assert len({text(one) for one in ("llama", "mistral", "qwen2", "qwen3")}) == 4
    for model_type, since in (("llama", "4.48"), ("mistral", "4.48"), ("qwen2", "4.48"), ("qwen3", "4.51")):
        assert f'model_type = "{model_type}_stored_rope"' in text(model_type)
        assert f"transformers has it, from {since} on" in text(model_type)
        scaled = text(model_type, full)
        assert f"transformers.models.{model_type}.modeling_{model_type} import" in scaled
        assert ("self.q_norm(" in scaled) is (model_type == "qwen3")
        assert ('"sliding_window"] = self.config' in scaled) is (model_type == "mistral")
    assert text("llama", full) != text("llama", recipe("mixed", 4.0, log_n="clamped")) != text("llama")


def test_ministral_3_is_for_log_n_of_models_with_its_layout() -> None:
    log_n = recipe("yarn", 4.0, log_n="clamped")
    assert "only log-n is worth another class; use --encoding auto" in refusal("ministral3", YARN)
    assert "Llama and Mistral have its layout" in refusal("ministral3", log_n, {**CONFIG, "model_type": "qwen2"})
    assert "a checkpoint with attention_bias as" in refusal("ministral3", log_n, {**CONFIG, "attention_bias": True})
    assert encoded("ministral3", log_n, {**CONFIG, "attention_bias": False}).config["model_type"] == "ministral3"


def test_defaults_that_ministral_3_does_not_share_are_written() -> None:
    log_n = recipe("yarn", 4.0, log_n="clamped")
    silent = {key: value for key, value in CONFIG.items() if key not in ("num_attention_heads",)}
    silent |= {"hidden_size": 256}
    assert encoded("ministral3", log_n).config["num_key_value_heads"] == 2
    assert encoded("ministral3", log_n, {**CONFIG, "num_key_value_heads": 1}).config["num_key_value_heads"] == 1
    assert encoded("ministral3", log_n, silent).config["num_key_value_heads"] == 32
    inner = {"model_type": "llava", "architectures": ["A"], "text_config": {**CONFIG, "architectures": ["B"]}}
    made = encoded("ministral3", log_n, inner).config
    assert (made["architectures"], made["text_config"]["architectures"]) == (["A"], ["B"])
    assert encoded("ministral3", log_n).config["architectures"] == ["Ministral3ForCausalLM"]


QUERIES, KEYS = WEIGHTS


@pytest.mark.parametrize("into", [None, "q"])
def test_a_gain_goes_into_the_queries_beside_what_is_folded_already(into: Any) -> None:
    """Full log-n makes queries smaller, and mlx-lm reads no attention factor beside linear, so that is folded too."""
    loud = recipe("linear", 4.0, log_n="full", attention_factor=1.2)
    options = {"fold": FoldTarget(into=into)}
    made = encoded("ministral3", loud, **options)
    assert made.log_n_approximation is not None
    assert made.fold is not None
    gain = (QUERIES, made.log_n_approximation.gain)
    assert (made.fold.fold_into, made.fold.expected_kl) == (into or "k", 0.0)
    assert [(one.tensor, one.factor) for one in made.fold.scalings] == [gain]
    both = encoded("ministral3", loud, **options, runtimes=("mlx-lm",)).fold
    assert both is not None
    folded = (QUERIES if into == "q" else KEYS, pytest.approx(1.44))
    assert [(one.tensor, one.factor) for one in both.scalings] == [folded, gain]
    assert both.expected_kl == 1e-4
    steps = recipe("linear", 4.0, log_n="clamped", attention_factor=1.2)
    without_gain = encoded("ministral3", steps, **options, runtimes=("mlx-lm",)).fold
    assert without_gain is not None
    assert [(one.tensor, one.factor) for one in without_gain.scalings] == [folded]
    assert encoded("ministral3", recipe("yarn", 4.0, log_n="clamped")).fold is None


def test_what_is_said_of_the_steps_of_ministral_3() -> None:
    *_, steps = encoded("ministral3", recipe("yarn", 4.0, log_n="clamped")).notes
    assert steps == (
        "log-n comes in steps of 64 tokens, up to 16.2% above the formula over 256 tokens and right at the end of "
        "each; the model type becomes ministral3"
    )
    made = encoded("ministral3", recipe("yarn", 4.0, log_n="full"))
    assert made.log_n_approximation is not None
    assert made.notes[-1] == (
        f"log-n is within {made.deviation:.1e} of the formula; the weights make queries "
        f"{1 / made.log_n_approximation.gain:g} times smaller, and the class undoes that; the model type becomes "
        "ministral3"
    )


def test_without_weights_ministral_3_holds_neither_a_gain_nor_what_no_key_holds() -> None:
    full, loud = recipe("yarn", 4.0, log_n="full"), recipe("linear", 4.0, log_n="clamped", attention_factor=1.2)
    assert "a factor goes into its weights" in refusal("ministral3", full, tensors={})
    alone = refusal("ministral3", loud, tensors={}, runtimes=("mlx-lm",))
    assert "its weights are not here" not in alone
    assert "attention factor" in alone
    quiet = recipe("linear", 4.0, log_n="clamped")
    assert "scales queries otherwise" in refusal("ministral3", quiet, runtimes=("sglang",))


def test_a_factor_of_one_and_a_config_alone_have_nothing_to_multiply() -> None:
    assert "there is nothing to multiply; use --encoding native or factors" in refusal("weights", MIXED)
    assert "its weights are not here; give the whole folder" in refusal("weights", YARN, tensors={})
    of_log_n = refusal("weights", recipe("yarn", 4.0, log_n="full"))
    assert of_log_n.startswith("--log-n full cannot be baked for the keys of llama: its stock class does not scale q")
    made = encoded("weights", YARN)
    assert made.fold is not None
    assert made.fold.fold_into == "k"
    assert (made.in_config.attention_factor, made.written_as) == (1.0, "factors")
    assert {one.status for one in made.verdicts} >= {"rounded"}
    assert "exact" not in {one.status for one in made.verdicts}
    both = encoded("weights", YARN, fold=FoldTarget("qk")).fold
    assert both is not None
    assert both.fold_into == "qk"


@pytest.mark.parametrize("encoding", ["native", "factors", "weights", "ministral3"])
def test_the_config_of_the_source_stays_as_it_is(encoding: str) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    inner = {"model_type": "llava", "text_config": {**CONFIG, "rope_parameters": rope, "layer_types": ["a"]}}
    before = copy.deepcopy(inner)
    of = recipe("yarn", 4.0, log_n="clamped" if encoding == "ministral3" else None)
    made = encoded(encoding, of, inner)
    assert inner == before
    assert made.config["text_config"]["max_position_embeddings"] == 256
    assert made.context == 256
