"""Exported files: bytes of every type, names and metadata."""

import json
import shutil
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch

import ropeconv
from ropeconv.convert.to_gguf import tensors
from ropeconv.convert.to_gguf.demands import demands, general_name
from ropeconv.convert.to_gguf.write import _q8_0, encode
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.errors import UsageError
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.inspection.receipts.storage import commands, read_receipt
from ropeconv.models.registry import by_model_type
from ropeconv.rope.errors import RopeconvError

from ...support.baking import YARN, apply, make_plan, recipe_of, stored_as
from ...support.corruptions import verified
from ...support.extent import sample
from ...support.gguf_files import contents
from ...support.hub_server import serving, talk_to
from ...support.llamacpp import EXPORTED, bake, checkpoint, sequence
from ...support.models import in_two_files
from .stock_converter import in_bfloat16

WIDER = recipe_of("yarn", 8.0)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In bfloat16, as published, with weights of usual size."""
    folder = checkpoint(
        "qwen3", tmp_path_factory.mktemp("export") / "Qwen3-Tiny-Instruct", initializer_range=0.02
    )
    stored_as(folder, "bfloat16")
    return folder


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0", "auto"])
def test_bytes_are_those_of_the_reference_quantisers(
    qwen3: Path, tmp_path: Path, outtype: str
) -> None:
    bake(qwen3, YARN, tmp_path / "out.gguf", outtype=outtype)
    kind = gguf.GGMLQuantizationType["BF16" if outtype == "auto" else outtype.upper()]
    source = safetensors.torch.load_file(qwen3 / "model.safetensors")
    exported = contents(tmp_path / "out.gguf")
    assert GgufFile.open(tmp_path / "out.gguf").tensors["blk.0.attn_q.weight"].type == kind
    for ours, theirs in (
        ("blk.0.ffn_gate", "layers.0.mlp.gate_proj"),
        ("token_embd", "embed_tokens"),
    ):
        weight = source[f"model.{theirs}.weight"].float().numpy()
        assert exported[f"{ours}.weight"] == gguf.quants.quantize(weight, kind).tobytes()
    norm = source["model.layers.1.self_attn.q_norm.weight"].float().numpy()
    assert exported["blk.1.attn_q_norm.weight"] == norm.tobytes()
    assert len(exported) == len(source)


def test_q8_0_of_awkward_numbers() -> None:
    """Ties, zeros, subnormals, huge and tiny blocks, infinity: byte for byte as gguf-py's."""
    generator = np.random.default_rng(0)
    usual = [generator.standard_normal((64, 32)) * 10.0**power for power in range(-34, 30, 2)]
    ties = np.tile(np.arange(-15.5, 16.5, 1.0), (4, 1)) * np.array([[1], [2], [0.5], [0.25]])
    full = np.zeros((2, 32))
    full[1, 3] = 127
    halves = np.concatenate([[127.0], np.arange(-15, 16) + 0.5])[None]
    left_to_gguf = [
        full * 4e-39,
        full * 1e-40,
        np.where(full, np.nan, 1),
        np.where(full, np.inf, 1),
    ]
    kind = gguf.GGMLQuantizationType.Q8_0
    with np.errstate(all="ignore"):
        for numbers in (*usual, ties, full, halves, *left_to_gguf):
            values = numbers.astype(np.float32)
            assert encode(values, kind).tobytes() == gguf.quants.quantize(values, kind).tobytes()
        assert [_q8_0(numbers.astype(np.float32)) for numbers in left_to_gguf] == [None] * 4


