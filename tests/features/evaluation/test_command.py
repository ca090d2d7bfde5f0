"""`ropeconv eval`, as a person types it: on a tiny model, from one load, with a journal."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ...conftest import Run
from ...support.in_process import Done, command
from ...support.waiting import until

SMALL = (
    "--text",
    "text.txt",
    "--lengths",
    "1/2T,1T,4T",
    "--windows",
    "4",
    "--targets",
    "8",
    "--journal",
    "j.jsonl",
)
ROWS = "base,yarn:4,mixed:4:context=1k,linear:4:log_n=clamped"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has a tokenizer, and a text."""
    from ...support.llamacpp import checkpoint

    folder = tmp_path_factory.mktemp("eval")
    checkpoint("llama", folder / "model")
    # each word and its reverse, in an order that no change of a file can change
    words = "the cat sat on a mat and the dog ran over red hills to see old green boats".split()
    chosen = random.Random(1).choices(words, k=4000)
    (folder / "text.txt").write_text(" ".join(f"{word} {word[::-1]}" for word in chosen))
    return folder


@pytest.fixture
def run(place: Path) -> Run:
    return partial(command, place, "eval")


@pytest.fixture(scope="module")
def measured(place: Path) -> Done:
    files = ("-o", "result.json", "--report", "page.html", "--plot", "plot.svg")
    before = set(place.iterdir())
    done = command(place, "eval", "model", "--methods", ROWS, *SMALL, *files, code=0)
    assert {path.name for path in place.iterdir()} == {path.name for path in before} | {
        "j.jsonl",
        *files[1::2],
    }
    return done


def cells(document: dict[str, Any]) -> dict[tuple[str, int], tuple[float, float]]:
    return {
        (cell["row"], cell["column"]): (cell["value"], cell["difference"])
        for cell in document["cells"]
    }


def result(place: Path) -> dict[tuple[str, int], tuple[float, float]]:
    return cells(json.loads((place / "result.json").read_text()))


def test_a_table_a_result_a_page_and_a_picture(place: Path, measured: Done) -> None:
    assert re.match("growth: loss .*minus base; n = 4\n", measured.stdout)
    lines = [line.split() for line in measured.stdout.splitlines() if line.strip()]
    assert ["1/2T", "1T", "4T", "price", "holds", "to"] in lines
    assert [line[0] for line in lines if line[0] in ROWS.split(",")] == ROWS.split(",")
    document = json.loads((place / "result.json").read_text())
    assert (document["trained"], document["lengths"], len(document["cells"])) == (
        64,
        [32, 64, 256],
        12,
    )
    assert "<svg" in (place / "page.html").read_text()
    assert (place / "plot.svg").read_text().startswith("<svg")


def test_a_dry_run_writes_nothing_and_a_budget_says_what_fits(place: Path, run: Run) -> None:
    before = sorted(place.rglob("*"))
    plan = run("model", "--methods", "base,yarn:4", *SMALL[:-1], "other.jsonl", "--dry-run")
    assert re.search(r"growth +256 +8 +2,048", plan.stdout)
    assert re.search(r"24 sequences .* 2,816 tokens .* \d+ s\.", plan.stdout)
    document = json.loads(
        run(
            "model", "--methods", "base,yarn:4", *SMALL[:-1], "other.jsonl", "--dry-run", "--json"
        ).stdout
    )
    assert ([row["name"] for row in document["rows"]], document["lengths"]) == (
        ["base", "yarn:4"],
        [32, 64, 256],
    )
    assert (document["estimate"]["tokens"], document["estimate"]["sequences"]) == (2816, 24)
    assert sorted(place.rglob("*")) == before
    many = ("--windows", "100000", "--measure", "sliding:1", "--budget", "1s")
    refused = run("model", "--text", "text.txt", *many)
    assert refused.returncode == 2
    assert re.search(r"--budget is 1 s; .*fits: ", refused.stderr)


def test_a_condition_that_holds_is_exit_code_3(measured: Done, run: Run) -> None:
    arguments = ("model", "--methods", "base,yarn:4", *SMALL, "--windows", "12", "--fail-if")
    holds = run(*arguments, "base > 0.5 @1T")
    assert (holds.returncode, "base > 0.5 @1T is true" in holds.stderr) == (3, True), holds.stderr
    assert run(*arguments, "base > 500 @1T").returncode == 0


def ended(
    place: Path, journal: Path, number: signal.Signals, *more: str
) -> tuple[int, str, str, int]:
    """A run that gets a signal: its exit code, both streams, and the finished sequences in its
    journal.
    """
    arguments = [
        "model",
        "--methods",
        "base,yarn:4",
        *SMALL[:-1],
        journal.name,
        "--windows",
        "12",
        *more,
    ]
    program = [sys.executable, "-m", "ropeconv", "eval", *arguments]
    with subprocess.Popen(
        program, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 10, "the journal")
        running.send_signal(number)
        stdout, stderr = running.communicate(timeout=120)
    return running.returncode, stdout, stderr, journal.read_bytes().count(b"\n") - 1


