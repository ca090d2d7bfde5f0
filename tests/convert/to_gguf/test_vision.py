"""Vision models in GGUF: the text part by ropeconv, and the projector by llama.cpp's converter."""

from pathlib import Path

import gguf
import pytest

import ropeconv
from ropeconv.bake.gguf import ExportPlan
from ropeconv.bake.next_steps import run_commands
from ropeconv.bake.projector import projector_command, projector_path
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.file import GgufFile

from ...support.baking import AS_IS, YARN, make_plan
from ...support.extent import sample
from ...support.llamacpp import bake, is_computed
from ...support.optional import MISSING, skip
from ...support.vision import MODELS, transpose_experts, vision_checkpoint
from .test_stock import contents

OWN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""Models whose text part ropeconv converts."""
BY_CONVERTER = ("chameleon", "minimax_m3_vl", "paddleocr_vl")
"""Models whose text part only llama.cpp's converter converts."""
OURS_ALONE = ("vocab_size", "rope.dimension_count", "key_length", "value_length", "basename")
"""Ends of keys that only ropeconv writes, with the values that llama.cpp takes without them."""


@pytest.mark.parametrize("model_type", sample(OWN, 1))
def test_llama_cpp_computes_text_as_transformers_beyond_the_trained_length(
    model_type: str, tmp_path: Path
) -> None:
    if "llama_cpp" in MISSING:
        skip("llama_cpp")
    source = vision_checkpoint(model_type, tmp_path / "Tiny")
    is_computed(source, YARN, tmp_path / "out.gguf")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("model_type", sample(BY_CONVERTER, 1))
def test_text_of_a_model_that_the_converter_alone_knows_is_computed_too(
    model_type: str, tree: Path, tmp_path: Path
) -> None:
    if "llama_cpp" in MISSING:
        skip("llama_cpp")
    source = vision_checkpoint(model_type, tmp_path / "Tiny")
    with pytest.raises(UnsupportedBake, match="--converter"):
        make_plan(source, YARN, tmp_path / "out.gguf", to="gguf")
    is_computed(source, YARN, tmp_path / "out.gguf", converter=tree)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("model_type", OWN)
def test_the_text_part_equals_that_of_the_converter(
    model_type: str, tree: Path, tmp_path: Path
) -> None:
    source = vision_checkpoint(model_type, tmp_path / "Tiny")
    bake(source, AS_IS, tmp_path / "ours.gguf")
    bake(source, AS_IS, tmp_path / "stock.gguf", converter=tree)
    our_tensors, our_keys = contents(tmp_path / "ours.gguf")
    tensors, keys = contents(tmp_path / "stock.gguf")
    assert tensors == our_tensors
    sections = [name for name in keys if name.endswith(".rope.dimension_sections")]
    assert len(sections) == 1
    for name in {*our_keys, *keys}:
        if name.startswith(("GGUF.", "ropeconv.")) or name.endswith(OURS_ALONE):
            continue
        assert our_keys.get(name) == keys.get(name), name


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("model_type", sorted(MODELS.keys() & set(OWN)))
def test_the_converter_writes_the_projector_beside_the_output(
    model_type: str, tree: Path, tmp_path: Path
) -> None:
    source = vision_checkpoint(model_type, tmp_path / "Tiny")
    output = ropeconv.apply(
        source,
        yarn=4,
        to="gguf",
        out=tmp_path / "out.gguf",
        converter=tree,
        ollama=True,
        validate="off",
    )
    written = tmp_path / "mmproj-out.gguf"
    file = GgufFile.open(written)
    assert file.get("general.architecture") == "clip"
    assert file.get("clip.vision.projection_dim") == 128
    modelfile = tmp_path / "out.Modelfile"
    assert f"ollama create out -f {modelfile}" in " ".join(output.steps.run)
    assert modelfile.read_text().splitlines()[:2] == ["FROM ./out.gguf", "FROM ./mmproj-out.gguf"]
    assert f"--mmproj {written}" in " ".join(run_commands(output.plan, output.path))
    assert not output.steps.images

    # the same bytes as those of the converter alone
    alone = tmp_path / "alone" / "mmproj.gguf"
    alone.parent.mkdir()
    converter = ropeconv.convert.to_gguf.stock.find_converter(tree)
    assert converter is not None
    converter.convert(source, alone, "f32", projector=True)
    assert contents(written)[0] == contents(alone)[0]
    assert len(gguf.GGUFReader(written).tensors) > 10


def test_experts_are_read_in_both_orders_that_transformers_reads(tmp_path: Path) -> None:
    """Published stacks are [experts, columns, rows], and those that it saves the other way round."""
    source = vision_checkpoint("qwen3_vl_moe", tmp_path / "Tiny")
    bake(source, AS_IS, tmp_path / "published.gguf")
    transpose_experts(source)
    bake(source, AS_IS, tmp_path / "saved.gguf")
    tensors = contents(tmp_path / "published.gguf")[0]
    assert tensors["blk.0.ffn_down_exps.weight"][0] == [32, 128, 4]
    assert tensors == contents(tmp_path / "saved.gguf")[0]


def test_without_a_converter_the_command_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = vision_checkpoint("qwen2_5_vl", tmp_path / "Tiny")
    plan = make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")
    assert isinstance(plan, ExportPlan)
    assert any("mmproj" in warning for warning in plan.warnings)
    words = projector_command(plan).split()
    assert words[1].endswith("convert_hf_to_gguf.py")
    assert words[-3:] == ["--mmproj", "--outfile", str(projector_path(plan))]
