"""What encodings write, key by key, and how weights are multiplied, element by element, against numpy and torch."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ropeconv.encode import EncodeRequest, Target, all_encodings
from ropeconv.encode.checkpoint.config_edit import put
from ropeconv.encode.fold import arithmetic
from ropeconv.encode.fold.arithmetic import scale_ranges, scaled
from ropeconv.encode.fold.placement import Fold, Scaling
from ropeconv.encode.fold.shards import dtype_notes, folded_shards, grown_index
from ropeconv.encode.fold.widening import copy_widened, widened_size
from ropeconv.encode.result import EncodeResult, refuse_approximate, refuse_attention_factor, with_deviation
from ropeconv.encode.target import FoldTarget, GgufTarget
from ropeconv.errors import UnsupportedBake, UsageError
from ropeconv.families import by_model_type
from ropeconv.formats.safetensors import read_header
from ropeconv.rope.forms import Form, Interpolated, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.log_n import LogN
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.verdict import Verdict
from ropeconv.sources.folder import FolderSource

CONFIG = {"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
          "max_position_embeddings": 64, "rope_theta": 10000.0, "other": 1}  # fmt: skip


def written(schedule: Schedule, encoding: str = "native", of: str = "llama", **config: Any) -> dict[str, Any]:
    whole, family = {**CONFIG, "model_type": of, **config}, by_model_type()[of]
    request = EncodeRequest(schedule, read_spec(whole, family), family, whole, Target())
    return all_encodings()[encoding].encode(request).config


def of_form(form: Form, factor: float = 1.0, **more: Any) -> Schedule:
    return Schedule(form.inv_freq(8), factor, 256, 64, form, **more)


FORMULA = 0.1 * math.log(4) + 1


# Configs


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (of_form(Interpolated(10000.0, 4.0)), {"rope_type": "linear", "factor": 4.0}),
        (of_form(Llama3(10000.0, 4.0, 64, 1.5, 5.0)), {
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0,
            "original_max_position_embeddings": 64}),
        (of_form(Yarn(10000.0, 4.0, 64), FORMULA), {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
            "beta_slow": 1.0, "attention_factor": FORMULA}),
        (of_form(Yarn(10000.0, 4.0, 64, 16.0, 2.0, False), FORMULA), {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
            "beta_slow": 2.0, "attention_factor": FORMULA, "truncate": False}),
        (of_form(Yarn(10000.0, 4.0, 64), 1.2), {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
            "beta_slow": 1.0, "attention_factor": 1.2, "mscale_all_dim": 1.0,
            "mscale": pytest.approx((1.2 * FORMULA - 1) / (0.1 * math.log(4)))}),
    ],
)  # fmt: skip
def test_a_rope_type_has_the_numbers_of_its_form_in_both_schemas(schedule: Schedule, expected: dict[str, Any]) -> None:
    config = written(schedule)
    assert config["rope_scaling"] == {**expected, "type": expected["rope_type"]}
    assert config["rope_parameters"] == {**expected, "rope_theta": 10000.0}
    assert (config["max_position_embeddings"], config["rope_theta"], config["other"]) == (256, 10000.0, 1)


def test_another_base_needs_no_scaling() -> None:
    config = written(of_form(Plain(500.0)))
    assert (config["rope_theta"], config["rope_scaling"]) == (500.0, None)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 500.0}


def test_keys_keep_their_order_and_new_ones_stand_beside_what_they_belong_to() -> None:
    config = written(of_form(Interpolated(10000.0, 4.0)))
    assert list(config) == [
        "model_type", "hidden_size", "head_dim", "num_attention_heads", "num_hidden_layers", "max_position_embeddings",
        "rope_theta", "rope_scaling", "rope_parameters", "other",
    ]  # fmt: skip
    part = {"a": 1, "b": 2}
    put(part, "c", 3, after="a")
    put(part, "d", 4, after="absent")
    put(part, "b", 5, after="a")
    assert list(part.items()) == [("a", 1), ("c", 3), ("b", 5), ("d", 4)]


def test_a_stale_original_length_at_the_top_is_replaced() -> None:
    yarn = written(of_form(Yarn(10000.0, 4.0, 64), FORMULA), original_max_position_embeddings=7)
    assert yarn["original_max_position_embeddings"] == 64
    assert written(of_form(Plain(500.0)), original_max_position_embeddings=7)["original_max_position_embeddings"] == 256
    assert "original_max_position_embeddings" not in written(of_form(Plain(500.0)))


@pytest.mark.parametrize("form", [Interpolated(10000.0, 4.0), Llama3(10000.0, 4.0, 64), Plain(500.0)])
def test_types_without_a_key_for_the_attention_factor(form: Form) -> None:
    with pytest.raises(UnsupportedBake, match="it has no such key"):
        written(of_form(form, 1.1))
    assert written(of_form(form, 1 + 1e-12))


def test_two_lists_as_longrope() -> None:
    form = LongRope(10000.0, (1.0, 1.0, 1.5, 2.0), (1.0, 2.0, 3.0, 4.0), 64)
    usual = math.sqrt(1 + math.log(4) / math.log(64))
    rope = written(of_form(form, usual, short_inv_freq=form.short_inv_freq(8)))["rope_scaling"]
    assert rope == {
        "rope_type": "longrope", "type": "longrope", "short_factor": [1.0, 1.0, 1.5, 2.0],
        "long_factor": [1.0, 2.0, 3.0, 4.0], "factor": 4.0, "attention_factor": usual,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    own = written(of_form(form, 1.3, short_inv_freq=form.short_inv_freq(8)))
    assert (own["rope_scaling"]["short_mscale"], own["rope_scaling"]["long_mscale"]) == (1.3, 1.3)
    assert own["original_max_position_embeddings"] == 64


def test_any_frequencies_as_two_equal_lists() -> None:
    inv_freq = np.array([1.0, 0.05, 0.004, 0.0003])
    schedule = Schedule(inv_freq, 1.2, 256, 64)
    rope = written(schedule, "factors")["rope_scaling"]
    np.testing.assert_allclose(1 / (np.array(rope["long_factor"]) * [1, 10, 100, 1000]), inv_freq, rtol=2e-7)
    assert rope["short_factor"] == rope["long_factor"]
    assert (rope["factor"], rope["attention_factor"], rope["original_max_position_embeddings"]) == (1.0, 1.2, 256)
    assert (rope["short_mscale"], rope["long_mscale"]) == (1.2, 1.2)
    plain = written(replace(schedule, attention_factor=1.0), "factors")["rope_scaling"]
    assert "short_mscale" not in plain
    assert plain["attention_factor"] == 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"short_inv_freq": np.ones(4)}, "it holds one list"), ({"softmax_scale": 1.5}, "only yarn carries"),
        ({"inv_freq": np.array([1.0, 0.0, 0.1, 0.0])}, "2 of 4 frequencies that are 0"),
    ],
)  # fmt: skip
def test_what_two_equal_lists_cannot_hold(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedBake) as refusal:
        written(replace(Schedule(np.array([1.0, 0.1, 0.01, 0.001]), 1.0, 256, 64), **change), "factors")
    assert words in str(refusal.value)


# Arithmetic on weights


DTYPES = {"F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16}


def stored(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_multiplied_in_float32_and_rounded_to_even(dtype: str, plus_one: bool) -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DTYPES[dtype])
    wide = values.to(torch.float64 if dtype == "F64" else torch.float32)
    expected = ((wide + 1) * 1.1 - 1 if plus_one else wide * 1.1).to(DTYPES[dtype])
    before = stored(values).copy()
    np.testing.assert_array_equal(scaled(stored(values), dtype, 1.1, plus_one), stored(expected))
    np.testing.assert_array_equal(stored(values), before)


def test_bfloat16_rounds_ties_to_even_and_keeps_what_is_no_number() -> None:
    bits = np.array([0x3F80, 0x3F81, 0x7F80, 0xFF80, 0x7FC1, 0x7F7F, 0x0001], np.uint16)
    found = scaled(bits, "BF16", 1 + 2.0**-8)  # 1 + 2^-8 is in the middle of 1 and 1 + 2^-7
    values = torch.tensor(bits.astype(np.int32)).to(torch.uint16).view(torch.bfloat16)
    expected = (values.float() * (1 + 2.0**-8)).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(np.delete(found, 4), np.delete(expected, 4))
    assert found[0] == 0x3F80
    assert found[4] == 0x7FC0


@pytest.mark.parametrize("piece", [3, 1 << 17])
def test_ranges_of_a_file_are_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(arithmetic, "PIECE", piece)
    tensors = {"a": torch.arange(20.0), "b": torch.arange(12.0).bfloat16(), "c": torch.ones(3)}
    save_file(tensors, tmp_path / "x")
    spans = ((2, 7), (10, 11))
    scale_ranges(tmp_path / "x", [("a", spans, 3.0, False), ("b", ((0, 12),), 2.0, True), ("a", ((3, 4),), 2.0, False)])
    expected = tensors["a"].clone()
    expected[2:7] *= 3
    expected[10:11] *= 3
    expected[3:4] *= 2
    found = load_file(tmp_path / "x")
    assert torch.equal(found["a"], expected)
    assert torch.equal(found["b"], (2 * (tensors["b"].float() + 1) - 1).bfloat16())
    assert torch.equal(found["c"], tensors["c"])


def test_norms_are_widened_and_everything_else_is_copied(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(5, 4).half(), "b": torch.randn(7).bfloat16(), "c": torch.randn(3).half(),
               "d": torch.arange(4), "e": torch.randn(2).half()}  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    done: list[int] = []
    copy_widened(FolderSource(tmp_path), "model.safetensors", tmp_path / "y", {"b", "c"}, done.append)
    found = load_file(tmp_path / "y")
    for name, tensor in tensors.items():
        wanted = tensor.float() if name in ("b", "c") else tensor
        assert found[name].dtype == wanted.dtype
        assert torch.equal(found[name], wanted)
    size = (tmp_path / "y").stat().st_size
    assert sum(done) == size == widened_size(read_header(tmp_path / "model.safetensors"), {"b", "c"})
    assert read_header(tmp_path / "y").metadata == {"format": "pt"}


def test_shards_and_indexes_of_a_fold(tmp_path: Path) -> None:
    save_file({"q": torch.ones(4, 2).half(), "n": torch.ones(4).half()}, tmp_path / "1.safetensors")
    save_file({"k": torch.ones(4, 2).half()}, tmp_path / "2.safetensors")
    weight_map = {"q": "1.safetensors", "n": "1.safetensors", "k": "2.safetensors"}
    index = json.dumps({"metadata": {"total_size": 40}, "weight_map": weight_map})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    source = FolderSource(tmp_path)
    norm = Fold("k", (Scaling("n", ((0, 4),), 3.0),), 0.0)
    assert folded_shards(source, None, "stored") == []
    (shard,) = folded_shards(source, norm, "stored")
    assert (shard.name, shard.size) == ("1.safetensors", (tmp_path / "1.safetensors").stat().st_size)
    (wide,) = folded_shards(source, norm, "f32")
    for made, dtype in ((shard, torch.float16), (wide, torch.float32)):
        done: list[int] = []
        made.write(tmp_path / "out", done.append)
        assert (tmp_path / "out").stat().st_size == made.size == sum(done)
        found = load_file(tmp_path / "out")
        assert torch.equal(found["n"], torch.full((4,), 3.0, dtype=dtype))
        assert torch.equal(found["q"], torch.ones(4, 2).half())
    assert grown_index(source, norm, "stored") == grown_index(source, None, "f32") == {}
    assert json.loads(grown_index(source, norm, "f32")["model.safetensors.index.json"])["metadata"] == {
        "total_size": 48
    }
    with pytest.raises(UnsupportedBake, match="it is a matrix"):
        folded_shards(source, Fold("k", (Scaling("k", ((0, 8),), 3.0),), 0.0), "f32")
    assert dtype_notes("stored") == ()
    assert "float32" in dtype_notes("f32")[0]
    both = Fold("qk", (Scaling("q", (), 1.0), Scaling("n", (), 1.0), Scaling("q", (), 2.0)), 0.0)
    assert both.tensors == ("n", "q")


# Results and targets


def verdict(status: Any, reason: str = "") -> Verdict:
    return Verdict("made@1", "Made 1", status, reason, "here")


def test_an_approximation_makes_a_verdict_approximate() -> None:
    assert with_deviation(verdict("exact", "why"), 0.02) == verdict(
        "approximate", "log-n in steps, up to 2.0% off; why"
    )
    assert with_deviation(verdict("rounded"), 0.02).status == "approximate"
    assert with_deviation(verdict("exact"), 1e-3).status == "exact"
    assert with_deviation(verdict("differs"), 0.02).status == "differs"
    schedule = replace(of_form(Plain(500.0)), log_n=LogN("full", 64))
    refuse_approximate(EncodeResult("made", (), deviation=1e-3), schedule, "stop")
    with pytest.raises(UnsupportedBake, match="log-n full.*within 2.0%.*or stop"):
        refuse_approximate(EncodeResult("made", (), deviation=0.02), schedule, "stop")


def test_how_many_runtimes_are_exact() -> None:
    statuses = ("exact", "exact", "differs", "unknown", "unsupported", "rounded")
    result = EncodeResult("made", tuple(map(verdict, statuses)))
    assert (result.exact_count(), result.exact_share) == (2, "exact in 2 of 4 runtimes")


def test_norms_behind_the_rotation_cancel_a_factor() -> None:
    refuse_attention_factor(of_form(Plain(500.0)), by_model_type()["llama"])
    with pytest.raises(UnsupportedBake, match=r"attention_factor 1.1.*cancels any attention factor"):
        refuse_attention_factor(of_form(Plain(500.0), 1.1), by_model_type()["llama"])


YARN, LOG_N = Recipe(REGISTRY["yarn"](4.0)), Recipe(REGISTRY["yarn"](4.0), log_n="full")
AS_IS, ON_TOP = Recipe(REGISTRY["as-is"]()), Recipe(REGISTRY["yarn"](4.0), on_top=True)


@pytest.mark.parametrize(
    ("options", "recipe", "from_gguf"),
    [
        ({}, YARN, False), ({}, YARN, True), ({"to": "gguf", "out": "x.gguf"}, YARN, False),
        ({"out": "x"}, YARN, False),
        ({"replace": True}, YARN, False), ({"allow_approximate": True}, LOG_N, False), ({"in_place": True}, YARN, True),
        ({"to": "gguf", "gguf": GgufTarget("q8_0", "x", "llama")}, YARN, False), ({"all_files": True}, YARN, False),
        ({"gguf": GgufTarget(carrier="llama"), "encoding": "carrier"}, YARN, True), ({"encoding": "keys"}, YARN, True),
        ({"fold": FoldTarget("qk", "f32")}, YARN, False), ({"runtimes": ("llama.cpp",)}, YARN, True),
        ({"runtimes": ("vllm",)}, YARN, False), ({"to": "gguf"}, YARN, True), ({"out": "x.gguf"}, YARN, True),
        ({"in_place": True, "allow_hard_links": True}, YARN, True), ({"encoding": "keys"}, LOG_N, False),
        ({"runtimes": ("gguf", "ollama@0.30", "lm-studio")}, YARN, True),
    ],
)  # fmt: skip
def test_options_that_go_together(options: dict[str, Any], recipe: Recipe, from_gguf: bool) -> None:
    Target(**options).check(recipe, from_gguf)


@pytest.mark.parametrize(
    ("options", "recipe", "from_gguf", "words"),
    [
        ({"replace": True}, AS_IS, False, "--as-is keeps"), ({"replace": True}, ON_TOP, False, "--on-top keeps"),
        ({"allow_approximate": True}, YARN, False, "goes with --log-n"), ({"to": "onnx"}, YARN, False, "--to onnx"),
        ({"fold": FoldTarget("v")}, YARN, False, "--fold-into v"),
        ({"fold": FoldTarget(None, "f8")}, YARN, False, "f8"),
        ({"runtimes": "vllm"}, YARN, False, "a tuple of names"),
        ({"in_place": True}, YARN, False, "give one as SOURCE"),
        ({"in_place": True, "out": "x.gguf"}, YARN, True, "leave -o out"),
        ({"out": "x"}, YARN, True, "end its name"),
        ({"out": "x.gguf"}, YARN, False, "add --to gguf"),
        ({"gguf": GgufTarget("q8_0")}, YARN, True, "--outtype has no"),
        ({"gguf": GgufTarget(pre="x")}, YARN, True, "--pre has no"),
        ({"runtimes": ("vllm",)}, YARN, True, "llama.cpp does"),
        ({"fold": FoldTarget("q")}, YARN, True, "leave them out"), ({"all_files": True}, YARN, True, "leave it out"),
        ({"fold": FoldTarget(None, "f32")}, YARN, True, "leave them out"),
        ({"gguf": GgufTarget(carrier="llama"), "encoding": "keys"}, YARN, True, "leave one out"),
        ({"encoding": "keys"}, LOG_N, True, "needs a rope tensor"),
        ({"gguf": GgufTarget("q8_0")}, YARN, False, "--to gguf"),
        ({"gguf": GgufTarget(carrier="llama")}, YARN, False, "--carrier goes with GGUF"),
        ({"runtimes": ("ollama",)}, YARN, False, "reads GGUF"),
        ({"allow_hard_links": True}, YARN, True, "goes with --in-place"),
        ({"gguf": GgufTarget(pre="x")}, YARN, False, "--pre goes with GGUF"),
        ({"runtimes": ("vllm", "ik-llama-cpp@2026.8")}, YARN, False, "--runtime ik-llama-cpp@2026.8 reads GGUF"),
        ({"to": "gguf", "runtimes": ("gguf", "vllm")}, YARN, False, "--runtime vllm does not read GGUF"),
    ],
)  # fmt: skip
def test_options_that_do_not(options: dict[str, Any], recipe: Recipe, from_gguf: bool, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Target(**options).check(recipe, from_gguf)


def test_options_of_folding_want_a_fold() -> None:
    Target().check_folded(False)
    Target(fold=FoldTarget("q", "f32")).check_folded(True)
    for fold in (FoldTarget("q"), FoldTarget(None, "f32")):
        with pytest.raises(UsageError, match="goes with folded weights"):
            Target(fold=fold).check_folded(False)
