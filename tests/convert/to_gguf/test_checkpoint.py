"""GGUF to safetensors: what comes back is what was converted, as gguf-py, safetensors and
transformers see it.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from transformers import AutoConfig

from ropeconv.convert.to_gguf.conversions import names_in, solve, value_of
from ropeconv.engines.transformers.load import load_stock
from ropeconv.errors import BadSource, UnsupportedBake, UsageError
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import string, u32
from ropeconv.models.registry import by_model_type
from ropeconv.rope.errors import RopeconvError

from ...conftest import hashes
from ...support.baking import AS_IS, YARN, apply, make_plan, recipe_of, stored_as
from ...support.corruptions import data, edit, verified
from ...support.extent import sample
from ...support.gguf_files import write
from ...support.in_process import command
from ...support.llamacpp import EXPORTED, bake, checkpoint, sequence
from ...support.models import TINY

FLOATS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
ROUNDED = dict.fromkeys(("gemma", "gemma2", "gemma3_text", "nemotron"), ("norm",))
ROUNDED |= dict.fromkeys(("qwen3_5_text", "qwen3_next"), ("norm", "A_log"))
"""Families whose norms are stored as weight + 1, which rounds them to steps of 2^-23, and A_log as
-exp(A_log).
"""


BACK = [name for name in EXPORTED if (rules := by_model_type()[name].gguf) and rules.config]
KNOWN = [("llama", "f16"), ("gemma3_text", "f32")]
CASES = KNOWN + sample([(name, outtype) for name in BACK for outtype in FLOATS], 3, seed=2)


def restored(path: Path, out: Path, **options: object) -> Path:
    return apply(make_plan(path, AS_IS, out, to="safetensors", **options))


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return load_stock(folder, "cpu")(
            input_ids=torch.tensor([sequence(96)]), use_cache=False
        ).logits


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A converted Llama, beside its `source`."""
    bake(checkpoint("llama", tmp_path / "source"), AS_IS, tmp_path / "plain.gguf")
    return tmp_path / "plain.gguf"


def edited(path: Path, edit: Edit) -> Path:
    out = path.with_name("edited.gguf")
    out.unlink(missing_ok=True)
    write_new(GgufFile.open(path), 0, edit, out)
    return out


@pytest.mark.parametrize(("model_type", "outtype"), dict.fromkeys(CASES))
def test_tensors_and_logits_come_back(model_type: str, outtype: str, tmp_path: Path) -> None:
    """Every tensor under its own name, byte for byte, and a config with which transformers computes
    the same.
    """
    source = checkpoint(model_type, tmp_path / "source")
    before = stored_as(source, FLOATS[outtype])
    bake(source, AS_IS, tmp_path / "model.gguf", outtype=outtype)
    back = restored(tmp_path / "model.gguf", tmp_path / "back")
    after = safetensors.torch.load_file(back / "model.safetensors")
    tied = (
        {"lm_head.weight"}
        if json.loads((source / "config.json").read_text())["tie_word_embeddings"]
        else set()
    )
    assert after.keys() == before.keys() - tied
    for name, tensor in after.items():
        if outtype != "bf16" and any(part in name for part in ROUNDED.get(model_type, ())):
            np.testing.assert_allclose(tensor, before[name], rtol=0, atol=2**-22)
        else:
            assert tensor.dtype == before[name].dtype, name
            assert torch.equal(tensor, before[name]), name
    reference = logits(source)
    other = logits(back)
    assert (reference - other).abs().max() <= (1e-3 if model_type in ROUNDED else 0)


VARIANTS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        "q_lora_rank": None
    },  # as DeepSeek V2 Lite; keys and values come from two stacks
    "falcon": {
        "new_decoder_architecture": False,
        "num_kv_heads": 1,
        "num_attention_heads": 2,
    },  # as Falcon 7B
    "gpt_oss": {},  # experts from two stacks, transposed, whose rows were alternating columns
    "qwen3_next": {},  # queries, keys, values and gates of linear attention by head
    "apertus": {},  # numbers of layers from metadata keys
}


