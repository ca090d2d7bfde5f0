"""Ramps of YaRN that llama.cpp computes only approximately: gpt-oss and Kimi K2 as they were
published.
"""

import ctypes
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import UnsupportedBake, UsageError
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32, string, u32
from ropeconv.hub.base_model import BaseModel
from ropeconv.hub.card import card
from ropeconv.hub.upload_set import from_gguf
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.source import RECEIPT
from ropeconv.rope.forms import Plain
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.gguf import validate_gguf

from ...support.baking import AS_IS, apply, inspected, make_plan, recipe_of
from ...support.llamacpp import beyond, checkpoint, of_llamacpp, of_transformers
from ...support.models import TRAINED
from ...support.optional import MISSING, skip

if "llama_cpp" in MISSING:
    skip("llama_cpp")

GPT_OSS: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""https://huggingface.co/openai/gpt-oss-20b/blob/main/config.json"""
KIMI_K2: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 50000.0,
    "factor": 32.0,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
"""https://huggingface.co/moonshotai/Kimi-K2-Instruct/blob/main/config.json"""
ALLOWED = {"to": "gguf", "outtype": "f32", "allow_approximate": True}


def published(folder: Path, model_type: str, rope: dict[str, Any], context: int = 131072) -> Path:
    """A tiny checkpoint with the RoPE of a published one."""
    source = checkpoint(model_type, folder)
    config = json.loads((source / "config.json").read_text())
    config.pop("rope_scaling", None)
    config.pop("rope_theta", None)  # the base is in rope_parameters
    config |= {"rope_parameters": rope, "max_position_embeddings": context}
    (source / "config.json").write_text(json.dumps(config))
    return source


