"""Conversions have every key of the architecture that llama.cpp's own converter writes.

`tests/data/converter_keys.json` has its keys for the same checkpoints
(`scripts/llamacpp/compare_converter.py --keys`).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.gguf import ExportPlan

from ...support.baking import AS_IS, make_plan
from ...support.extent import sample
from ...support.llamacpp import EXPORTED
from ...support.stock_tree import published

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "converter_keys.json").read_text()
)
APART = ("rope.scaling.", "ropeconv.")
"""Keys of the method, which ropeconv writes in its own way."""
DESCRIPTIONS = ("general", "tokenizer")
UNREADABLE = {"gpt_neox", "hunyuan_v1_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}
"""Model types on whose configs, as transformers 5 writes them, the converter stops."""
DIFFERING: dict[str, dict[str, Any]] = {
    "bamba": {"rope.dimension_count": 32},
    "deepseek_v2": {"expert_group_count": None, "expert_group_used_count": None},
    "eurobert": {"classifier.pooling_type": None},
    "exaone_moe": {"nextn_predict_layers": None},
    "falcon": {"context_length": 64, "tensor_data_layout": None},
    "glm": {"context_length": 64},
    "glm4_moe": {"nextn_predict_layers": None},
    "granitemoehybrid": {"context_length": 64},
    "ministral3": {"context_length": 16},
    "solar_open": {"rope.dimension_count": 64},
}
"""Values that ropeconv writes otherwise; None for keys that it leaves out.

Keys that change nothing are left out, such as the pooling of EuroBERT's classifier, which llama.cpp
does not have. The converter lets whole heads rotate in Bamba, and has the
context 1M for Granite 4 with state spaces, where it says that nothing rotates. The converter has one context length for every Falcon, takes
the length of the position table for GLM, and lets half of each head rotate in Solar Open. The
context of Ministral 3 is written with the method.
"""


def keys_of(model_type: str, folder: Path) -> dict[str, Any]:
    """The keys of the architecture that a conversion will have."""
    source = published(model_type, folder / "Tiny")
    plan = make_plan(source, AS_IS, folder / "out.gguf", to="gguf", outtype="bf16")
    assert isinstance(plan, ExportPlan)
    header = plan.exported.model.header
    keys = {}
    for key in header.values:
        group, _, name = key.partition(".")
        if group not in DESCRIPTIONS:
            keys[name] = header.get(key)
    return keys


@pytest.mark.parametrize("model_type", sample(sorted(RECORDED), 6))
def test_every_key_of_the_converter_is_there_with_its_value(
    model_type: str, tmp_path: Path
) -> None:
    ours = keys_of(model_type, tmp_path)
    named = DIFFERING.get(model_type, {})
    for key, value in RECORDED[model_type].items():
        if key.startswith(APART):
            continue
        if key in named:
            assert ours.get(key) == named[key], key
            assert ours.get(key) != value, key
        else:
            assert ours.get(key) == value, key


def test_every_family_that_is_converted_is_recorded() -> None:
    assert set(EXPORTED) - set(RECORDED) == UNREADABLE