def test_the_name_and_the_description(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention"""
    source = shutil.copytree(qwen3, tmp_path / qwen3.name)
    (source / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en]\n---\n# Tiny\n")
    monkeypatch.chdir(tmp_path)
    plan = make_plan(source, YARN, to="gguf", outtype="q8_0")
    assert plan.out.name == "Qwen3-Tiny-255K-Instruct-yarn4-Q8_0.gguf"
    bake(source, YARN, tmp_path / "out.gguf", outtype="q8_0")
    file = GgufFile.open(tmp_path / "out.gguf")
    expected = {
        "license": "apache-2.0",
        "languages": ["en"],
        "finetune": "Instruct-yarn4",
        "file_type": 7,
        "base_model.0.name": "Qwen3 Tiny Instruct",
    }
    assert {key: file.get(f"general.{key}") for key in expected} == expected
    assert json.loads(file.get("ropeconv.json"))["recipe"]["method"] == "yarn"


def test_who_quantised_it(qwen3: Path, tmp_path: Path) -> None:
    """Read by gguf-py; a second bake of the file keeps it, and `validate` finds every byte as
    planned.
    """
    plain, named, again = (tmp_path / f"{name}.gguf" for name in ("plain", "named", "again"))
    bake(qwen3, YARN, plain, outtype="q8_0")
    bake(qwen3, YARN, named, outtype="q8_0", quantized_by="me")
    bake(named, WIDER, again, replace=True)
    fields = [
        gguf.GGUFReader(path).fields.get("general.quantized_by") for path in (plain, named, again)
    ]
    assert [field and field.contents() for field in fields] == [None, "me", "me"]
    assert verified(named, qwen3).files == 1
    assert commands(read_receipt(named))[0].endswith("--outtype q8_0 --quantized-by me")
    with pytest.raises(UsageError, match="--quantized-by has no effect"):
        make_plan(plain, YARN, replace=True, quantized_by="me")
    with pytest.raises(UsageError, match="--quantized-by goes with GGUF"):
        make_plan(qwen3, YARN, quantized_by="me")


def test_shards_and_a_model_around_the_language_model(tmp_path: Path) -> None:
    source = checkpoint("gemma3_text", tmp_path / "gemma3")
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    wrapped = {f"language_model.{name}": tensor for name, tensor in tensors.items()} | {
        "vision_tower.0": torch.ones(2)
    }
    safetensors.torch.save_file(wrapped, source / "model.safetensors", {"format": "pt"})
    in_two_files(source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": config}))
    bake(source, YARN, tmp_path / "out.gguf")
    exported = contents(tmp_path / "out.gguf")
    norm = tensors["model.layers.0.self_attn.q_norm.weight"].numpy()
    assert exported["blk.0.attn_q_norm.weight"] == (norm + np.float32(1)).tobytes()
    assert len(exported) == len(tensors.keys() - {"lm_head.weight"})


@pytest.mark.parametrize(("outtype", "kind"), [("q4_k_m", 12), ("q6_k", 14)])
def test_k_quants_are_llama_cpps_own_and_keep_the_schedule(
    tmp_path: Path, outtype: str, kind: int
) -> None:
    """Blocks of 256 need wider rows than the other tiny models have."""
    pytest.importorskip("llama_cpp")
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    source = checkpoint("qwen2", tmp_path / "wide", **wide)
    out = tmp_path / "out.gguf"
    assert bake(source, recipe_of("mixed", 4.0), out, outtype=outtype).bytes > 0
    file = GgufFile.open(out)
    assert (file.tensors["blk.0.ffn_gate.weight"].type, file.tensors["rope_freqs.weight"].type) == (
        kind,
        0,
    )
    assert json.loads(file.get("ropeconv.json"))["encoding"] == "carrier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "wide"]
    patched = tmp_path / "patched.gguf"
    fresh = tmp_path / "fresh.gguf"
    bake(out, WIDER, patched, replace=True)
    bake(source, WIDER, fresh, outtype=outtype)
    assert GgufFile.open(patched).get("general.architecture") == "qwen2"
    assert contents(patched) == contents(fresh)


# Every type of the weights: llama.cpp decodes the file, and its tensors have the types of
# llama.cpp's own converter


RECORDED: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parents[2] / "data" / "converter_types.json").read_text()
)
TYPES = ("f16", "bf16", "q8_0")
OUTTYPES = ("f32", *TYPES, "auto")
# convolutions that llama.cpp reads as F32 alone, shared keys, small factors, transposed and
# alternating rows
KNOWN = [
    ("lfm2", "auto"),
    ("lfm2", "q8_0"),
    ("lfm2_moe", "f16"),
    ("gemma4_text", "auto"),
    ("gemma4_text", "q8_0"),
    ("gemma3n_text", "bf16"),
    ("deepseek_v3", "q8_0"),
    ("gpt_oss", "f16"),
]
OTHERS = [(model_type, outtype) for model_type in EXPORTED for outtype in OUTTYPES]
CASES = sample(KNOWN, 3) + sample([case for case in OTHERS if case not in KNOWN], 2)


def types(path: Path) -> dict[str, str]:
    """The type of each kind of tensor; where layers differ, all of them."""
    type_names: dict[str, set[str]] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        type_names.setdefault(general_name(tensor.name), set()).add(tensor.tensor_type.name)
    return {name: "/".join(sorted(kinds)) for name, kinds in sorted(type_names.items())}


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
    tensor_types = types(tmp_path / "out.gguf")
    if outtype == "f32":
        assert set(tensor_types.values()) == {"F32"}
    else:
        assert tensor_types == recorded(model_type, outtype)
    assert np.isfinite(
        LlamaCppEngine(tmp_path / "out.gguf").logits(sequence(64), list(range(64)))
    ).all()


def test_every_exported_model_type_is_recorded_and_what_stays_in_f32_is_stated() -> None:
    """The data of the package, from the converter's source, says the same as its files."""
    assert set(RECORDED) == set(EXPORTED)
    for model_type, kinds in RECORDED.items():
        rules = by_model_type()[model_type].gguf
        assert rules is not None
        stated = set(demands()[rules.arch].float32) & kinds.keys()
        assert {kinds[name] for name in stated} <= {"F32 F32 F32"}, model_type
    assert set(demands()["lfm2moe"].float32) == {
        "blk.{}.ffn_gate_inp.weight",
        "blk.{}.shortconv.conv.weight",
    }


def test_what_llama_cpp_does_not_decode_never_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the data, the convolutions have the type of the others: llama.cpp loads that, and its
    process aborts.
    """
    pytest.importorskip("llama_cpp")
    source, _ = in_bfloat16("lfm2", tmp_path / "source")
    without = {
        arch: msgspec.structs.replace(demand, float32=()) for arch, demand in demands().items()
    }
    monkeypatch.setattr(tensors, "demands", lambda: without)
    plan = make_plan(source, recipe_of("yarn", 4.0), tmp_path / "out.gguf", to="gguf")
    with pytest.raises(
        RopeconvError, match=r"cannot run .*ASSERT\(src1->nb\[0\] == .*kept"
    ) as problem:
        ropeconv.apply(plan)
    assert problem.value.exit_code == 1
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["source"]
    monkeypatch.undo()
    done = ropeconv.apply(
        make_plan(source, recipe_of("yarn", 4.0), tmp_path / "out.gguf", to="gguf")
    )
    assert done.reason == ""
    assert done.path.exists()


def test_only_headers_are_fetched_until_a_conversion_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkpoint("llama", tmp_path / "model")
    options = {"to": "gguf", "outtype": "q8_0"}
    with serving() as hub:
        hub.repos["them/llama"] = model
        talk_to(hub, tmp_path / "home" / "hub", monkeypatch)
        plan = make_plan("them/llama", YARN, tmp_path / "hub.gguf", **options)
        assert (
            0
            < hub.sent["model.safetensors"]
            <= 1 << 17
            < 1 << 18
            < (model / "model.safetensors").stat().st_size
        )
        apply(plan)
        assert hub.sent["model.safetensors"] >= (model / "model.safetensors").stat().st_size
    assert contents(tmp_path / "hub.gguf") == contents(
        apply(make_plan(model, YARN, tmp_path / "disk.gguf", **options))
    )
