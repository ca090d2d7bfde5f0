"""Checkpoints with something special, in llama.cpp beside transformers: scaling, layers that
predict, MXFP4 experts.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch

from ropeconv.convert.to_gguf import demands
from ropeconv.convert.to_gguf import export as exported
from ropeconv.convert.to_gguf.hparams import hparams, sizes_of
from ropeconv.engines import llamacpp as loading
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import GgufHeader
from ropeconv.inspection.inspection import inspect_config
from ropeconv.models.open import open_checkpoint
from ropeconv.models.registry import by_model_type

from ...support.baking import AS_IS, YARN, inspected, make_plan, recipe_of
from ...support.extent import sample
from ...support.gguf_files import contents
from ...support.llamacpp import bake, beyond, checkpoint, of_llamacpp, of_transformers

PLAIN_YARN = recipe_of("yarn", 4.0, attention_factor=1.0)
ROPE_OF_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LISTS = {
    "short_factor": [1 + i / 20 for i in range(32)],
    "long_factor": [1 + i * 0.4 for i in range(32)],
}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, **LISTS}
LLAMA3 = {**ROPE_OF_YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MINISTRAL = {**ROPE_OF_YARN, "beta_fast": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0}
GEMMA3 = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama3": ("llama", LLAMA3, "tensor"),
    "an attention factor": ("qwen2", {**ROPE_OF_YARN, "attention_factor": 1.3}, "keys"),
    "an open ramp": (
        "qwen2",
        {**ROPE_OF_YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
        "carrier",
    ),
    "two mscales": ("ministral3", {**MINISTRAL, "mscale_all_dim": 0.8}, "keys"),
    "equal mscales": ("ministral3", {**MINISTRAL, "mscale_all_dim": 1.0}, "keys"),
    "some layers": ("gemma3_text", GEMMA3, "keys"),
    "lists of Phi 3": ("phi3", LONGROPE, "tensor"),
    "lists of others": (
        "llama",
        {**LONGROPE, "factor": 4.0, "original_max_position_embeddings": 64},
        "tensor",
    ),
    "layers without RoPE": ("smollm3", ROPE_OF_YARN, "keys"),
}


@pytest.mark.parametrize("name", sample(list(CASES), 2))
def test_a_scaled_checkpoint_is_converted_as_it_is(tmp_path: Path, name: str) -> None:
    model_type, rope, encoding = CASES[name]
    extra = {"original_max_position_embeddings": 64} if model_type == "phi3" else {}
    source = checkpoint(
        model_type, tmp_path / "source", max_position_embeddings=256, rope_parameters=rope, **extra
    )
    out = tmp_path / "out.gguf"
    plan = bake(source, recipe_of("as-is"), out)
    assert plan.result.encoding == encoding
    reference = of_transformers(source, None)
    plain = checkpoint(model_type, tmp_path / "plain")
    control = beyond(reference, of_transformers(plain, None))
    for figures, unscaled in zip(beyond(reference, of_llamacpp(out)), control, strict=True):
        assert figures.kl_mean < 1e-5
        assert unscaled.kl_mean > 1000 * figures.kl_mean
    inspection = inspected(out)
    assert not inspection.problems
    assert inspection.spec.attention_factor == pytest.approx(
        plan.schedule.attention_factor, rel=1e-6
    )


QWEN = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
}


def predicting(model_type: str, folder: Path) -> Path:
    """A checkpoint with a further layer like the last, as its publisher names it."""
    source = checkpoint(model_type, folder)
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    width = tensors["model.embed_tokens.weight"].shape[1]
    last = "model.layers.1."
    added = {
        name.removeprefix(last): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(last)
    }
    parts = {"eh_proj": torch.randn(width, 2 * width), "shared_head.norm": torch.rand(width)}
    parts |= {name: torch.rand(width) for name in ("enorm", "hnorm")}
    if model_type.startswith("qwen"):
        tensors |= {f"mtp.layers.0.{name}": tensor for name, tensor in added.items()}
        tensors |= {f"mtp.{QWEN[name]}.weight": tensor for name, tensor in parts.items()}
    else:
        parts |= {"embed_tokens": tensors["model.embed_tokens.weight"] + 1}
        named = {f"{name}.weight": tensor for name, tensor in parts.items()}
        tensors |= {f"model.layers.2.{name}": tensor for name, tensor in {**added, **named}.items()}
    safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    return source


@pytest.mark.parametrize(
    "model_type", ["glm4_moe", *sample(["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"], 1)]
)
def test_layers_that_predict_are_kept_where_llamacpp_has_them(
    tmp_path: Path, model_type: str
) -> None:
    source = predicting(model_type, tmp_path / "source")
    out = tmp_path / "out.gguf"
    plan = bake(source, PLAIN_YARN, out)
    file = GgufFile.open(out)
    tensors = contents(out)
    arch = file.get("general.architecture")
    assert (file.get(f"{arch}.block_count"), file.get(f"{arch}.nextn_predict_layers")) == (3, 1)
    stored = safetensors.torch.load_file(source / "model.safetensors")
    qwen = model_type.startswith("qwen")
    norm = stored[
        "mtp.pre_fc_norm_hidden.weight" if qwen else "model.layers.2.hnorm.weight"
    ].numpy()
    assert (
        tensors["blk.2.nextn.hnorm.weight"] == (norm + np.float32(qwen)).tobytes()
    )  # which Qwen stores as weight - 1
    assert (
        tensors["blk.2.attn_k.weight"]
        == tensors["blk.1.attn_k.weight"]
        != tensors["blk.2.nextn.eh_proj.weight"]
    )
    reference = of_transformers(source, plan)
    stock = of_llamacpp(out)
    assert max(figures.kl_mean for figures in beyond(reference, stock)) < 1e-5
    assert min(figures.kl_mean for figures in beyond(of_transformers(source, None), stock)) > 1e-3
    assert not any("MTP" in warning for warning in plan.warnings)


@pytest.mark.parametrize(("method", "attn_factor"), [("yarn", 1.1386294), ("linear", 1)])
def test_latent_attention_keeps_its_logits(tmp_path: Path, method: str, attn_factor: float) -> None:
    """llama.cpp multiplies its logits by (1 + 0.1 ln 4)^2; the multiplier is (1 / 1.1386294 - 1) /
    ln 4.
    """
    source = checkpoint("deepseek_v3", tmp_path / "source")
    out = tmp_path / "out.gguf"
    plan = bake(source, recipe_of(method, 4.0), out)
    header = GgufFile.open(out)
    assert header.get("deepseek2.rope.scaling.yarn_log_multiplier") == pytest.approx(
        -0.0878249, rel=1e-5
    )
    assert header.get("deepseek2.rope.scaling.attn_factor", 1) == pytest.approx(
        attn_factor, rel=1e-6
    )
    reference = of_transformers(source, plan)
    stock = of_llamacpp(out)
    assert max(figures.kl_mean for figures in beyond(reference, stock)) < 1e-5
    assert min(figures.kl_mean for figures in beyond(of_transformers(source, None), stock)) > 1e-3


@pytest.mark.parametrize("model_type", ["deepseek_v3", "ernie4_5_moe"])
def test_layers_that_predict_are_left_out_elsewhere_and_the_plan_says_so(
    tmp_path: Path, model_type: str
) -> None:
    trimmed = tmp_path / "out.gguf"
    plain = tmp_path / "plain.gguf"
    for source, out in (
        (predicting(model_type, tmp_path / "source"), trimmed),
        (checkpoint(model_type, tmp_path / "plain"), plain),
    ):
        plan = bake(source, PLAIN_YARN, out)
        assert any("(MTP)" in warning for warning in plan.warnings) is (out == trimmed)
    assert contents(trimmed) == contents(plain)
    assert (
        GgufFile.open(trimmed).get(
            f"{GgufFile.open(trimmed).get('general.architecture')}.block_count"
        )
        == 2
    )


NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
MXFP4 = gguf.GGMLQuantizationType.MXFP4


def packed(
    shape: tuple[int, ...], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks, scales, and the numbers that they stand for, [experts, rows, columns]. shape: of
    these.
    """
    codes = torch.randint(0, 16, shape, generator=generator)
    scales = torch.randint(122, 125, (*shape[:2], shape[2] // 32), generator=generator)
    numbers = NUMBERS[codes] * torch.exp2(scales.float() - 127).repeat_interleave(32, -1)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).reshape(*scales.shape, 16)
    return blocks.to(torch.uint8), scales.to(torch.uint8), numbers


def published(folder: Path) -> tuple[Path, Path, dict[str, torch.Tensor]]:
    """A checkpoint with MXFP4 experts, the same with their numbers in float32, and these by
    name.
    """
    plain = checkpoint("gpt_oss", folder / "plain")
    tensors = safetensors.torch.load_file(plain / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    quantised = dict(tensors)
    expected = {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors[name].shape
        blocks, scales, numbers = packed((experts, rows, columns), generator)
        del quantised[name]
        quantised |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name], expected[name] = numbers.transpose(1, 2).contiguous(), numbers
    shutil.copytree(plain, folder / "quantised")
    safetensors.torch.save_file(
        quantised, folder / "quantised" / "model.safetensors", {"format": "pt"}
    )
    safetensors.torch.save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    return folder / "quantised", plain, expected


def test_a_model_with_mxfp4_keeps_its_blocks_and_computes_what_their_numbers_do(
    tmp_path: Path,
) -> None:
    source, plain, expected = published(tmp_path)
    out = tmp_path / "out.gguf"
    plan = bake(source, YARN, out)
    file = GgufFile.open(out)
    tensors = contents(out)
    assert file.tensors["blk.0.ffn_down_exps.weight"].type == MXFP4
    down = np.frombuffer(tensors["blk.0.ffn_down_exps.weight"], np.uint8).reshape(-1, 17)
    up = np.frombuffer(tensors["blk.1.ffn_up_exps.weight"], np.uint8).reshape(-1, 17)
    down_values = expected["model.layers.0.mlp.experts.down_proj"].flatten().numpy()
    assert np.array_equal(gguf.quants.dequantize(down, MXFP4).flatten(), down_values)
    odd = expected["model.layers.1.mlp.experts.gate_up_proj"][:, 1::2].flatten().numpy()
    assert np.array_equal(gguf.quants.dequantize(up, MXFP4).flatten(), odd)
    reference = of_transformers(plain, plan)
    right = beyond(reference, of_llamacpp(out))
    control = beyond(reference, of_transformers(plain, None))
    wrong = beyond(reference, of_llamacpp(with_other_halves(out, tmp_path / "wrong.gguf")))
    for close, unscaled, swapped in zip(right, control, wrong, strict=True):
        assert close.kl_mean < 0.03  # llama.cpp multiplies MXFP4 by activations in Q8_0
        assert min(unscaled.kl_mean, swapped.kl_mean) > 300 * close.kl_mean


def with_other_halves(path: Path, out: Path) -> Path:
    """A copy whose experts have the halves of each byte the other way round."""
    shutil.copy(path, out)
    reader = gguf.GGUFReader(out, "r+")
    for tensor in reader.tensors:
        if tensor.tensor_type == MXFP4:
            blocks = tensor.data.reshape(-1, 17)
            blocks[:, 1:] = blocks[:, 1:] >> 4 | blocks[:, 1:] << 4
    reader.data.flush()
    return out


# Layers that llama.cpp computes otherwise than the checkpoint: windows, shared keys and heads,
# beside llama.cpp


S, F = "sliding_attention", "full_attention"


def gemma4(shared: int, *types: str) -> dict[str, Any]:
    return {
        "num_hidden_layers": 6,
        "use_double_wide_mlp": False,
        "num_kv_shared_layers": shared,
        "layer_types": [*types],
    }


def gpt_oss(*types: str) -> dict[str, Any]:
    return {"num_hidden_layers": 4, "layer_types": [*types], "sliding_window": 16}


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "keys of a layer of the other type": (
        "gemma4_text",
        gemma4(2, S, S, F, S, S, F),
        (
            "num_kv_shared_layers = 2 with 6 layers .*llama.cpp uses the keys of layer 2 in layer"
            " 4, .* those of 3;"
        ),
    ),
    "keys of the layer before": ("gemma4_text", gemma4(2, S, S, S, F, F, F), ""),
    "keys of a window layer that is farther away": (
        "gemma4_text",
        gemma4(2, S, S, F, F, S, F),
        "llama.cpp uses the keys of layer 2 in layer 4, and the model those of 1;",
    ),
    "three of three": ("gemma4_text", gemma4(3, S, S, F, S, S, F), ""),
    "windows in turns": ("gpt_oss", gpt_oss(S, F, S, F), ""),
    "windows in other layers": (
        "gpt_oss",
        gpt_oss(S, S, S, F),
        (
            r"layer_types = .*llama.cpp computes no window in layer 1 \(the first is 0\); keep"
            r" safetensors"
        ),
    ),
    "no windows": (
        "gemma2",
        {"num_hidden_layers": 4, "layer_types": [F] * 4},
        "stops without a layer that has a win",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_plan_knows_what_llama_cpp_makes_of_the_layers(name: str, tmp_path: Path) -> None:
    model_type, changes, words = OTHERS[name]
    source = checkpoint(model_type, tmp_path / "source", **changes)
    if not words:
        make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")
        return
    with pytest.raises(UnsupportedBake, match=words):
        make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")


@pytest.mark.parametrize("name", sample(list(OTHERS), 1))
def test_llama_cpp_stops_or_computes_something_else_with_what_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same layers, written without the check, and those that are not refused."""
    pytest.importorskip("llama_cpp")
    model_type, changes, words = OTHERS[name]
    source = checkpoint(model_type, tmp_path / "source", **changes)
    out = tmp_path / "out.gguf"
    monkeypatch.setattr(exported, "check_layers", lambda *_: None)
    bake(source, AS_IS, out)
    stops = loading.why_not_run(out)[0]
    assert bool(stops) is (bool(words) and name != "windows in other layers"), stops
    if not stops:
        far = max(
            figures.kl_max for figures in beyond(of_transformers(source, None), of_llamacpp(out))
        )
        assert (far > 1e-3) is bool(words), far


QWEN2 = {"use_sliding_window": True, "max_window_layers": 1, "layer_types": None}


@pytest.mark.parametrize(
    ("model_type", "changes", "noted"),
    [
        ("mistral", {}, True),
        ("phi3", {}, True),
        ("qwen2", QWEN2, True),
        ("qwen2", {}, False),
        ("gpt_oss", {}, False),
    ],
)
def test_a_window_that_llama_cpp_ignores_is_noted(
    model_type: str, changes: dict[str, Any], noted: bool, tmp_path: Path
) -> None:
    source = checkpoint(model_type, tmp_path / "source", sliding_window=16, **changes)
    plan = make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")
    assert any("ignores the sliding window" in line for line in plan.warnings) is noted


def test_window_layers_of_mellum_need_the_base_of_the_others(tmp_path: Path) -> None:
    """llama.cpp has one base for all of them, and ignores the key of another."""
    layer = {"rope_type": "default", "rope_theta": 500000.0}
    bases = {"full_attention": layer, "sliding_attention": layer | {"rope_theta": 10000.0}}
    source = checkpoint("mellum", tmp_path / "apart", rope_parameters=bases)
    with pytest.raises(UnsupportedBake, match="window"):
        make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")
    source = checkpoint("mellum", tmp_path / "equal")
    make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")


@pytest.mark.parametrize(("stated", "width"), [(32, 32), (48, 48), (None, 64)])
def test_values_of_minicpm3_have_their_own_width(
    stated: int | None, width: int, tmp_path: Path
) -> None:
    """Without one, the class divides the hidden size, 128, by the heads, of which there are two."""
    source = checkpoint("minicpm3", tmp_path / "source", v_head_dim=stated)
    out = tmp_path / "out.gguf"
    bake(source, AS_IS, out)
    assert GgufFile.open(out).get("minicpm3.attention.value_length") == width
    for bucket in beyond(of_transformers(source, None), of_llamacpp(out)):
        assert bucket.kl_mean < 2e-6


@pytest.mark.parametrize(("key", "value"), [("scale_emb", 10), ("scale_depth", 1.0)])
def test_multipliers_that_llama_cpp_has_in_its_code_must_be_those_of_minicpm3(
    key: str, value: float, tmp_path: Path
) -> None:
    source = checkpoint("minicpm3", tmp_path / "source", **{key: value})
    with pytest.raises(UnsupportedBake, match=key):
        make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")


def exported_configs() -> list[Path]:
    """Published configs of families that become GGUF."""
    data = Path(__file__).parents[2] / "data"
    families = by_model_type()
    paths = [*(data / "configs").glob("*.json"), *(data / "more_configs").glob("*.json")]
    types = {path: json.loads(path.read_text()).get("model_type") for path in sorted(paths)}
    return [path for path, name in types.items() if name in families and families[name].gguf]


@pytest.mark.parametrize("config", exported_configs(), ids=lambda path: path.stem)
def test_the_layers_of_published_models_are_those_of_llama_cpp(
    config: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    source = open_checkpoint(str(tmp_path))
    inspection = inspect_config(source)
    sizes = sizes_of(source.config(), inspection.model_family, inspection.spec)
    header = GgufHeader(
        3, hparams(sizes, inspection.model_family, inspection.spec.unscaled(), 1000), {}, 32, 0, 0
    )
    demands.check_layers(header, sizes, inspection.model_family, inspection.spec)
