"""A line below a table says what its columns and words mean, where they are not plain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from ropeconv.inspection.layers import describe_layers
from ropeconv.rope.forms import Plain
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.rules import Status
from ropeconv.verify.verified import Verified
from ropeconv.views.legends import HIDDEN_STATES, STATUSES, VALIDATION, legend, statuses
from ropeconv.views.validation import COLUMNS, STATES

from ..support.in_process import command


def test_every_status_has_a_meaning_and_only_those_that_are_there_are_said() -> None:
    assert set(STATUSES) == set(get_args(Status))
    said = statuses([("exact", "vLLM 0.33"), ("refused", "a 1")])
    assert said == "Exact: computes this RoPE; refused: fails with an error."
    read = statuses([("exact", "vLLM 0.33; read: TGI 3")])
    assert read.endswith("; read: known from its source, the others from a run.")
    assert statuses([]) == ""


def test_meanings_are_those_of_columns() -> None:
    assert legend({"a": "first", "b": "second"}, ["b", "c"]) == "B: second."
    assert VALIDATION.keys() <= set(COLUMNS)
    assert HIDDEN_STATES.keys() <= set(STATES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("inspect model", ["Exact: computes this RoPE"]),
        ("apply model --yarn 4 --dry-run", ["Slowest wavelength: tokens in", "ignored: runs the unscaled"]),
        ("apply model --yarn 4 --dry-run --explain", ["ignored: runs the unscaled RoPE, silently"]),
        ("advise model --context 512", ["Safetensors: in how many", "Untuned: reported"]),
        ("compare model model", ["unknown: nobody has looked"]),
        ("runtimes", ["run, read, unknown: how many"]),
    ],
)
def test_a_command_says_what_its_table_means(llama: Path, words: str, said: list[str]) -> None:
    text = command(llama.parent, *words.split(), code=0).stdout
    assert [word for word in said if word not in text] == []


def test_json_has_no_legend(llama: Path) -> None:
    assert "silently" not in json.dumps(json.loads(command(llama.parent, "inspect", "model", "--json").stdout))


def test_sentences_about_one_thing_are_in_the_singular() -> None:
    spec = RopeSpec(64, 64, Plain(10000.0), 64, 64, layers=("global", "none"), windows=(16, None))
    first, second = describe_layers(spec).split("; ")
    assert first == "1 rotates and sees 16 tokens (sliding window)"
    assert second == "1 does not rotate and sees the whole context"
    assert Verified(1, 10, True, (), ()).sentence.startswith("1 file is what recipe")
    assert Verified(2, 10, False, (), ()).sentence.startswith("2 files are what recipe")
