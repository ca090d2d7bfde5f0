"""Places that do not exist yet: their folders are made where something is written, and nowhere
else.
"""

import csv
import json
from pathlib import Path

import pytest

from ropeconv.formats.disk import make_folder

from ..conftest import Run, hashes
from ..support.gguf_files import write


def folders(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}


def test_outputs_in_new_folders(run: Run, llama: Path, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    for words, made in {
        "apply m.gguf --yarn 4 -o a/b/x.gguf --ollama": "a/b/x.Modelfile",
        "apply model --yarn 4 -o c/d/": "c/d/config.json",
        "apply model m.gguf --yarn 2 -o e/f": "e/f/m-yarn2.gguf",
        "restore a/b/x.gguf -o g/h/m.gguf": "g/h/m.gguf",
        "restore c/d -o i/j": "i/j/config.json",
        "profiles model yarn:2 yarn:4 --copy -o k/l": "k/l/yarn4/config.json",
        "plot model --yarn 4 -o n/o.csv": "n/o.csv",
        "train-config c/d --for axolotl -o p/q/a.yml": "p/q/a.yml",
        "bound 2k --certificate r/s.txt": "r/s.txt",
    }.items():
        done = run(*words.split())
        assert (done.returncode, (tmp_path / made).is_file()) == (0, True), (words, done.stderr)


@pytest.mark.parametrize("option", ["-o a/b/x.svg", "-o a/b/x.PNG"])
def test_pictures_in_new_folders(run: Run, tmp_path: Path, option: str) -> None:
    pytest.importorskip("matplotlib")
    assert run("plot", "--theta", "10000", "--yarn", "4", *option.split()).returncode == 0
    (made,) = (tmp_path / "a" / "b").iterdir()
    assert made.stat().st_size > 1000


@pytest.mark.parametrize(
    "words",
    [
        "apply model --yarn 4 -o a/b --dry-run",
        "apply model --mixed 4 --encoding native -o a/b",
        "apply model --yarn 4 -o model/in/side",
        "apply model model --yarn 4 -o model/in/side",
        "apply model missing --yarn 4 -o m.gguf/x",
        "apply model --yarn 4 -o m.gguf/x",
        "restore model -o a/b",
        "apply m.gguf --yarn 4 -o a/b/x",
        "plot model --inv-freq m.gguf -o a/b.csv",
        "plot missing -o a/b.csv",
        "train-config model --for trl -o a/b.py",
        "bound 2k --certificate m.gguf/x",
        "bound 2k --certificate model",
        "plot model --yarn 4 -o m.gguf/x.csv",
        "profiles model yarn:4 --dry-run -o a/b",
    ],
)
def test_nothing_is_made_where_nothing_is_written(
    run: Run, llama: Path, tmp_path: Path, words: str
) -> None:
    write(tmp_path / "m.gguf")
    before = hashes(tmp_path)
    there = folders(tmp_path)
    done = run(*words.split())
    assert (done.returncode == 0) == ("--dry-run" in words), done.stderr
    assert "Traceback" not in done.stderr
    assert (hashes(tmp_path), folders(tmp_path)) == (before, there)


def test_a_failure_removes_the_folders_that_it_made(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="full"), make_folder(tmp_path / "there/a/b"):
        raise ValueError("full")
    assert folders(tmp_path) == {"there"}
    with make_folder(tmp_path / "there/a/b"):
        (tmp_path / "there/a/b/x").touch()
    with make_folder(tmp_path / "there"):
        pass
    assert folders(tmp_path) == {
        "there",
        "there/a",
        "there/a/b",
    }  # the control: what holds a file stays


def test_a_table_of_numbers(run: Run, tmp_path: Path) -> None:
    done = run("plot", "--theta", "10000", "--head-dim", "8", "--linear", "4", "-o", "x.csv")
    assert (done.returncode, done.stdout, "Wrote x.csv" in done.stderr) == (0, "", True)
    rows = list(csv.DictReader((tmp_path / "x.csv").open()))
    assert [float(row["inv_freq"]) for row in rows] == pytest.approx(
        [0.25, 0.025, 0.0025, 0.00025], rel=1e-12
    )
    assert [float(row["divided_by"]) for row in rows] == pytest.approx([4, 4, 4, 4])
    assert float(rows[0]["wavelength"]) == pytest.approx(25.132741228718345)
    again = json.loads(run("plot", "--head-dim", "8", "--inv-freq", "x.csv", "--json").stdout)
    (schedule,) = again["schedules"].values()
    assert schedule["inv_freq"] == [float(row["inv_freq"]) for row in rows]


def test_a_table_of_several_methods(run: Run, tmp_path: Path) -> None:
    run(
        "plot", "--theta", "10000", "--head-dim", "8", "--linear", "4", "--yarn", "4", "-o", "x.csv"
    )
    rows = list(csv.DictReader((tmp_path / "x.csv").open()))
    assert [len({row["schedule"] for row in rows}), len(rows)] == [2, 8]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("plot --theta 10000 -o x.json", "print them with --json"),
        ("plot --theta 10000 -o x.pdf", "plot.svg"),
        ("plot --theta 10000 --dark -o x.csv", "is for a picture"),
        ("eval model --text t -o x.html", "--report writes a page"),
        ("eval model --text t -o x.csv", "result.json"),
        ("eval model --text t --report x.json", "report.html"),
        ("validate model --report x.svg", "report.html"),
        ("tune model --text t --context 8k -o x.png", "--plot a picture"),
        ("eval model --text t -o model", "is a folder"),
    ],
)
def test_another_kind_of_file_is_answered_with_the_word(
    run: Run, llama: Path, tmp_path: Path, words: str, answer: str
) -> None:
    (tmp_path / "t").write_text("a text")
    done = run(*words.split())
    assert (done.returncode, answer in done.stderr) == (2, True), done.stderr


def test_a_shorter_length_of_training(run: Run, llama: Path) -> None:
    assert run("apply", "model", "--yarn", "4", "-q").returncode == 0
    done = run("train-config", "model-yarn4", "--for", "axolotl", "--context", "128")
    assert ("sequence_len: 128\n" in done.stdout, "not trained" in done.stderr) == (True, True)
    whole = run("train-config", "model-yarn4", "--for", "axolotl", "--context", "256")
    assert ("sequence_len: 256\n" in whole.stdout, "not trained" in whole.stderr) == (True, False)
    longer = run("train-config", "model-yarn4", "--for", "axolotl", "--context", "512")
    assert (longer.returncode, longer.stdout, "that length first" in longer.stderr) == (
        2,
        "",
        True,
    )
