"""Attention factors folded into weights, of every family, against the same model whose rotary modules carry them.

In float64, and with the attention factor 2, whose products are exact: what differs then is the place of the factor
alone, and that within 1e-9 of the logits' deviation, while the factor itself changes them by more than a tenth of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from ropeconv.encode.fold.arithmetic import scaled
from ropeconv.engines.transformers.backbone import has_decoder
from ropeconv.engines.transformers.patch import patch
from ropeconv.errors import UnsupportedBake
from ropeconv.families import by_model_type
from ropeconv.formats.safetensors import read_header
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe

from ..conftest import Run
from ..support.baking import apply, make_plan
from ..support.extent import sample
from ..support.llamacpp import lively
from ..support.models import CANCELS, FAMILIES, TRAINED, auto_class, make
from .test_buffers import calm

RECIPE = Recipe(METHODS["theta"](2e6), context=256, attention_factor=2.0)
LENGTH = 2 * TRAINED
FIXED = {name for name in FAMILIES if by_model_type()[name].weights.fixed}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


def _source(sources: Path, model_type: str) -> Path:
    folder = sources / model_type
    return folder if folder.exists() else lively(make(model_type, folder))


def _logits(folder: Path, plan: Any, attention_factor: float | None = None) -> torch.Tensor:
    """Logits in float64 of a model that is patched to a plan's schedule, with its attention factor or another.

    Of an encoder, its hidden states.
    """
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    loads = auto_class(json.loads((folder / "config.json").read_text())["model_type"])
    model = loads.from_pretrained(folder, dtype=torch.float64, **eager).eval()
    schedule = plan.schedule
    if attention_factor is not None:
        schedule = replace(schedule, attention_factor=attention_factor, softmax_scale=1.0)
    patch(model, schedule, plan.before)
    ids = torch.randint(4, 300, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    decoded = {"decoder_input_ids": ids} if has_decoder(model) else {"use_cache": False}
    with torch.no_grad():
        found = model(input_ids=ids, **decoded)
    return getattr(found, "logits", found[0])[0].double()


@pytest.mark.parametrize("model_type", sample([name for name in FAMILIES if name not in CANCELS | FIXED], 30))
def test_every_family(sources: Path, tmp_path: Path, model_type: str) -> None:
    source = _source(sources, model_type)
    plan = make_plan(source, RECIPE, tmp_path / "out", encoding="weights")
    folder = apply(plan)
    assert plan.result.encoding == "weights"
    assert plan.result.in_config.attention_factor == 1
    wanted, folded = _logits(source, plan), _logits(folder, plan, attention_factor=1.0)
    deviation = wanted.std()
    # (1 + w) a - 1 is not exact
    bound = 1e-5 if any(scaling.plus_one for scaling in plan.result.fold.scalings) else 1e-9
    assert (wanted - folded).abs().max() < bound * deviation
    assert (wanted - _logits(source, plan, attention_factor=1.0)).abs().max() > 0.1 * deviation


@pytest.mark.parametrize("side", ["q", "qk"])
@pytest.mark.parametrize(
    "model_type", ["llama", "qwen3", "phi3", "gpt_neox", "falcon", "gemma3_text", "gemma3n_text", "deepseek_v3"]
)
def test_the_other_sides(sources: Path, tmp_path: Path, model_type: str, side: str) -> None:
    source = _source(sources, model_type)
    plan = make_plan(source, RECIPE, tmp_path / "out", encoding="weights", fold_into=side)
    wanted, folded = _logits(source, plan), _logits(apply(plan), plan, attention_factor=1.0)
    assert (wanted - folded).abs().max() < (1e-5 if model_type == "gemma3_text" else 1e-9) * wanted.std()
    names = {scaling.tensor.rsplit(".", 2)[-2] for scaling in plan.result.fold.scalings}
    if model_type == "llama":
        assert names == ({"q_proj"} if side == "q" else {"q_proj", "k_proj"})


def test_only_the_ranges_that_the_plan_names_change(sources: Path, tmp_path: Path) -> None:
    """The header, the order, the metadata and every other byte are as they were."""
    source = _source(sources, "stablelm")
    plan = make_plan(source, RECIPE, tmp_path / "out", encoding="weights")
    folder = apply(plan)
    before, after = (np.fromfile(path / "model.safetensors", np.uint8) for path in (source, folder))
    header = read_header(source / "model.safetensors")
    allowed = np.zeros(len(before), bool)
    for scaling in plan.result.fold.scalings:
        tensor = header.tensors[scaling.tensor]
        for start, stop in scaling.spans:
            allowed[header.data_start + tensor.start + 4 * start : header.data_start + tensor.start + 4 * stop] = True
    assert len(before) == len(after)
    assert not ((before != after) & ~allowed).any()
    assert 0 < allowed.sum() < len(before) / 10
    receipt = json.loads((folder / "ropeconv.json").read_text())
    assert receipt["fold"]["fold_into"] == "k"
    assert [file["action"] for file in receipt["files"] if file["name"] == "model.safetensors"] == ["patch"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_to_nearest_and_the_plan_says_so(
    sources: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    source = tmp_path / "half"
    make("qwen2", source)
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    half = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    safetensors.torch.save_file(half, source / "model.safetensors", {"format": "pt"})
    recipe = Recipe(METHODS["linear"](4.0), attention_factor=1.2)
    plan = make_plan(source, recipe, tmp_path / "out", encoding="weights")
    assert {verdict.status for verdict in plan.result.verdicts} <= {
        "rounded",
        "differs",
        "ignored",
        "refused",
        "unsupported",
        "unknown",
    }
    name = "model.layers.0.self_attn.k_proj.weight"
    found = safetensors.torch.load_file(apply(plan) / "model.safetensors")[name]
    assert torch.equal(found, (half[name].float() * 1.44).to(dtype))


def test_rounding_is_torchs() -> None:
    values = torch.randn(10000, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    values[:4] = torch.tensor([float("inf"), float("nan"), 0.0, -0.0])
    ours = scaled(values.view(torch.int16).numpy().view("<u2"), "BF16", 1.2772)
    theirs = (values.float() * 1.2772).to(torch.bfloat16)
    found = torch.from_numpy(ours.astype(np.uint16).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(found[2:], theirs[2:])
    assert torch.equal(torch.isnan(found), torch.isnan(theirs))


@pytest.mark.parametrize("model_type", sorted(CANCELS))
def test_where_an_attention_factor_has_no_effect_it_is_refused(sources: Path, tmp_path: Path, model_type: str) -> None:
    with pytest.raises(UnsupportedBake):
        make_plan(_source(sources, model_type), RECIPE, tmp_path / "out", encoding="weights")


def test_a_limit_on_queries_and_keys_would_cut_off_a_factor_before_them(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake, match="clip_qkv limits what its projections give"):
        make_plan(make("olmo", tmp_path / "olmo", clip_qkv=0.5), RECIPE, tmp_path / "out", encoding="weights")


@pytest.mark.parametrize("model_type", sorted(FIXED))
def test_where_no_factor_can_go_into_the_weights_the_reason_is_said(
    sources: Path, tmp_path: Path, model_type: str
) -> None:
    with pytest.raises(UnsupportedBake, match=by_model_type()[model_type].weights.fixed):
        make_plan(_source(sources, model_type), RECIPE, tmp_path / "out", encoding="weights")


def test_nothing_to_fold_and_nothing_to_fold_into(sources: Path, tmp_path: Path) -> None:
    source = _source(sources, "llama")
    with pytest.raises(UnsupportedBake, match="there is nothing to multiply"):
        make_plan(source, Recipe(METHODS["linear"](4.0)), tmp_path / "out", encoding="weights")
    for dtype, word in ((torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8")):
        folder = make("llama", tmp_path / word)
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        name = "model.layers.1.self_attn.k_proj.weight"
        tensors[name] = tensors[name].clamp(-1, 1).to(dtype)
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(UnsupportedBake, match=f"{name} in {word}"):
            make_plan(folder, RECIPE, tmp_path / "out", encoding="weights")


def test_auto_folds_where_a_named_runtime_reads_no_attention_factor(sources: Path, tmp_path: Path) -> None:
    """mlx-lm reads factor lists with an attention factor of 1 only."""
    recipe = Recipe(METHODS["mixed"](4.0), attention_factor=1.2)
    plan = make_plan(_source(sources, "llama"), recipe, tmp_path / "out", runtimes=("mlx-lm", "vllm"))
    assert (plan.result.encoding, plan.result.written_as) == ("weights", "factors")


def test_a_folded_yarn_is_read_by_every_runtime_that_reads_factor_lists(sources: Path, tmp_path: Path) -> None:
    recipe = Recipe(METHODS["yarn"](4.0))
    plan = make_plan(_source(sources, "llama"), recipe, tmp_path / "out", encoding="weights")
    assert plan.result.written_as == "factors"
    exact = {verdict.runtime for verdict in plan.result.verdicts if verdict.status == "exact"}
    assert {"vllm@0.11", "vllm@0.33", "tgi@3.3", "transformers@4.48"} <= exact


def test_on_the_command_line(run: Run, sources: Path, tmp_path: Path) -> None:
    source = _source(sources, "llama")
    done = run("apply", source, "--yarn", "4", "--encoding", "weights", "--fold", "qk", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "The attention factor is in 4 tensors (qk), the config has none." in done.stdout
    assert "Checked: transformers" in done.stdout
    assert run("validate", "out", "--against", source).returncode == 0
    assert run("apply", source, "--yarn", "4", "--encoding", "weights", "--fold", "v").returncode == 2


@pytest.mark.parametrize("low_rank", [True, False])
def test_the_scale_of_all_logits_goes_into_every_row_of_the_queries(tmp_path: Path, low_rank: bool) -> None:
    """DeepSeek's mscale: attention factor 1, logits times (0.1 ln 4 + 1)^2, queries through a low rank and without."""
    source = make("deepseek_v2", tmp_path / "source")
    if not low_rank:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(source)
        config.q_lora_rank = None
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(source)
    lively(source)
    recipe = Recipe(METHODS["yarn"](4.0, mscale=1.0, mscale_all_dim=1.0))
    plan = make_plan(source, recipe, tmp_path / "out", encoding="weights")
    assert plan.schedule.softmax_scale == pytest.approx(1.2964770)
    names = {scaling.tensor.split(".")[-2] for scaling in plan.result.fold.scalings}
    assert names == {"q_b_proj" if low_rank else "q_proj"}
    wanted, folded = _logits(source, plan), _logits(apply(plan), plan, attention_factor=1.0)
    assert (wanted - folded).abs().max() < 1e-4 * wanted.std()
    assert (wanted - _logits(source, plan, attention_factor=1.0)).abs().max() > 0.1 * wanted.std()


