"""Variances from weights against the queries and keys that the installed transformers gives to
attention.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from ropeconv.errors import BadSource
from ropeconv.inspection.head_bound import LayerVariances, attention_layers, measure
from ropeconv.inspection.inspection import inspect_config
from ropeconv.models.open import open_checkpoint
from ropeconv.models.registry import by_model_type

from ..support.attention_inputs import attention_inputs, lively_weights
from ..support.extent import sample
from ..support.models import CANCELS, ENCODERS, FAMILIES, TINY, make

UNMEASURED = {
    model_type for model_type in FAMILIES if by_model_type()[model_type].weights.unmeasured
}
MLA = {model_type for model_type, tiny in TINY.items() if "mla" in tiny.parts}


def measured(folder: Path, *heard: Any) -> list[LayerVariances]:
    source = open_checkpoint(str(folder))
    inspection = inspect_config(source)
    layers = attention_layers(
        inspection.spec, inspection.model_family, source.config(), source.tensors
    )
    return list(measure(source, layers, inspection.model_family, inspection.spec.head_dim, *heard))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lively")


def lively(folders: Path, model_type: str) -> Path:
    folder = folders / model_type
    return (
        folder
        if folder.exists()
        else lively_weights(make(model_type, folder, **TINY[model_type].norms))
    )


HALVES = {model_type for model_type in FAMILIES if by_model_type()[model_type].halves}
MEASURED = [
    model_type
    for model_type in FAMILIES
    if model_type not in MLA | CANCELS | UNMEASURED | ENCODERS | HALVES
]


@pytest.mark.parametrize("model_type", sample(MEASURED, 3))
def test_variances_are_those_of_the_model(model_type: str, folders: Path) -> None:
    """4,096 samples: the variance of one is off by 2 % on average, and the worst of some hundreds
    by less than 20 %.
    """
    folder = lively(folders, model_type)
    layers = measured(folder)
    theirs = attention_inputs(folder)
    assert layers
    for layer in layers:
        for variances, samples in zip(
            (layer.queries, layer.keys), theirs[layer.layer], strict=True
        ):
            sampled = samples.var(axis=1)
            assert variances.shape == sampled.shape
            ratio = (variances / variances.sum(axis=1, keepdims=True)) / (
                sampled / sampled.sum(axis=1, keepdims=True)
            )
            assert np.abs(ratio - 1).mean() < 0.03
            assert np.abs(ratio - 1).max() < 0.2
            backwards = variances[:, ::-1] / sampled
            assert np.abs(backwards / backwards.mean() - 1).mean() > 0.3, (
                "the dimensions would not matter"
            )


def by_hand(
    folder: Path, dtype: torch.dtype = torch.float32, model_type: str = "llama", **more: Any
) -> Path:
    """A layer of two heads of four dimensions over one key head, whose numbers are whole."""
    folder.mkdir(exist_ok=True)
    config = {
        "model_type": model_type,
        "hidden_size": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
    }
    prefix = "model.layers.0."
    tensors = {
        "self_attn.q_proj.weight": [[row, 1, 0] for row in range(8)],
        "self_attn.q_proj.bias": [100.0] * 8,
        "self_attn.k_proj.weight": [[0, 0, row] for row in range(4)],
        "input_layernorm.weight": [2, 1, 3],
    } | more
    kept = {
        f"{prefix}{name}": torch.tensor(rows, dtype=dtype)
        for name, rows in tensors.items()
        if rows is not None
    }
    safetensors.torch.save_file(kept, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


BY_HAND = [[1, 5, 17, 37], [65, 101, 145, 197]]  # (2 row)^2 + 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_by_hand(dtype: torch.dtype, tmp_path: Path) -> None:
    (variances,) = measured(by_hand(tmp_path / "m", dtype))
    assert variances.layer == 0
    assert variances.queries.tolist() == BY_HAND
    assert variances.keys.tolist() == [[0, 9, 36, 81]]  # (3 row)^2


PLAIN = {"self_attn.q_proj.weight": None, "self_attn.k_proj.weight": None}


@pytest.mark.parametrize(
    ("changes", "dtype", "message"),
    [
        (
            {"self_attn.q_proj.weight": None},
            "float32",
            "has no model.layers.0.self_attn.q_proj.weight; download",
        ),
        (
            {"self_attn.k_proj.weight": None},
            "float32",
            "has no model.layers.0.self_attn.k_proj.weight; download",
        ),
        (
            {"self_attn.k_proj.weight": [[0.0, 0, float("inf")]] * 4},
            "float32",
            "k_proj.weight has infinite numbers or NaN",
        ),
        (
            {"self_attn.q_proj.weight": [[1.0, 0, 0]] * 6},
            "float32",
            "6 rows, too few for the heads",
        ),
        (
            {"self_attn.k_proj.weight": [[1.0, 0, 0]] * 12},
            "float32",
            "2 heads, not a multiple of the 3",
        ),
        ({"input_layernorm.weight": [1.0, 1]}, "float32", "has the shape [2], not [3]"),
        *(
            (
                PLAIN | {f"self_attn.{side}_proj.{name}": [[1, 0, 0]] * 8 for side in "qk"},
                "uint8",
                "give the checkpoint before its quantisation",
            )
            for name in ("weight", "qweight", "weight_packed")
        ),
    ],
)
def test_what_is_damaged_or_quantised(
    changes: dict[str, Any], dtype: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadSource) as problem:
        measured(by_hand(tmp_path / "m", getattr(torch, dtype), **changes))
    assert message in str(problem.value)


SAID = {
    "deepseek_v3": "multi-head latent attention",
    "hunyuan_v1_dense": "after the rotation",
    "eurobert": "both directions",
}
SAID |= {model_type: by_model_type()[model_type].weights.unmeasured for model_type in UNMEASURED}


@pytest.mark.parametrize("model_type", sample(sorted(SAID), 2))
def test_what_these_tensors_do_not_say(model_type: str, folders: Path) -> None:
    with pytest.raises(BadSource, match=SAID[model_type]):
        measured(lively(folders, model_type))
