"""GGUF encodings in the real llama.cpp, against transformers scaled at run time, up to four times
the trained length.

The two share neither weights' layout nor keys nor code. Every case has a control: the unscaled
source is at least a thousand times further away, so a wrong key, a lost attention factor or a row
in the wrong place cannot pass.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32
from ropeconv.models.registry import by_model_type
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.gguf import validate_gguf

from ...support.baking import AS_IS, MIXED, YARN, apply, make_plan, recipe_of
from ...support.extent import sample
from ...support.llamacpp import (
    EXPORTED,
    LENGTH,
    bake,
    beyond,
    checkpoint,
    figures,
    of_llamacpp,
    of_transformers,
)
from ...support.models import CANCELS, TRAINED

RECIPES = {
    "yarn": YARN,
    "yarn without temperature": recipe_of("yarn", 4.0, attention_factor=1.0),
    "linear, attention factor 1.2": recipe_of("linear", 4.0, attention_factor=1.2),
    "theta, attention factor 1.3": recipe_of("theta", 2e6, context=256, attention_factor=1.3),
    "mixed": MIXED,
    "mixed, attention factor 1.2": recipe_of("mixed", 4.0, attention_factor=1.2),
    "llama3": recipe_of("llama3", 4.0),
    "yarn, other betas": recipe_of("yarn", 4.0, 8.0, 2.0),
    "yarn, not truncated": recipe_of("yarn", 4.0, 32.0, 1.0, False),
}
BY_KEYS = list(RECIPES)[:4]
NOT_BY_KEYS = list(RECIPES)[4:]
TENSOR = (
    "apertus",
    "arcee",
    "bamba",
    "exaone4",
    "exaone_moe",
    "gemma4_text",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "internlm3",
    "iquestcoder",
    "llama",
    "llama4_text",
    "minicpm3",
    "ministral3",
    "mixtral",
    "phi3",
)
CARRIERS = {"qwen2": ("llama", "mistral3"), "ernie4_5": ("llama",)}
WITHOUT_FACTOR = {
    *CANCELS,
    *(name for name in EXPORTED if by_model_type()[name].mla),
    "llama4_text",  # with use_qk_norm, which llama.cpp computes always
}
"""Families that take attention factor 1 alone: a norm cancels others, or llama.cpp applies them to
all dimensions.
"""
FACTOR_1 = ("yarn without temperature", "mixed", "llama3")
"""Recipes whose attention factor is 1."""


def agrees(folder: Path, model_type: str, name: str, encoding: str, **options: str) -> None:
    source = checkpoint(model_type, folder / "source")
    out = folder / "model.gguf"
    plan = bake(source, RECIPES[name], out, **options)
    assert plan.result.encoding == encoding
    assert plan.result.verdicts[0].status == "exact"
    reference = of_transformers(source, plan)
    stock = of_llamacpp(out)
    control = beyond(reference, of_transformers(source, None))
    for bucket, unscaled in zip(beyond(reference, stock), control, strict=True):
        assert bucket.kl_mean < 1e-5
        assert unscaled.kl_mean > 1000 * bucket.kl_mean


ONE_KEY_FOR_ALL = {"mimo_v2_flash", "modernbert"}
"""Families whose window layers get the key of an attention factor too, and have no norm that could
undo it: they take the factor alone that yarn has without a key.
"""
CELLS = [
    (model_type, name)
    for model_type, name in product(EXPORTED, BY_KEYS)
    if model_type not in WITHOUT_FACTOR or name in FACTOR_1
    if model_type not in ONE_KEY_FOR_ALL or name == "yarn"
]
DIVIDED = [
    (model_type, name)
    for model_type, name in product(TENSOR, NOT_BY_KEYS)
    if model_type not in WITHOUT_FACTOR or name in FACTOR_1
]


@pytest.mark.parametrize(("model_type", "name"), sample(CELLS, 6))
def test_keys(tmp_path: Path, model_type: str, name: str) -> None:
    if model_type in ("mellum", "olmo3") and name.startswith("theta"):
        with pytest.raises(UnsupportedBake, match="window layers"):
            bake(
                checkpoint(model_type, tmp_path / "source"), RECIPES[name], tmp_path / "model.gguf"
            )
        return
    encoding = (
        "tensor" if model_type == "gemma4_text" else "keys"
    )  # whose pairs that stand still are in rope_freqs
    agrees(tmp_path, model_type, name, encoding)


@pytest.mark.parametrize(("model_type", "name"), sample(DIVIDED, 3))
def test_tensor(tmp_path: Path, model_type: str, name: str) -> None:
    by_keys = model_type == "ministral3" and name == "yarn, other betas"
    agrees(tmp_path, model_type, name, "keys" if by_keys else "tensor")


CARRIED = [("qwen2", None, name) for name in NOT_BY_KEYS] + [
    (source, to, name)
    for source, all in CARRIERS.items()
    for to in all
    for name in ("mixed, attention factor 1.2", "yarn, not truncated")
]


@pytest.mark.parametrize(("model_type", "to", "name"), sample(CARRIED, 3))
def test_carriers(tmp_path: Path, model_type: str, to: str | None, name: str) -> None:
    """Qwen 2 becomes Llama unasked where keys do not do."""
    agrees(tmp_path, model_type, name, "carrier", **({"carrier": to} if to else {}))


@pytest.mark.parametrize(
    "model_type", sample([name for name in EXPORTED if name not in (*TENSOR, "mistral", "qwen2")])
)
def test_what_an_architecture_cannot_hold_is_refused_with_the_alternatives(
    tmp_path: Path, model_type: str
) -> None:
    words = "--carrier" if model_type in CARRIERS else "theta, linear and yarn fit"
    with pytest.raises(UnsupportedBake, match=words):
        bake(checkpoint(model_type, tmp_path / "source"), RECIPES["mixed"], tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_window_layers_without_their_norms_would_be_seen(tmp_path: Path) -> None:
    """In gemma3 the attention factor key also reaches the window layers, so the norms have to take
    it back.
    """
    source = checkpoint("gemma3_text", tmp_path / "source")
    plain = tmp_path / "plain.gguf"
    bake(source, recipe_of("as-is"), plain)
    plan = make_plan(plain, RECIPES["yarn without temperature"], tmp_path / "out.gguf")
    assert list(plan.result.edit.changes) == [
        "blk.0.attn_q_norm.weight"
    ]  # the only window layer of three
    without = replace(plan.result.edit, changes={})
    good = tmp_path / "good.gguf"
    bad = tmp_path / "bad.gguf"
    for edit, path in ((plan.result.edit, good), (without, bad)):
        write_new(GgufFile.open(plain), 0, edit, path)
    reference = of_transformers(source, plan)
    right, wrong = (beyond(reference, of_llamacpp(path))[1].kl_mean for path in (good, bad))
    assert right < 1e-7
    assert wrong > 1000 * right


# Log-n as mistral3 in the real llama.cpp, against transformers with its queries scaled at run time


STEPS = {"carrier": "mistral3", "allow_approximate": True}
KINDS = ("clamped", "full")


def recipe(kind: str, method: str = "mixed", **modifiers: float) -> Recipe:
    return recipe_of(method, 4.0, log_n=kind, **modifiers)


@pytest.mark.parametrize(
    ("model_type", "method", "kind"),
    sample(list(product(("llama", "mistral", "qwen2"), ("yarn", "mixed"), KINDS)), 2),
)
def test_logits(tmp_path: Path, model_type: str, method: str, kind: str) -> None:
    """The steps (clamped) and the formula itself (full), where the same without any scale is far
    away.
    """
    source = checkpoint(model_type, tmp_path / "source")
    out = tmp_path / "model.gguf"
    plan = bake(source, recipe(kind, method, attention_factor=1.2), out, **STEPS)
    by_runtime = {
        verdict.runtime.partition("@")[0]: verdict.status for verdict in plan.result.verdicts
    }
    status = "approximate" if kind == "clamped" else "exact"
    good = {name for name, found in by_runtime.items() if found in ("exact", "approximate")}
    assert good == {"llama-cpp-gguf", "lm-studio"}  # LM Studio runs GGUF files in llama.cpp
    assert {by_runtime[name] for name in good} == {status}
    scale = plan.result.log_n_approximation if kind == "clamped" else plan.schedule.log_n
    expected = of_transformers(source, plan, scale)
    stock = of_llamacpp(out)
    unscaled = beyond(expected, of_transformers(source, plan))
    for bucket, control in zip(beyond(expected, stock), unscaled, strict=True):
        assert bucket.kl_mean < 1e-5
        assert control.kl_mean > 1000 * bucket.kl_mean


@pytest.mark.parametrize("patched", [False, True], ids=["from a checkpoint", "from GGUF"])
def test_other_steps_are_noticed(tmp_path: Path, patched: bool) -> None:
    source = checkpoint("llama", tmp_path / "source")
    out = tmp_path / "out.gguf"
    wrong = tmp_path / "wrong.gguf"
    if patched:  # which is compared with its dequantised source
        bake(source, recipe_of("as-is"), tmp_path / "plain.gguf")
        source = tmp_path / "plain.gguf"
    bake(source, recipe("full", "linear") if patched else recipe("clamped"), out, **STEPS)
    write_new(
        GgufFile.open(out), 0, Edit({"mistral3.attention.temperature_scale": f32(0.1)}), wrong
    )
    for file, agrees in ((out, True), (wrong, False)):
        assert (
            validate_gguf(Comparison.open(file, str(source)), Settings(tokens=LENGTH)).agrees
            == agrees
        )


# Patched GGUF files


def test_a_scaled_file_becomes_its_carrier_without_a_trace_of_the_old_scaling(
    tmp_path: Path,
) -> None:
    original, scaled, again, fresh = (
        tmp_path / f"{name}.gguf" for name in ("original", "scaled", "again", "fresh")
    )
    bake(checkpoint("qwen2", tmp_path / "source"), AS_IS, original)
    bake(original, recipe_of("yarn", 2.0, attention_factor=1.5), scaled)
    bake(scaled, recipe_of("mixed", 4.0), again, replace=True)
    bake(original, recipe_of("mixed", 4.0), fresh)
    assert torch.equal(of_llamacpp(again), of_llamacpp(fresh))
    header = GgufFile.open(again).header
    left = {key: header.get(key) for key in header.values if ".rope.scaling." in key}
    assert left == {
        "llama.rope.scaling.type": "none",
        "llama.rope.scaling.original_context_length": TRAINED,
    }


@pytest.mark.parametrize("outtype", sample(["q8_0", "q4_k_m", "iq4_xs", "q2_k"], 1))
def test_a_quantised_file_is_patched_by_keys_and_as_another_architecture(
    tmp_path: Path, outtype: str
) -> None:
    """Whole rows move, so only the order of summation changes; unpermuted they would be another
    model.
    """
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    original = tmp_path / "model.gguf"
    recipe = recipe_of("yarn", 4.0)
    bake(checkpoint("qwen2", tmp_path / "source", **wide), AS_IS, original, outtype=outtype)
    bake(original, recipe, tmp_path / "keys.gguf")
    bake(original, recipe, tmp_path / "carried.gguf", carrier="llama")
    by_keys = of_llamacpp(tmp_path / "keys.gguf")
    unscaled = of_llamacpp(original)
    assert figures(by_keys, of_llamacpp(tmp_path / "carried.gguf")).kl_mean < 0.01
    assert figures(by_keys, unscaled).kl_mean > 1
    apply(make_plan(original, recipe, in_place=True))
    assert torch.equal(of_llamacpp(original), by_keys)
