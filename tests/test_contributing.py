"""CONTRIBUTING.md: the files that it names are there, and what is registered has its place in the
pages.
"""

import re
from pathlib import Path

import pytest
import tomli

from ropeconv.convert.encoding import ENCODINGS
from ropeconv.convert.gguf_encoding import GGUF_ENCODINGS
from ropeconv.features.evaluation.measures.measure import REGISTRY as MEASURES
from ropeconv.features.run.tasks import TASKS

ROOT = Path(__file__).parent.parent


def table() -> dict[str, list[str]]:
    """Cells of the table by the thing that is added."""
    text = (
        (ROOT / "CONTRIBUTING.md")
        .read_text()
        .split("## To add X, touch these files")[1]
        .split("\n## ")[0]
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return {row[0]: row[1:] for row in rows[2:]}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


DOCUMENTED = {
    "evaluating.md": MEASURES,
    "runtimes.md": ENCODINGS,
    "gguf.md": GGUF_ENCODINGS,
    "running.md": TASKS,
}


@pytest.mark.parametrize("addition", table())
def test_the_files_of_a_row_are_there(addition: str) -> None:
    touched, _, tests = table()[addition]
    paths = [ROOT / path for path in re.findall(r"`([^`]+)`", touched)]
    assert paths
    named = [ROOT / path for path in re.findall(r"`(tests/[^`]+)`", tests)]
    assert named
    assert [path for path in named if not path.is_file()] == []
    assert [
        path for path in paths if not (path.parent if "NAME" in path.name else path).exists()
    ] == []


@pytest.mark.parametrize("name", DOCUMENTED)
def test_all_that_is_registered_is_documented(name: str) -> None:
    assert [entry for entry in DOCUMENTED[name] if f"`{entry}" not in page(name)] == []


def test_paths_in_the_pages_are_there() -> None:
    pages = [
        path
        for folder in (ROOT, ROOT / "docs", ROOT / "tests", ROOT / "scripts")
        for path in folder.glob("*.md")
    ]
    pattern = r"`((?:ropeconv|tests|scripts|templates|docs)/[\w./-]+)`"
    named = [
        (doc.name, path)
        for doc in pages
        if doc.name != "CHANGELOG.md"
        for path in re.findall(pattern, doc.read_text())
    ]
    assert len(named) > 100
    assert [
        (page, path)
        for page, path in named
        if not re.search("NAME|TYPE", path) and not (ROOT / path).exists()
    ] == []


def test_every_shared_helper_of_the_tests_is_in_their_table() -> None:
    listed = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "tests" / "README.md").read_text(), flags=re.MULTILINE
    )
    assert listed == sorted(
        path.stem for path in (ROOT / "tests" / "support").glob("*.py") if path.stem != "__init__"
    )


def test_the_lines_of_code_are_as_long_as_ruff_has_them() -> None:
    settings = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    (said,) = re.findall(r"lines of (\d+) characters", (ROOT / "CONTRIBUTING.md").read_text())
    assert int(said) == settings["line-length"]
