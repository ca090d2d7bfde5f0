"""Right outputs of many families, methods and encodings: none is refused when its files are compared."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ropeconv
from ropeconv.bake import Target
from ropeconv.errors import RopeconvError, UnsupportedBake
from ropeconv.receipts import parse_receipt, read_receipt
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source
from ropeconv.verify import Options, Verified, verify_output

from ..sources.test_meta import PARAMS, sentencepiece_model, split, weights
from ..support.baking import apply, make_plan
from ..support.corruptions import edit
from ..support.extent import sample, tally
from ..support.gguf_files import write
from ..support.llamacpp import checkpoint
from ..support.models import make

YARN, LINEAR = Recipe(REGISTRY["yarn"](16.0)), Recipe(REGISTRY["linear"](4.0))
LINEAR16, DATA = Recipe(REGISTRY["linear"](16.0)), Path(__file__).parent.parent / "data" / "receipts"
FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi", "phi3", "stablelm", "gpt_neox", "olmo2",
    "cohere2", "deepseek_v3", "granite",
)  # fmt: skip
LLAMA3 = Recipe(REGISTRY["llama3"](8.0))
WAYS: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "yarn": (YARN, {}),
    "yarn folded": (YARN, {"encoding": "weights"}),
    "yarn folded into both": (YARN, {"encoding": "weights", "fold_into": "qk"}),
    "linear": (LINEAR, {}),
    "theta": (Recipe(REGISTRY["theta"](1e6), context=1024), {}),
    "mixed": (Recipe(REGISTRY["mixed"](4.0)), {}),
    "llama3": (LLAMA3, {}),
    "yarn for vLLM, all files": (YARN, {"runtimes": ("vllm",), "all_files": True}),
}


def verified(out: Path, source: Path | str, **options: Any) -> Verified:
    return verify_output(ropeconv.Comparison.open(out, str(source)), Options(**options))


def test_right_folders_pass(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """14 families x 8 ways, where a family has a way at all; also as earlier versions recorded them."""
    made: dict[str, Path] = {}
    checked, wrong = 0, []
    for family, way in sample(list(itertools.product(FAMILIES, WAYS)), 16):
        source = made.get(family) or make(family, tmp_path_factory.mktemp(family) / "source")
        made[family] = source
        recipe, options = WAYS[way]
        out = tmp_path / "out"
        try:
            plan = make_plan(source, recipe, out, **options)
        except UnsupportedBake:
            continue  # another one would be refused by the runtime, and so by the plan
        apply(plan)
        for _ in range(2):
            try:
                found = verified(out, source)
                assert (found.notes, found.unverified) == ((), ()), (family, way, found)
            except RopeconvError as problem:
                wrong.append((family, way, str(problem)))
            checked += 1
            edit(out, "ropeconv.json", lambda receipt: receipt.pop("target", None))
        shutil.rmtree(out)
    tally("right output", "folders, with and without a recorded target", checked, len(wrong))
    assert wrong == []
    assert checked


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("right") / "source")


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (YARN, {"encoding": "buffers"}),
        (YARN, {"encoding": "factors", "runtimes": ("vllm",)}),
        (Recipe(REGISTRY["yarn"](16.0), log_n="clamped"), {"encoding": "ministral3", "allow_approximate": True}),
        (Recipe(REGISTRY["yarn"](16.0), log_n="full"), {"encoding": "buffers"}),
        (Recipe(REGISTRY["as-is"]()), {}),
        (Recipe(REGISTRY["ntk"](4.0), keep_short=True), {}),
    ],
    ids=["buffers", "factors", "ministral3", "log-n", "as-is", "keep-short"],
)
def test_other_encodings_pass(recipe: Recipe, options: dict[str, Any], llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, recipe, tmp_path / "out", **options))
    assert verified(out, llama).files >= 3


def test_outputs_of_outputs_pass(llama: Path, tmp_path: Path) -> None:
    first = apply(make_plan(llama, LINEAR, tmp_path / "first"))
    again = apply(make_plan(first, Recipe(REGISTRY["linear"](2.0), on_top=True), tmp_path / "again"))
    instead = apply(make_plan(first, YARN, tmp_path / "instead", replace=True))
    for out in (again, instead):
        assert verified(out, first).notes == ()
    twice = Recipe(REGISTRY["yarn"](16.0), attention_factor=2.0)
    folded = apply(make_plan(llama, twice, tmp_path / "folded", encoding="weights"))
    back = apply(make_plan(folded, LINEAR16, tmp_path / "back", replace=True))
    assert verified(back, folded).notes == (), "shards that are divided again"


def test_a_source_under_another_name_is_the_same(llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    shutil.copytree(llama, tmp_path / "another name")
    assert verified(out, tmp_path / "another name").notes == ()


def test_another_source_is_refused(llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out"))
    other = make("llama", tmp_path / "other", seed=1)
    with pytest.raises(RopeconvError, match="not what its recipe and source give"):
        verified(out, other)


def test_metas_layout_passes(tmp_path: Path) -> None:
    source = tmp_path / "meta"
    source.mkdir()
    vocabulary = sentencepiece_model(source)
    (source / "params.json").write_text(json.dumps({**PARAMS, "vocab_size": vocabulary}))
    for number, part in enumerate(split(weights(PARAMS, vocabulary, torch.bfloat16), 2, 1)):
        torch.save(part, source / f"consolidated.{number:02d}.pth")
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    found = verified(out, source)
    assert found.bytes == (out / "model.safetensors").stat().st_size
    data = bytearray((out / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (out / "model.safetensors").write_bytes(data)
    with pytest.raises(RopeconvError, match=r"of model.safetensors differs"):
        verified(out, source)


GGUF_WAYS: dict[str, Callable[[Path], Recipe]] = {
    "keys": lambda it: YARN, "tensor": lambda it: Recipe(REGISTRY["mixed"](4.0)), "linear": lambda it: LINEAR,
}  # fmt: skip


def test_right_gguf_files_pass(tmp_path: Path) -> None:
    checked, wrong = 0, []
    for arch, way, split_at in itertools.product(("llama", "qwen2", "phi3", "gemma2"), GGUF_WAYS, (0, 1)):
        folder = tmp_path / f"{arch}-{way}-{split_at}"
        folder.mkdir()
        source = write(folder / "source.gguf", arch, split=split_at)
        source = source if source.exists() else sorted(folder.glob("*.gguf"))[0]
        try:
            out = apply(make_plan(source, GGUF_WAYS[way](source), folder / "out.gguf"))
        except UnsupportedBake:
            continue
        checked += 1
        try:
            assert verified(out, source).notes == ()
        except RopeconvError as problem:
            wrong.append((arch, way, split_at, str(problem)))
    tally("right output", "GGUF files of GGUF files", checked, len(wrong))
    assert wrong == []
    assert checked >= 10


def test_a_change_in_place_passes(tmp_path: Path) -> None:
    source = write(tmp_path / "source.gguf")
    first = apply(make_plan(source, YARN, tmp_path / "first.gguf"))
    shutil.copy(first, tmp_path / "changed.gguf")
    plan = ropeconv.make_plan(
        open_source(str(tmp_path / "changed.gguf")), LINEAR16, Target(in_place=True, replace=True)
    )
    apply(plan)
    assert verified(tmp_path / "changed.gguf", first).notes == ()


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0", "q4_k_m"])
def test_conversions_pass(outtype: str, tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "Tiny-Llama", initializer_range=0.02)
    out = apply(make_plan(source, YARN, tmp_path / "out.gguf", to="gguf", outtype=outtype))
    found = verified(out, source)
    assert (found.notes, found.unverified) == ((), ())
    assert found.bytes > 0
    source.rename(tmp_path / "Other-Name")
    assert verified(out, tmp_path / "Other-Name").notes == (), "names of models are those of the receipt"
    data = bytearray(out.read_bytes())
    data[-40] ^= 16
    out.write_bytes(data)
    with pytest.raises(RopeconvError, match=r"of out.gguf differs from byte"):
        verified(out, tmp_path / "Other-Name")
    assert verified(out, tmp_path / "Other-Name", quick=True).bytes == 0


def test_the_receipt_has_what_the_plan_is_made_of(llama: Path, tmp_path: Path) -> None:
    out = apply(make_plan(llama, YARN, tmp_path / "out", encoding="weights", fold_into="qk", runtimes=("vllm",)))
    target = read_receipt(out).target
    assert target is not None
    assert (target.to, target.encoding, target.fold_into) == ("safetensors", "weights", "qk")
    assert target.runtimes == ("vllm",)
    assert parse_receipt((DATA / "folder-schema1.json").read_text(), "x").target is None
