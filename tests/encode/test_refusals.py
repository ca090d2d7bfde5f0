"""What the encodings of a checkpoint refuse, each beside the nearest request that they take, and the defaults."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ropeconv.encode import CheckpointResult, EncodeRequest, Target, all_encodings, select
from ropeconv.encode.checkpoint.config_only import nothing_fits
from ropeconv.encode.checkpoint.encodings.buffers import TENSOR
from ropeconv.encode.target import FoldTarget
from ropeconv.errors import RopeconvError, UnsupportedBake, UsageError
from ropeconv.families import by_model_type
from ropeconv.families.registry import by_name
from ropeconv.families.sample import sample_config
from ropeconv.formats.safetensors import Tensor
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.runtimes import find
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.verdict import Verdict

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "head_dim": 8,
    "max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip
SHAPES = {"q_proj": (16, 16), "k_proj": (16, 16)}
WEIGHTS = {
    f"model.layers.0.self_attn.{name}.weight": Tensor(f"model.layers.0.self_attn.{name}.weight", "BF16", shape, 0, 0)
    for name, shape in SHAPES.items()
}


def recipe(method: str, *values: Any, **modifiers: Any) -> Recipe:
    return Recipe(REGISTRY[method](*values), **modifiers)


YARN, MIXED, NTK = recipe("yarn", 4.0), recipe("mixed", 4.0), recipe("ntk", 4.0)


def request(
    of: Recipe | Schedule, config: dict[str, Any] = CONFIG, tensors: Mapping[str, Tensor] = WEIGHTS, **target: Any
) -> EncodeRequest:
    inner = config.get("text_config", config)
    family = by_model_type()[inner["model_type"]]
    spec = read_spec(config, family)
    schedule = of.schedule(spec) if isinstance(of, Recipe) else of
    return EncodeRequest(schedule, spec, family, config, Target(**target), lambda: tensors)


def encoded(encoding: str, of: Recipe | Schedule, config: dict[str, Any] = CONFIG, **more: Any) -> CheckpointResult:
    return all_encodings()[encoding].encode(request(of, config, **more))


def refusal(encoding: str, of: Recipe | Schedule, config: dict[str, Any] = CONFIG, **more: Any) -> str:
    with pytest.raises(RopeconvError) as problem:
        encoded(encoding, of, config, **more)
    return str(problem.value)


# Stored frequencies


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


# Ministral 3


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
    assert encoded("ministral3", recipe("yarn", 4.0, log_n="clamped")).fold is None


def test_without_weights_ministral_3_holds_neither_a_gain_nor_what_no_key_holds() -> None:
    full, loud = recipe("yarn", 4.0, log_n="full"), recipe("linear", 4.0, log_n="clamped", attention_factor=1.2)
    assert "a factor goes into its weights" in refusal("ministral3", full, tensors={})
    alone = refusal("ministral3", loud, tensors={}, runtimes=("mlx-lm",))
    assert "its weights are not here" not in alone
    assert "attention factor" in alone
    quiet = recipe("linear", 4.0, log_n="clamped")
    assert "scales queries otherwise" in refusal("ministral3", quiet, runtimes=("sglang",))


# Shares and folds


def test_a_share_is_written_from_the_widths_that_a_config_has() -> None:
    config = sample_config(by_name()["mistral4"])
    config.pop("rope_scaling", None)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config |= {"qk_rope_head_dim": 64, "qk_nope_head_dim": 192}
    made = encoded("native", recipe("linear", 4.0), config)
    assert made.config["rope_parameters"]["partial_rotary_factor"] == 0.25
    del config["qk_nope_head_dim"]
    assert refusal("native", recipe("linear", 4.0), config) == "config.json has no qk_nope_head_dim; add it"


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


# Names and the way out


def test_names_of_encodings() -> None:
    for name in ("keys", "tensor", "carrier"):
        with pytest.raises(UsageError, match=f"--encoding {name} goes with GGUF; add --to gguf"):
            select(request(YARN, encoding=name))
    with pytest.raises(UsageError, match=r"--encoding nope is not known; choose auto, native, factors, .* or buffers$"):
        select(request(YARN, encoding="nope"))
    for runtimes in ((), ("vllm",), ("transformers", "vllm")):
        named = select(request(YARN, encoding="native", runtimes=runtimes))
        assert (named.encoding, named.considered) == ("native", ())
    with pytest.raises(UnsupportedBake, match="with native: it computes other frequencies"):
        select(request(YARN, sample_config(by_name()["qwen3_moe"]), encoding="native", runtimes=("mlx-lm",)))


def test_all_stands_for_names_where_it_stands() -> None:
    def names(*runtimes: str) -> list[str]:
        return [rows[-1].name for rows in request(YARN, runtimes=runtimes).versions]

    every = names("all")
    assert names() == ["transformers"]
    assert len(every) > 5
    assert names("vllm", "all", "mlx-lm") == ["vllm", *(name for name in every if name != "vllm")]
    assert names("mlx-lm", "vllm", "mlx-lm") == ["mlx-lm", "vllm"]
    assert [row.name for row in request(YARN, runtimes=("vllm", "mlx-lm")).runtimes] == ["vllm", "mlx-lm"]


def test_an_approximation_is_asked_for() -> None:
    clamped = recipe("yarn", 4.0, log_n="clamped")
    with pytest.raises(UnsupportedBake, match="or use --encoding buffers$"):
        select(request(clamped, encoding="ministral3"))
    assert select(request(clamped, encoding="ministral3", allow_approximate=True)).encoding == "ministral3"
    only = {"runtimes": ("vllm",), "tensors": {}}
    with pytest.raises(UnsupportedBake, match="or name a runtime that takes --encoding buffers$"):
        select(request(clamped, **only))
    found = select(request(clamped, **only, allow_approximate=True))
    assert [one.encoding for one in found.considered if one.selected] == ["ministral3"]


def test_encodings_are_registered_with_what_they_change() -> None:
    kinds = {name: (one.order, one.max_ulp, one.config_only, one.folds) for name, one in all_encodings().items()}
    assert kinds == {
        "native": (1, 64, True, False), "factors": (2, 2, True, False), "weights": (3, 64, False, True),
        "ministral3": (4, 64, False, False), "buffers": (5, 0, False, False),
    }  # fmt: skip
    types = {name: one.model_type("llama") for name, one in all_encodings().items()}
    assert types == dict.fromkeys(("native", "factors", "weights"), "llama") | {
        "ministral3": "ministral3", "buffers": "llama_stored_rope",
    }  # fmt: skip


def result(encoding: str, statuses: dict[str, Any]) -> CheckpointResult:
    """A result that transformers reads exactly. statuses: of others, whose reasons name ENCODING."""
    verdicts = []
    for name, status in ({"transformers": "exact"} | statuses).items():
        row, reason = find(name)[-1], "" if status in ("exact", "unknown") else f"of {encoding}"
        verdicts.append(Verdict(row.key, row.display_name, status, reason, "here", row.last))
    asked = request(MIXED)
    return CheckpointResult(
        encoding, tuple(verdicts), config={}, family=asked.family, in_config=asked.schedule, written_as=encoding,
        context=256,
    )  # fmt: skip


def nothing(found: list[CheckpointResult], of: Recipe | Schedule, *runtimes: str, **more: Any) -> tuple[str, str]:
    """The reasons and the way out of the error."""
    problem = nothing_fits(found, more.pop("refusals", {}), request(of, runtimes=runtimes, **more))
    return problem.reason, problem.alternatives


def test_the_reasons_where_nothing_fits() -> None:
    one = result("native", {"vllm": "differs", "mlx-lm": "exact"})
    other = result("factors", {"vllm": "exact", "mlx-lm": "unknown"})
    assert nothing([one, other], YARN, "vllm")[0] == "with native: of native"
    assert nothing([one, other], YARN, "vllm", "mlx-lm")[0] == (
        "they conflict: vLLM 0.33 alone would get factors, mlx-lm 0.32 alone would get native; "
        "vLLM 0.33 with native: of native; mlx-lm 0.32 with factors: unknown"
    )
    assert "conflict" not in nothing([one], YARN, "vllm", "mlx-lm")[0]
    refusals = {"native": UnsupportedBake("a", "b", "no key", "c"), "factors": UnsupportedBake("a", "b", "no", "d")}
    assert nothing([], YARN, "vllm", refusals=refusals)[0] == "with native: no key; with factors: no"


def test_the_way_out_where_nothing_fits() -> None:
    def way_out(status: str, of: Recipe | Schedule, *runtimes: str, **more: Any) -> str:
        return nothing([result("native", dict.fromkeys(runtimes, status))], of, *runtimes, **more)[1]

    base = "take a base, which is read exactly (--ntk 4), or "
    assert way_out("differs", MIXED, "vllm") == f"{base}name a runtime that reads it (--runtime transformers does)"
    assert way_out("differs", MIXED, "transformers") == f"{base}choose another method"
    assert way_out("differs", MIXED, "vllm", "mlx-lm") == (
        f"{base}name one of them, and bake a second output for the others"
    )
    assert way_out("differs", MIXED, "vllm", "llama.cpp").endswith("which llama.cpp then reads exactly: --to gguf")
    assert way_out("unknown", MIXED, "vllm").startswith("leave vllm out, and measure what it computes with `ropeconv v")
    plain = "name a runtime that reads it (--runtime transformers does)"
    scaled = {**CONFIG, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert way_out("differs", NTK, "vllm") == plain
    assert way_out("differs", recipe("mixed", 4.0, context=64), "vllm") == plain
    assert way_out("differs", MIXED.schedule(request(MIXED).spec), "vllm", config=scaled) == plain
    assert way_out("differs", MIXED, "vllm", config={**CONFIG, "model_type": "mllama_text_model"}) == plain


def test_two_lists_that_no_encoding_holds_become_one() -> None:
    pair, native = recipe("mixed", 4.0, keep_short=True), UnsupportedBake("a", "b", "c", "give one list")
    assert nothing([], pair, "vllm", refusals={"native": native})[1] == "give one list"
    assert nothing([], MIXED, "vllm", refusals={"native": native})[1] != "give one list"
    assert nothing([], pair, "vllm", refusals={"factors": native})[1] != "give one list"
