"""Quantised checkpoints become the GGUF file that the weights they stand for give in float32. Each
form is packed by `tests/support/quantised.py`, value by value.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import ropeconv
from ropeconv.errors import BadSource
from ropeconv.models.source import Source
from ropeconv.models.stored.checkpoint import DequantisedCheckpoint, dequantised
from ropeconv.models.stored.form import FORMS
from ropeconv.rope.errors import RopeconvError

from ..support.baking import recipe_of
from ..support.extent import sample
from ..support.gguf_files import contents
from ..support.llamacpp import bake
from ..support.quantised import CASES, SIZES, Tensors, write_both


def written(case: str, folder: Path) -> tuple[Path, Path]:
    """A checkpoint in a form, and one in float32."""
    _, pack, settings = CASES[case]
    return write_both("llama", pack, settings, folder, shards=False, **SIZES)


def presented(folder: Path) -> DequantisedCheckpoint:
    source = ropeconv.open_source(str(folder))
    assert isinstance(source, Source)
    result = dequantised(source)
    assert isinstance(result, DequantisedCheckpoint)
    return result


def test_every_form_has_a_case() -> None:
    in_own_file = {"fp8"}  # tests/models/test_fp8.py
    assert {form for form, _, _ in CASES.values()} | in_own_file == set(FORMS)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_that_they_stand_for(case: str, tmp_path: Path) -> None:
    stored, plain = written(case, tmp_path)
    source = presented(stored)
    [file] = source.generated_files()
    assert file.stream is not None
    whole = b"".join(map(bytes, file.stream()))
    assert len(whole) == file.size

    (tmp_path / "made.safetensors").write_bytes(whole)
    made = safetensors.torch.load_file(tmp_path / "made.safetensors")
    expected = safetensors.torch.load_file(plain / "model.safetensors")
    assert made.keys() == expected.keys()
    assert [name for name in made if not torch.equal(made[name], expected[name])] == []

    random = np.random.default_rng(0)
    for _ in range(20):
        start, stop = sorted(random.integers(0, len(whole), 2).tolist())
        assert source.read(file.name, start, stop) == whole[start:stop]


@pytest.mark.parametrize(
    ("case", "outtype"),
    sample([(case, outtype) for case in CASES for outtype in ("bf16", "q8_0")], 4, seed=3),
)
def test_a_conversion_is_that_of_the_float32_weights(
    case: str, outtype: str, tmp_path: Path
) -> None:
    stored, plain = written(case, tmp_path)
    recipe = recipe_of("yarn", 4.0)
    bake(stored, recipe, tmp_path / "stored.gguf", outtype=outtype)
    bake(plain, recipe, tmp_path / "plain.gguf", outtype=outtype)
    assert contents(tmp_path / "stored.gguf") == contents(tmp_path / "plain.gguf")


Change = Callable[[Tensors, dict[str, Any]], None]
LAYER = "model.layers.0.self_attn.k_proj"


def without(end: str) -> Change:
    """Remove a tensor of a layer."""

    def change(tensors: Tensors, settings: dict[str, Any]) -> None:
        del tensors[LAYER + end]

    return change


def longer(end: str) -> Change:
    """Give a tensor of a layer one more row."""

    def change(tensors: Tensors, settings: dict[str, Any]) -> None:
        tensor = tensors[LAYER + end]
        tensors[LAYER + end] = torch.cat([tensor, tensor[:1]])

    return change


def stating(**stated: Any) -> Change:
    """State something else in quantization_config."""

    def change(tensors: Tensors, settings: dict[str, Any]) -> None:
        settings |= stated

    return change


def another_group(end: str) -> Change:
    """Name a group that has no scale."""

    def change(tensors: Tensors, settings: dict[str, Any]) -> None:
        tensors[LAYER + end][3] = 99

    return change


def another_state(tensors: Tensors, settings: dict[str, Any]) -> None:
    text = b'{"shape": "x", "blocksize": 64}'
    tensors[f"{LAYER}.weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(text), dtype=torch.uint8
    )


def another_size(tensors: Tensors, settings: dict[str, Any]) -> None:
    tensors[f"{LAYER}.weight_shape"] += 1


DAMAGED: dict[str, tuple[str, Change, str]] = {
    "GPTQ without scales": ("GPTQ, 4 bits", without(".scales"), "download"),
    "GPTQ of other shapes": ("GPTQ, 4 bits", longer(".qzeros"), "do not fit"),
    "GPTQ in Marlin's order": (
        "GPTQ, 4 bits",
        stating(checkpoint_format="marlin"),
        "ropeconv apply BASE",
    ),
    "GPTQ with an unknown group": (
        "GPTQ, 4 bits, order of activations",
        another_group(".g_idx"),
        "group 99 of 6",
    ),
    "AWQ in another version": ("AWQ", stating(version="gemv"), "ropeconv apply BASE"),
    "AWQ of other shapes": ("AWQ", longer(".qzeros"), "do not fit"),
    "packed in other bits": (
        "packed, 4 bits",
        stating(config_groups={"a": {"weights": {"num_bits": 3, "strategy": "channel"}}}),
        "config_groups",
    ),
    "packed of another shape": ("packed, 4 bits", another_size, "weight_shape"),
    "packed with an unknown group": (
        "packed, 4 bits, order of activations",
        another_group(".weight_g_idx"),
        "no scale",
    ),
    "NVFP4 of other shapes": ("NVFP4 of ModelOpt", longer(".weight_scale"), "do not fit"),
    "NF4 without absmax": ("NF4", without(".weight.absmax"), "download"),
    "NF4 of another shape": ("NF4", another_state, "shape"),
    "NF4 with fewer blocks": ("NF4, nested", longer(".weight.nested_absmax"), "do not fit"),
    "int8 of other rows": ("LLM.int8()", longer(".SCB"), "does not fit"),
    "an unknown quantiser": ("AWQ", stating(quant_method="hqq"), "ropeconv apply BASE"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    case, change, words = DAMAGED[name]
    stored, _ = written(case, tmp_path)
    tensors = safetensors.torch.load_file(stored / "model.safetensors")
    config = json.loads((stored / "config.json").read_text())
    change(tensors, config["quantization_config"])
    safetensors.torch.save_file(tensors, stored / "model.safetensors", {"format": "pt"})
    (stored / "config.json").write_text(json.dumps(config))
    with pytest.raises(RopeconvError, match=words) as caught:
        bake(stored, recipe_of("yarn", 4.0), tmp_path / "out.gguf")
    assert caught.value.exit_code in (1, BadSource.exit_code)
    assert not list(tmp_path.glob("*out.gguf*"))
