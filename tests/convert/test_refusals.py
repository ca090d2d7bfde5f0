"""What the encodings of a checkpoint refuse, each beside the nearest request that they take, and
the defaults.
"""

import copy
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.convert.encodings.buffers import TENSOR
from ropeconv.convert.target import Target
from ropeconv.errors import UsageError
from ropeconv.formats.safetensors import Tensor
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.recipe import Recipe

from ..support.baking import AS_IS, MIXED, YARN, make_plan, recipe_of
from .made_requests import CONFIG, WEIGHTS, encoded, refusal

PAIR = recipe_of("mixed", 4.0, keep_short=True)
FULL = recipe_of("mixed", 4.0, log_n="full")
STEPS = recipe_of("yarn", 4.0, log_n="clamped")
YARN_FULL = recipe_of("yarn", 4.0, log_n="full")
LOUD_FULL = recipe_of("linear", 4.0, log_n="full", attention_factor=1.2)
LOUD_STEPS = recipe_of("linear", 4.0, log_n="clamped", attention_factor=1.2)
INNER = {"model_type": "llava", "text_config": CONFIG}
TWICE = {**WEIGHTS, TENSOR: Tensor(TENSOR, "F32", (4,), 0, 16)}
WINDOWED = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32}


@pytest.mark.parametrize(
    ("encoding", "of", "config", "options", "words"),
    [
        (
            "buffers",
            MIXED,
            INNER,
            {},
            "there is code for the language model only; use --encoding auto",
        ),
        ("buffers", PAIR, {}, {}, "there is one tensor of frequencies; use --encoding auto"),
        ("buffers", MIXED, {}, {"tensors": {}}, "the frequencies become one of the tensors"),
        ("buffers", MIXED, {}, {"tensors": TWICE}, f"a checkpoint with {TENSOR}"),
        ("buffers", MIXED, {"model_type": "olmo2"}, {}, "there is code for Llama, Mistral"),
        ("buffers", FULL, WINDOWED, {}, "the code has no use_sliding_window"),
        ("ministral3", YARN, {}, {}, "only log-n is worth another class; use --encoding auto"),
        ("ministral3", STEPS, {"model_type": "qwen2"}, {}, "Llama and Mistral have its layout"),
        ("ministral3", STEPS, {"attention_bias": True}, {}, "a checkpoint with attention_bias as"),
        ("ministral3", YARN_FULL, {}, {"tensors": {}}, "a factor goes into its weights"),
        # its weights are not here either, but the runtime is the reason
        (
            "ministral3",
            LOUD_STEPS,
            {},
            {"tensors": {}, "runtimes": ("mlx-lm",)},
            "with factors: it uses the attention",
        ),
        (
            "ministral3",
            recipe_of("linear", 4.0, log_n="clamped"),
            {},
            {"runtimes": ("sglang",)},
            "scales queries otherwise",
        ),
        (
            "weights",
            MIXED,
            {},
            {},
            "there is nothing to multiply; use --encoding native or factors",
        ),
        ("weights", YARN, {}, {"tensors": {}}, "its weights are not here; give the whole folder"),
        (
            "weights",
            YARN_FULL,
            {},
            {},
            "the keys of llama: its stock class does not scale queries by position",
        ),
    ],
)
def test_what_is_refused(
    encoding: str, of: Recipe, config: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    assert words in refusal(
        encoding, of, config if config is INNER else {**CONFIG, **config}, **options
    )


def test_stored_frequencies_scale_queries_in_layers_without_a_window() -> None:
    of_full = encoded("buffers", FULL, {**CONFIG, **WINDOWED, "use_sliding_window": False})
    assert of_full.config["stored_rope"]["log_n"] == {"kind": "full", "length": 64}
    assert "log_n" not in encoded("buffers", MIXED, {**CONFIG, **WINDOWED}).config["stored_rope"]


def test_stored_frequencies_have_classes_and_settings_of_their_own() -> None:
    of = recipe_of("yarn", 4.0, log_n="full", attention_factor=1.25)
    result = encoded("buffers", of, {**CONFIG, "architectures": ["LlamaForCausalLM"], "other": 1})
    name, module = "StoredRopeLlama", "modeling_stored_rope"
    assert result.config == {
        **CONFIG,
        "model_type": "llama_stored_rope",
        "max_position_embeddings": 256,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "stored_rope": {"attention_factor": 1.25, "log_n": {"kind": "full", "length": 64}},
        "architectures": [f"{name}ForCausalLM"],
        "auto_map": {
            "AutoConfig": f"{module}.{name}Config",
            "AutoModel": f"{module}.{name}Model",
            "AutoModelForCausalLM": f"{module}.{name}ForCausalLM",
        },
        "other": 1,
    }
    keys = list(result.config)
    assert keys[keys.index("architectures") + 1] == "auto_map"
    assert keys[keys.index("rope_parameters") + 1] == "stored_rope"
    assert (result.written_as, result.context, list(result.texts)) == (
        "buffers",
        256,
        [f"{module}.py"],
    )
    assert list(result.added) == [TENSOR]
    assert result.added[TENSOR].dtype == np.float32
    assert result.notes == (
        (
            f"needs trust_remote_code: it comes with {module}.py, about a screen of code, which"
            " users will want to read"
        ),
    )
    assert {
        entry.runtime.partition("@")[0] for entry in result.verdicts if entry.status == "exact"
    } >= {"transformers"}


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({}, 2),
        ({"num_key_value_heads": 1}, 1),
        ({"attention_bias": False}, 2),
        ({"num_attention_heads": None, "hidden_size": 256}, 32),
    ],
)
def test_defaults_that_ministral_3_does_not_share_are_written(
    config: dict[str, Any], heads: int
) -> None:
    given = {key: value for key, value in {**CONFIG, **config}.items() if value is not None}
    new_config = encoded("ministral3", STEPS, given).config
    assert (new_config["model_type"], new_config["num_key_value_heads"]) == ("ministral3", heads)
    assert new_config["architectures"] == ["Ministral3ForCausalLM"]


