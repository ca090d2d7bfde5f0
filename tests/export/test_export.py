"""Exported files: bytes of every type, names, metadata, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch

import ropeconv
from ropeconv.bake.export import ExportPlan
from ropeconv.errors import BadSource, UnsupportedBake, UsageError
from ropeconv.export.write import encode
from ropeconv.formats.gguf import GgufFile
from ropeconv.receipts import read_receipt
from ropeconv.receipts.commands import commands
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from ropeconv.verify import verify_output

from ..support.baking import make_plan
from ..support.gguf_files import contents
from ..support.llamacpp import bake, checkpoint

AS_IS = Recipe(METHODS["as-is"]())
YARN = Recipe(METHODS["yarn"](4.0))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In bfloat16, as published, with weights of usual size."""
    folder = checkpoint("qwen3", tmp_path_factory.mktemp("export") / "Qwen3-Tiny-Instruct", initializer_range=0.02)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    bf16 = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    safetensors.torch.save_file(bf16, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_bytes_are_those_of_the_reference_quantisers(qwen3: Path, tmp_path: Path, outtype: str) -> None:
    bake(qwen3, YARN, tmp_path / "out.gguf", outtype=outtype)
    kind = gguf.GGMLQuantizationType[outtype.upper()]
    source, made = safetensors.torch.load_file(qwen3 / "model.safetensors"), contents(tmp_path / "out.gguf")
    weight = source["model.layers.0.mlp.gate_proj.weight"].float().numpy()
    assert made["blk.0.ffn_gate.weight"] == gguf.quants.quantize(weight, kind).tobytes()
    embeddings = source["model.embed_tokens.weight"].float().numpy()
    assert made["token_embd.weight"] == gguf.quants.quantize(embeddings, kind).tobytes()
    norm = source["model.layers.1.self_attn.q_norm.weight"].float().numpy()
    assert made["blk.1.attn_q_norm.weight"] == norm.tobytes()
    assert len(made) == len(source)


def test_q8_0_of_awkward_numbers() -> None:
    """Ties, zeros, subnormals, huge and tiny blocks: byte for byte as gguf-py's."""
    generator = np.random.default_rng(0)
    blocks = [generator.standard_normal((64, 32)) * 10.0**power for power in range(-38, 30, 2)]
    ties = np.tile(np.arange(-15.5, 16.5, 1.0), (4, 1)) * np.array([[1], [2], [0.5], [0.25]])
    full = np.zeros((2, 32))
    full[1, 3] = 127
    halves = np.concatenate([[127.0], np.arange(-15, 16) + 0.5])[None]
    values = np.concatenate([*blocks, ties, full, halves]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        assert encode(values, 8).tobytes() == expected.tobytes()


def test_auto_keeps_the_dtype_and_f16_of_bf16_is_numpys(qwen3: Path, tmp_path: Path) -> None:
    bake(qwen3, YARN, tmp_path / "out.gguf", outtype="auto")
    assert GgufFile.open(tmp_path / "out.gguf").tensors["blk.0.attn_q.weight"].type == 30
    source = safetensors.torch.load_file(qwen3 / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert contents(tmp_path / "out.gguf")["blk.0.attn_q.weight"] == source.view(torch.int16).numpy().tobytes()


def test_rows_that_no_block_fits_stay_in_f16(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "odd", intermediate_size=48)
    bake(source, YARN, tmp_path / "out.gguf", outtype="q8_0")
    tensors = GgufFile.open(tmp_path / "out.gguf").tensors
    assert (tensors["blk.0.ffn_down.weight"].type, tensors["blk.0.ffn_up.weight"].type) == (1, 8)


def test_the_name_and_the_description(qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention"""
    source = tmp_path / "Qwen3-Tiny-Instruct"
    shutil.copytree(qwen3, source)
    (source / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en]\n---\n# Tiny\n")
    monkeypatch.chdir(tmp_path)
    plan = make_plan(source, YARN, to="gguf", outtype="q8_0")
    assert plan.out.name == "Qwen3-Tiny-255K-Instruct-yarn4-Q8_0.gguf"
    bake(source, YARN, tmp_path / "out.gguf", outtype="q8_0")
    file = GgufFile.open(tmp_path / "out.gguf")
    assert file.get("general.license") == "apache-2.0"
    assert file.get("general.languages") == ["en"]
    assert file.get("general.finetune") == "Instruct-yarn4"
    assert file.get("general.base_model.0.name") == "Qwen3 Tiny Instruct"
    assert file.get("general.file_type") == 7
    assert json.loads(file.get("ropeconv.json"))["recipe"]["method"] == "yarn"


def test_who_quantised_it(qwen3: Path, tmp_path: Path) -> None:
    """Read by gguf-py; a second bake of the file keeps it, and `validate` finds every byte as planned."""
    bake(qwen3, YARN, tmp_path / "plain.gguf", outtype="q8_0")
    bake(qwen3, YARN, tmp_path / "named.gguf", outtype="q8_0", quantized_by="me")
    bake(tmp_path / "named.gguf", Recipe(METHODS["yarn"](8.0)), tmp_path / "again.gguf", replace=True)
    fields = [gguf.GGUFReader(tmp_path / f"{name}.gguf").fields for name in ("plain", "named", "again")]
    named = [field["general.quantized_by"].contents() for field in fields if "general.quantized_by" in field]
    assert named == ["me", "me"]
    assert verify_output(ropeconv.Comparison.open(tmp_path / "named.gguf", str(qwen3))).files == 1
    receipt = read_receipt(tmp_path / "named.gguf")
    assert commands(receipt)[0].endswith("--outtype q8_0 --quantized-by me")
    with pytest.raises(UsageError, match="--quantized-by has no effect"):
        make_plan(tmp_path / "plain.gguf", YARN, replace=True, quantized_by="me")
    with pytest.raises(UsageError, match="--quantized-by goes with GGUF"):
        make_plan(qwen3, YARN, quantized_by="me")


@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v3", "gemma4_text", "qwen3_next"])
def test_the_size_of_experts_is_counted_as_gguf_py_does(tmp_path: Path, model_type: str) -> None:
    plan = make_plan(checkpoint(model_type, tmp_path / "model"), AS_IS, to="gguf")
    assert isinstance(plan, ExportPlan)
    writer = gguf.GGUFWriter(None, "llama")
    writer.tensors = [
        {one.name: SimpleNamespace(shape=tuple(reversed(one.shape))) for one in plan.exported.tensors}  # type: ignore[dict-item]
    ]
    label = gguf.size_label(*writer.get_total_parameter_count())
    assert plan.exported.description.size_label == label
    assert label.startswith("4x")


def test_shards_and_a_model_around_the_language_model(tmp_path: Path) -> None:
    source = checkpoint("gemma3_text", tmp_path / "gemma3")
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    names = sorted(tensors)
    (source / "model.safetensors").unlink()
    index = {}
    for shard, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{shard}-of-00002.safetensors"
        wrapped = {f"language_model.{name}": tensors[name] for name in part} | {f"vision_tower.{shard}": torch.ones(2)}
        safetensors.torch.save_file(wrapped, source / file, {"format": "pt"})
        index |= dict.fromkeys(wrapped, file)
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
    bake(source, YARN, tmp_path / "out.gguf")
    made = contents(tmp_path / "out.gguf")
    norm = tensors["model.layers.0.self_attn.q_norm.weight"].numpy()
    assert made["blk.0.attn_q_norm.weight"] == (norm + np.float32(1)).tobytes()
    assert len(made) == len([name for name in names if name != "lm_head.weight"])


@pytest.mark.parametrize(
    ("model_type", "changes", "words"),
    [
        ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob = False"),
        ("gemma2", {"query_pre_attn_scalar": 32}, "query_pre_attn_scalar = 32"),
        ("gemma2", {"tie_word_embeddings": False}, "tie_word_embeddings = false"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm = True"),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 1]}, "no_rope_layers"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers = \\[0\\]"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("gemma2", {"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
        ("gpt_neox", {"hidden_act": "relu"}, "hidden_act = 'relu'"),
        (
            "exaone4",
            {"sliding_window": 32, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
            "windows there in models of 64 layers alone",
        ),
        ("persimmon", {}, "llama.cpp has no such architecture any more; keep safetensors"),
        ("phimoe", {}, "SparseMixer"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    tmp_path: Path, model_type: str, changes: dict[str, object], words: str
) -> None:
    source = checkpoint(model_type, tmp_path / "source", **changes)
    with pytest.raises(UnsupportedBake, match=words):
        bake(source, YARN, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_what_is_not_a_float_or_has_no_name_is_refused(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    extra = {"model.layers.0.self_attn.q_proj.qweight": torch.zeros(8, 8, dtype=torch.int32)}
    safetensors.torch.save_file({**tensors, **extra}, source / "model.safetensors")
    with pytest.raises(UnsupportedBake, match="in I32"):
        bake(source, YARN, tmp_path / "out.gguf")
    safetensors.torch.save_file(
        {**tensors, "model.layers.0.surprise.weight": torch.ones(4)}, source / "model.safetensors"
    )
    with pytest.raises(BadSource, match="model.layers.0.surprise.weight has no name"):
        bake(source, YARN, tmp_path / "out.gguf")
    with pytest.raises(UsageError, match="--outtype q9 is not known"):
        bake(source, YARN, tmp_path / "out.gguf", outtype="q9")
    with pytest.raises(BadSource, match="no safetensors weights"):
        bake_config_alone(source, tmp_path)


def bake_config_alone(source: Path, folder: Path) -> None:
    """A folder with everything but the weights."""
    (source / "model.safetensors").unlink()
    bake(source, YARN, folder / "out.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("outtype", ["q4_k_m", "q6_k"])
def test_k_quants_are_llama_cpps_own_and_keep_the_schedule(tmp_path: Path, outtype: str) -> None:
    """Blocks of 256 need wider rows than the other tiny models have."""
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    source = checkpoint("qwen2", tmp_path / "wide", **wide)
    mixed = Recipe(METHODS["mixed"](4.0))
    plan = bake(source, mixed, tmp_path / "out.gguf", outtype=outtype)
    file = GgufFile.open(tmp_path / "out.gguf")
    assert file.tensors["blk.0.ffn_gate.weight"].type == (12 if outtype == "q4_k_m" else 14)
    assert file.tensors["rope_freqs.weight"].type == 0
    assert json.loads(file.get("ropeconv.json"))["encoding"] == "carrier"
    assert plan.bytes > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "wide"]
    patched = tmp_path / "patched.gguf"
    bake(tmp_path / "out.gguf", Recipe(METHODS["yarn"](8.0)), patched, replace=True)
    bake(source, Recipe(METHODS["yarn"](8.0)), tmp_path / "fresh.gguf", outtype=outtype)
    assert GgufFile.open(patched).get("general.architecture") == "qwen2"
    assert contents(patched) == contents(tmp_path / "fresh.gguf")


def test_a_soft_cap_that_is_switched_off_and_a_missing_epsilon(tmp_path: Path) -> None:
    source = checkpoint("gemma2", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "attn_logit_softcapping": None}))
    with pytest.raises(UnsupportedBake, match="attn_logit_softcapping = null"):
        bake(source, YARN, tmp_path / "out.gguf")
    del config["rms_norm_eps"]
    (source / "config.json").write_text(json.dumps(config))
    bake(source, YARN, tmp_path / "out.gguf")
    assert GgufFile.open(tmp_path / "out.gguf").get("gemma2.attention.layer_norm_rms_epsilon") == pytest.approx(1e-6)
