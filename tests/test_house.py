"""The house: rooms on floors, imports only downward and never in a circle, small files."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ropeconv"
FLOORS = (
    "cli", "ui", "views", "run", "tune", "hub", "training", "verify", "evaluate", "bake", "validate", "pictures",
    "engines", "export", "encode", "inspection", "receipts", "sources", "runtimes", "families", "formats", "rope",
)  # fmt: skip
"""From the top to the ground. `errors` and `version` are below all of them but `rope`, which imports nothing."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path], lazy: bool) -> set[str]:
    """The modules of the package that a file imports. lazy: inside functions and for types too."""
    tree, found = ast.parse(path.read_text()), set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree) if lazy else tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        target = ".".join([*base, *([node.module] if node.module else [])])
        if not target.startswith("ropeconv"):
            continue
        for alias in node.names:
            inner = f"{target}.{alias.name}"
            found.add(inner if inner in known else target)
    return found - {name}


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_every_room_has_a_floor() -> None:
    assert {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} == set(FLOORS)


def test_imports_go_downward() -> None:
    known = modules()
    upward = [
        f"{name} imports {target}"
        for name, path in known.items()
        for target in imported(name, path, known, lazy=True)
        if room(name) in FLOORS and room(target) in FLOORS and FLOORS.index(room(target)) < FLOORS.index(room(name))
    ]
    assert upward == []


def test_the_mathematics_import_nothing_of_ours() -> None:
    known = modules()
    outside = [
        (name, target)
        for name, path in known.items()
        if room(name) == "rope"
        for target in imported(name, path, known, lazy=True)
        if room(target) != "rope"
    ]
    assert outside == []


def test_no_circle() -> None:
    known = modules()
    graph = {}
    for name, path in known.items():
        # a package's own `__init__` gathers what is in it, and does not count as a use of it
        graph[name] = {t for t in imported(name, path, known, lazy=False) if not name.startswith(f"{t}.")}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("name", ["validate", "engines"])
def test_at_most_ten_rooms_on_a_level(name: str) -> None:
    rooms = [path for path in (PACKAGE / name).iterdir() if path.name not in ("__init__.py", "__pycache__")]
    assert len(rooms) <= 10, sorted(path.name for path in rooms)


def test_files_fit_in_a_head() -> None:
    long = {str(path): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: lines for path, lines in long.items() if lines > 300} == {}


def test_no_receipt_is_indexed_as_a_dictionary() -> None:
    found = [
        path for path in PACKAGE.rglob("*.py") if re.search(r"receipt\[|receipt\.get\(|\.recipe\[", path.read_text())
    ]
    assert found == []
