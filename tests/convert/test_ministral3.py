"""Llama and Mistral weights as Ministral 3, whose steps stand for log-n, against the source patched
at run time.
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from ropeconv.engines.transformers.load import load_stock
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import QueryScaling

from ..support.baking import apply, make_plan, recipe_of, stored_as, validate
from ..support.extent import sample
from ..support.models import TRAINED, make
from .test_buffers import calm

SILENT = (
    "rms_norm_eps",
    "pad_token_id",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "hidden_act",
    "initializer_range",
    "attention_dropout",
    "use_cache",
)


def baked(source: Path, out: Path, kind: str, of: str | Recipe = "mixed") -> Path:
    recipe = replace(recipe_of(of, 4.0) if isinstance(of, str) else of, log_n=kind)
    return apply(make_plan(source, recipe, out, encoding="ministral3", allow_approximate=True))


CELLS = list(
    product(("llama", "mistral"), ("linear", "yarn", "mixed", "by-parts"), ("clamped", "full"))
)


@pytest.mark.parametrize(("layout", "method", "kind"), sample(CELLS, 1))
def test_logits(tmp_path: Path, layout: str, method: str, kind: str) -> None:
    source = calm(layout, tmp_path / "source")
    out = baked(source, tmp_path / "out", kind, method)
    config = json.loads((out / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == (
        "ministral3",
        ["Ministral3ForCausalLM"],
    )
    result = validate(out, source)
    assert result.agrees, result
    assert max(bucket.kl_95 for bucket in result.buckets) < 1e-6
    assert ("has steps" in result.sentence) == (kind == "clamped")


def test_the_stock_class_takes_the_steps_that_we_say() -> None:
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    steps = QueryScaling(1 / np.log(64), 64)
    positions = np.arange(1024)
    theirs = (
        get_llama_4_attn_scale(torch.from_numpy(positions)[None], steps.beta, steps.length)
        .flatten()
        .numpy()
    )
    np.testing.assert_allclose(theirs, steps.scale(positions), rtol=1e-6)


@pytest.mark.parametrize("layout", sample(["llama", "mistral"], 1))
def test_silent_keys_keep_the_meaning_they_had(tmp_path: Path, layout: str) -> None:
    """A config that leaves everything to its class, as Ministral 3 without its steps: the same
    bits.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    source = make(layout, tmp_path / "source")
    config = {
        key: item
        for key, item in json.loads((source / "config.json").read_text()).items()
        if key not in SILENT
    }
    heads = 8 if layout == "mistral" else 2
    config |= {"num_attention_heads": heads, "hidden_size": 64 * heads}
    (source / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source)).save_pretrained(
        tmp_path / "whole"
    )
    (tmp_path / "whole" / "model.safetensors").replace(source / "model.safetensors")
    out = baked(
        source,
        tmp_path / "out",
        "clamped",
        recipe_of("theta", 1e4, log_n="clamped", log_n_length=1 << 20),
    )
    ids = torch.randint(4, 300, (1, TRAINED), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        reference, other = (
            load_stock(folder, "cpu")(input_ids=ids).logits for folder in (source, out)
        )
    assert torch.equal(reference, other)
    written = json.loads((out / "config.json").read_text())
    values = [written[key] for key in ("rms_norm_eps", "pad_token_id", "num_key_value_heads")]
    assert values == [1e-6, None, heads]


def test_what_is_written_for_others(llama: Path, tmp_path: Path) -> None:
    """vLLM looks for the steps at the top level."""
    out = baked(llama, tmp_path / "out", "clamped", "yarn")
    config = json.loads((out / "config.json").read_text())
    beta = pytest.approx(1 / np.log(TRAINED))
    assert config["llama_4_scaling"] == {"original_max_position_embeddings": TRAINED, "beta": beta}
    assert (
        config["rope_parameters"]["llama_4_scaling_beta"]
        == config["rope_scaling"]["llama_4_scaling_beta"]
        == beta
    )
    receipt = json.loads((out / "ropeconv.json").read_text())
    deviation = pytest.approx(0.162, abs=1e-3)
    steps = {"beta": beta, "length": TRAINED, "gain": 1.0, "deviation": deviation}
    assert receipt["log_n_approximation"] == steps
    words = {verdict["runtime"]: verdict["status"] for verdict in receipt["runtimes"]}
    assert words["vllm@0.33"] == words["transformers@5.13"] == "approximate"
    assert words["sglang@0.5.23"] == "differs"  # it takes the length from the top level, else 16384
    assert words["transformers@4.56"] == "unsupported"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_full_form_costs_no_bit(llama: Path, tmp_path: Path, dtype: str) -> None:
    before = stored_as(llama, dtype)
    after = safetensors.torch.load_file(
        baked(llama, tmp_path / "out", "full") / "model.safetensors"
    )
    for name, tensor in before.items():
        factor = 8192.0 if name.endswith("q_proj.weight") else 1.0
        assert torch.equal(tensor, after[name] * factor), name


def test_the_full_form_is_exact_and_taken_by_itself(llama: Path) -> None:
    plan = make_plan(llama, recipe_of("theta", 1e6, context=512, log_n="full"))
    assert plan.result.encoding == "ministral3"
    assert plan.result.deviation == pytest.approx(2.0**-13)
    words = {verdict.runtime: verdict.status for verdict in plan.result.verdicts}
    assert words["vllm@0.33"] == words["transformers@5.13"] == "exact"
    assert words["sglang@0.5.23"] == "differs"
