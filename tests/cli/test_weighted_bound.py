"""`bound SOURCE --weights`: what is printed, against sums that are computed here from the file's tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ropeconv.rope.forms import base_inv_freq

from ..conftest import Run
from ..support.attention_inputs import lively_weights
from ..support.models import make

UP_TO = 20_000
Q, K, NORM = "self_attn.q_proj.weight", "self_attn.k_proj.weight", "input_layernorm.weight"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 4 heads over 2 of keys whose rows have sizes of their own, in one file."""
    folder = tmp_path_factory.mktemp("uneven") / "model"
    return lively_weights(make("llama", folder, num_attention_heads=4, num_key_value_heads=2))


def naive(folder: Path, layer: int, inv_freq: np.ndarray) -> np.ndarray:
    """Sums of all heads of a layer, float64 [heads, UP_TO], by loops over heads and pairs."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    q, k, norm = (tensors[f"model.layers.{layer}.{name}"].astype(np.float64) for name in (Q, K, NORM))
    queries, keys = ((np.square(one * norm).sum(axis=1)).reshape(-1, 64) for one in (q, k))
    distances = np.arange(UP_TO, dtype=np.float64)
    rows = []
    for head, variance in enumerate(queries):
        key = keys[head * len(keys) // len(queries)]
        total = np.zeros(UP_TO)
        for pair, theta in enumerate(inv_freq):
            both = (variance[pair] + variance[pair + 32]) * (key[pair] + key[pair + 32])
            total += np.sqrt(both) * np.cos(distances * theta)
        rows.append(total)
    return np.array(rows)


def test_each_head_against_its_tensors(run: Run, uneven: Path) -> None:
    found = json.loads(run("bound", uneven, "--weights", "--linear", "2", "--up-to", str(UP_TO), "--json").stdout)
    lengths = []
    for layer, one in enumerate(found["weighted"]["layers"]):
        sums = naive(uneven, layer, base_inv_freq(1e4, 64) / 2)
        assert (one["layer"], one["below"]) == (layer, UP_TO)
        assert one["violations"] == (sums < 0).sum(axis=1).tolist()
        assert one["effective_lengths"] == [int(row.argmax()) - 1 for row in sums < 0]
        lengths += one["effective_lengths"]
    assert len(set(lengths)) > 4
    summary = {key: value for key, value in found["weighted"].items() if key != "layers"}
    assert summary == {
        "heads": 8, "heads_with_violations": 8, "effective_length": min(lengths),
        "median_effective_length": sorted(lengths)[3],
    }  # fmt: skip
    assert found["effective_length"] not in lengths, "that of equal variances"