def by_hand(
    rope: dict[str, Any], ends: tuple[float, float], size: int = 64
) -> np.ndarray[Any, Any]:
    """YaRN's frequencies with a ramp between two pairs."""
    base = rope["rope_theta"] ** (-2 * np.arange(size // 2) / size)
    low, high = ends
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
    return np.asarray(base * (1 - ramp) + base / rope["factor"] * ramp)


def ends_in_ggml(
    rope: dict[str, Any], betas: tuple[float, float], size: int = 64
) -> tuple[float, float]:
    """The ends of the ramp that the installed llama.cpp computes."""
    import llama_cpp

    library = next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*"))
    function = ctypes.CDLL(str(library)).ggml_rope_yarn_corr_dims
    number = ctypes.c_float
    function.argtypes = [ctypes.c_int, ctypes.c_int, number, number, number, ctypes.POINTER(number)]
    ends = (number * 2)()
    function(size, rope["original_max_position_embeddings"], rope["rope_theta"], *betas, ends)
    return ends[0], ends[1]


def end(rope: dict[str, Any], beta: float, size: int = 64) -> float:
    length = rope["original_max_position_embeddings"] / (2 * math.pi * beta)
    return size * math.log(length) / (2 * math.log(rope["rope_theta"]))


CASES = {
    "gpt_oss": (GPT_OSS, (end(GPT_OSS, 32.0), end(GPT_OSS, 1.0))),
    "deepseek_v3": (KIMI_K2, (math.floor(end(KIMI_K2, 1.0)), math.ceil(end(KIMI_K2, 1.0)))),
}
"""The RoPE, and the ends of its ramp as transformers computes them."""


@pytest.mark.parametrize("model_type", CASES)
def test_a_ramp_that_llama_cpp_rounds_is_refused_with_its_distance(
    model_type: str, tmp_path: Path
) -> None:
    rope, ends = CASES[model_type]
    right = by_hand(rope, ends)
    computed = by_hand(rope, ends_in_ggml(rope, (32.0, 1.0)))
    source = published(tmp_path / "source", model_type, rope)
    out = tmp_path / "model.gguf"
    with pytest.raises(UnsupportedBake, match="pass --allow-approximate") as refusal:
        make_plan(source, AS_IS, out, to="gguf", outtype="f32")
    turns = np.max(np.abs(computed - right)) * 131072 / math.tau
    assert f"{turns:,.1f} rotations" in str(refusal.value)
    assert not out.exists()

    plan = make_plan(source, AS_IS, out, **ALLOWED)
    ramp = plan.result.ramp
    status = plan.result.verdicts[0].status
    assert ramp is not None
    assert status == "approximate"
    ratio = computed / right
    worst = int(np.argmax(np.abs(np.log(ratio))))
    assert (ramp.pair, ramp.pairs) == (worst, int(np.sum(np.abs(np.log(ratio)) > 1e-6)))
    assert ramp.ratio == pytest.approx(ratio[worst], rel=1e-6)
    assert ramp.turns == pytest.approx(turns, rel=1e-6)
    np.testing.assert_allclose(ramp.inv_freq, computed, rtol=1e-6)


@pytest.mark.parametrize("model_type", CASES)
def test_what_is_written_is_told_everywhere(model_type: str, tmp_path: Path) -> None:
    rope, _ = CASES[model_type]
    source = published(tmp_path / "source", model_type, rope)
    out = tmp_path / "model.gguf"
    plan = make_plan(source, AS_IS, out, **ALLOWED)
    apply(plan)
    assert plan.result.ramp is not None
    distance = plan.result.ramp.distance
    assert any(distance in warning for warning in plan.warnings)
    assert plan.to_dict()["ramp_approximation"]["pairs"] == plan.result.ramp.pairs
    receipt = read_receipt(out)
    assert receipt.ramp_approximation is not None
    assert receipt.ramp_approximation == plan.result.ramp
    told = {problem.code: problem.message for problem in inspected(out).problems}
    assert distance in told["approximate"]
    upload = from_gguf(out)
    assert distance in card(upload, "me/model-GGUF", BaseModel(), upload.gguf)


def test_llama_cpp_computes_the_rounded_ramp_and_not_the_own_one(tmp_path: Path) -> None:
    """Against transformers with the ramp rounded in its config: the two share no code."""
    rope = {**GPT_OSS, "original_max_position_embeddings": TRAINED, "rope_theta": 10000.0}
    source = published(tmp_path / "source", "gpt_oss", rope, 32 * TRAINED)
    rounded = published(tmp_path / "rounded", "gpt_oss", {**rope, "truncate": True}, 32 * TRAINED)
    out = tmp_path / "model.gguf"
    apply(make_plan(source, AS_IS, out, **ALLOWED))
    written = of_llamacpp(out)
    right = beyond(of_transformers(rounded, None), written)
    own = beyond(of_transformers(source, None), written)
    for computed, other in zip(right, own, strict=True):
        assert computed.kl_mean < 1e-5
        assert other.kl_mean > 100 * computed.kl_mean


def test_crossed_ends_divide_nothing_in_llama_cpp_and_everything_in_transformers(
    tmp_path: Path,
) -> None:
    """The base is 2, so that each pair rotates more than 32 times in 4,096 tokens."""
    plain = {"rope_type": "default", "rope_theta": 2.0}
    yarn = {**plain, "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0}
    yarn["original_max_position_embeddings"] = 4096
    linear = {**plain, "rope_type": "linear", "factor": 4.0}
    source = published(tmp_path / "source", "llama", plain, 256)
    crossed = published(tmp_path / "crossed", "llama", yarn, 256)
    divided = published(tmp_path / "divided", "llama", linear, 256)

    # the keys of that YaRN in a file; llama.cpp multiplies attn_factor by 1 + 0.1 ln 4
    file = tmp_path / "model.gguf"
    apply(make_plan(source, AS_IS, file, to="gguf", outtype="f32"))
    scaling = "llama.rope.scaling."
    values = {
        f"{scaling}type": string("yarn"),
        f"{scaling}factor": f32(4.0),
        f"{scaling}original_context_length": u32(4096),
        f"{scaling}attn_factor": f32(1 / (1 + 0.1 * math.log(4))),
    }
    with_keys = tmp_path / "keys.gguf"
    write_new(GgufFile.open(file), 0, Edit(values, frozenset({RECEIPT})), with_keys)

    # ropeconv reads of both what the runtimes compute
    assert inspected(with_keys).spec.form == Plain(2.0)
    spec = inspected(crossed).spec
    np.testing.assert_allclose(spec.current().inv_freq, Plain(2.0).inv_freq(spec.rotary_dim) / 4)
    by_llama_cpp = of_llamacpp(with_keys)
    for computed in beyond(of_transformers(source, None), by_llama_cpp):
        assert computed.kl_mean < 1e-5
    for computed in beyond(of_transformers(crossed, None), of_transformers(divided, None)):
        assert computed.kl_mean < 1e-5
    for other in beyond(of_transformers(crossed, None), by_llama_cpp):
        assert other.kl_mean > 1e-3


def test_validate_compares_with_the_ramp_that_was_written_and_says_so(tmp_path: Path) -> None:
    rope = {**GPT_OSS, "original_max_position_embeddings": TRAINED, "rope_theta": 10000.0}
    source = published(tmp_path / "source", "gpt_oss", rope, 32 * TRAINED)
    out = tmp_path / "model.gguf"
    apply(make_plan(source, AS_IS, out, **ALLOWED))
    result = validate_gguf(Comparison.open(out, str(source)), Settings(tokens=4 * TRAINED))
    assert result.agrees
    assert "the ramp" in result.sentence


def without_receipt(source: Path, out: Path, **more: float) -> Path:
    """A file as the stock converter writes it. more: keys of the scaling."""
    file = GgufFile.open(source)
    prefix = f"{file.get('general.architecture')}.rope.scaling."
    values = {f"{prefix}{name}": f32(value) for name, value in more.items()}
    write_new(file, 0, Edit(values, frozenset({RECEIPT})), out)
    return out


def test_inspect_knows_the_ramp_of_published_models_from_their_family(tmp_path: Path) -> None:
    source = published(tmp_path / "source", "gpt_oss", GPT_OSS)
    out = tmp_path / "model.gguf"
    plan = make_plan(source, AS_IS, out, **ALLOWED)
    apply(plan)
    assert plan.result.ramp is not None
    stock = without_receipt(out, tmp_path / "stock.gguf")
    told = {problem.code: problem.message for problem in inspected(stock).problems}
    assert plan.result.ramp.distance in told["approximate"]
    again = make_plan(stock, AS_IS, tmp_path / "again.gguf")
    apply(again)
    assert any(
        problem.code == "approximate" for problem in inspected(tmp_path / "again.gguf").problems
    )
    other = without_receipt(out, tmp_path / "other.gguf", factor=16.0)  # a scaling of somebody else
    assert not any(problem.code == "approximate" for problem in inspected(other).problems)


def test_inspect_says_how_far_betas_are_off_that_llama_cpp_does_not_read(tmp_path: Path) -> None:
    source = published(tmp_path / "source", "deepseek_v3", KIMI_K2)
    out = tmp_path / "model.gguf"
    plan = make_plan(source, AS_IS, out, **ALLOWED)
    apply(plan)
    assert plan.result.ramp is not None
    stock = without_receipt(out, tmp_path / "stock.gguf", yarn_beta_fast=1.0, yarn_beta_slow=1.0)
    told = {problem.code: problem.message for problem in inspected(stock).problems}
    assert plan.result.ramp.distance in told["approximate"]
    usual = without_receipt(out, tmp_path / "usual.gguf", yarn_beta_fast=32.0, yarn_beta_slow=1.0)
    assert not any(problem.code == "approximate" for problem in inspected(usual).problems)


def test_an_own_ramp_that_is_extended_stays_an_own_ramp(tmp_path: Path) -> None:
    source = published(tmp_path / "source", "gpt_oss", GPT_OSS)
    out = tmp_path / "model.gguf"
    further = recipe_of("yarn", 2.0, on_top=True)
    with pytest.raises(UnsupportedBake, match="pass --allow-approximate"):
        make_plan(source, further, out, to="gguf", outtype="f32")
    plan = make_plan(source, further, out, **ALLOWED)
    assert plan.result.verdicts[0].status == "approximate"
    assert plan.schedule.context == 262144


def test_an_architecture_with_divisors_needs_no_approximation(tmp_path: Path) -> None:
    rope = {**GPT_OSS, "rope_theta": 10000.0}
    source = published(tmp_path / "source", "llama", rope)
    plan = make_plan(source, AS_IS, tmp_path / "model.gguf", **ALLOWED)
    assert plan.result.ramp is None
    assert (plan.result.encoding, plan.result.verdicts[0].status) == ("tensor", "exact")


def test_a_folder_has_nothing_to_approximate_but_log_n(tmp_path: Path) -> None:
    source = published(tmp_path / "source", "gpt_oss", GPT_OSS)
    with pytest.raises(UsageError, match="--allow-approximate"):
        make_plan(source, AS_IS, tmp_path / "out", allow_approximate=True)