@pytest.mark.parametrize("model_type", sample(list(VARIANTS), 2))
def test_what_is_no_row_of_one_tensor_comes_back(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte in bfloat16, with a config with which transformers computes the same."""
    null = tuple(name for name, value in VARIANTS[model_type].items() if value is None)
    monkeypatch.setitem(TINY, model_type, msgspec.structs.replace(TINY[model_type], null=null))
    source = checkpoint(model_type, tmp_path / "source", **VARIANTS[model_type])
    before = stored_as(source, "bfloat16")
    bake(source, AS_IS, tmp_path / "model.gguf", outtype="bf16")
    back = restored(tmp_path / "model.gguf", tmp_path / "back")
    after = safetensors.torch.load_file(back / "model.safetensors")
    assert after.keys() == before.keys()
    assert not [name for name in after if not torch.equal(after[name], before[name])]
    torch.testing.assert_close(logits(source), logits(back), rtol=0, atol=1e-4)


@pytest.mark.parametrize("outtype", ["q8_0", "q4_k_m"])
def test_quantised_weights_are_those_of_the_reference_dequantiser(
    outtype: str, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    source = checkpoint(
        "qwen2", tmp_path / "source", hidden_size=256, num_attention_heads=4, intermediate_size=256
    )
    bake(source, AS_IS, tmp_path / "model.gguf", outtype=outtype)
    plan = make_plan(tmp_path / "model.gguf", AS_IS, tmp_path / "back", to="safetensors")
    precise = (
        f"the weights have the precision of {outtype[:4].upper()}, and not that of the original"
        " checkpoint; float32"
    )
    assert any(warning.startswith(precise) for warning in plan.warnings)
    after = safetensors.torch.load_file(apply(plan) / "model.safetensors")
    planned = next(file.size for file in plan.files if file.name == "tokenizer.json")
    assert 0.2 < planned / (tmp_path / "back" / "tokenizer.json").stat().st_size < 5
    gguf_tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    for name, ours in (
        ("blk.1.ffn_down", "1.mlp.down_proj"),
        ("blk.0.attn_v", "0.self_attn.v_proj"),
    ):
        stored = gguf_tensors[f"{name}.weight"]
        expected = gguf.quants.dequantize(stored.data, stored.tensor_type)
        assert np.array_equal(after[f"model.layers.{ours}.weight"].numpy(), expected)
    narrow = restored(tmp_path / "model.gguf", tmp_path / "narrow", outtype="bf16")
    rounded = safetensors.torch.load_file(narrow / "model.safetensors")[
        "model.layers.1.mlp.down_proj.weight"
    ]
    assert torch.equal(rounded, after["model.layers.1.mlp.down_proj.weight"].to(torch.bfloat16))
    assert json.loads((narrow / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_large_models_come_back_in_shards(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropeconv.convert.from_gguf import source as module
    from ropeconv.models.folder import in_shards

    monkeypatch.setattr(module, "in_shards", lambda tensors: in_shards(tensors, 300_000))
    back = restored(plain, tmp_path / "back")
    index = json.loads((back / "model.safetensors.index.json").read_text())
    files = {path.name for path in back.glob("*.safetensors")}
    assert len(files) > 2
    assert set(index["weight_map"].values()) == files
    assert torch.equal(logits(tmp_path / "source"), logits(back))


def test_a_method_goes_with_it_and_the_output_is_validated(plain: Path, tmp_path: Path) -> None:
    out = apply(make_plan(plain, YARN, tmp_path / "out", to="safetensors"))
    given = (
        "--against",
        "plain.gguf",
    )
    assert (
        "PASS: matches the reference" in command(tmp_path, "validate", "out", *given, code=0).stdout
    )
    data(lambda content: content.__setitem__(-5, content[-5] ^ 1))(out)
    assert (
        "differs from byte"
        in command(tmp_path, "validate", "out", *given, "--ignore-receipt", code=3).stderr
    )


@pytest.mark.parametrize("encoding", ["buffers", "weights"])
def test_a_method_in_the_weights_goes_with_it_in_one_step(
    encoding: str, plain: Path, tmp_path: Path
) -> None:
    """As in two: the file becomes a checkpoint first, and then its weights change."""
    direct = apply(make_plan(plain, YARN, tmp_path / "one", to="safetensors", encoding=encoding))
    verified(direct, plain)
    between = restored(plain, tmp_path / "between")
    two = apply(make_plan(between, YARN, tmp_path / "two", encoding=encoding))
    actual, expected = (
        {name: sha for name, sha in hashes(folder).items() if name.endswith(".safetensors")}
        for folder in (direct, two)
    )
    assert actual == expected
    assert len(actual) == (2 if encoding == "buffers" else 1)
    if encoding == "weights":
        assert hashes(between)["model.safetensors"] not in actual.values()


@pytest.mark.parametrize("method", ["linear", "yarn"])
def test_a_scaled_file_keeps_its_scaling(method: str, tmp_path: Path) -> None:
    bake(checkpoint("llama", tmp_path / "source"), recipe_of(method, 4.0), tmp_path / "scaled.gguf")
    config = json.loads(
        (restored(tmp_path / "scaled.gguf", tmp_path / "back") / "config.json").read_text()
    )
    assert (config["rope_scaling"]["rope_type"], config["rope_scaling"]["factor"]) == (method, 4.0)
    assert config["max_position_embeddings"] == 256


def test_what_is_no_file_as_it_was_converted_is_refused(tmp_path: Path) -> None:
    plain, carrier, ntk = (tmp_path / f"{name}.gguf" for name in ("plain", "carrier", "ntk"))
    bake(checkpoint("qwen2", tmp_path / "source"), AS_IS, plain)
    bake(plain, recipe_of("mixed", 4.0), carrier)
    bake(plain, recipe_of("ntk", 4.0), ntk)
    for path, recipe in ((carrier, AS_IS), (ntk, YARN)):
        with pytest.raises(RopeconvError, match="`ropeconv restore` on it first"):
            make_plan(path, recipe, tmp_path / "back", to="safetensors")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (Edit({"llama.expert_weights_norm": u32(1)}), "llama.expert_weights_norm = 1 cannot"),
        (Edit({"tokenizer.ggml.pre": string("bloom")}), "it is not in the table"),
        (Edit({"llama.block_count": u32(1)}), r"the tensor blk\.1\..* cannot"),
    ],
)
def test_unknown_keys_tokenizers_and_tensors_are_refused(
    edit: Edit, words: str, plain: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedBake, match=words):
        restored(edited(plain, edit), tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("arch", "options", "words"),
    [
        ("mamba2", {}, "mamba2"),
        ("bitnet", {}, "architecture bitnet .*only these are converted back: apertus"),
        ("llama", {"outtype": "q8_0"}, "--outtype q8_0 is not for a checkpoint"),
        ("llama", {"carrier": "mistral3"}, "--carrier goes with GGUF"),
    ],
)
def test_unknown_architectures_and_options_of_gguf_are_refused(
    arch: str, options: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError if options else RopeconvError, match=words):
        make_plan(
            write(tmp_path / "model.gguf", arch),
            AS_IS,
            tmp_path / "back",
            to="safetensors",
            **options,
        )


# What a config.json leaves to its class, and names of keys that changed between versions of
# transformers


@pytest.mark.parametrize("model_type", EXPORTED)
def test_defaults_are_those_of_the_class(model_type: str) -> None:
    """Of every key that becomes metadata, and of every value that llama.cpp assumes."""
    rules = by_model_type()[model_type].gguf
    stock = AutoConfig.for_model(model_type).to_dict()
    assert rules is not None
    texts = [*rules.u32.values(), *rules.f32.values(), *rules.flag.values()]
    read = {name for text in texts for name in names_in(text)} | (
        {rules.act_key} if rules.act else set()
    )
    expected = {name: stock[name] for name in read if stock.get(name) is not None}
    assert {name: rules.defaults.get(name) for name in expected} == expected
    assert not [need.key for need in rules.need if stock.get(need.key) not in (None, need.default)]


def test_expressions_are_solved_for_their_keys() -> None:
    """In any order, as long as one key of a sum or product is left; what contradicts itself is
    refused.
    """
    given = {"a + b": 12, "b * c": 15, "a": 7, "d | e": 4, "f * 2": 6, "g + h": 1}
    solution = solve(given)
    assert solution == {"a": 7, "b": 5, "c": 3, "d": 4, "e": 4, "f": 3}
    assert all(
        value_of(solution, text) == value for text, value in given.items() if text != "g + h"
    )
    with pytest.raises(BadSource, match=r"16 for b \* c"):
        solve({**given, "b * c": 16})


def without(*names: str) -> Callable[[dict[str, Any]], object]:
    return lambda config: [config.pop(name, None) for name in names]


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_the_number_of_experts_has_two_names(tmp_path: Path, key: str) -> None:
    def rename(config: dict[str, Any]) -> None:
        without("num_experts", "num_local_experts")(config)
        config[key] = 4

    edit(source := checkpoint("qwen3_moe", tmp_path / "source"), "config.json", rename)
    bake(source, AS_IS, tmp_path / "model.gguf")
    file = GgufFile.open(tmp_path / "model.gguf")
    assert file.get("qwen3moe.expert_count") == 4
    share = [
        math.prod(info.shape) // (4 if "_exps." in name else 1)
        for name, info in file.tensors.items()
    ]
    assert file.get("general.size_label") == f"4x{round(sum(share) / 1000)}K"


def test_a_copy_has_the_base_models_of_its_source(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "source")
    (source / "README.md").write_text("---\nbase_model: meta-llama/Llama-3.2-1B\n---\n# A model\n")
    for name, recipe, base in (
        ("copy", AS_IS, "Llama 3.2 1B"),
        ("longer", recipe_of("yarn", 4.0), "Source"),
    ):
        bake(source, recipe, tmp_path / f"{name}.gguf")
        assert GgufFile.open(tmp_path / f"{name}.gguf").get("general.base_model.0.name") == base
