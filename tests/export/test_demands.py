"""A conversion has exactly what llama.cpp's loader of its architecture wants, or is refused before it has its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from ropeconv.bake import apply as apply_checked
from ropeconv.errors import BadSource, RopeconvError, UnsupportedBake
from ropeconv.export import exported
from ropeconv.export.demands import demands
from ropeconv.families.registry import families
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe

from ..support.baking import make_plan
from ..support.llamacpp import checkpoint

AS_IS = Recipe(METHODS["as-is"]())
REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("qwen3", {"attention_bias": True}, UnsupportedBake, "attn_output.bias"),
    ("olmo2", {"attention_bias": True}, UnsupportedBake, "attn_output.bias"),
    ("cohere", {"attention_bias": True}, UnsupportedBake, "attn_output.bias"),
    ("gemma2", {"attention_bias": True}, UnsupportedBake, "attn_output.bias"),
    ("gemma3_text", {"attention_bias": True}, UnsupportedBake, "attn_output.bias"),
    ("arcee", {"mlp_bias": True}, UnsupportedBake, "ffn_down.bias"),
    ("smollm3", {"mlp_bias": True}, UnsupportedBake, "ffn_down.bias"),
    ("gpt_neox", {"attention_bias": False}, BadSource, "nothing for blk.0.attn_qkv.bias"),
    ("olmoe", {"num_key_value_heads": 1}, BadSource, "attn_k_norm.weight has the shape \\[64\\]"),
]


def test_every_architecture_of_a_family_is_known() -> None:
    archs = {family.gguf.arch for family in families() if family.gguf is not None}
    assert archs <= set(demands())
    assert archs <= set(gguf.MODEL_ARCH_NAMES.values())


@pytest.mark.parametrize(("model_type", "changes", "error", "words"), REFUSED)
def test_weights_that_the_loader_does_not_take_are_refused(
    tmp_path: Path, model_type: str, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    assert make_plan(checkpoint(model_type, tmp_path / "plain"), AS_IS, to="gguf").files
    source = checkpoint(model_type, tmp_path / "source", **changes)
    with pytest.raises(error, match=words):
        make_plan(source, AS_IS, to="gguf")


def test_what_llama_cpp_does_not_load_never_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second guard, where the first is away: the file is opened once before it has its name."""
    source = checkpoint("qwen3", tmp_path / "source", attention_bias=True)
    monkeypatch.setattr(exported, "check_demands", lambda *_: None)
    with pytest.raises(RopeconvError, match="llama.cpp cannot run what was converted: .*wrong number of tensors"):
        apply_checked(make_plan(source, AS_IS, tmp_path / "bad.gguf", to="gguf"))
    apply_checked(make_plan(checkpoint("qwen3", tmp_path / "good"), AS_IS, tmp_path / "good.gguf", to="gguf"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "good.gguf", "source"]
