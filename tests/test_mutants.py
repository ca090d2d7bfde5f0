"""scripts/mutants: which mutants there are, which tests run, and that what no test notices is printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.mutation import mutants
from scripts.mutation.mutants import File, Mutant, equivalent
from scripts.mutation.tests_by_line import Tests

from .support.extent import sample

ROOT = Path(__file__).parent.parent
SOURCE = '''
from __future__ import annotations


def f(a: int | None, b: int = 2) -> float:
    """Text with 3 numbers."""
    if a < b and not a:
        raise ValueError("no")
    return a * b
'''


def changes(tmp_path: Path, source: str) -> set[tuple[str, str]]:
    (tmp_path / "x.py").write_text(source)
    file = File(tmp_path, "x.py")
    return {(one.original, one.mutated) for one in map(file.mutant, range(len(file)))}


def test_operators_constants_conditions_values_and_statements_are_changed(tmp_path: Path) -> None:
    condition, head = "if a < b and not a:", "def f(a: int | None, b: int = {}) -> float:"
    assert changes(tmp_path, SOURCE) == {
        *((condition, f"if {other}:") for other in ("a <= b and not a", "a < b or not a", "a < b and a")),
        (condition, "if not (a < b and not a):"),
        (head.format(2), head.format(3)),
        ('raise ValueError("no")', "pass"),
        ("return a * b", "return a / b"),
        ("return a * b", "return None"),
    }


@pytest.mark.parametrize(
    "source",
    [
        "if TYPE_CHECKING:\n    import a\n",
        "class A:\n    order = 10\n",
        "@dataclass(frozen=True)\nclass A:\n    a: int | None\n",
    ],
)
def test_what_no_test_can_see_is_not_changed(tmp_path: Path, source: str) -> None:
    assert changes(tmp_path, source) == set()


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (("x.py", 7, "f", "a", "b"), "same"), (("x.py", 9, "f", "a", "b"), "same"), (("y.py", 7, "f", "a", "b"), None),
        (("x.py", 7, "g", "a", "b"), None), (("x.py", 7, "f", "a", "c"), None),
    ],
)  # fmt: skip
def test_equivalent_mutants_are_known_by_their_text_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch, where: tuple[str, int, str, str, str], reason: str | None
) -> None:
    row = {"file": "x.py", "function": "f", "original": "a", "mutated": "b", "reason": "same"}
    monkeypatch.setattr(mutants, "_data", lambda: {"mutant": [row]})
    assert equivalent(Mutant(*where, "")) == reason


def test_every_equivalent_mutant_is_one_of_the_source_and_has_a_reason() -> None:
    rows = mutants._data().get("mutant", [])
    files = {name: File(ROOT, name) for name in sample(sorted({row["file"] for row in rows}), 3)}
    for row in rows:
        if (file := files.get(row["file"])) is None:
            continue
        lines = file.text.splitlines()
        near = [index for index, place in enumerate(file.found) if lines[place[2] - 1].strip() in row["original"]]
        found = [one for one in map(file.mutant, near) if one.original == row["original"]]
        assert found, row
        assert row.get("mutated", found[0].mutated) in [one.mutated for one in found], row
        assert len(row["reason"]) > 20


def test_tests_that_execute_the_line_run_first_and_the_quick_ones_of_them() -> None:
    seconds = {"a": 3.0, "b": 1.0, "tests/test_x.py::c": 2.0, "d": 1.0, "e": 0.1, "f": 50.0}
    tests = Tests(seconds, {"ropeconv/x.py": {4: ["a", "tests/test_x.py::c"], 5: ["b", "f"], 9: ["d"]}})
    assert tests.of("ropeconv/x.py", 4, 5, most=60, more=8) == ["tests/test_x.py::c", "b", "a", "f", "d", "e"]
    assert tests.of("ropeconv/x.py", 4, 4, most=60, more=0) == ["tests/test_x.py::c", "a"]
    assert tests.of("ropeconv/x.py", 4, 5, most=4, more=0) == ["tests/test_x.py::c", "b"]


@pytest.mark.nightly
@pytest.mark.slow
def test_what_no_test_notices_is_printed_and_the_working_tree_stays_as_it_is(tmp_path: Path) -> None:
    """Four mutants of two functions, of which the tests call one."""
    files = {
        **dict.fromkeys(("ropeconv/__init__.py", "ropeconv/rope/__init__.py", "tests/__init__.py"), ""),
        "ropeconv/rope/x.py": "def seen(a):\n    return a * 3\n\n\ndef unseen(a):\n    return a + 5\n",
        "tests/rope/__init__.py": "",
        "tests/rope/test_x.py": "from ropeconv.rope.x import seen\n\n\ndef test_x():\n    assert seen(2) == 6\n",
        ".gitignore": ".mutants/\n__pycache__/\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(ROOT / "scripts" / "mutation", tmp_path / "scripts" / "mutation")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "scripts.mutation", "--package", "rope", "--minutes", "5"]
    env = {**os.environ, "PYTHONPATH": "", "JOBS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "ropeconv/rope/x.py:6 (unseen)\n" in done.stdout.split("\nseed")[0]
    survivors = {line.strip() for line in done.stdout.splitlines() if line.startswith("  + ")}
    assert survivors == {"+ return a - 5", "+ return a + 6", "+ return None"}
    assert done.stdout.splitlines()[-1].split() == ["rope", "3", "6", "50.0%", "0", "0", "6"]
    assert {name: (tmp_path / name).read_text() for name in files} == files
