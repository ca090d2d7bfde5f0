"""What a plan refuses of a source before anything is written, with the way out, from files without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import ropeconv
from ropeconv.bake.restore import restore_plan
from ropeconv.errors import BadSource, UsageError
from ropeconv.rope.errors import RopeconvError

from ..support.baking import MIXED, YARN, apply, make_plan, recipe_of
from ..support.gguf_files import write

LOG_N = recipe_of("yarn", 4.0, log_n="clamped")
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "head_dim": 8,
    "max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip


def folder(root: Path, *names: str, weights: bool = False, **config: Any) -> Path:
    """A folder with a config, empty files of some names, and where `weights` says so a model.safetensors."""
    root.mkdir()
    (root / "config.json").write_text(json.dumps({**CONFIG, **config}))
    for name in names:
        (root / name).write_text("{}" if name.endswith(".json") else "")
    if weights:
        parts = ["qkv"] if config.get("model_type") == "phi3" else ["q", "k"]
        rows = {f"model.layers.0.self_attn.{name}_proj.weight": np.ones((16, 16), np.float32) for name in parts}
        save_file(rows, root / "model.safetensors")
    return root


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ("pytorch_model.bin.index.json",),
            "no safetensors weights; give the complete folder, or only its config.json",
        ),
        (("model-00001-of-00002.safetensors",), r"has shards and no model\.safetensors\.index\.json to say what they"),
        (("LICENSE", "x-of-y.txt"), "no safetensors weights; give the complete folder, or only its config.json"),
    ],
)
def test_a_folder_without_weights_that_can_be_read(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadSource, match=words):
        make_plan(folder(tmp_path / "model", *names), YARN)
    assert make_plan(tmp_path / "model" / "config.json", YARN).result.encoding == "native"


@pytest.mark.parametrize(
    ("names", "refused"), [(("tokenizer.model",), True), (("tokenizer.model", "tokenizer.json"), False), ((), False)]
)
def test_a_tokenizer_that_another_class_reads_otherwise(tmp_path: Path, names: tuple[str, ...], refused: bool) -> None:
    source = folder(tmp_path / "model", *names, weights=True)
    options = {"encoding": "ministral3", "allow_approximate": True}
    if not refused:
        assert make_plan(source, LOG_N, **options).result.encoding == "ministral3"
        return
    with pytest.raises(BadSource, match=r"tokenizer\.model and no tokenizer\.json, .* in a ministral3 model; load the"):
        make_plan(source, LOG_N, **options)
    assert make_plan(source, YARN).result.encoding == "native"


# Restoring


@pytest.mark.parametrize(
    ("name", "out", "in_place", "error", "words"),
    [
        ("model", Path("x.gguf"), False, UsageError, r"-o x\.gguf is not a name for a folder; choose another name"),
        ("model", None, True, UsageError, "--in-place changes a GGUF file itself, and a folder is written anew"),
        ("model", None, False, BadSource, r"has no ropeconv\.json, so it is not an output of ropeconv"),
        ("model.gguf", Path("x.gguf"), True, UsageError, "--in-place changes the GGUF file itself; leave -o out"),
        ("model.gguf", Path("x"), False, UsageError, r"-o x is not a name for GGUF; end its name in \.gguf"),
        ("model.gguf", None, False, BadSource, "has no receipt among its keys, so it is not an output of ropeconv"),
    ],
)
def test_what_cannot_be_brought_back(
    tmp_path: Path, name: str, out: Path | None, in_place: bool, error: type[Exception], words: str
) -> None:
    folder(tmp_path / "model", weights=True)
    write(tmp_path / "model.gguf")
    with pytest.raises(error, match=words):
        restore_plan(ropeconv.open_source(str(tmp_path / name)), out, in_place=in_place)


# What the installed transformers is expected to do


def test_a_context_of_lengths_that_imply_a_factor_is_the_one_that_is_declared(tmp_path: Path) -> None:
    """Phi 3's class derives an attention factor from two lengths, so that a little more than wanted is declared."""
    source = folder(tmp_path / "model", weights=True, model_type="phi3", max_position_embeddings=4096)
    quiet = make_plan(source, recipe_of("mixed", 4.0, attention_factor=1.0))
    assert quiet.schedule.context == 16384
    loud = make_plan(source, recipe_of("mixed", 4.0, attention_factor=1.1))
    assert loud.schedule.context > 16384
    assert (
        loud.schedule.context
        == json.loads(next(f.text or "" for f in loud.files if f.name == "config.json"))["max_position_embeddings"]
    )
    assert any("servers with that length as their default window" in words for words in loud.warnings)


def test_an_output_of_ropeconv_does_not_become_a_checkpoint_that_forgets_it(tmp_path: Path) -> None:
    baked = apply(make_plan(write(tmp_path / "model.gguf"), YARN, tmp_path / "out.gguf"))
    words = r"would not record its source; run `ropeconv restore` on it first, or pass --a"
    with pytest.raises(RopeconvError, match=words):
        make_plan(baked, MIXED, tmp_path / "back", to="safetensors")
