"""`ropeconv tune` on a small trained model, from the texts to files that transformers and llama.cpp
read.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv import Target, make_plan, open_source
from ropeconv.bake.proof import critical
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.tune.result import TuningResult, write_tuned
from ropeconv.features.evaluation.tune.scorer import Losses, Scorer
from ropeconv.features.evaluation.tune.tuning import (
    SearchCost,
    SearchSettings,
    Tuning,
    open_tuning,
    tune_model,
)
from ropeconv.features.evaluation.tune.views import show_tuned
from ropeconv.features.ui.sheet import HtmlSheet
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.schedule import Schedule
from ropeconv.verbs.rows import BASE, Row

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


# Models that are scaled already

SCALINGS: dict[str, tuple[int, dict[str, Any]]] = {
    # by the tokens that the model declares: trained with a scaling, or edited later, by which the
    # scaling covers more than the model declares
    "trained": (128, {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "two lists": (
        128,
        {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32},
    ),
    "edited": (64, {"rope_type": "yarn"}),
    "unscaled": (64, {}),
}


def scaled(model: Path, folder: Path, name: str) -> Path:
    """A copy of the model of 64 tokens that has a scaling of SCALINGS with the factor 2."""
    out = folder / name
    shutil.copytree(model, out)
    config = json.loads((out / "config.json").read_text())
    declared, scaling = SCALINGS[name]
    config["max_position_embeddings"] = declared
    if scaling:
        lengths = {"factor": 2.0, "original_max_position_embeddings": 64}
        config["rope_parameters"] = config["rope_parameters"] | scaling | lengths
    (out / "config.json").write_text(json.dumps(config))
    return out


@contextmanager
def opened(model: Path, texts: Path, **given: Any) -> Iterator[Tuning]:
    settings = SearchSettings(str(CONTEXT), windows=6, targets=16, steps=1, **given)
    files = [(path.name, path.read_text("utf-8")) for path in sorted(texts.glob("*.txt"))]
    with open_tuning(str(model), files, settings, keep=False) as tuning:
        yield tuning


@pytest.mark.parametrize("name", SCALINGS)
def test_what_is_compared_with_a_scaled_model_and_what_apply_needs(
    name: str, trained: Path, tmp_path: Path
) -> None:
    model = scaled(trained / "model", tmp_path, name)
    with opened(model, trained / "texts") as tuning:
        start = tuning.start
        unchanged = start.unchanged()
        formulas = tuning.formulas
        own = tuning.runner.schedule(Row(BASE))
        assert unchanged.schedule.inv_freq.tolist() == own.inv_freq.tolist()
        assert unchanged.schedule.attention_factor == own.attention_factor
        is_scaled = name != "unscaled"
        assert (unchanged.method == "as-is") is is_scaled
        assert start.divisors(own).max() == pytest.approx(2.0 if is_scaled else 1.0)
        on_top = [formula.recipe.on_top for formula in formulas if formula.recipe]
        assert on_top == [name in ("trained", "two lists")] * len(formulas)
        assert ("llama3" in [formula.method for formula in formulas]) is (name == "trained")

        # each kind of recipe that a search may write
        found = start.factors([1.5] * len(start.base), 1.0, "tuned factors")
        candidates = [formulas[0], found]
        if is_scaled:
            candidates.append(unchanged)
        for number, candidate in enumerate(candidates):
            assert candidate.recipe is not None
            recipe = tmp_path / f"{name}-{number}.json"
            recipe.write_text(json.dumps(candidate.recipe.to_dict()))
            options = tuning.apply_options(candidate)
            target = Target(replace="--replace" in options)
            planned = make_plan(open_source(str(model)), candidate.recipe, target).schedule
            assert planned.inv_freq == pytest.approx(candidate.schedule.inv_freq)
            assert planned.attention_factor == pytest.approx(candidate.schedule.attention_factor)
            given = ("apply", model, "--recipe", recipe, *options, "--no-check", "--dry-run")
            command(tmp_path, *given, "-q", code=0)
            replaces = is_scaled and not candidate.keeps_scaling
            assert options == ["--replace"] * replaces
            if replaces:
                without = [word for word in given if word != "--replace"]
                assert "--replace" in command(tmp_path, *without, code=1).stderr


@pytest.mark.parametrize("name", SCALINGS)
def test_apply_accepts_the_command_that_is_printed(
    name: str, trained: Path, tmp_path: Path
) -> None:
    model = scaled(trained / "model", tmp_path, name)
    pattern = f"{trained}/texts/*.txt"
    given = ("tune", model, "--text", pattern, "--context", CONTEXT, "--windows", 6, "--steps", 1)
    family = ("--family", "llama") if name == "edited" else ()
    done = command(tmp_path, *given, *family, "--targets", 16, "-o", "tuned.json", code=0)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Next: ropeconv ")]
    words = shlex.split(line.removeprefix("Next: ropeconv "))
    assert ("--family" in words) is bool(family)
    command(tmp_path, *words, "--dry-run", "--no-check", "-q", code=0)

    written = json.loads((tmp_path / "tuned.json").read_text())
    assert words[4:] == written["apply_options"]
    assert [row["name"] for row in written["rows"]].count("base") == 1
    to_beat = [row for row in written["rows"] if row["name"] != "tuned factors" and row["recipe"]]
    best = min(to_beat, key=lambda row: float(row["total"]["value"]))
    assert written["best_formula"] == best["name"]
    assert ("base" in [row["name"] for row in to_beat]) is (name != "unscaled")


def test_a_scaling_that_nothing_beats_is_kept(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = scaled(trained / "model", tmp_path, "trained")
    with opened(model, trained / "texts", start="yarn") as tuning:
        own = tuning.start.unchanged().schedule.digest

        def losses(scorer: Scorer, schedule: Schedule, count: int | None = None) -> list[Losses]:
            """One nat per token with the scaling of the model, and two with any other."""
            loss = 1.0 if schedule.digest == own else 2.0
            window = scorer.windows[0]
            tokens = np.full(len(window.text.targets), loss)
            return [Losses(tokens, window.inside_count)] * (count or len(scorer.windows))

        monkeypatch.setattr(Scorer, "losses", losses)
        found = tuning.run()
    assert (found.best_formula, found.better, found.apply_options) == ("base", False, [])
    assert (found.recipe["method"], found.recipe["context"]) == ("as-is", CONTEXT)
    assert "as-is" in found.sentence
    sheet = HtmlSheet()
    show_tuned(found, None, sheet)
    page = sheet.html()
    assert "1 step on 6 windows" in page
    assert "by 0.0000;" in page, "not -0.0000"


@pytest.mark.parametrize(
    ("name", "context", "words"),
    [("trained", "128", "trained for 128 tokens"), ("trained", "100", "trained for 128 tokens")],
)
def test_a_context_that_a_scaled_model_declares_is_refused(
    name: str, context: str, words: str, trained: Path, tmp_path: Path
) -> None:
    model = scaled(trained / "model", tmp_path, name)
    with pytest.raises(UsageError, match=f"{words}; give a --context above"):
        tune_model(model, [trained / "texts" / "*.txt"], SearchSettings(context))


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
