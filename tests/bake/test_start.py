"""What a plan starts from: scaled sources, lengths, and the rule that nothing becomes shorter unasked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ropeconv
from ropeconv.bake import Plan
from ropeconv.errors import RopeconvError, UsageError
from ropeconv.rope.forms import Llama3, Yarn
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes import newest

from ..conftest import CONFIGS, Run
from ..support.baking import apply, make_plan, target
from ..support.gguf_files import plain_tensors, write

LLAMA_3_1 = CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"
LLAMA_3 = CONFIGS / "meta-llama--Meta-Llama-3-8B.json"
QWEN3 = CONFIGS / "Qwen--Qwen3-8B.json"
DEEPSEEK_V3 = CONFIGS / "deepseek-ai--DeepSeek-V3.json"
GPT_OSS = CONFIGS / "openai--gpt-oss-20b.json"


def plan(source: Path, method: str, *values: object, context: int | None = None, on_top: bool = False, **more) -> Plan:
    return make_plan(source, Recipe(REGISTRY[method](*values), context=context, on_top=on_top), **more)


@pytest.mark.parametrize(
    ("method", "values", "declared", "repair"),
    [
        ("yarn", (4.0,), "32,768", "pass --yarn 512k, or --context 32k if you mean it"),
        ("linear", ("64k",), "65,536", "pass --linear 256k, or --context 64k if you mean it"),
        ("piecewise", ("2@35",), "16,384", "pass --piecewise 256k@35, or --context 16k if you mean it"),
        ("theta-for", (65536,), "65,536", "pass --theta-for 256k, or --context 64k if you mean it"),
        ("theta", (1e6,), "8,192", "pass --context 128k to keep that, or --context 8k if you mean it"),
        ("dynamic", ("yarn:4", 32768), "32,768", "pass --dynamic yarn:32 --at 256k, or --context 32k if you mean it"),
    ],
)
def test_a_shorter_result_is_refused_with_both_ways_out(
    method: str, values: tuple[object, ...], declared: str, repair: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        plan(LLAMA_3_1, method, *values, replace=True)
    assert str(refusal.value) == f"the result declares {declared}, less than today's 131,072; {repair}"


@pytest.mark.parametrize(
    ("method", "values"),
    [("yarn", ("512k",)), ("linear", ("256k",)), ("piecewise", ("256k@35",)), ("theta-for", (262144,)),
     ("dynamic", ("yarn:32", 262144))],
)  # fmt: skip
def test_the_way_out_works(method: str, values: tuple[object, ...]) -> None:
    assert plan(LLAMA_3_1, method, *values, replace=True).schedule.context > 131072


def test_a_context_is_the_word_for_a_shorter_one() -> None:
    assert plan(LLAMA_3_1, "yarn", 4.0, context=32768, replace=True).schedule.context == 32768
    assert plan(LLAMA_3_1, "yarn", 16.0, replace=True).schedule.context == 131072


def test_unscaled_models_do_not_become_shorter_either() -> None:
    with pytest.raises(UsageError, match=r"declares 16,384, less than today's 40,960; pass --yarn 80k"):
        make_plan(QWEN3, Recipe(REGISTRY["yarn"](2.0), original_context=8192))
    with pytest.raises(UsageError, match=r"declares 4,096, less than today's 8,192; pass --theta-bound 16k"):
        plan(LLAMA_3, "theta-bound", 4096)
    assert plan(QWEN3, "yarn", "64k").schedule.context == 65536


def test_neither_do_gguf_files_nor_conversions(llama: Path, tmp_path: Path) -> None:
    extra = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}
    path = write(tmp_path / "scaled.gguf", extra={**extra, "context_length": 512}, tensors=plain_tensors())
    for made in (lambda: plan(path, "yarn", 4.0, replace=True), lambda: plan(path, "linear", "256", replace=True)):
        with pytest.raises(RopeconvError):
            made()
    with pytest.raises(UsageError, match="declares 256, less than today's 512; pass --yarn 2k, or --context 256"):
        plan(path, "yarn", 4.0, replace=True)
    assert plan(path, "yarn", 16.0, replace=True).schedule.context == 1024
    scaled = apply(plan(llama, "yarn", 8.0, out=tmp_path / "scaled"))
    with pytest.raises(UsageError, match="declares 256, less than today's 512"):
        plan(scaled, "yarn", 4.0, replace=True, to="gguf", out=tmp_path / "again.gguf")


def test_a_length_says_which_factor_it_is() -> None:
    assert plan(LLAMA_3, "yarn", "128k").notes == ("factor 16 = 131,072 / 8,192 trained tokens",)
    assert plan(LLAMA_3, "yarn", 16.0).notes == ()
    (note,) = plan(LLAMA_3_1, "yarn", "512k", replace=True).notes
    assert note == (
        "factor 64 = 524,288 / 8,192 trained tokens; 8,192 is the length before the llama3 scaling that --replace "
        "takes away, with which the model declares 131,072"
    )


def test_a_factor_that_does_not_cover_the_context_is_a_warning_with_the_numbers() -> None:
    words = "--yarn: 4 x 8,192 trained tokens is 32,768, which does not cover --context 131,072; pass --yarn 128k"
    assert words in plan(LLAMA_3, "yarn", 4.0, context=131072).warnings
    assert not any("cover" in one for one in plan(LLAMA_3, "yarn", "128k", context=131072).warnings)
    top = plan(LLAMA_3_1, "llama3", 2.0, context=524288, on_top=True).warnings
    assert any("2 x 131,072 declared tokens is 262,144" in one for one in top)


def test_on_top_keeps_the_scaling_of_published_models() -> None:
    llama = plan(LLAMA_3_1, "llama3", "512k", on_top=True)
    assert llama.schedule.form == Llama3(500000.0, 32.0, 8192)
    assert llama.notes == ("the llama3 scaling is kept with factor 32 = 8 x 4 (4 = 524,288 / 131,072 declared tokens)",)
    assert (llama.result.encoding, llama.before.context) == ("native", 131072)
    assert not any("being replaced" in warning for warning in llama.warnings)
    deepseek = plan(DEEPSEEK_V3, "yarn", 2.0, on_top=True)
    assert (deepseek.schedule.form, deepseek.schedule.attention_factor) == (Yarn(10000.0, 80.0, 4096), 1.0)
    oss = plan(GPT_OSS, "yarn", "256k", on_top=True).schedule.form
    assert isinstance(oss, Yarn)
    assert (oss.factor, oss.truncate) == (64.0, False)
    composed = plan(LLAMA_3_1, "mixed", 4.0, on_top=True)
    assert (composed.result.encoding, composed.result.status_of(newest("transformers"))) == ("factors", "exact")


def test_on_top_of_nothing_and_beside_replace() -> None:
    with pytest.raises(UsageError, match="has no scaling that --on-top could keep; leave it out"):
        plan(LLAMA_3, "yarn", 4.0, on_top=True)
    with pytest.raises(UsageError, match="--on-top keeps the scaling that --replace would take away"):
        target(replace=True).check(Recipe(REGISTRY["yarn"](4.0), on_top=True), from_gguf=False)


@pytest.fixture
def widened(llama: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A tiny Llama with yarn 2, and the output of yarn 2 on top of it."""
    first = apply(plan(llama, "yarn", 2.0, out=tmp_path / "first"))
    return first, apply(plan(first, "yarn", 2.0, on_top=True, out=tmp_path / "second"))