def test_explain_says_why(run: Run, sources: Path, tmp_path: Path) -> None:
    options = ("--mixed", "4", "--attention-factor", "1.2", "--runtime", "mlx-lm", "--dry-run")
    done = run("apply", _source(sources, "llama"), *options, "--explain")
    assert "attention factor 1.0000, not 1.2000" in done.stdout
    plan = json.loads(run("apply", _source(sources, "llama"), *options, "--json").stdout)
    assert [(entry["encoding"], entry["selected"]) for entry in plan["considered"]] == [
        ("native", False), ("factors", False), ("weights", True), ("ministral3", False), ("buffers", False),
    ]  # fmt: skip
    assert "1.0000, not 1.2000" in plan["considered"][1]["reason"]
    assert plan["considered"][4]["reason"] == "not needed"


@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text", "cohere", "llama"])
def test_attention_factor_in_the_config_against_attention_factor_in_the_weights(
    tmp_path: Path, model_type: str
) -> None:
    """Nothing of ours in between: both are stock loads in float64, one of longrope, of 64-bit weights."""
    from transformers import AutoModelForCausalLM

    source = calm(model_type, tmp_path / "source")
    path = source / "model.safetensors"
    wide = {name: tensor.double() for name, tensor in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(wide, path, {"format": "pt"})
    found = {}
    for name, attention_factor, encoding in (
        ("config", 1.5, "factors"),
        ("weights", 1.5, "weights"),
        ("none", 1.0, "factors"),
    ):
        recipe = Recipe(METHODS["mixed"](4.0), attention_factor=attention_factor)
        folder = apply(make_plan(source, recipe, tmp_path / name, encoding=encoding))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
        ids = torch.randint(4, 300, (1, LENGTH), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            found[name] = model(input_ids=ids, use_cache=False).logits[0]
    spread = found["config"].std()
    assert (found["config"] - found["weights"]).abs().max() < 1e-5 * spread
    assert (found["config"] - found["none"]).abs().max() > 0.5 * spread


def test_norms_in_32_bits(run: Run, tmp_path: Path) -> None:
    """Where the fold goes into norms, they can be stored so that nothing is rounded; all else keeps its bytes."""
    source = make("qwen3", tmp_path / "source")
    tensors = {n: t.bfloat16() for n, t in safetensors.torch.load_file(source / "model.safetensors").items()}
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    parts = [{n: t for n, t in tensors.items() if (".1." in n) == later} for later in (False, True)]
    for name, part in zip(names, parts, strict=True):
        safetensors.torch.save_file(part, source / name, {"format": "pt", "note": "kept"})
    total = sum(tensor.nbytes for tensor in tensors.values())
    where = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": where})
    )
    (source / "model.safetensors").unlink()
    done = run("apply", source, "--yarn", "4", "--encoding", "weights", "--fold-dtype", "f32", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "stored in float32" in done.stderr
    out = tmp_path / "out"
    after = {n: t for name in names for n, t in safetensors.torch.load_file(out / name).items()}
    squared = np.float32(json.loads((out / "ropeconv.json").read_text())["schedule"]["attention_factor"] ** 2)
    for name, tensor in tensors.items():
        if name.endswith("k_norm.weight"):
            assert torch.equal(after[name], tensor.float() * squared)
        else:
            assert torch.equal(after[name], tensor)
    before, header = (read_header(folder / names[0]) for folder in (source, out))
    assert header.metadata == before.metadata == {"format": "pt", "note": "kept"}
    order = [sorted(found.tensors.values(), key=lambda tensor: tensor.start) for found in (before, header)]
    assert [tensor.name for tensor in order[0]] == [tensor.name for tensor in order[1]]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in after.values()) == total + 2 * 2 * 64
    assert run("validate", out, "--against", source).returncode == 0
    matrices = make("llama", tmp_path / "llama")
    refused = run("apply", matrices, "--yarn", "4", "--encoding", "weights", "--fold-dtype", "f32", "-o", "no")
    assert (refused.returncode, "only norms are small enough" in refused.stderr) == (1, True)
    assert run("apply", matrices, "--yarn", "4", "--fold-dtype", "f32", "-o", "no").returncode == 2


def test_powers_of_two_cost_nothing(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source")
    half = {n: t.bfloat16() for n, t in safetensors.torch.load_file(source / "model.safetensors").items()}
    safetensors.torch.save_file(half, source / "model.safetensors", {"format": "pt"})
    for attention_factor, cost in ((2**0.5, 0.0), (1.2, 1e-4)):
        recipe = Recipe(METHODS["linear"](4.0), attention_factor=attention_factor)
        plan = make_plan(source, recipe, tmp_path / "out", encoding="weights", fold_into="k")
        assert plan.result.fold.expected_kl == cost
