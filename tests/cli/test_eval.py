"""`ropeconv eval`, as a person types it: on a tiny model, from one load, with a journal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import run_in
from ..support.llamacpp import tokenizer_json

SMALL = ("--text", "text.txt", "--lengths", "1/2T,1T,4T", "--windows", "4", "--targets", "8", "--journal", "j.jsonl")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path]) -> Path:
    """A folder with a model that has a tokenizer, a text, and the result of an evaluation."""
    folder = tmp_path_factory.mktemp("eval")
    subprocess.run(["cp", "-r", str(tiny("llama")), str(folder / "model")], check=True)
    (folder / "model" / "tokenizer.json").write_text(tokenizer_json())
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "text.txt").write_text(" ".join(f"{word} {word[::-1]}" for word in Path(__file__).read_text().split()))
    return folder


@pytest.fixture(scope="module")
def measured(place: Path) -> subprocess.CompletedProcess[str]:
    rows = "base,yarn:4,mixed:4:context=1k,linear:4:log_n=clamped"
    return run_in(
        place, "eval", "model", "--methods", rows, *SMALL,
        "-o", "result.json", "--report", "page.html", "--plot", "plot.svg",
    )  # fmt: skip


def cells(document: dict[str, object]) -> dict[tuple[object, ...], object]:
    found = document["cells"]
    assert isinstance(found, list)
    return {(cell["row"], cell["column"]): (cell["value"], cell["difference"]) for cell in found}


def test_a_table_a_result_a_page_and_a_picture(place: Path, measured: subprocess.CompletedProcess[str]) -> None:
    assert measured.returncode == 0, measured.stderr
    lines = [line.split() for line in measured.stdout.splitlines()]
    assert ["1/2T", "1T", "4T", "price", "holds", "to"] in lines
    assert [line[0] for line in lines if line[:1] and line[0].split(":")[0] in ("base", "yarn", "mixed", "linear")] == [
        "base", "yarn:4", "mixed:4:context=1k", "linear:4:log_n=clamped",
    ]  # fmt: skip
    found = json.loads((place / "result.json").read_text())
    assert (found["trained"], found["lengths"], len(found["cells"])) == (64, [32, 64, 256], 12)
    assert "<svg" in (place / "page.html").read_text()
    assert (place / "plot.svg").read_text().startswith("<svg")
    assert sorted(path.name for path in place.iterdir()) == [
        "j.jsonl", "model", "page.html", "plot.svg", "result.json", "text.txt",
    ]  # fmt: skip


def test_losses_are_those_of_transformers_itself(place: Path, measured: subprocess.CompletedProcess[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(place / "model")
    tokens = AutoTokenizer.from_pretrained(place / "model")((place / "text.txt").read_text()).input_ids
    ends = [len(tokens) - int(k * (len(tokens) - 256) / 3) for k in range(4)]
    wanted = {}
    for length in (32, 64, 256):
        windows = torch.tensor([tokens[end - length : end] for end in ends])
        logits = model(windows).logits[:, -9:-1].flatten(0, 1)
        wanted[length] = torch.nn.functional.cross_entropy(logits, windows[:, -8:].flatten()).item()
    found = json.loads((place / "result.json").read_text())
    base = {column: value for (row, column), (value, _) in cells(found).items() if row == "base"}
    assert base == {length: pytest.approx(loss, abs=1e-4) for length, loss in wanted.items()}


def test_a_second_run_takes_everything_from_the_journal(
    place: Path, measured: subprocess.CompletedProcess[str]
) -> None:
    before = (place / "j.jsonl").read_bytes()
    again = run_in(place, "eval", "model", "--methods", "base,yarn:4", *SMALL, "--json", "--budget", "1s")
    assert again.returncode == 0, again.stderr
    assert "24 sequences are in the journal" in again.stderr
    assert (place / "j.jsonl").read_bytes() == before
    first = cells(json.loads((place / "result.json").read_text()))
    assert cells(json.loads(again.stdout)) == {
        key: value for key, value in first.items() if key[0] in ("base", "yarn:4")
    }


def test_a_damaged_line_is_measured_again_and_a_file_of_the_user_stays(
    place: Path, measured: subprocess.CompletedProcess[str]
) -> None:
    lines = (place / "j.jsonl").read_text().splitlines()
    lines[3] = lines[3].replace('"value":', '"value":1')
    (place / "damaged.jsonl").write_text("\n".join([*lines, ""]))
    given = ("eval", "model", "--methods", "base,yarn:4", *SMALL[:-1])
    again = run_in(place, *given, "damaged.jsonl", "--json")
    assert "1 line of damaged.jsonl is damaged and skipped.\n" in again.stderr
    first = cells(json.loads((place / "result.json").read_text()))
    assert cells(json.loads(again.stdout)).items() <= first.items()
    (place / "damaged.jsonl").unlink()
    before = (place / "text.txt").read_bytes()
    for more in ((), ("--fresh",)):
        refused = run_in(place, *given, "text.txt", *more)
        said = "ropeconv: text.txt is not a journal of `ropeconv eval`; give another --journal\n"
        assert (refused.returncode, refused.stderr) == (1, said)
        assert (place / "text.txt").read_bytes() == before


def test_a_dry_run_writes_nothing_and_a_budget_says_what_fits(place: Path) -> None:
    before = sorted(place.rglob("*"))
    plan = run_in(place, "eval", "model", "--methods", "base,yarn:4", *SMALL[:-1], "other.jsonl", "--dry-run")
    assert re.search(r"growth +256 +8 +2,048", plan.stdout)
    assert re.search(r"24 sequences with 2,816 tokens take about \d+ s\.", plan.stdout)
    assert sorted(place.rglob("*")) == before
    many = ("--windows", "100000", "--measure", "sliding:1", "--budget", "1s")
    refused = run_in(place, "eval", "model", "--text", "text.txt", *many)
    assert refused.returncode == 2
    assert re.search(r"takes about .*, and --budget is 1 s; what fits: ", refused.stderr)


def test_a_condition_that_holds_is_exit_code_3(place: Path, measured: subprocess.CompletedProcess[str]) -> None:
    asked = ("eval", "model", "--methods", "base,yarn:4", *SMALL, "--fail-if")
    holds = run_in(place, *asked, "base > 0.5 @1T")
    assert holds.returncode == 3, holds.stderr
    assert "base > 0.5 @1T is true" in holds.stderr
    assert run_in(place, *asked, "base > 500 @1T").returncode == 0


def test_ctrl_c_shows_what_there_is_and_a_rerun_ends_the_same(
    place: Path, measured: subprocess.CompletedProcess[str]
) -> None:
    rows = ("base", "yarn:4", "linear:4", "ntk:4")
    asked = ["eval", "model", "--methods", ",".join(rows), *SMALL[:-1], "ctrl-c.jsonl", "--windows", "20", "--json"]
    command = [sys.executable, "-m", "ropeconv", *asked]
    journal = place / "ctrl-c.jsonl"
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 120
        while (not journal.exists() or journal.read_bytes().count(b"\n") < 40) and time.monotonic() < deadline:
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=120)
    assert running.returncode == 130, stderr
    assert "Stopping: what has been measured will be shown." in stderr
    partial = json.loads(stdout)
    assert partial["notes"]
    finished = journal.read_bytes().count(b"\n") - 1
    whole = run_in(place, *asked)
    assert f"{finished} sequences are in the journal" in whole.stderr
    os.unlink(journal)
    once = run_in(place, *asked)
    assert cells(json.loads(whole.stdout)) == cells(json.loads(once.stdout))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--methods", "base", "--text", "none.txt"), 2, "names no file"),
        (("--methods", "base"), 2, "no text is given; name a file with --text"),
        (("--methods", "base", "--text", "text.txt", "--lengths", "1M"), 1, "the longest text has"),
        (("--methods", "longrope:2", "--text", "text.txt"), 2, "names no method"),
        (("--methods", "base", "--text", "model/model.safetensors"), 1, "is not text in UTF-8"),
        (("--methods", "base", "--text", "text.txt", "--journal", "text.txt"), 1, "is not a journal"),
        (("--methods", "base", "--text", "text.txt", "--fail-if", "yarn:4 > base @1T"), 2, "names 'yarn:4'"),
        (("--methods", "base", "--text", "text.txt", "--report", "no/page.html"), 2, "no does not exist"),
    ],
)
def test_bad_input_is_a_sentence(place: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    before = sorted(place.rglob("*"))
    done = run_in(place, "eval", "model", "--lengths", "32,64", "--windows", "2", *arguments)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert sorted(place.rglob("*")) == before


def test_a_row_that_the_model_refuses_leaves_the_others(place: Path) -> None:
    rows = "base,yarn:4,theta-bound:8,llama3:4:keep_short=true"
    done = run_in(place, "eval", "model", "--methods", rows, *SMALL[:-1], "rows.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    refused = {row["name"]: row["refused"] for row in json.loads(done.stdout)["rows"] if row["refused"]}
    assert "yarn:4" not in refused
    assert {row for row, _ in cells(json.loads(done.stdout))} == set(rows.split(",")) - set(refused)
