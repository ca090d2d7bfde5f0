"""Right outputs of many families, methods and encodings: none is refused when its files are
compared.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import UnsupportedBake
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.corruptions import data, verified
from ..support.extent import few, tally
from ..support.gguf_files import write
from ..support.llamacpp import checkpoint

YARN = Recipe(REGISTRY["yarn"](16.0))
LINEAR = Recipe(REGISTRY["linear"](4.0))
MIXED = Recipe(REGISTRY["mixed"](4.0))
FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "stablelm",
    "gpt_neox",
    "olmo2",
    "cohere2",
    "deepseek_v3",
    "granite",
)
WAYS: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "yarn": (YARN, {}),
    "yarn folded": (YARN, {"encoding": "weights"}),
    "yarn folded into both": (YARN, {"encoding": "weights", "fold_into": "qk"}),
    "linear": (LINEAR, {}),
    "theta": (Recipe(REGISTRY["theta"](1e6), context=1024), {}),
    "mixed": (MIXED, {}),
    "llama3": (Recipe(REGISTRY["llama3"](8.0)), {}),
    "yarn for vLLM, all files": (YARN, {"runtimes": ("vllm",), "all_files": True}),
}


def passes(out: Path, source: Path, kind: str) -> None:
    verification = verified(out, source)
    tally("right output", kind, 1, int((verification.notes, verification.unverified) != ((), ())))
    assert (verification.notes, verification.unverified) == ((), ())


@pytest.mark.parametrize(("family", "way"), few(list(itertools.product(FAMILIES, WAYS)), 3))
def test_right_folders_pass(
    family: str, way: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """14 families x 8 ways, where a family has a way at all."""
    recipe, options = WAYS[way]
    try:
        plan = make_plan(tiny(family), recipe, tmp_path / "out", **options)
    except UnsupportedBake:  # another one would be refused by the runtime, and so by the plan
        return
    passes(apply(plan), tiny(family), "folders")


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (YARN, {"encoding": "buffers"}),
        (YARN, {"encoding": "factors", "runtimes": ("vllm",)}),
        (
            Recipe(REGISTRY["yarn"](16.0), log_n="clamped"),
            {"encoding": "ministral3", "allow_approximate": True},
        ),
        (Recipe(REGISTRY["yarn"](16.0), log_n="full"), {"encoding": "buffers"}),
        (Recipe(REGISTRY["as-is"]()), {}),
        (Recipe(REGISTRY["ntk"](4.0), keep_short=True), {}),
    ],
    ids=["buffers", "factors", "ministral3", "log-n", "as-is", "keep-short"],
)
def test_other_encodings_pass(
    recipe: Recipe, options: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    out = apply(make_plan(llama, recipe, tmp_path / "out", **options))
    assert verified(out, llama).files >= 3


@pytest.mark.parametrize("arch", ["llama", "qwen2", "phi3", "gemma2"])
@pytest.mark.parametrize("split", [0, 1])
def test_right_gguf_files_pass(arch: str, split: int, tmp_path: Path) -> None:
    write(tmp_path / "source.gguf", arch, split=split)
    source = min(tmp_path.glob("*.gguf"))
    for recipe in (YARN, LINEAR, *([MIXED] if arch != "gemma2" else [])):
        passes(
            apply(make_plan(source, recipe, tmp_path / f"{recipe.method.name}.gguf")),
            source,
            "GGUF files",
        )


@pytest.mark.parametrize("outtype", few(["f32", "f16", "bf16", "q8_0", "q4_k_m"], 2))
def test_conversions_pass(outtype: str, tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "Tiny-Llama", initializer_range=0.02)
    out = apply(make_plan(source, YARN, tmp_path / "out.gguf", to="gguf", outtype=outtype))
    verification = verified(out, source)
    assert (verification.notes, verification.unverified, verification.bytes > 0) == ((), (), True)
    other = source.rename(tmp_path / "Other-Name")
    assert verified(out, other).notes == (), "names of models are those of the receipt"
    data(lambda content: content.__setitem__(-40, content[-40] ^ 16))(out)
    with pytest.raises(RopeconvError, match=r"of out.gguf differs from byte"):
        verified(out, other)
    assert verified(out, other, quick=True).bytes == 0
