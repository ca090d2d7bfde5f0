"""`ropeconv tune` on a small trained model, from the texts to files that transformers and llama.cpp
read.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.proof import critical
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.tune.result import TuningResult, write_tuned
from ropeconv.features.evaluation.tune.tuning import SearchCost, SearchSettings, tune_model
from ropeconv.rope.errors import RopeconvError

from ....support.in_process import command
from ....support.models import make

CONTEXT = 256


@pytest.fixture(scope="module")
def tuned(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> TuningResult:
    """A search on both halves of each of the 18 texts, of which 12 are held out: enough to
    decide.
    """
    halves = tmp_path_factory.mktemp("halves")
    for path in (trained / "texts").glob("*.txt"):
        text = path.read_text("utf-8")
        for number, part in enumerate((text[: len(text) // 2], text[len(text) // 2 :])):
            (halves / f"{path.stem}-{number}.txt").write_text(part, "utf-8")
    settings = SearchSettings(str(CONTEXT), windows=16, held_windows=24)
    return tune_model(trained / "model", [halves / "*.txt"], settings)


@pytest.mark.nightly
def test_the_gradient_finds_what_no_formula_has(tuned: TuningResult) -> None:
    rows = {row.name: row for row in tuned.rows}
    total = rows["tuned factors"].total
    assert (next(iter(rows)), len(rows)) == ("base", 1 + 7 + 1)
    assert total.difference is not None
    assert total.error is not None
    assert total.clusters == 12, "of 36 texts every third one is held out"
    assert total.difference < -critical(11) * total.error
    assert tuned.better is True
    assert "is better" in tuned.sentence
    assert tuned.recipe == rows["tuned factors"].recipe
    best = min(row.total.value for row in tuned.rows if row.recipe and row.name != "tuned factors")
    assert rows[tuned.best_formula].total.value == best, "the best formula is that of held-out text"
    assert total.value < best
    assert tuned.searched < total.difference / 2 < 0
    assert not set(tuned.texts) & set(tuned.held_out)
    assert (len(tuned.divisors), tuned.positions[-1]) == (32, CONTEXT - 1)


@pytest.mark.nightly
def test_the_recipe_is_baked_and_llama_cpp_computes_it(
    tuned: TuningResult, trained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    write_tuned(tuned, tmp_path / "tuned.json")
    model = trained / "model"
    command(
        tmp_path,
        "apply",
        model,
        "--recipe",
        "tuned.json",
        "--to",
        "gguf",
        "-o",
        "out.gguf",
        "-q",
        code=0,
    )
    checked = command(tmp_path, "validate", "out.gguf", "--against", model, code=0)
    assert (
        "PASS: matches the reference at every position; without scaling, the source does not."
        in checked.stdout
    )


def test_the_command_prints_the_table_and_writes_the_recipe(trained: Path, tmp_path: Path) -> None:
    model = trained / "model"
    given = (
        "tune",
        model,
        "--text",
        f"{trained}/texts/*.txt",
        "--context",
        "256",
        "--windows",
        "6",
        "--steps",
        "2",
        "--needles",
        "0.5",
    )
    done = command(
        tmp_path, *given, "--targets", "16", "-o", "tuned.json", "--plot", "tuned.svg", code=0
    )
    for words in (
        "minus best formula",
        "needle",
        "tuned factors",
        "2 steps on 6 windows",
        "texts are held out",
        "Next: ropeconv apply",
    ):
        assert words in done.stdout
    assert "<svg" in (tmp_path / "tuned.svg").read_text()
    again = command(tmp_path, *given, "--targets", "16", "--json", "-q", "--fresh", code=0)
    written = json.loads((tmp_path / "tuned.json").read_text())
    assert json.loads(again.stdout) == {"schema": 2, **written}, "the same seed gives the same"
    for row in written["rows"]:
        parts = row["beyond"]["value"] + 0.3 * row["inside"]["value"] + 0.5 * row["needle"]["value"]
        assert row["total"]["value"] == pytest.approx(parts)


def test_a_dry_run_says_what_the_search_takes_and_a_budget_what_fits(
    trained: Path, tmp_path: Path
) -> None:
    texts = sorted(
        map(str, (trained / "texts").glob("*.txt"))
    )  # as a shell gives an unquoted pattern
    given = (
        "tune",
        trained / "model",
        "--text",
        *texts,
        "--context",
        "256",
        "--windows",
        "6",
        "--start",
        "yarn",
        "--journal",
        "journal.jsonl",
        "-q",
    )
    done = command(tmp_path, *given, "--dry-run", "--json", code=0)
    data = json.loads(done.stdout)
    # 6 windows of the formula and of each of 6 looks, and 6 held-out ones of 7 formulas, base and
    # result
    assert (data["reads"], data["gradients"]) == ((1 + 6) * 6 + 9 * 6, 60 * 4)
    assert data["estimate"]["seconds"] > 0
    assert not list(tmp_path.iterdir())
    refused = command(tmp_path, *given, "--budget", "1s", code=2)
    assert re.search(r"--budget is 1 s; .*fits: ", refused.stderr)
    assert (tmp_path / "journal.jsonl").exists(), "the first passes are kept"


def test_the_steps_that_fit_a_budget() -> None:
    cost = SearchCost(reads=100, gradients=80, read=1.0, gradient=2.0, per_step=10.0)
    assert cost.seconds == 260
    cost.check(260, steps=20)
    cost.check(0, steps=20)
    for budget, words in ((200, "--steps 14$"), (50, "fewer --windows")):
        with pytest.raises(UsageError, match=words):
            cost.check(budget, steps=20)


# Held-out text that is too short for a test


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["search", "dry run"])
def test_fewer_held_out_windows_than_a_test_needs_are_refused(
    options: tuple[str, ...], trained: Path, tmp_path: Path
) -> None:
    # one text of 2,000 to 4,500 tokens, of which the last third is held out
    texts = sorted((trained / "texts").glob("*.txt"))
    words = "\n".join(path.read_text("utf-8") for path in texts)
    (tmp_path / "short.txt").write_text(words[:9000], "utf-8")
    given = ("tune", trained / "model", "--text", "short.txt", "--context", CONTEXT, *options)
    refused = command(tmp_path, *given, "-o", "tuned.json", code=2)
    assert re.search("at least 6 windows of 256 tokens, .* gives [1-5];.*--text", refused.stderr)
    assert not (tmp_path / "tuned.json").exists()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "context inside": ({"context": "64"}, "trained for 64 tokens; give a --context above that"),
    "text too short": ({"context": "64k"}, "give a longer --text"),
    "context beyond the memory": (
        {"context": "1000M"},
        "a gradient over 1000M tokens keeps 1.1 TB of hidden states",
    ),
    "unknown start": ({"start": "theta"}, "--start theta is not one of the formulas; choose"),
    "five windows": ({"held_windows": 5}, "needs at least 6 windows; give --held-windows 6"),
    "negative factor": (
        {"attention_factor": -1.0},
        "--attention-factor is -1.0; give a positive number",
    ),
    "negative weight": ({"inside": -1.0}, "--inside is -1.0; give 0 or more"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused_with_a_repair(case: str, trained: Path) -> None:
    given, sentence = WRONG[case]
    settings = SearchSettings(**{"context": "256", "windows": 6, **given})
    with pytest.raises(RopeconvError, match=re.escape(sentence)):
        tune_model(trained / "model", [trained / "texts" / "*.txt"], settings)


@pytest.mark.parametrize(
    ("model", "message"),
    [("model.gguf", "tune the checkpoint that it was made of"), ("encoder", "encoder")],
)
def test_gguf_files_and_encoders_are_refused(model: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("words " * 999)
    make("modernbert", tmp_path / "encoder")
    done = command(tmp_path, "tune", model, "--text", "book.txt", "--context", "256", code=2)
    assert message in done.stderr
    assert not list(tmp_path.glob("*.json"))
