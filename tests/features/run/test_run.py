"""`ropeconv run`, as a person types it: every unit once, what fails among others, and what a second
run does.
"""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ...support.in_process import command
from ...support.run_plans import models, plan_text
from .plans import EVAL, lines

TARGETS = '[[targets]]\n[[targets]]\nname = "q8"\nto = "gguf"\nouttype = "q8_0"\n'
TASKS = "apply validate eval"


def planned(folder: Path) -> Path:
    """Two models, of which one is damaged, and a plan."""
    config = models(folder, "ab") / "models" / "b" / "config.json"
    config.write_text(config.read_text()[:100])
    (folder / "plan.toml").write_text(
        plan_text(TASKS, TARGETS + EVAL + "[limits]\njobs = 1\n", recipes='"yarn:4"')
    )
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return planned(tmp_path)


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[dict[str, Any]], set[str]]:
    """A place after a run, the repair of the damaged model, and another run; their documents; what
    the first left.
    """
    folder = planned(tmp_path_factory.mktemp("run"))
    first = command(folder, "run", "plan.toml", "--json", code=1)
    left = {path.name for path in (folder / "plan").iterdir() if not path.name.endswith(".json")}
    shutil.copy(folder / "models" / "a" / "config.json", folder / "models" / "b" / "config.json")
    second = command(folder, "run", "plan.toml", "--json", code=0)
    return folder, [json.loads(done.stdout) for done in (first, second)], left


def test_a_plan_is_shown_and_nothing_is_written(place: Path) -> None:
    before = sorted(path.name for path in place.iterdir())
    done = command(place, "run", "plan.toml", "--dry-run", code=1)
    assert re.fullmatch("ropeconv: a unit would fail; .*plan.toml.*\n", done.stderr)
    shown = done.stdout
    for words in (
        "10 units of 2 sources to run, 0 in the journal",
        "apply b yarn:4 would fail: config.json",
        "No time estimate yet for 4 apply and 4 validate: the first one has not run.",
        "By the median of finished units (eval by short sequences of a): 2 eval of",
    ):
        assert words in shown
    assert sorted(path.name for path in place.iterdir()) == before
    document = json.loads(command(place, "run", "plan.toml", "--dry-run", "--json", code=1).stdout)
    assert (document["units"], document["done"], len(document["jobs"])) == (10, 0, 6)
    assert document["bytes"] == sum(job["bytes"] for job in document["jobs"]) > 0


def test_two_sources_two_targets(finished: tuple[Path, list[dict[str, Any]], set[str]]) -> None:
    """One of the sources fails, and nothing else; a second run does only that; a third one does
    nothing.
    """
    place, (first, second), left = finished
    assert (first["done"], first["failed"], first["not_run"]) == (5, 3, 2)
    for row in first["rows"]:
        states = set(row["tasks"].values())
        assert states == ({"done"} if row["source"] != "b" else {"failed", "not run"} & states)
        assert ("config.json" in (row["reason"] or "")) == (row["source"] == "b")
    assert left == {"a-yarn4", "a-yarn4-q8.gguf", "eval", "journal.jsonl", "report.html"}
    receipt = json.loads((place / "plan" / "a-yarn4" / "ropeconv.json").read_text())
    assert receipt["validation"]["agrees"]

    assert (second["done"], second["failed"], second["not_run"]) == (10, 0, 0)
    counts = Counter((entry["key"], bool(entry["failed"])) for entry in lines(place))
    assert max(counts.values()) == 1
    assert sum(not failed for _, failed in counts) == 10

    before = (place / "plan" / "journal.jsonl").read_bytes()
    shown = command(place, "run", "plan.toml", code=0).stdout
    assert "10 done, 0 failed, 0 not" in shown
    assert ["source", "recipe", "target", "apply", "validate", "eval"] in [
        line.split() for line in shown.splitlines()
    ]
    assert (place / "plan" / "journal.jsonl").read_bytes() == before
    again = command(place, "run", "plan.toml", "--dry-run", code=0).stdout
    assert re.search("0 units of 2 sources .* 10 in", again)


def test_the_page_has_the_evaluations(
    finished: tuple[Path, list[dict[str, Any]], set[str]],
) -> None:
    place = finished[0]
    done = command(
        place,
        "eval",
        "models/a",
        "--methods",
        "base,yarn:4",
        "--text",
        "text.txt",
        "--lengths",
        "1/2T,1T,4T",
        "--windows",
        "4",
        "--targets",
        "8",
        "--json",
    )
    expected = json.loads(done.stdout)
    actual = json.loads((place / "plan" / "eval" / "a.json").read_text())
    assert actual["cells"] == expected["cells"]
    page = (place / "plan" / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "10" in page
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("more", "given", "code", "message"),
    [
        ('bytes = "1MB"', (), 2, "the outputs have 2.1 MB, and limits.bytes is 1MB; raise it"),
        ("", ("--on", "somewhere"), 2, "'somewhere' is not a place to run; give local"),
        (
            "hours = 0.0000001\njobs = 1",
            (),
            130,
            "stopped before its end; the same command continues",
        ),
    ],
)
def test_limits_are_kept(
    place: Path, more: str, given: tuple[str, ...], code: int, message: str
) -> None:
    (place / "other.toml").write_text(plan_text("apply", f"[limits]\n{more}\n"))
    assert message in command(place, "run", "other.toml", *given, code=code).stderr
    assert not list((place / "other").glob("*-yarn4"))
