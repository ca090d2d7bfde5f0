"""`bound SOURCE --weights`: what is printed, against sums that are computed here from the file's tensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ropeconv.rope.forms import base_inv_freq

from ..conftest import CONFIGS, Run
from ..support.attention_inputs import lively_weights
from ..support.gguf_files import write
from ..support.hub_server import serving
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
    for one in found["weights"]:
        np.testing.assert_allclose(np.sum(one["pairs"], axis=1) + one["unrotated"], 32, rtol=1e-4)


def test_in_words(run: Run, uneven: Path) -> None:
    done = run("bound", uneven, "--weights", "--yarn", "4", "--up-to", "4k")
    document = json.loads(run("bound", uneven, "--weights", "--yarn", "4", "--up-to", "4k", "--json").stdout)
    lengths = document["weighted"]["layers"][1]["effective_lengths"]
    worst = min(length for length in lengths if length is not None)
    line = next(line.split() for line in done.stdout.splitlines() if line.startswith("    1"))
    assert line[-3:] == [str(lengths.index(worst)), f"{worst:,}", "4,096"]
    assert f"with equal variances the effective length is {document['effective_length']:,}." in done.stdout
    assert "of 8 heads have a negative sum; the effective length of the worst is" in done.stdout
    assert done.stderr == ""


def test_layers_are_judged_up_to_their_windows(run: Run, tmp_path: Path) -> None:
    """Gemma 2: every other layer sees 700 tokens; what is beyond counts for the others alone."""
    folder = lively_weights(make("gemma2", tmp_path / "m", sliding_window=700, max_position_embeddings=8192))
    found = json.loads(run("bound", folder, "--weights", "--json").stdout)
    windowed, whole = found["weighted"]["layers"]
    assert (windowed["below"], whole["below"]) == (700, 8192)
    config = json.loads((folder / "config.json").read_text())
    config["sliding_window"] = 8192
    (folder / "config.json").write_text(json.dumps(config))
    wide = json.loads(run("bound", folder, "--weights", "--json").stdout)["weighted"]["layers"]
    assert wide[1] == whole
    seen = [length if length is not None and length < 700 else None for length in wide[0]["effective_lengths"]]
    assert windowed["effective_lengths"] == seen != wide[0]["effective_lengths"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("128k", "--weights"), "--weights does not go with a length"),
        (("--theta", "5e5", "--weights"), "--weights needs a SOURCE"),
        ((CONFIGS / "meta-llama--Llama-2-7b-hf.json", "--weights"), "has no safetensors weights"),
        (("tiny.gguf", "--weights"), "is GGUF, and only safetensors are measured"),
    ],
)
def test_what_is_refused(run: Run, tmp_path: Path, arguments: tuple[object, ...], said: str) -> None:
    write(tmp_path / "tiny.gguf")
    done = run("bound", *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_on_the_hub_only_what_is_measured_is_read(run: Run, process: Run, uneven: Path, tmp_path: Path) -> None:
    arguments = ("--weights", "--up-to", "4k", "--json")
    with serving() as hub:
        hub.repos["me/uneven"] = uneven
        done = process("bound", "me/uneven", *arguments, env=hub.environment(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(run("bound", uneven, *arguments).stdout)
    rows = 2 * (4 + 2) * 64 * 128 * 4
    assert rows < hub.sent["model.safetensors"] < rows + (1 << 16) + 5000
    assert hub.sent["model.safetensors"] < (uneven / "model.safetensors").stat().st_size / 1.5
