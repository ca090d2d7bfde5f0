"""Two models side by side, judged by transformers' rotary modules, by llama.cpp, and by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.inspection import inspect_source
from ropeconv.inspection.frequencies import compare_frequencies
from ropeconv.inspection.side_by_side import RopeDifference, side_by_side
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..conftest import CONFIGS
from ..support.baking import apply, make_plan
from ..support.extent import sample
from ..support.gguf_files import write
from ..support.models import TRAINED

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 1, "num_hidden_layers": 2,
    "max_position_embeddings": 4096, "rope_theta": 10000.0,
}  # fmt: skip
SMOL = {"model_type": "smollm3", "num_hidden_layers": 4}
COHERE = {"model_type": "cohere", "head_dim": 64}
OF = {
    "plain": {},
    "other theta": {"rope_theta": 500000.0},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 4096,
        }
    },
}  # fmt: skip


def config(folder: Path, **changes: Any) -> Path:
    """A config.json of LLAMA with changes."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(made))
    return folder / "config.json"


def compared(first: Path, second: Path) -> RopeDifference:
    return side_by_side(*(inspect_source(open_source(str(path))) for path in (first, second)))


def rotary(path: Path) -> tuple[np.ndarray, float]:
    """Frequencies and attention factor of transformers' own module for a config."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    module = LlamaRotaryEmbedding(LlamaConfig.from_pretrained(path.parent))
    return module.inv_freq.double().numpy(), float(module.attention_scaling)


@pytest.mark.parametrize(("first", "second"), sample(list(product(OF, OF)), 8))
def test_as_the_modules_of_transformers(first: str, second: str, tmp_path: Path) -> None:
    paths = [config(tmp_path / side, **OF[name]) for side, name in (("a", first), ("b", second))]
    found = compared(*paths)
    (left, scale), (right, other_scale) = map(rotary, paths)
    ratio = np.maximum(left / right, right / left)
    assert found.frequencies is not None
    assert found.frequencies.differing == (ratio > 1 + 1e-6).sum()
    assert found.frequencies.largest_ratio == pytest.approx(ratio.max(), rel=1e-6)
    assert ratio[found.frequencies.largest_ratio_at] == pytest.approx(ratio.max(), rel=1e-6)
    assert ("frequencies" in found.differs) == (ratio.max() > 1 + 1e-6) == (first != second)
    assert ("attention_factor" in found.differs) == (abs(scale - other_scale) > 1e-6)
    assert found.same == (first == second)


def test_the_same_frequencies_in_two_spellings(tmp_path: Path) -> None:
    """A plain base of theta s is NTK-old; the other theta, one digit off, is not."""
    old = [2.0 ** (2 * i / 128) for i in range(64)]
    rope = {"rope_type": "longrope", "short_factor": old, "long_factor": old, "attention_factor": 1.0, "factor": 1.0,
            "original_max_position_embeddings": 4096}  # fmt: skip
    first, second = config(tmp_path / "a", rope_theta=20000.0), config(tmp_path / "b", rope_scaling=rope)
    found = compared(first, second)
    assert found.same
    assert "The frequencies are the same, written in two ways." in found.remarks
    assert not compared(config(tmp_path / "c", rope_theta=20001.0), second).same


@pytest.mark.parametrize(
    ("first", "second", "differs", "sentence"),
    [
        ({}, {"max_position_embeddings": 8192}, (), "They compute the same RoPE, and declare 4,096 and 8,192 tokens."),
        ({}, {"head_dim": 64}, ("rotary_dim",), "They differ in the number of rotated dimensions."),
        ({}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ("dynamic",), ""),
        (SMOL | {"no_rope_layers": [1, 1, 1, 0]}, SMOL | {"no_rope_layers": [1, 1, 1, 1]}, ("layers",), ""),
        (SMOL | {"no_rope_layers": [1, 1, 1, 0]},
         SMOL | {"num_hidden_layers": 8, "no_rope_layers": [1, 1, 1, 0] * 2}, (), ""),
        (COHERE, {"head_dim": 64}, ("layout",), ""),
    ],
)  # fmt: skip
def test_what_differs(
    first: dict[str, Any], second: dict[str, Any], differs: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    found = compared(config(tmp_path / "a", **first), config(tmp_path / "b", **second))
    assert (found.differs, found.same) == (differs, not differs)
    assert found.sentence.startswith(sentence)
    assert (found.frequencies is None) == ("rotary_dim" in differs)


def test_multi_head_latent_attention_beside_a_plain_one() -> None:
    found = compared(CONFIGS / "deepseek-ai--DeepSeek-V3.json", CONFIGS / "meta-llama--Llama-3.2-1B-Instruct.json")
    assert {"mla", "layout", "frequencies", "softmax_scale"} <= set(found.differs)
    assert json.loads(json.dumps(found.to_dict()))["second"]["mla"] is False


def test_short_and_long_lists() -> None:
    phi = CONFIGS / "microsoft--Phi-3-mini-128k-instruct.json"
    found = compared(phi, CONFIGS / "microsoft--Phi-3-mini-4k-instruct.json")
    lists = json.loads(phi.read_text())["rope_scaling"]
    assert found.frequencies is not None
    assert found.short_frequencies is not None
    assert found.frequencies.largest_ratio == pytest.approx(max(lists["long_factor"]))
    assert found.short_frequencies.largest_ratio == pytest.approx(max(lists["short_factor"]))
    assert {"frequencies", "short_frequencies", "attention_factor"} == set(found.differs)
    assert compared(phi, phi).same


def test_window_layers_have_a_vector_of_their_own(tmp_path: Path) -> None:
    gemma = {**LLAMA, "model_type": "gemma3_text", "head_dim": 128, "num_hidden_layers": 6, "sliding_window": 512}
    first = config(tmp_path / "a", **gemma, rope_local_base_freq=10000.0)
    second = config(tmp_path / "b", **gemma, rope_local_base_freq=20000.0)
    found = compared(first, second)
    assert found.differs == ("window_frequencies",)
    assert found.window_frequencies is not None
    assert found.window_frequencies.largest_ratio == pytest.approx(2 ** (126 / 128))
    assert found.window_frequencies.largest_ratio_at == 63


def test_statuses_stand_beside_each_other() -> None:
    found = compared(CONFIGS / "Qwen--Qwen3-8B.json", CONFIGS / "deepseek-ai--DeepSeek-R1-0528-Qwen3-8B.json")
    rows = {pair.runtime.partition("@")[0]: pair for pair in found.runtimes}
    assert rows["transformers"].statuses == ("exact", "exact")
    assert rows["candle"].statuses == ("exact", "ignored")
    assert rows["candle"].reasons[1]
    assert "llama-cpp-gguf" not in rows


CELLS = [("llama", "mixed", 4.0), ("llama", "llama3", 4.0)] + [
    (model_type, *method)
    for model_type in ("llama", "qwen3", "gemma3_text")
    for method in (("yarn", 4.0), ("theta", 2e6))
]


@pytest.mark.parametrize(("model_type", "method", "value"), sample(CELLS, 2))
def test_a_checkpoint_and_its_gguf(model_type: str, method: str, value: float, tmp_path: Path) -> None:
    """Both hold the schedule of one recipe (tests/encode/gguf judges that by logits); the source does not."""
    from ..support.llamacpp import checkpoint

    source = checkpoint(model_type, tmp_path / "model")
    recipe = Recipe(REGISTRY[method](value), context=4 * TRAINED)
    folder = apply(make_plan(source, recipe, tmp_path / "baked"))
    file = apply(make_plan(source, recipe, tmp_path / "baked.gguf", to="gguf", outtype="f32"))
    found = compared(folder, file)
    assert found.same, found.sentence
    assert found.frequencies is not None
    assert found.frequencies.max_ulp <= 2
    permuted = any("permuted the rows" in remark for remark in found.remarks)
    assert permuted == (model_type == "llama")
    statuses = {pair.runtime: pair.statuses for pair in found.runtimes}
    assert next(both for name, both in statuses.items() if name.startswith("llama-cpp-gguf")) == (None, "exact")
    assert "frequencies" in compared(source, file).differs
    assert (compared(source, file).window_frequencies is None) == (model_type != "gemma3_text")


def test_no_converter_stands_between_interleaved_pairs_and_those_of_a_gguf_file(tmp_path: Path) -> None:
    cohere = config(tmp_path / "a", **COHERE)
    remarks = compared(cohere, config(tmp_path / "b", head_dim=64)).remarks
    assert not any("permuted" in remark for remark in remarks)
    assert compared(cohere, write(tmp_path / "model.gguf", "command-r")).same
    assert compared(config(tmp_path / "c", head_dim=64), write(tmp_path / "llama.gguf", "llama")).same


def test_an_attention_factor_in_the_weights_is_counted(llama: Path, tmp_path: Path) -> None:
    yarn = Recipe(REGISTRY["yarn"](4.0))
    folded = apply(make_plan(llama, yarn, tmp_path / "folded", encoding="weights"))
    native = apply(make_plan(llama, yarn, tmp_path / "native"))
    found = compared(folded, native)
    assert found.same
    assert any("A has a part of its attention factor" in remark for remark in found.remarks)
    (folded / "ropeconv.json").unlink()
    assert compared(folded, native).differs == ("attention_factor",)


def test_query_scaling_is_compared(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    found = compared(tiny("ministral3"), tiny("llama"))
    assert "query_scaling" in found.differs
    assert compared(tiny("ministral3"), tiny("ministral3")).same


def test_vectors_by_hand() -> None:
    found = compare_frequencies(np.array([1.0, 0.5, 0.25]), np.array([1.0, 0.5 * (1 + 2**-23), 0.0625]))
    assert found is not None
    assert (found.pairs, found.differing, found.largest_ratio, found.largest_ratio_at) == (3, 1, 4.0, 2)
    assert found.max_ulp == 2 << 23
    ulp = compare_frequencies(np.array([0.5]), np.array([0.5 * (1 + 2**-22)]))
    assert ulp is not None
    assert (ulp.same, ulp.max_ulp) == (True, 2)


def test_zero_frequencies() -> None:
    same = compare_frequencies(np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    assert same is not None
    assert (same.same, same.largest_ratio) == (True, 1.0)
    dropped = compare_frequencies(np.array([1.0, 0.5]), np.array([1.0, 0.0]))
    assert dropped is not None
    assert (dropped.differing, dropped.largest_ratio, dropped.largest_ratio_at) == (1, None, 1)
    assert compare_frequencies(np.ones(2), np.ones(3)) is None
