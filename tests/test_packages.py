"""The packages of ropeconv: imports go downward only and never in a circle, and the whole stays small."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from ropeconv.models.family import Family

ROOT = Path(__file__).parent.parent / "ropeconv"
LAYERS = (
    "cli", "ui", "run", "hub", "views", "evaluate", "bake", "validate", "engines", "convert", "inspection", "runtimes",
    "models", "formats", "rope",
)  # fmt: skip
"""Packages from the highest layer down. `errors` and `version` are below all but `rope`, which imports nothing."""


def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    paths = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


MODULES = modules()


def imported(name: str, lazy: bool) -> set[str]:
    """The modules of ropeconv that a module imports. lazy: inside functions and for types too."""
    tree, targets = ast.parse(MODULES[name].read_text()), set()
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            inner = {f"{target}.{alias.name}" for alias in node.names}
            targets |= {member if member in MODULES else target for member in inner if target.startswith("ropeconv")}
    return targets - {name}


def package_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_every_package_has_a_layer() -> None:
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} == set(LAYERS)


def test_imports_go_downward() -> None:
    pairs = [(name, target) for name in MODULES for target in imported(name, lazy=True)]
    assert len(pairs) > 1000
    layer = {package: index for index, package in enumerate(LAYERS)}
    assert [
        (name, target)
        for name, target in pairs
        if layer.get(package_of(target), 99) < layer.get(package_of(name), -1)
        or (package_of(name) == "rope" != package_of(target))
    ] == []


def test_no_circle() -> None:
    # a package's own `__init__` gathers what is in it, and does not count as a use of it
    graph = {name: {t for t in imported(name, lazy=False) if not name.startswith(f"{t}.")} for name in MODULES}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_package_can_be_seen_whole() -> None:
    lengths = {str(path): len(path.read_text().splitlines()) for path in MODULES.values()}
    assert {path: lines for path, lines in lengths.items() if lines > 500} == {}
    assert len(lengths) <= 259
    assert sum(lengths.values()) <= 47_070
    folders = Counter(path.parent for path in MODULES.values())
    assert {folder: files for folder, files in folders.items() if not 5 <= files <= 20} == {}


def used(kind: Any, data: dict[str, Any], above: str = "") -> Iterator[str]:
    """The keys of the schema of families that a file has, with dots between levels. kind: a struct of the schema."""
    for field in msgspec.structs.fields(kind):
        if field.name in data:
            yield above + field.name
            value = data[field.name]
            for inner in get_args(field.type) or (field.type,):
                if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                    for part in value if isinstance(value, list) else [value]:
                        yield from used(inner, part, f"{above}{field.name}.")


def test_few_keys_of_the_schema_are_about_one_family() -> None:
    """A fact of one family belongs into its hooks, `models/data/NAME.py`."""
    paths = (ROOT / "models/data").glob("*.toml")
    counts = Counter(key for path in paths for key in set(used(Family, tomllib.loads(path.read_text()))))
    assert len(counts) > 150
    assert len([key for key, count in counts.items() if count == 1]) <= 11


def test_classes_and_modules_are_named_by_nouns() -> None:
    """No class name twice, and no name of one word that is a participle, such as `Asked` or `divided.py`."""
    trees = {path: ast.parse(path.read_text()) for path in MODULES.values()}
    classes = [node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    counts = Counter(name for name in classes if name != "Hooks")  # those of a family, by the name of its module
    assert [name for name, count in counts.items() if count > 1] == []
    words = [*classes, *(path.stem.capitalize() for path in trees)]
    assert [word for word in words if re.fullmatch(r"_?[A-Z][a-z]*[^e]ed", word)] == []


VAGUE = {"found", "made", "said", "asked", "wanted", "own", "one", "seen", "thing", "told"}


@pytest.mark.parametrize("folder", ["ropeconv", "tests", "scripts"])
def test_variables_say_what_they_hold(folder: str) -> None:
    names = set()
    for path in (ROOT.parent / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if stored else node.arg if isinstance(node, ast.arg) else ""
            names |= {f"{path.name}: {name}"} if name in VAGUE else set()
    assert names == set()
