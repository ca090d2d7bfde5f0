"""--keep-short: prompts inside the length that the source is right for see the source, longer ones
the method.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from ropeconv.bake.plan import Plan
from ropeconv.rope.errors import RecipeError
from ropeconv.runtimes.runtime import find, newest

from ..conftest import CONFIGS
from ..support.baking import apply, make_plan, recipe_of
from ..support.corruptions import edit

TRAINED, LONGER = 64, 200
LLAMA_3 = CONFIGS / "meta-llama--Meta-Llama-3-8B.json"
MIXED = recipe_of("mixed", 4.0, keep_short=True)


def plan(
    source: Path,
    method: str,
    *values: object,
    out: Path | None = None,
    replace: bool = False,
    **more,
) -> Plan:
    return make_plan(
        source, recipe_of(method, *values, keep_short=True, **more), out, replace=replace
    )


def logits(folder: Path, length: int, inv_freq: np.ndarray | None = None) -> np.ndarray:
    """Logits of transformers over the first tokens; inv_freq: frequencies to put into its rotary
    module by hand.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    if inv_freq is not None:
        model.model.rotary_emb.inv_freq = torch.from_numpy(inv_freq.astype(np.float32))
    ids = torch.from_numpy(np.random.default_rng(1).integers(3, 300, (1, length)))
    with torch.no_grad():
        return model(ids).logits.numpy()


def mixed(factor: float) -> np.ndarray:
    """NTK-mixed for the 32 pairs of the tiny model, written here once more."""
    slope = math.log(factor) / 32**0.625
    return np.array([10000 ** (-i / 32) / math.exp(slope * (i + 1) ** 0.625) for i in range(32)])


def test_short_prompts_get_the_source_and_long_ones_the_method(llama: Path, tmp_path: Path) -> None:
    baked = apply(make_plan(llama, MIXED, tmp_path / "two"))
    single = apply(make_plan(llama, recipe_of("mixed", 4.0), tmp_path / "one"))
    np.testing.assert_array_equal(logits(baked, TRAINED), logits(llama, TRAINED))
    assert np.abs(logits(single, TRAINED) - logits(llama, TRAINED)).max() > 0.1
    for length in (TRAINED + 1, LONGER):
        np.testing.assert_allclose(
            logits(baked, length), logits(llama, length, mixed(4.0)), atol=1e-2
        )
    assert np.abs(logits(baked, LONGER) - logits(llama, LONGER)).max() > 0.1


@pytest.mark.parametrize("on_top", [True, False], ids=["on-top", "replace"])
def test_a_scaled_source_is_kept_inside_what_it_declares(
    llama: Path, tmp_path: Path, on_top: bool
) -> None:
    """llama3 4 over 64 declares 256: up to there its own frequencies, whether the scaling then
    stays or goes.
    """
    scaling = {
        "rope_type": "llama3",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    edit(
        llama,
        "config.json",
        lambda config: config.update(rope_scaling=scaling, max_position_embeddings=256),
    )
    bake_plan = plan(llama, "linear", "1k", on_top=on_top, replace=not on_top, out=tmp_path / "two")
    assert (bake_plan.schedule.original_context, bake_plan.schedule.context) == (256, 1024)
    baked = apply(bake_plan)
    np.testing.assert_allclose(logits(baked, 256), logits(llama, 256), atol=1e-3)
    assert np.abs(logits(baked, 257) - logits(llama, 257)).max() > 0.1
    base = 10000 ** (-np.arange(32) / 32)
    keep = np.clip((64 * base / (2 * math.pi) - 1) / 3, 0, 1)
    inv_freq = base * (keep + (1 - keep) / 4)
    lists = bake_plan.result.config["rope_scaling"]
    np.testing.assert_allclose(base / lists["short_factor"], inv_freq, rtol=1e-6)
    np.testing.assert_allclose(
        base / lists["long_factor"], inv_freq / 4 if on_top else base / 16, rtol=1e-6
    )


def test_a_second_attention_factor_is_refused_with_the_repair() -> None:
    with pytest.raises(RecipeError, match=r"has 1 .* 1\.13863; pass --attention-factor 1"):
        plan(LLAMA_3, "yarn", 4.0)
    bake_plan = plan(LLAMA_3, "yarn", 4.0, attention_factor=1.0)
    assert bake_plan.result.config["rope_scaling"]["short_factor"] == [1.0] * 64
    assert bake_plan.result.config["original_max_position_embeddings"] == 8192
    assert bake_plan.result.config["rope_scaling"]["attention_factor"] == 1.0


@pytest.mark.parametrize(
    ("runtime", "status"),
    [
        ("transformers@4.45", "differs"),
        ("transformers@4.48", "ignored"),
        ("transformers@4.49", "ignored"),
        ("transformers@4.51", "exact"),
        ("transformers@5.21", "exact"),
        ("sglang", "differs"),
        ("vllm", "differs"),
        ("mlx-lm", "differs"),
        ("tgi", "differs"),
        ("exllamav3", "differs"),
    ],
)
def test_who_switches(runtime: str, status: str) -> None:
    """Executed, facts of section 7: transformers switches, vLLM takes the long list once its window
    is longer.
    """
    bake_plan = plan(LLAMA_3, "mixed", "32k")
    assert bake_plan.result.verdict_of(find(runtime)[-1]).status == status
    assert (
        make_plan(LLAMA_3, recipe_of("mixed", "32k")).result.verdict_of(newest("vllm")).status
        == "exact"
    )


def test_the_plan_says_what_each_runtime_does_and_what_a_cache_does() -> None:
    bake_plan = plan(LLAMA_3, "mixed", "32k")
    (warning,) = bake_plan.warnings  # mixed finds few hidden facts without training
    assert "Fine-tuning" in warning
    for note in (
        "vLLM 0.33, every position uses the long list if --max-model-len is above 8,192 tokens",
        "if no sequence of the batch is longer than 8,192 tokens",
        "if generation passes 8,192 tokens, the cache still holds keys rotated with the short list",
    ):
        assert note in " ".join(bake_plan.notes)


def test_llama_cpp_takes_a_list_by_its_window(tmp_path: Path) -> None:
    """Windows are multiples of 256: one of 512 tokens is the trained length here, one of 768 is
    beyond it.
    """
    import torch

    from ropeconv.engines.llamacpp import LlamaCppEngine

    from ..support.llamacpp import checkpoint, figures

    source = checkpoint("llama", tmp_path / "source", max_position_embeddings=512)
    out = apply(make_plan(source, MIXED, tmp_path / "out.gguf", to="gguf", outtype="f32"))
    single_path = apply(
        make_plan(source, recipe_of("mixed", 4.0), tmp_path / "one.gguf", to="gguf", outtype="f32")
    )
    for length, inv_freq in ((400, mixed(1.0)), (700, mixed(4.0))):
        ids = np.random.default_rng(1).integers(3, 300, length)
        double, single = (
            LlamaCppEngine(path).logits(ids.tolist(), list(range(length)))
            for path in (out, single_path)
        )
        reference = torch.from_numpy(logits(source, length, inv_freq)[0])
        near = [
            figures(reference, output[:, : reference.shape[1]]).kl_mean < 1e-5
            for output in (double, single)
        ]
        assert near == [True, length == 700]