def test_transformers_computes_the_widened_scaling(llama: Path, widened: tuple[Path, Path]) -> None:
    """The reference is a config with yarn 4 that is given to transformers by hand, over the unscaled weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(llama)
    config.rope_parameters = {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
    }  # fmt: skip
    config.max_position_embeddings = 256
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 300, (1, 200)))
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(llama, config=config)(ids).logits
        found, before = (AutoModelForCausalLM.from_pretrained(path)(ids).logits for path in reversed(widened))
    assert (found - wanted).abs().max() < 1e-3
    assert (before - wanted).abs().max() > 0.1


def test_a_saved_recipe_gives_the_same_model_again(widened: tuple[Path, Path], tmp_path: Path) -> None:
    """That it goes on top stands in the recipe, and so in the receipt: it changes what is computed."""
    first, second = widened
    receipt = ropeconv.read_receipt(second)
    again = make_plan(first, Recipe.from_dict(receipt.recipe), tmp_path / "again")
    assert again.schedule.digest == receipt.schedule.digest
    assert ropeconv.Comparison.open(second, str(first)).schedule.digest == receipt.schedule.digest


def test_patch_goes_on_top_of_a_loaded_model(widened: tuple[Path, Path]) -> None:
    from transformers import AutoModelForCausalLM

    first, second = widened
    model, baked = (AutoModelForCausalLM.from_pretrained(path) for path in (first, second))
    ropeconv.patch(model, Recipe(REGISTRY["yarn"](2.0), on_top=True))
    found, wanted = (one.model.rotary_emb for one in (model, baked))
    np.testing.assert_allclose(found.inv_freq.numpy(), wanted.inv_freq.numpy(), rtol=1e-6)
    assert found.attention_scaling == pytest.approx(wanted.attention_scaling)


def test_the_command_line_says_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(LLAMA_3_1.read_text())
    scaled = run("apply", "config.json", "--yarn", "4", "--dry-run")
    assert (scaled.returncode, scaled.stdout) == (1, "")
    assert "--on-top to go on from its scaling" in scaled.stderr
    shorter = run("apply", "config.json", "--yarn", "4", "--replace", "--dry-run")
    assert (shorter.returncode, shorter.stdout) == (2, "")
    assert "pass --yarn 512k, or --context 32k if you mean it" in shorter.stderr
    longer = run("apply", "config.json", "--yarn", "512k", "--replace", "--dry-run")
    assert longer.returncode == 0
    assert "Factor 64 = 524,288 / 8,192 trained tokens" in " ".join(longer.stdout.split())
    schedule = run("schedule", "--theta", "500000", "--original-context", "8192", "--yarn", "128k", "--json")
    assert '"factor": "128k"' in schedule.stdout
    bound = run("bound", "config.json", "--llama3", "512k", "--on-top", "--json")
    assert '"context": 524288' in bound.stdout
