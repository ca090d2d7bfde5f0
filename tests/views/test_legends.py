"""A line below a table says what its columns and words mean, where they are not plain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from ropeconv.errors import counted
from ropeconv.inspection.layers import describe_layers
from ropeconv.rope.forms import Plain
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.rules import Status
from ropeconv.verify.verified import Verified
from ropeconv.views.legends import STATUSES, legend, statuses
from ropeconv.views.validation import COLUMNS, STATES

from ..conftest import Run


def test_every_status_has_a_meaning_and_only_those_that_are_there_are_said() -> None:
    assert set(STATUSES) == set(get_args(Status))
    assert statuses([("exact", "vLLM 0.33"), ("refused", "a 1")]) == (
        "Exact: computes this RoPE; refused: fails with an error."
    )
    assert statuses([("exact", "vLLM 0.33; read: TGI 3")]).endswith(
        "; read: known from its source, the others from a run."
    )
    assert statuses([]) == ""
    assert legend({"a": "first", "b": "second"}, ["b", "c"]) == "B: second."


def test_meanings_are_those_of_columns() -> None:
    from ropeconv.views.legends import HIDDEN_STATES, VALIDATION

    assert VALIDATION.keys() <= set(COLUMNS)
    assert HIDDEN_STATES.keys() <= set(STATES)


def test_commands_say_what_their_tables_mean(run: Run, llama: Path) -> None:
    wanted = {
        ("inspect", "model"): ["Exact: computes this RoPE"],
        ("apply", "model", "--yarn", "4", "--dry-run"): ["Slowest wavelength: tokens in", "ignored: runs the unscaled"],
        ("apply", "model", "--yarn", "4", "--dry-run", "--explain"): ["ignored: runs the unscaled RoPE, silently"],
        ("advise", "model", "--context", "512"): ["Safetensors: in how many", "Untuned: reported"],
        ("compare", "model", "model"): ["unknown: nobody has looked"],
        ("runtimes",): ["run, read, unknown: how many"],
    }
    for arguments, words in wanted.items():
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        for word in words:
            assert word in done.stdout, arguments
    assert "unscaled RoPE, silently" not in json.dumps(json.loads(run("inspect", "model", "--json").stdout))


@pytest.mark.parametrize(("number", "words"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (12345, "12,345 files")])
def test_a_number_has_its_noun(number: int, words: str) -> None:
    assert counted(number, "file") == words
    assert counted(number, "entry", "entries").endswith("entry" if number == 1 else "entries")


def test_sentences_about_one_thing() -> None:
    spec = RopeSpec(64, 64, Plain(10000.0), 64, 64, layers=("global", "none"), windows=(16, None))
    assert (
        describe_layers(spec)
        == "1 rotates and sees 16 tokens (sliding window); 1 does not rotate and sees the whole context"
    )
    assert Verified(1, 10, True, (), ()).sentence.startswith("1 file is what recipe")
    assert Verified(2, 10, False, (), ()).sentence.startswith("2 files are what recipe")