@pytest.mark.nightly
def test_a_run_that_is_ended_says_what_it_kept(place: Path) -> None:
    journal = place / "ended.jsonl"
    code, _, stderr, finished = ended(place, journal, signal.SIGTERM)
    assert code == 143, stderr
    pattern = (
        rf"(\d+) finished sequences are in the journal, {journal.name}: the same command continues"
        r" from there"
    )
    kept = re.search(pattern, " ".join(stderr.split()))
    assert kept is not None, stderr
    assert finished - int(kept[1]) in (0, 1), "the signal may come between the disk and the memory"
    journal.unlink()


def test_files_of_an_unquoted_pattern_are_texts(place: Path, run: Run) -> None:
    (place / "text2.txt").write_text((place / "text.txt").read_text() * 2)
    try:
        settings = ("--lengths", "32", "--windows", "4", "--targets", "8", "--json")
        done = run(
            "model", "yarn:4", "--text", "text.txt", "text2.txt", *settings, "--journal", "j.jsonl"
        )
        document = json.loads(done.stdout)
        assert document["texts"] == ["text.txt", "text2.txt"]
        assert [row["name"] for row in document["rows"]] == ["base", "yarn:4"]
        before = run(
            "--text", "text.txt", "text2.txt", "model", "yarn:4", *settings, "--journal", "j.jsonl"
        )
        assert json.loads(before.stdout)["cells"] == document["cells"]
    finally:
        (place / "text2.txt").unlink()


def test_ctrl_c_shows_what_there_is_and_a_rerun_ends_the_same(place: Path, run: Run) -> None:
    journal = place / "ctrl-c.jsonl"
    code, stdout, stderr, finished = ended(place, journal, signal.SIGINT, "--json")
    assert code == 130, stderr
    assert "Stopping: " in stderr
    assert json.loads(stdout)["notes"]
    arguments = (
        "model",
        "--methods",
        "base,yarn:4",
        *SMALL[:-1],
        journal.name,
        "--windows",
        "12",
        "--json",
    )
    whole = run(*arguments)
    assert f"{finished} sequences are" in whole.stderr
    journal.unlink()
    assert cells(json.loads(whole.stdout)) == cells(json.loads(run(*arguments).stdout))


TEXT = ("--methods", "base", "--text", "text.txt")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--methods", "base", "--text", "none.txt"), 2, "names no file"),
        (("--methods", "base"), 2, "no text is given; name a file with --text"),
        (("--methods", "base", "--text", "model/model.safetensors"), 1, "is not text in UTF-8"),
        (
            (*TEXT, "--journal", "text.txt", "--fresh"),
            1,
            "text.txt is not a journal of `ropeconv eval`",
        ),
        ((*TEXT, "--lengths", "1M"), 1, "the longest text has"),
        ((*TEXT, "--report", "text.txt/page.html"), 2, "text.txt is not a folder"),
        ((*TEXT, "--fail-if", "yarn:4 > base @1T"), 2, "names 'yarn:4'"),
    ],
)
def test_bad_input_is_a_sentence(
    place: Path, run: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    before = sorted(place.rglob("*"))
    done = run("model", "--lengths", "32,64", "--windows", "2", *arguments)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("options", [("--text", "text.txt"), ("--dataset", "owner/name")])
def test_a_config_without_weights_is_not_a_model_to_run(
    place: Path, run: Run, options: tuple[str, str]
) -> None:
    words = ("model/config.json", "--methods", "base,yarn:4", *options)
    assert "model/config.json has no weights" in run(*words, code=2).stderr
    (place / "bare").mkdir(exist_ok=True)
    shutil.copyfile(place / "model" / "config.json", place / "bare" / "config.json")
    assert "bare has no weights" in run("bare", "--methods", "base", *options, code=2).stderr
    # the control: a text in JSON beside a model
    assert "has no weights" not in run("model", "model/config.json", "yarn:4", *options).stderr


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.json.gz", "x.JSONL", "x.yaml"])
def test_no_result_gets_a_name_of_another_kind(run: Run, name: str, place: Path) -> None:
    words = ("missing", "--methods", "base", "--text", "text.txt", "-o")
    assert f"-o {name} is JSON" in run(*words, name, code=2).stderr
    assert not (place / name).exists()


@pytest.mark.parametrize("name", ["x.json", "x.JSON", "x.jsonl", "x.jsonl.gz", "x"])
def test_names_of_results_are_accepted(run: Run, name: str) -> None:
    """The control: what is refused then is the model."""
    words = ("missing", "--methods", "base", "--text", "text.txt", "-o", name)
    assert "missing" in run(*words, code=1).stderr
