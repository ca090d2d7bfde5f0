"""A line below a table says what its columns and words mean, where they are not plain."""

from pathlib import Path
from typing import get_args

import pytest

from ropeconv.bake.studies import RETRIEVAL
from ropeconv.runtimes.runtime import Status
from ropeconv.views.sheet import STATUSES, statuses
from scripts.pages.evidence import record

from ..support.in_process import command


def test_every_status_has_a_meaning_and_only_those_that_are_there_are_said() -> None:
    assert set(STATUSES) == set(get_args(Status))
    legend = statuses([("exact", "vLLM 0.33"), ("refused", "a 1")])
    assert legend == "Exact: computes this RoPE; refused: fails with an error."
    read = statuses([("exact", "vLLM 0.33; read: TGI 3")])
    assert read.endswith("; read: known from source code, the others from a run.")
    assert statuses([]) == ""


@pytest.mark.parametrize(
    ("words", "meanings"),
    [
        ("inspect model --explain", ["Exact: computes this RoPE"]),
        ("apply model --yarn 4 --dry-run --explain", ["ignored: runs the unscaled RoPE, silently"]),
        (
            "advise model --context 512 --explain",
            ["Runtimes, safetensors, gguf: runtimes", "Without training: the loss at the length"],
        ),
        ("compare model model --explain", ["unknown: not tested"]),
        ("list runtimes", ["run, read, unknown: cells that"]),
    ],
)
def test_a_command_says_what_its_table_means(llama: Path, words: str, meanings: list[str]) -> None:
    text = command(llama.parent, *words.split(), code=0).stdout
    assert [word for word in meanings if word not in text] == []


def test_the_legend_of_facts_names_every_kind_of_question_that_was_asked(llama: Path) -> None:
    words = ("advise", "model", "--context", "512", "--explain")
    text = command(llama.parent, *words, code=0).stdout
    (legend,) = [line for line in text.splitlines() if line.startswith("Facts found: ")]
    asked = {item.measure for item in record() if (item.measure, item.metric) in RETRIEVAL}
    assert asked >= {"keys", "needle"}
    assert [kind for kind in (*asked, "passkey") if kind not in legend] == []


def test_the_legend_of_training_names_nothing_that_does_not_count(llama: Path) -> None:
    """A model that was trained with its scaling may need training for more, as gemma-3-27b."""
    words = ("advise", "model", "--context", "512", "--explain")
    text = command(llama.parent, *words, code=0).stdout
    (legend,) = [line for line in text.splitlines() if line.startswith("Without training: ")]
    assert "trained with" not in legend
    assert "publisher" in legend
    assert "new angle" in legend
