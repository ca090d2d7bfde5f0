"""Families whose checkpoints run on code of their own: only their GGUF files are extended, which
llama.cpp's converter makes.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from ropeconv.convert.to_gguf.stock import StockConverter
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.models.config import cached_layers, detect
from ropeconv.runtimes.read_config import read_spec
from scripts.llamacpp.stock_matrix import row_of_mlx

from ..convert.to_gguf.conftest import server, tree
from ..support.baking import YARN, apply, make_plan
from ..support.converter_server import Convert
from ..support.mlx_models import (
    MODELS,
    MlxLm,
    config_of,
    random_weights,
    with_published_names,
    write_checkpoint,
)

__all__ = ["server", "tree"]
MLX_PYTHON = os.environ.get("ROPECONV_MLX_PYTHON")
READ = {
    "internlm2": (64, 10000.0, "gg"),
    "exaone": (64, 10000.0, "gg"),
    "minicpm": (64, 10000.0, "gg"),
    "qwen": (64, 10000.0, "gg"),
    "deepseek": (64, 10000.0, "gg"),
    "bailing_moe": (64, 10000.0, "gg"),
    "bailing_moe_v2": (32, 10000.0, "gg"),
    "openelm": (64, 10000.0, "gg"),
    "nemotron-nas": (64, 10000.0, "gg"),
    "nanbeige": (64, 10000.0, "gg"),
    "talkie": (64, 10000.0, "gg"),
    "muse_glimmer": (64, 10000.0, "nggg"),
    "spark2_5": (32, 10000.0, "lg"),
    "plamo3": (64, 10000.0, "lglg"),
}
"""By model: dimensions that rotate, base, and the kinds of the layers (global, local, none), as the
code of mlx-lm 0.32.2 has them."""
LAYER = "transformer.h.{}."


def exaone(folder: Path) -> Path:
    """A tiny EXAONE 3 with the names of LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct."""
    shapes = {"transformer.wte.weight": [320, 128], "transformer.ln_f.weight": [128]}
    shapes["lm_head.weight"] = [320, 128]
    for number in range(2):
        layer = LAYER.format(number)
        attention = f"{layer}attn.attention."
        shapes[f"{attention}q_proj.weight"] = [128, 128]
        shapes[f"{attention}k_proj.weight"] = [64, 128]
        shapes[f"{attention}v_proj.weight"] = [64, 128]
        shapes[f"{attention}out_proj.weight"] = [128, 128]
        shapes[f"{layer}mlp.c_fc_0.weight"] = [96, 128]
        shapes[f"{layer}mlp.c_fc_1.weight"] = [96, 128]
        shapes[f"{layer}mlp.c_proj.weight"] = [128, 96]
        shapes[f"{layer}ln_1.weight"] = [128]
        shapes[f"{layer}ln_2.weight"] = [128]
    write_checkpoint(folder, config_of("exaone"), random_weights(shapes))
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_the_published_config_is_read(name: str) -> None:
    rotary_dim, base, kinds = READ[name]
    config = config_of(name)
    spec = read_spec(config, detect(config))
    assert spec.rotary_dim == rotary_dim
    assert spec.rope_theta == base
    assert spec.original_context == 64
    assert "".join(kind[0] for kind in spec.layers) == kinds


def test_local_layers_have_a_base_of_their_own() -> None:
    for name in ("plamo3", "spark2_5"):
        config = config_of(name)
        inv_freq = read_spec(config, detect(config)).local_inv_freq
        assert inv_freq is not None
        np.testing.assert_allclose(inv_freq[1], 20000.0 ** (-1 / 32), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "numbers"), [("openelm", [64, 128]), ("nemotron-nas", [64, 128]), ("exaone", [64, 64])]
)
def test_layers_keep_the_heads_that_the_config_lists(name: str, numbers: list[int]) -> None:
    config = config_of(name)
    cached = cached_layers(config, detect(config))
    assert cached is not None
    kept = [layers.keys for layers in cached[0] for _ in range(layers.count)]
    assert sorted(kept) == numbers


def test_layers_that_run_twice_keep_twice_as_much() -> None:
    config = config_of("nanbeige")
    cached = cached_layers(config, detect(config))
    assert cached is not None
    assert sum(layers.count for layers in cached[0]) == 4


def test_a_folder_of_safetensors_is_refused(tmp_path: Path) -> None:
    source = exaone(tmp_path / "Tiny")
    with pytest.raises(UnsupportedBake, match="--to gguf"):
        make_plan(source, YARN, tmp_path / "out")


def test_other_refused_families_stay_refused_as_gguf(tmp_path: Path) -> None:
    """The negative control: ChatGLM, whose old GGUF form nobody has compared."""
    source = exaone(tmp_path / "Tiny")
    config = json.loads((source / "config.json").read_text())
    config |= {"model_type": "chatglm", "multi_query_group_num": 1, "seq_length": 64}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedBake, match="custom code"):
        make_plan(source, YARN, tmp_path / "out.gguf", to="gguf")


def test_the_converter_gets_the_key_that_it_reads(
    tree: Path, server: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """conversion/exaone.py reads no layer_norm_epsilon, without which llama.cpp refuses the file."""
    monkeypatch.setattr(StockConverter, "convert", server)
    source = exaone(tmp_path / "Tiny")
    out = tmp_path / "out.gguf"
    apply(make_plan(source, YARN, out, to="gguf", outtype="f32", converter=tree))
    file = GgufFile.open(out)
    assert file.get("general.architecture") == "exaone"
    assert file.get("exaone.attention.layer_norm_rms_epsilon") == pytest.approx(1e-5)
    assert file.get("exaone.rope.scaling.factor") == 4.0
    assert json.loads((source / "config.json").read_text()).get("rms_norm_eps") is None


@pytest.mark.skipif(MLX_PYTHON is None, reason="ROPECONV_MLX_PYTHON names no Python with mlx-lm")
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_computes_what_mlx_lm_does(
    name: str, tree: Path, server: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StockConverter, "convert", server)
    assert MLX_PYTHON is not None
    with MlxLm(Path(MLX_PYTHON)) as mlx:
        cells = row_of_mlx(name, tree, ["as-is", "yarn"], mlx)["stock"]
    assert cells["as-is"]["status"] == "right"
    scaled = [cell for method, cell in cells.items() if method != "as-is" and "kl" in cell]
    for cell in scaled:
        assert cell["status"] == "right"
        assert cell["control"] > 0.1


def test_weights_get_the_names_of_checkpoints() -> None:
    weights = {"mlp.switch_mlp.up_proj.weight": torch.arange(4.0).reshape(2, 1, 2)}
    named = with_published_names(weights, MODELS["deepseek"]["names"])
    assert named["mlp.experts.1.up_proj.weight"].tolist() == [[2.0, 3.0]]
    assert len(named) == 2
