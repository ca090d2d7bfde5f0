"""`bound`, `plot`: what is printed, and what is refused."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ropeconv.rope.forms import base_inv_freq

from ...cli.conftest import Refuses
from ...conftest import CONFIGS, Run
from ...support.gguf_files import write
from ...support.models import make

LLAMA_2 = str(CONFIGS / "meta-llama--Llama-2-7b-hf.json")


def test_the_smallest_base_as_json(run: Run) -> None:
    document = json.loads(run("bound", "128k", "--json").stdout)
    assert document["base"] == pytest.approx(4869104.3705287808, rel=1e-14)
    assert (document["length"], document["rotary_dim"], document["binding_distance"]) == (
        131072,
        128,
        124837,
    )
    assert document["window"] == pytest.approx([4869104.3705, 4872527.1774], rel=1e-9)
    assert document["first_wide_window"][0] == pytest.approx(1.597e7, rel=1e-3)
    assert document["last_violating_base"] == pytest.approx(4.227e7, rel=1e-3)
    assert sorted(document["published"].values()) == [4.9e6, 7.8e6]


def test_the_reach_of_a_base(run: Run) -> None:
    document = json.loads(run("bound", "--theta", "500000", "--json").stdout)
    assert (document["effective_length"], document["first_violation"]) == (18437, 18438)
    assert document["violations"]["below"] == 1 << 20
    assert document["violations"]["places"][0] == [18438, 18439]
    fewer = json.loads(run("bound", "--theta", "500000", "--up-to", "20k", "--json").stdout)
    assert fewer["violations"] == {
        "below": 20480,
        "count": 3,
        "runs": 2,
        "places": [[18438, 18439], [20266, 20266]],
    }


def test_the_reach_of_a_source_and_of_what_methods_make_of_it(run: Run) -> None:
    document = json.loads(run("bound", LLAMA_2, "--json").stdout)
    assert document["first_violation"] == 1707
    both = json.loads(run("bound", LLAMA_2, "--yarn", "8", "--linear", "8", "--json").stdout)[
        "schedules"
    ]
    assert {name: schedule["first_violation"] for name, schedule in both.items()} == {
        "yarn8": 8886,
        "linear8": 13649,
    }
    numbers = json.loads(
        run(
            "bound", "--theta", "10000", "--original-context", "4096", "--yarn", "8", "--json"
        ).stdout
    )
    assert numbers["first_violation"] == 8886
    llama_31 = json.loads(
        run("bound", str(CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"), "--json").stdout
    )
    assert llama_31["first_violation"] == 85133


def test_the_certificate_covers_everything_below(run: Run, tmp_path: Path) -> None:
    run("bound", "4k", "--certificate", "proof.tsv")
    rows = [line.split("\t") for line in (tmp_path / "proof.tsv").read_text().splitlines()[1:]]
    assert float(rows[0][0]) == 0
    assert all(end == begin for (_, end, _), (begin, _, _) in pairwise(rows))
    assert math.exp(float(rows[-1][1])) == pytest.approx(26952.339227857868, rel=1e-11)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "give a length such as 128k, a SOURCE, or --theta B"),
        (("128k", "--yarn", "4"), 2, "--yarn does not go with a length"),
        (("200M",), 2, "computed up to 134217728 tokens"),
        (("--theta", "0.5"), 2, "must be above 1"),
        (("--theta", "5e5", "--windows"), 2, "go with a LENGTH"),
        ((LLAMA_2, "--head-dim", "64"), 2, "a SOURCE has its own"),
        ((LLAMA_2, "--context", "8k"), 2, "--context goes with a method"),
        (("128k", "--weights"), 2, "--weights does not go with a length"),
        (("--theta", "5e5", "--weights"), 2, "--weights needs a SOURCE"),
        ((LLAMA_2, "--weights"), 1, "has no safetensors weights"),
        (("tiny.gguf", "--weights"), 1, "is a GGUF file; give the safetensors checkpoint"),
    ],
)
def test_what_is_refused(
    refuses: Refuses,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    """Before any search, which can take minutes."""
    write(tmp_path / "tiny.gguf")
    monkeypatch.setattr("ropeconv.features.bound.command.reach", lambda *_: pytest.fail("searched"))
    refuses(code, words, "bound", *arguments)


def test_plot_refuses_other_formats(refuses: Refuses) -> None:
    refuses(2, "neither .png nor .svg", "plot", "-o", "x.gif")


def test_plans_warn_only_where_a_change_makes_it_worse(run: Run) -> None:
    better = run("apply", LLAMA_2, "--yarn", "8", "--dry-run", "--explain")
    assert "effective length" not in better.stderr
    row = next(line for line in better.stdout.splitlines() if line.startswith("effective length"))
    assert row.split()[2:] == ["1,706", "8,885"]
    shorter = json.loads(
        run("apply", LLAMA_2, "--theta", "5000", "--context", "16k", "--dry-run", "--json").stdout
    )
    (warning,) = [
        line for line in shorter["warnings"] if line.startswith("the effective length is ")
    ]
    assert "of 16,384 tokens; the source's is 1,706" in warning
    assert "retrieval can be lost (Men et al. 2024" in warning


UP_TO = 20_000
Q, K, NORM = "self_attn.q_proj.weight", "self_attn.k_proj.weight", "input_layernorm.weight"


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 4 heads over 2 of keys whose rows have sizes of their own, in one file."""
    from ...support.attention_inputs import lively_weights

    folder = tmp_path_factory.mktemp("uneven") / "model"
    return lively_weights(make("llama", folder, num_attention_heads=4, num_key_value_heads=2))


def naive(folder: Path, layer: int, inv_freq: np.ndarray) -> np.ndarray:
    """Sums of all heads of a layer, float64 [heads, UP_TO], by loops over heads and pairs."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    q, k, norm = (
        tensors[f"model.layers.{layer}.{name}"].astype(np.float64) for name in (Q, K, NORM)
    )
    queries, keys = ((np.square(weight * norm).sum(axis=1)).reshape(-1, 64) for weight in (q, k))
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
    document = json.loads(
        run("bound", uneven, "--weights", "--linear", "2", "--up-to", str(UP_TO), "--json").stdout
    )
    lengths = []
    for layer, entry in enumerate(document["weighted"]["layers"]):
        sums = naive(uneven, layer, base_inv_freq(1e4, 64) / 2)
        assert (entry["layer"], entry["below"]) == (layer, UP_TO)
        assert entry["violations"] == (sums < 0).sum(axis=1).tolist()
        assert entry["effective_lengths"] == [int(row.argmax()) - 1 for row in sums < 0]
        lengths += entry["effective_lengths"]
    assert len(set(lengths)) > 4
    summary = {key: value for key, value in document["weighted"].items() if key != "layers"}
    assert summary == {
        "heads": 8,
        "heads_with_violations": 8,
        "effective_length": min(lengths),
        "median_effective_length": sorted(lengths)[3],
    }
    assert document["effective_length"] not in lengths, "that of equal variances"
    screen = run("bound", uneven, "--weights", "--linear", "2", "--up-to", str(UP_TO)).stdout
    text = " ".join(screen.split())
    assert f"with equal variances the effective length is {document['effective_length']:,}" in text
    assert "8 of 8 heads have" in text
    worst = {line.split()[0]: line.split()[5] for line in screen.splitlines() if " of 4 " in line}
    layers = document["weighted"]["layers"]
    assert worst == {
        str(entry["layer"]): f"{min(entry['effective_lengths']):,}" for entry in layers
    }