QUERIES, KEYS = WEIGHTS


@pytest.mark.parametrize("into", [None, "q"])
def test_a_gain_goes_into_the_queries_beside_what_is_folded_already(into: Any) -> None:
    """Full log-n makes queries smaller, and mlx-lm reads no attention factor beside linear, so that
    is folded too.
    """
    folded = (QUERIES if into == "q" else KEYS, pytest.approx(1.44))
    options = {"fold_into": into}
    gain_only = encoded("ministral3", LOUD_FULL, **options)
    gain = (QUERIES, gain_only.log_n_approximation.gain)  # type: ignore[union-attr]
    both = encoded("ministral3", LOUD_FULL, **options, runtimes=("mlx-lm",))
    without = encoded("ministral3", LOUD_STEPS, **options, runtimes=("mlx-lm",))
    for result, scalings, kl in (
        (gain_only, [gain], 0.0),
        (both, [folded, gain], 1e-4),
        (without, [folded], 1e-4),
    ):
        assert result.fold is not None
        assert [(scaling.tensor, scaling.factor) for scaling in result.fold.scalings] == scalings
        assert (result.fold.fold_into, result.fold.expected_kl) == (into or "k", kl)
    assert encoded("ministral3", STEPS).fold is None


@pytest.mark.parametrize("encoding", ["native", "factors", "weights", "ministral3"])
def test_the_config_of_the_source_stays_as_it_is(encoding: str) -> None:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    inner = {
        "model_type": "llava",
        "text_config": {**CONFIG, "rope_parameters": rope, "layer_types": ["a"]},
    }
    before = copy.deepcopy(inner)
    result = encoded(encoding, STEPS if encoding == "ministral3" else YARN, inner)
    assert inner == before
    assert result.config["text_config"]["max_position_embeddings"] == result.context == 256


# Which options go together: every rule stands in Target, and each names the option that is missing
# or too many


ON_TOP = recipe_of("yarn", 4.0, on_top=True)
LOG_N = recipe_of("yarn", 4.0, log_n="clamped")


