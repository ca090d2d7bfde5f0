"""The packages of ropeconv: imports go downward only and never in a circle."""

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ropeconv.rope.features import load_features

ROOT = Path(__file__).parent.parent / "ropeconv"
LAYERS = (
    "features",
    "cli",
    "verbs",
    "hub",
    "views",
    "bake",
    "validate",
    "engines",
    "convert",
    "inspection",
    "runtimes",
    "models",
    "formats",
    "rope",
)
"""Packages from the highest layer down. `errors` and `version` are below all but `rope`, which
imports nothing.
"""


def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    paths = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


MODULES = modules()


def imported(name: str, types: bool = True) -> set[str]:
    """The modules of ropeconv that a module imports, also inside functions.

    types: also those that it imports for its type annotations only.
    """
    tree = ast.parse(MODULES[name].read_text())
    for_types: set[ast.AST] = set()
    if not types:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                for statement in node.body:
                    for_types |= set(ast.walk(statement))

    targets = set()
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node in for_types:
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        target = ".".join([*base, *([node.module] if node.module else [])])
        if not target.startswith("ropeconv"):
            continue
        for alias in node.names:
            member = f"{target}.{alias.name}"
            targets.add(member if member in MODULES else target)
    return targets - {name}


def package_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_every_package_has_a_layer() -> None:
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} == set(LAYERS)


def test_imports_go_downward() -> None:
    pairs = [(name, target) for name in MODULES for target in imported(name)]
    assert len(pairs) > 1000
    layer = {package: index for index, package in enumerate(LAYERS)}
    assert [
        (name, target)
        for name, target in pairs
        if layer.get(package_of(target), 99) < layer.get(package_of(name), -1)
        or (package_of(name) == "rope" != package_of(target))
    ] == []


PLACES = {"ropeconv.loader": "formats", "ropeconv.keywords": "verbs"}
"""Root modules that are just above a package, so that neither it nor one below imports them."""


@pytest.mark.parametrize("module", PLACES)
def test_a_root_module_has_a_place_above_what_it_imports(module: str) -> None:
    below = LAYERS[LAYERS.index(PLACES[module]) + (module == "ropeconv.keywords") :]
    importers = {name for name in MODULES if module in imported(name)}
    assert {name for name in importers if package_of(name) in below} == set()


def test_only_the_entry_point_and_features_import_the_command_line() -> None:
    importers = {
        name
        for name in MODULES
        if package_of(name) not in ("cli", "features")
        and any(package_of(target) == "cli" for target in imported(name))
    }
    assert importers == {"ropeconv.__main__"}


def feature_of(name: str) -> str:
    return name.split(".")[2] if name.startswith("ropeconv.features.") else ""


def test_the_core_imports_no_feature_and_features_only_those_that_they_require() -> None:
    features = load_features()
    assert {feature_of(name) for name in MODULES} == {"", *features}
    assert "evaluation" in features["run"].requires
    wrong = []
    for name in MODULES:
        own = feature_of(name)
        allowed = {"", own, *(features[own].requires if own else ())}
        for target in imported(name, types=False):
            if feature_of(target) not in allowed:
                wrong.append((name, target))
    assert wrong == []


def test_no_circle() -> None:
    # a package's own `__init__` gathers what is in it, and does not count as a use of it
    graph = {
        name: {t for t in imported(name, types=False) if not name.startswith(f"{t}.")}
        for name in MODULES
    }
    inside_a_function = "ropeconv.features.ui.pages"
    assert inside_a_function in graph["ropeconv.features.ui.server"]
    for_types = "ropeconv.features.servers.protocol"
    server = "ropeconv.features.evaluation.runners.server"
    assert for_types not in graph[server]
    assert for_types in imported(server)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_circle_for_types_either() -> None:
    """`ropeconv` itself names the features' functions for editors, which import it."""
    graph = {}
    for name in MODULES:
        if name != "ropeconv":
            used = {target for target in imported(name) if not name.startswith(f"{target}.")}
            graph[name] = used - {"ropeconv"}
    TopologicalSorter(graph).prepare()
    # the control: a class of verdict.py that asked.py would need for a type
    graph["ropeconv.runtimes.verdict"].add("ropeconv.runtimes.asked")
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


def test_no_class_name_is_used_twice() -> None:
    trees = [ast.parse(path.read_text()) for path in MODULES.values()]
    classes = [
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    counts = Counter(
        name for name in classes if name != "Hooks"
    )  # those of a family, by the name of its module
    assert [name for name, count in counts.items() if count > 1] == []
