"""Every type of the weights: llama.cpp decodes the file, and its tensors have the types of llama.cpp's own converter.

tests/data/converter_types.json has these, as `python scripts/compare_converter.py LLAMA_CPP --types` has recorded them
(commit 0c1e570): by model type and tensor the types in f16, bf16 and q8_0.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest

import ropeconv
from ropeconv.convert.to_gguf import tensors
from ropeconv.convert.to_gguf.demands import demands, general_name
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.models.registry import by_model_type
from ropeconv.rope.errors import RopeconvError

from ...support.baking import make_plan, recipe_of
from ...support.extent import sample
from ...support.llamacpp import EXPORTED, bake, sequence
from .stock_converter import in_bfloat16

RECORDED: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parents[2] / "data" / "converter_types.json").read_text()
)
TYPES = ("f16", "bf16", "q8_0")
OUTTYPES = ("f32", *TYPES, "auto")
# convolutions that llama.cpp reads as F32 alone, shared keys, small factors, transposed and alternating rows
KNOWN = [
    ("lfm2", "auto"), ("lfm2", "q8_0"), ("lfm2_moe", "f16"), ("gemma4_text", "auto"), ("gemma4_text", "q8_0"),
    ("gemma3n_text", "bf16"), ("deepseek_v3", "q8_0"), ("gpt_oss", "f16"),
]  # fmt: skip
OTHERS = [(model_type, outtype) for model_type in EXPORTED for outtype in OUTTYPES]
CASES = sample(KNOWN, 3) + sample([case for case in OTHERS if case not in KNOWN], 2)


def types(path: Path) -> dict[str, str]:
    """The type of each kind of tensor; where layers differ, all of them."""
    found: dict[str, set[str]] = {}
    for one in gguf.GGUFReader(path).tensors:
        found.setdefault(general_name(one.name), set()).add(one.tensor_type.name)
    return {name: "/".join(sorted(kinds)) for name, kinds in sorted(found.items())}


def recorded(model_type: str, outtype: str) -> dict[str, str]:
    index = TYPES.index("bf16" if outtype == "auto" else outtype)
    return {name: kinds.split()[index] for name, kinds in RECORDED[model_type].items()}


@pytest.mark.parametrize(("model_type", "outtype"), CASES)
def test_llama_cpp_decodes_it_and_its_types_are_those_of_the_converter(
    model_type: str, outtype: str, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    source, _ = in_bfloat16(model_type, tmp_path / "source")
    bake(source, recipe_of("as-is"), tmp_path / "out.gguf", outtype=outtype)
    found = types(tmp_path / "out.gguf")
    if outtype == "f32":
        assert set(found.values()) == {"F32"}
    else:
        assert found == recorded(model_type, outtype)
    assert np.isfinite(LlamaCppEngine(tmp_path / "out.gguf").logits(sequence(64), list(range(64)))).all()


def test_every_exported_model_type_is_recorded_and_what_stays_in_f32_is_stated() -> None:
    """The data of the package, from the converter's source, says the same as its files."""
    assert set(RECORDED) == set(EXPORTED)
    for model_type, kinds in RECORDED.items():
        rules = by_model_type()[model_type].gguf
        assert rules is not None
        stated = set(demands()[rules.arch].float32) & kinds.keys()
        assert {kinds[name] for name in stated} <= {"F32 F32 F32"}, model_type
    assert set(demands()["lfm2moe"].float32) == {"blk.{}.ffn_gate_inp.weight", "blk.{}.shortconv.conv.weight"}


def test_what_llama_cpp_does_not_decode_never_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the data, the convolutions have the type of the others: llama.cpp loads that, and its process aborts."""
    pytest.importorskip("llama_cpp")
    source, _ = in_bfloat16("lfm2", tmp_path / "source")
    without = {arch: msgspec.structs.replace(one, float32=()) for arch, one in demands().items()}
    monkeypatch.setattr(tensors, "demands", lambda: without)
    plan = make_plan(source, recipe_of("yarn", 4.0), tmp_path / "out.gguf", to="gguf")
    with pytest.raises(RopeconvError, match=r"cannot run .*ASSERT\(src1->nb\[0\] == .*; nothing was kept") as problem:
        ropeconv.apply(plan)
    assert problem.value.exit_code == 1
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["source"]
    monkeypatch.undo()
    done = ropeconv.apply(make_plan(source, recipe_of("yarn", 4.0), tmp_path / "out.gguf", to="gguf"))
    assert done.reason == ""
    assert done.path.exists()