@pytest.mark.parametrize(
    ("recipe", "from_gguf", "options", "words"),
    [
        (YARN, False, {"outtype": "f16"}, "--outtype goes with GGUF; add --to gguf"),
        (YARN, False, {"carrier": "llama"}, "--carrier goes with GGUF; add --to gguf"),
        (YARN, False, {"in_place": True}, "--in-place changes a GGUF file itself"),
        (YARN, False, {"allow_approximate": True}, "--allow-approximate needs --log-n"),
        (
            AS_IS,
            False,
            {"replace": True},
            "--as-is keeps the scaling that --replace would take away",
        ),
        (
            YARN,
            False,
            {"to": "gguf", "fold_into": "k"},
            "--fold-into goes with a folder as output, and this is GGUF",
        ),
        (YARN, False, {"fold_into": "v"}, "--fold-into v is not known; choose q, k, qk"),
        (
            YARN,
            False,
            {"out": Path("x.gguf")},
            "-o x.gguf is not a name for a folder; add --to gguf",
        ),
        (YARN, True, {"out": Path("folder")}, "-o folder is not a name for GGUF"),
        (YARN, True, {"dual_chunk": "drop"}, "--dual-chunk goes with a folder as output"),
        (YARN, True, {"to": "safetensors", "runtimes": ("ollama",)}, "--runtime ollama reads GGUF"),
        (
            ON_TOP,
            False,
            {"replace": True},
            "--on-top keeps the scaling that --replace would take away",
        ),
        (YARN, False, {"to": "gguf", "runtimes": ("vllm",)}, "--runtime vllm does not read GGUF"),
        (YARN, False, {"runtimes": ("ollama",)}, "--runtime ollama reads GGUF; add --to gguf"),
        (
            YARN,
            False,
            {"to": "gguf", "carrier": "llama", "encoding": "keys"},
            "--carrier is an encoding of its own",
        ),
        (LOG_N, False, {"to": "gguf", "encoding": "keys"}, "log-n needs a rope tensor"),
        (YARN, True, {"outtype": "q8_0"}, "keeps its quantisation, so --outtype has no effect"),
        (YARN, True, {"in_place": True, "out": Path("x.gguf")}, "leave -o out"),
        # options that go together
        (YARN, False, {}, ""),
        (YARN, False, {"encoding": "weights", "fold_into": "qk"}, ""),
        (YARN, False, {"to": "safetensors", "all_files": True, "runtimes": ("vllm", "gguf")}, ""),
        (YARN, False, {"to": "gguf", "outtype": "q8_0", "pre": "qwen2", "carrier": "llama"}, ""),
        (YARN, False, {"to": "gguf", "runtimes": ("llama.cpp",)}, ""),
        (YARN, True, {"runtimes": ("llama.cpp", "ollama", "ik-llama-cpp@2026.5", "lm-studio")}, ""),
        (LOG_N, False, {"allow_approximate": True}, ""),
        (YARN, True, {"in_place": True, "replace": True}, ""),
        (
            YARN,
            True,
            {
                "to": "gguf",
                "carrier": "llama",
                "runtimes": ("gguf", "llama-cpp", "llama.cpp@2026.10"),
            },
            "",
        ),
    ],
)
def test_options_go_together_or_name_the_one_they_need(
    recipe: Recipe, from_gguf: bool, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) if words else nullcontext():
        Target(**options).check(recipe, from_gguf)


def test_unknown_architectures_are_of_gguf_files() -> None:
    assumed = Target(assume_arch_keys=True)
    assumed.check(YARN, from_gguf=True)
    with pytest.raises(UsageError, match="--assume-arch-keys"):
        replace(assumed, to="gguf").check(YARN, from_gguf=False)


@pytest.mark.parametrize("encoding", ["auto", "native", "factors"])
def test_folding_is_missed_where_nothing_is_folded(llama: Path, encoding: str) -> None:
    with pytest.raises(UsageError, match="--fold-into .*--encoding weights"):
        make_plan(llama, YARN, encoding=encoding, fold_into="q")


@pytest.mark.parametrize("name", ["nope", "llama.cpp@b1", "vllm@0.1"])
def test_runtimes_that_are_not_known_are_said_before_anything_is_read(name: str) -> None:
    with pytest.raises(RecipeError, match=f"--runtime {name}"):
        Target(to="gguf", runtimes=(name,)).check(YARN, from_gguf=False)
