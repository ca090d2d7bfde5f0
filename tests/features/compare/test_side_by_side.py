"""Two models side by side, judged by transformers' rotary modules, by llama.cpp, and by hand."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.features.compare.side_by_side import RopeDifference, side_by_side
from ropeconv.inspection.frequencies import compare_frequencies

from ...support.baking import AS_IS, apply, inspected, make_plan, recipe_of
from ...support.extent import sample
from ...support.models import TRAINED
from ...support.rotary import rotary

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_attention_heads": 1,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    **YARN,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
OF: dict[str, dict[str, Any]] = {
    "plain": {},
    "other theta": {"rope_theta": 500000.0},
    "yarn": {"rope_scaling": YARN},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {"rope_scaling": LLAMA3},
}


def config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    return folder / "config.json"


def compared(first: Path, second: Path) -> RopeDifference:
    return side_by_side(*(inspected(path) for path in (first, second)))


@pytest.mark.parametrize(("first", "second"), sample(list(product(OF, OF)), 4))
def test_as_the_modules_of_transformers(first: str, second: str, tmp_path: Path) -> None:
    paths = [config(tmp_path / side, **OF[name]) for side, name in (("a", first), ("b", second))]
    difference = compared(*paths)
    (left, scale), (right, other_scale) = map(rotary, paths)
    ratio = np.maximum(left / right, right / left)
    assert difference.frequencies is not None
    assert difference.frequencies.differing == (ratio > 1 + 1e-6).sum()
    assert difference.frequencies.largest_ratio == pytest.approx(ratio.max(), rel=1e-6)
    assert ratio[difference.frequencies.largest_ratio_at] == pytest.approx(ratio.max(), rel=1e-6)
    assert ("frequencies" in difference.differs) == (ratio.max() > 1 + 1e-6) == (first != second)
    assert ("attention_factor" in difference.differs) == (abs(scale - other_scale) > 1e-6)
    assert difference.same == (first == second)


SMOL = {"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]}
GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 128,
    "num_hidden_layers": 6,
    "sliding_window": 512,
}
DEEPER = SMOL | {"num_hidden_layers": 8, "no_rope_layers": [1, 1, 1, 0] * 2}
OLD = [2.0 ** (2 * i / 128) for i in range(64)]  # NTK-old by 2, which is theta times 2
LISTS = {
    "rope_type": "longrope",
    "short_factor": OLD,
    "long_factor": OLD,
    "attention_factor": 1.0,
    "factor": 1.0,
    "original_max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("first", "second", "differs", "sentence"),
    [
        (
            {},
            {"max_position_embeddings": 8192},
            (),
            "They compute the same RoPE, but declare 4,096 and 8,192 tokens.",
        ),
        ({"rope_theta": 20000.0}, {"rope_scaling": LISTS}, (), "They compute the same RoPE"),
        ({"rope_theta": 20001.0}, {"rope_scaling": LISTS}, ("frequencies",), ""),
        ({}, {"head_dim": 64}, ("rotary_dim",), "They differ in the number of rotated dimensions."),
        ({}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ("dynamic",), ""),
        (SMOL, SMOL | {"no_rope_layers": [1, 1, 1, 1]}, ("layers",), ""),
        (SMOL, DEEPER, (), ""),
        ({"model_type": "cohere", "head_dim": 64}, {"head_dim": 64}, ("layout",), ""),
        (
            GEMMA | {"rope_local_base_freq": 1e4},
            GEMMA | {"rope_local_base_freq": 2e4},
            ("window_frequencies",),
            "",
        ),
    ],
)
def test_what_differs(
    first: dict[str, Any],
    second: dict[str, Any],
    differs: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
) -> None:
    difference = compared(config(tmp_path / "a", **first), config(tmp_path / "b", **second))
    assert (difference.differs, difference.same) == (differs, not differs)
    assert difference.sentence.startswith(sentence)
    assert (difference.frequencies is None) == ("rotary_dim" in differs)
    if second == {"rope_scaling": LISTS}:
        assert ("The frequencies are the same, written in two ways." in difference.remarks) == (
            not differs
        )
    if difference.window_frequencies is not None:
        largest = (
            difference.window_frequencies.largest_ratio,
            difference.window_frequencies.largest_ratio_at,
        )
        assert largest == (pytest.approx(2 ** (126 / 128)), 63)


METHODS = {"yarn": 4.0, "theta": 2e6, "mixed": 4.0, "llama3": 4.0}
CELLS = [("llama", name) for name in METHODS] + list(
    product(("qwen3", "gemma3_text"), ("yarn", "theta"))
)


@pytest.mark.parametrize(("model_type", "method"), sample(CELLS, 2))
def test_a_checkpoint_and_its_gguf(model_type: str, method: str, tmp_path: Path) -> None:
    """Both hold the schedule of one recipe (tests/convert/gguf judges that by logits); the source
    does not.
    """
    from ...support.llamacpp import checkpoint

    source = checkpoint(model_type, tmp_path / "model")
    recipe = recipe_of(method, METHODS[method], context=4 * TRAINED)
    folder = apply(make_plan(source, recipe, tmp_path / "baked"))
    file = apply(make_plan(source, recipe, tmp_path / "baked.gguf", to="gguf", outtype="f32"))
    difference = compared(folder, file)
    assert difference.same, difference.sentence
    assert difference.frequencies is not None
    assert difference.frequencies.max_ulp <= 2
    assert any("permuted the rows" in remark for remark in difference.remarks) == (
        model_type == "llama"
    )
    statuses = {pair.runtime: pair.statuses for pair in difference.runtimes}
    assert next(both for name, both in statuses.items() if name.startswith("llama-cpp-gguf")) == (
        None,
        "exact",
    )
    unlike = compared(source, file)
    assert "frequencies" in unlike.differs
    assert (unlike.window_frequencies is None) == (model_type != "gemma3_text")


def test_an_attention_factor_in_the_weights_is_counted(llama: Path, tmp_path: Path) -> None:
    yarn = recipe_of("yarn", 4.0)
    folded = apply(make_plan(llama, yarn, tmp_path / "folded", encoding="weights"))
    native = apply(make_plan(llama, yarn, tmp_path / "native"))
    difference = compared(folded, native)
    assert difference.same
    assert any("attention factor" in remark for remark in difference.remarks)

    # a later run leaves it there
    again = apply(make_plan(folded, AS_IS, tmp_path / "again"))
    assert compared(folded, again).same
    assert compared(again, native).same
    without = recipe_of("yarn", 4.0, attention_factor=1.0)
    other = apply(make_plan(llama, without, tmp_path / "other"))
    assert compared(again, other).differs == ("attention_factor",)

    (folded / "ropeconv.json").unlink()
    assert compared(folded, native).differs == ("attention_factor",)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, 0.5, 0.25], [1.0, 0.5 * (1 + 2**-23), 0.0625], (False, 1, 4.0, 2, 2 << 23)),
        ([0.5], [0.5 * (1 + 2**-22)], (True, 0, 1 + 2**-22, 0, 2)),
        ([1.0, 0.0], [1.0, 0.0], (True, 0, 1.0, 0, 0)),
        (
            [1.0, 0.5],
            [1.0, 0.0],
            (False, 1, None, 1, None),
        ),  # a pair that does not rotate in one of them
    ],
)
def test_vectors_by_hand(
    first: list[float], second: list[float], expected: tuple[Any, ...]
) -> None:
    result = compare_frequencies(np.array(first), np.array(second))
    assert result is not None
    ulp = result.max_ulp if expected[-1] is not None else None
    assert (
        result.same,
        result.differing,
        result.largest_ratio,
        result.largest_ratio_at,
        ulp,
    ) == expected
