"""docs/commands.md, docs/schemas and the API in docs/python.md are what the code says: scripts/reference.py."""

from __future__ import annotations

import re

import pytest

import ropeconv
from ropeconv.cli.app import COMMANDS
from scripts.reference import DOCS, EVERYWHERE, GROUPS, PAGES, SCHEMAS, TASKS, option_rows


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / page).read_text("utf-8") == PAGES[page](), "run python scripts/reference.py"


def test_every_command_and_its_every_option_are_there() -> None:
    text = (DOCS / "commands.md").read_text("utf-8")
    parts = re.split(r"^#{2,3} (?:ropeconv )?(.+)\n", text, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert sections.keys() >= {*COMMANDS, *TASKS, "Method options", "Common options"}
    assert sorted(name for _, names in TASKS.values() for name in names) == sorted(COMMANDS)
    shared = sections["Method options"]
    assert "| `--theta-bound TOKENS` |" in shared
    for name in COMMANDS:
        described = sections[name] + shared * ("method options" in sections[name])
        common = sections[name].partition("[Common options](#common-options): ")[2].partition(".\n")[0]
        for flag in re.findall(r"`(--[\w-]+)`", common):
            assert f"`{flag}" in sections["Common options"]
        assert [flag for flag in option_rows(name) if flag not in EVERYWHERE and f"`{flag}" not in described] == []


def test_every_schema_is_linked_and_no_other_file_is_there() -> None:
    linked = re.findall(r"\(schemas/([\w-]+)\.json\)", (DOCS / "python.md").read_text("utf-8"))
    assert sorted(linked) == sorted(SCHEMAS) == sorted(path.stem for path in (DOCS / "schemas").iterdir())


def test_every_exported_name_stands_in_the_api_once() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(set(ropeconv.__all__) - {"__version__"})
