"""`validate --quick`: the keys of GGUF files and the small tensors of a schedule are compared all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import Disagreement
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32, string

from ..support.baking import MIXED, apply, make_plan, recipe_of
from ..support.corruptions import data, scale, tensor, verified
from ..support.gguf_files import write
from ..support.llamacpp import bake, checkpoint
from ..support.models import make

WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}  # as the quantiser needs it
LISTS = ("rope_factors_long.weight", "rope_factors_short.weight")
CASES: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...], str]] = {
    "edited": ("", {}, "", ("rope_freqs.weight",), "token_embd.weight"),
    "converted": ("llama", {}, "f32", ("rope_freqs.weight",), "blk.0.attn_norm.weight"),
    "lists": ("phi3", {}, "f32", LISTS, "token_embd.weight"),
    "quantised": ("llama", WIDE, "q4_k_m", ("rope_freqs.weight",), "blk.0.attn_norm.weight"),
}
"""The family of the checkpoint, none for a GGUF file, its sizes, the type of the weights, the tensors of the schedule,
and one of the weights."""


def flip(path: Path, tensor: str) -> None:
    """Changes the last byte but one of a tensor of 32-bit floats."""
    header = GgufFile.open(path).header
    info = header.tensors[tensor]
    at = header.data_start + info.offset + info.size - 2
    data(lambda found: found.__setitem__(at, found[at] ^ 1))(path)


@pytest.mark.parametrize("name", CASES)
def test_keys_and_the_tensors_of_the_schedule_are_compared(name: str, tmp_path: Path) -> None:
    family, sizes, outtype, schedule, weights = CASES[name]
    if name == "quantised":
        pytest.importorskip("llama_cpp")
    source = checkpoint(family, tmp_path / "source", **sizes) if family else write(tmp_path / "model.gguf")
    out = tmp_path / "out.gguf"
    bake(source, MIXED, out, **({"outtype": outtype} if outtype else {}))
    good = out.read_bytes()
    found = verified(out, source, quick=True)
    assert (found.quick, found.bytes, found.files) == (True, 0, 1)
    unverified = ["to compare the types of tensors"] if name == "quantised" else []
    assert [line.split(",")[0] for line in found.unverified] == unverified
    flip(out, weights)
    assert verified(out, source, quick=True) == found
    for changed in schedule:
        out.write_bytes(good)
        flip(out, changed)
        with pytest.raises(Disagreement, match=f"{changed} of out.gguf differs from byte"):
            verified(out, source, quick=True)
    out.write_bytes(good)
    arch = GgufFile.open(out).get("general.architecture")
    for edit, said in (
        (Edit({f"{arch}.rope.freq_base": f32(9999.0)}), "rope.freq_base = 9999.0, where"),
        (Edit({f"{arch}.made": string("x")}), "made = 'x', which is not there"),
    ):
        out.write_bytes(good)
        write_new(GgufFile.open(out), 0, edit, tmp_path / "other.gguf")
        (tmp_path / "other.gguf").rename(out)
        with pytest.raises(Disagreement, match=said):
            verified(out, source, quick=True)


def test_stored_frequencies_of_a_folder_are_compared_too(tmp_path: Path) -> None:
    source, out = make("llama", tmp_path / "source"), tmp_path / "out"
    apply(make_plan(source, MIXED, out, encoding="buffers"))
    found = verified(out, source, quick=True)
    assert (found.quick, found.bytes) == (True, 0)
    data(lambda found: found.__setitem__(-3, found[-3] ^ 1), "model-rope.safetensors")(out)
    with pytest.raises(Disagreement, match="inv_freq of model-rope.safetensors differs from byte"):
        verified(out, source, quick=True)


def test_tensors_that_a_fold_changes_are_compared_and_others_are_not(tmp_path: Path) -> None:
    source, out = make("llama", tmp_path / "source"), tmp_path / "out"
    apply(make_plan(source, recipe_of("yarn", 4.0), out, encoding="weights"))
    plain = verified(out, source, quick=True)
    tensor("model.layers.0.mlp.up_proj.weight", scale(0, 2.0))(out)
    assert verified(out, source, quick=True) == plain
    tensor("model.layers.0.self_attn.k_proj.weight", scale(0, 2.0))(out)
    with pytest.raises(Disagreement, match=r"model.layers.0.self_attn.k_proj.weight of model.safetensors differs"):
        verified(out, source, quick=True)
