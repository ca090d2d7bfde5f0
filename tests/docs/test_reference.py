"""docs/commands.md, schemas.md and api.md are what the code says: scripts/reference.py writes them."""

from __future__ import annotations

import re

import pytest

import ropeconv
from ropeconv.cli.app import COMMANDS
from scripts.reference import DOCS, GROUPS, PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert (DOCS / page).read_text("utf-8") == PAGES[page](), "run python scripts/reference.py"


def test_every_command_and_its_every_option_are_there() -> None:
    parts = re.split(r"^## ropeconv [\w-]+\n", (DOCS / "commands.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    sections = dict(zip(COMMANDS, parts, strict=True))
    assert all(f"ropeconv {name} " in section and "--help" in section for name, section in sections.items())
    assert ["--theta-bound" in sections[name] for name in ("apply", "restore")] == [True, False]


def test_every_exported_name_stands_in_the_api_once() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(set(ropeconv.__all__) - {"__version__"})
