"""The comparison of logits alone: right bakes are neither refused nor inconclusive, wrong ones always refused.

The checks of files, frequencies and folded weights, which see most of these faults sooner, are left out here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch

from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.comparison import Comparison
from ropeconv.validate.gguf import validate_gguf
from ropeconv.validate.rule.validation import Validation

from ..support.baking import apply, make_plan, validate
from ..support.extent import sample, tally
from ..support.llamacpp import checkpoint, lively
from ..support.models import make
from .wrong_bakes import CASES, FAMILIES, METHODS, Wrong, bake

RIGHT = tuple((family, method) for family in FAMILIES for method in METHODS)
USUAL, FLAT, SHARP, SOFT = 0.35, 0.002, 1.0, 0.1  # initializer_range
EXTREME_RIGHT = tuple((size, family, method) for size in (FLAT, SHARP) for family, method in RIGHT)
UNSEEN = {
    (SHARP, "weights rounded to bfloat16"),  # they are stored so
    (FLAT, "another scale of experts"),  # their part of the logits is smaller than that of a faint fault
}
UNSEEN_IN = {
    (FLAT, "router x 1.1", "mixtral"),  # its logits are near 0 with any factor: a KL of 5e-13
    (SHARP, "another eps", "qwen3"),  # far smaller than the squares that it is added to: a KL of 1e-6
}
EXTREME_WRONG = tuple(
    (size, wrong, family)
    for size in (FLAT, SHARP)
    for wrong, family in CASES
    if (size, wrong.what) not in UNSEEN and (size, wrong.what, family) not in UNSEEN_IN
)
GGUF_FAMILIES = ("llama", "qwen2", "cohere")
GGUF_EDITS: dict[str, tuple[str, Callable[[float], float]]] = {
    "factor 15 for 16": (".rope.scaling.factor", lambda old: 15.0),
    "attention factor off by 2 %": (".rope.scaling.attn_factor", lambda old: 0.98 * old),
    "theta off by 1 %": (".rope.freq_base", lambda old: 1.01 * old),
}
GGUF_UNSEEN = {("cohere", "attention factor off by 2 %")}
"""What logits do not show: the change is within the tolerance of that model. The comparison of files refuses it."""
GGUF_CASES = tuple(
    (family, edit) for family in GGUF_FAMILIES for edit in ("", *GGUF_EDITS) if (family, edit) not in GGUF_UNSEEN
)

Place = Callable[..., Path]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder with a checkpoint of a family in `source`, made once: weights, biases and norms are random."""
    made: dict[tuple[str, float], Path] = {}

    def get(family: str, size: float = USUAL) -> Path:
        if (family, size) not in made:
            folder = tmp_path_factory.mktemp(family)
            lively(make(family, folder / "source", initializer_range=size))
            if size != USUAL:
                resized(folder / "source", size)
            made[family, size] = folder
        return made[family, size]

    return get


def resized(source: Path, size: float) -> None:
    """Makes biases as small as flat weights are, and stores sharp weights in bfloat16."""
    path = source / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name, tensor in tensors.items():
        tensors[name] = tensor * size / USUAL if size == FLAT and name.endswith(".bias") else tensor
        tensors[name] = tensors[name].bfloat16() if size == SHARP else tensors[name]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    dtype = "bfloat16" if size == SHARP else "float32"
    (source / "config.json").write_text(json.dumps(config | {"dtype": dtype}))


def compared(folder: Path, method: str, name: str, wrong: Wrong | None = None, dtype: str = "auto") -> Validation:
    out = bake(folder / "source", folder / name, method)
    if wrong is not None:
        wrong.change(out)
    return validate(out, folder / "source", device="cpu", tokens=128, dtype=dtype)


def named(case: tuple[object, ...]) -> str:
    return "-".join(getattr(part, "what", str(part)) for part in case).replace(" ", "_")


