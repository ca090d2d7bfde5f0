"""CONTRIBUTING.md: what it says to touch is there, is little, and a test notices when it is forgotten."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).parent.parent
THINGS = {
    "method", "family", "runtime", "encoding (checkpoint)", "encoding (GGUF)", "host architecture (carrier)",
    "GGUF architecture", "version of a runtime", "server protocol", "engine", "command", "measure", "search",
    "trainer", "task of `run`", "executor of `run`", "file or key that limits a prompt",
}  # fmt: skip


def table() -> dict[str, list[str]]:
    """Cells of the table by the thing that is added."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## To add X, touch these files")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows[2:]}


def test_every_thing_has_its_row() -> None:
    assert set(table()) == THINGS


@pytest.mark.parametrize("thing", sorted(THINGS))
def test_the_files_are_there_and_few(thing: str) -> None:
    touched, _, tests = table()[thing]
    paths = re.findall(r"`([^`]+)`", touched)
    assert 2 <= len(paths) <= 3
    for path in paths:
        place = ROOT / path
        assert (place.parent if "NAME" in place.name else place).exists(), path
    named = re.findall(r"`(tests/[^`]+)`", tests)
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_an_engine_is_compared_and_chosen() -> None:
    """Every folder of engines but the probe, which runs no model, is what some comparison runs on."""
    validate, cli = ROOT / "ropeconv" / "validate", (ROOT / "ropeconv" / "cli" / "running.py").read_text()
    comparisons = {path.stem: path.read_text() for path in validate.glob("*.py")}
    for folder in (ROOT / "ropeconv" / "engines").iterdir():
        if not folder.is_dir() or folder.name in ("probe", "__pycache__"):
            continue
        users = [name for name, text in comparisons.items() if f"engines.{folder.name} import" in text]
        assert [name for name in users if f"validate.{name} import validate_" in cli], folder.name


def test_every_file_of_methods_is_registered() -> None:
    from ropeconv.rope import methods

    files = {path.stem for path in (ROOT / "ropeconv" / "rope" / "methods").glob("*.py")} - {"__init__", "method"}
    defined = {
        name
        for stem in files
        for name in re.findall(
            r'^    name = "([^"]+)"$', (ROOT / "ropeconv/rope/methods" / f"{stem}.py").read_text(), flags=re.MULTILINE
        )
    }
    assert defined == set(methods.REGISTRY)


def test_every_measure_is_registered_and_documented() -> None:
    from ropeconv.evaluate import measures

    folder, listed = ROOT / "ropeconv" / "evaluate" / "measures", (ROOT / "docs" / "evaluating.md").read_text()
    defined = {
        name
        for path in folder.glob("*.py")
        for name in re.findall(r'^    name = "([^"]+)"$', path.read_text(), flags=re.MULTILINE)
    }
    assert defined == set(measures.REGISTRY)
    assert [name for name in defined if f"`{name}" not in listed] == []


def test_every_family_has_a_tiny_checkpoint_or_is_refused() -> None:
    from ropeconv.families import families

    from .encode.test_composite import MODELS
    from .support.models import FAMILIES

    tested = {*FAMILIES, *MODELS}
    names = [family.name for family in families() if not family.refuse and not tested & {*family.model_types}]
    assert names == []


def test_a_server_protocol_is_registered_and_has_a_stand_in() -> None:
    servers = ROOT / "ropeconv" / "engines" / "servers"
    protocols = {path.stem for path in servers.glob("*.py")} - {"__init__", "connect", "protocol", "transport"}
    connect = (servers / "connect.py").read_text()
    assert [name for name in protocols if f"from .{name} import" not in connect] == []
    from ropeconv.engines.servers.connect import PROTOCOLS

    assert len(PROTOCOLS) == len(protocols)
    stand_in = (ROOT / "tests" / "validate" / "servers" / "stand_in.py").read_text()
    assert [protocol.owner for protocol in PROTOCOLS if f'"{protocol.owner}"' not in stand_in] == []


def test_every_command_has_a_file_and_is_registered() -> None:
    from ropeconv.cli.app import COMMANDS

    defined = {
        name.replace("_", "-")
        for path in (ROOT / "ropeconv" / "cli").glob("*.py")
        for name in re.findall(r"^def (\w+)_command\(", path.read_text(), flags=re.MULTILINE)
    }
    assert defined == set(COMMANDS)


def test_every_encoding_and_carrier_stands_in_the_docs() -> None:
    from ropeconv.encode import all_encodings
    from ropeconv.encode.gguf import all_gguf_encodings

    runtimes, gguf = ((ROOT / "docs" / name).read_text() for name in ("runtimes.md", "gguf.md"))
    assert [name for name in all_encodings() if f"`{name}`" not in runtimes] == []
    assert [name for name in all_gguf_encodings() if f"`{name}`" not in gguf] == []


def test_links_of_the_docs_lead_somewhere() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += (ROOT / "docs").glob("*.md")
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(
            r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
        )
        if not target.startswith(("http", "mailto")) and not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_readme_is_short_and_has_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 145
    assert "./scripts/demo" in text
    assert "./scripts/test" in text


def test_every_task_of_run_is_registered_planned_and_documented() -> None:
    from ropeconv.run.jobs import CHAIN
    from ropeconv.run.plan_file import TaskName
    from ropeconv.run.tasks import TASKS

    folder, listed = ROOT / "ropeconv" / "run" / "tasks", (ROOT / "docs" / "running.md").read_text()
    defined = {
        name
        for path in folder.glob("*.py")
        for name in re.findall(r'^@task\("([^"]+)"\)$', path.read_text(), flags=re.MULTILINE)
    }
    assert defined == set(TASKS) == set(get_args(TaskName)) == {*CHAIN, "eval"}
    row = next(line for line in listed.splitlines() if line.startswith("| `tasks` |"))
    assert [name for name in defined if f"`{name}`" not in row] == []


def test_every_executor_of_run_can_be_chosen_and_is_documented() -> None:
    folder = ROOT / "ropeconv" / "run" / "executors"
    opening, page = (folder / "opening.py").read_text(), (ROOT / "docs" / "running.md").read_text()
    rows = [line for line in page.split("## Where it runs")[1].splitlines() if line.startswith("| `")]
    classes = {
        path.stem.replace("_", "-"): name
        for path in folder.glob("*.py")
        for name in re.findall(r"^class (\w+)\(Executor\):$", path.read_text(), flags=re.MULTILINE)
    }
    assert len(classes) == len([*folder.glob("*.py")]) - 3  # __init__, executor, opening
    assert [name for name in classes.values() if f"return {name}(" not in opening] == []
    assert [name for name in classes if not any(row.startswith(f"| `{name}`") for row in rows)] == []


def test_every_search_is_registered_and_documented() -> None:
    from ropeconv.tune.searches import REGISTRY

    files = {path.stem for path in (ROOT / "ropeconv" / "tune" / "searches").glob("*.py")} - {"__init__", "search"}
    assert files == set(REGISTRY)
    page = (ROOT / "docs" / "tuning.md").read_text()
    assert [name for name in REGISTRY if f"`{name}`" not in page] == []
