"""demands.json: what its generator extracts, on excerpts of llama.cpp's source, and what llama.cpp itself loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.engines.llamacpp import why_not_run
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from scripts import gguf_demands

from ...support.baking import recipe_of
from ...support.extent import sample
from ...support.llamacpp import bake, checkpoint

ROOT = Path(__file__).parents[3]
EXCERPTS = ROOT / "tests" / "data" / "llama.cpp"
DEMANDS = json.loads((ROOT / "ropeconv" / "convert" / "to_gguf" / "demands.json").read_text())


def test_the_generator_gives_what_is_committed() -> None:
    extracted = gguf_demands.extract(EXCERPTS)
    assert sorted(extracted) == ["falcon-h1", "gemma4", "glm4moe", "qwen3"]
    assert extracted == {arch: DEMANDS[arch] for arch in extracted}


def test_what_the_converter_keeps_in_f32_is_read_from_its_list() -> None:
    assert gguf_demands.float32(EXCERPTS) == {
        "qwen3": set(), "glm4": set(), "falcon-h1": {"blk.{}.ssm_conv1d.weight"},
        "gemma4": {"blk.{}.ffn_gate_inp.weight"}, "glm4moe": {"blk.{}.ffn_gate_inp.weight"},
        "lfm2": {"blk.{}.shortconv.conv.weight"},
    }  # fmt: skip


LOADED = ("falcon_h1", "glm4_moe", "qwen3", "gemma4_text")
CASES = [(model_type, kind) for model_type in LOADED for kind in ("required", "keys")]


@pytest.mark.parametrize(("model_type", "kind"), sample(CASES, 1))
def test_llamacpp_loads_nothing_without_what_is_demanded(tmp_path: Path, model_type: str, kind: str) -> None:
    pytest.importorskip("llama_cpp")
    whole, less = tmp_path / "whole.gguf", tmp_path / "less.gguf"
    bake(checkpoint(model_type, tmp_path / "source"), recipe_of("as-is"), whole)
    assert why_not_run(whole) == ("", "")
    file = GgufFile.open(whole)
    arch = file.get("general.architecture")
    for name in sample(list(DEMANDS[arch][kind]), 3):
        lost = frozenset({name.format(0) if kind == "required" else f"{arch}.{name}"})
        write_new(file, 0, Edit(removed=lost) if kind == "required" else Edit(dropped=lost), less)
        assert why_not_run(less)[0], f"{arch} loads without {name}"
        less.unlink()