@pytest.mark.parametrize("case", sample(RIGHT, 10), ids=named)
def test_a_right_bake_agrees(case: tuple[str, str], place: Place) -> None:
    family, method = case
    result = compared(place(family), method, named(("right", *case)))
    tally("right bake", family, 1, int(not result.agrees))
    assert result.agrees, result.sentence


@pytest.mark.parametrize("case", sample(CASES, 12), ids=named)
def test_a_wrong_bake_disagrees(case: tuple[Wrong, str], place: Place) -> None:
    wrong, family = case
    result = compared(place(family), wrong.method, named(case), wrong)
    refused = result.sentence.startswith("Disagrees")
    tally("wrong bake", family, 1, int(not refused))
    assert refused, result.sentence


@pytest.mark.parametrize("case", sample(EXTREME_RIGHT, 3), ids=named)
def test_a_right_bake_of_a_flat_or_sharp_model_agrees(case: tuple[float, str, str], place: Place) -> None:
    """Weights near zero give uniform attention and logits; large ones in bfloat16 give one-hot attention and noise."""
    size, family, method = case
    result = compared(
        place(family, size), method, named(("right", *case)), dtype="bfloat16" if size == SHARP else "auto"
    )
    tally("right bake", f"{'sharp' if size == SHARP else 'flat'} {family}", 1, int(not result.agrees))
    assert result.agrees, result.sentence


def test_a_low_precision_is_left_where_rounding_exchanges_tokens(place: Place) -> None:
    """The 95th percentile of the noise is 0.45 in one bucket and that of a right bake 2.6 in another one."""
    result = compared(place("qwen2", SHARP), "yarn folded", "exchanged", dtype="bfloat16")
    assert result.agrees, result.sentence
    assert "float32" in result.sentence
    soft = compared(place("qwen2", SOFT), "yarn folded", "soft", dtype="bfloat16")
    assert soft.agrees, soft.sentence
    assert "float32" not in soft.sentence


@pytest.mark.parametrize("case", sample(EXTREME_WRONG, 3), ids=named)
def test_a_wrong_bake_of_a_flat_or_sharp_model_disagrees(case: tuple[float, Wrong, str], place: Place) -> None:
    size, wrong, family = case
    result = compared(place(family, size), wrong.method, named(case), wrong)
    refused = result.sentence.startswith("Disagrees")
    tally("wrong bake", f"{'sharp' if size == SHARP else 'flat'} {family}", 1, int(not refused))
    assert refused, result.sentence


@pytest.mark.parametrize("case", sample(GGUF_CASES, 2, seed=1), ids=named)
def test_gguf_files_in_llama_cpp(case: tuple[str, str], tmp_path: Path) -> None:
    """A converted checkpoint agrees, and with one key changed it does not."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    family, edit = case
    source, out = checkpoint(family, tmp_path / "source"), tmp_path / "out.gguf"
    recipe = Recipe(REGISTRY["yarn"](16.0), attention_factor=1.1)  # another than YaRN's own, so that it is written
    apply(make_plan(source, recipe, out, to="gguf", outtype="f32"))
    if edit:
        key, change = GGUF_EDITS[edit]
        reader = gguf.GGUFReader(out, "r+")
        field = next(field for name, field in reader.fields.items() if name.endswith(key))
        value = field.parts[field.data[0]]
        value[0] = change(float(value[0]))
        reader.data.flush()
    result = validate_gguf(Comparison.open(out, str(source)))
    wanted = "Disagrees" if edit else "Agrees"
    tally("wrong bake" if edit else "right bake", f"{family} GGUF", 1, int(not result.sentence.startswith(wanted)))
    assert result.sentence.startswith(wanted), result.sentence


def test_the_table_covers_what_it_says() -> None:
    assert len(RIGHT) == 14 * 8
    assert len(CASES) >= 60
    assert {family for _, family in CASES} == set(FAMILIES)
    assert len({wrong.what for wrong, _ in CASES}) == len({wrong for wrong, _ in CASES})
