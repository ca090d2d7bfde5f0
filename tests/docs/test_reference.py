"""docs/commands.md, schemas.md and api.md are what the code says: scripts/reference.py writes them."""

from __future__ import annotations

import json
import re

import pytest

import ropeconv
from ropeconv.cli.app import COMMANDS
from scripts.reference import DOCS, GROUPS, PAGES, WIDTH, helps

from ..conftest import Run


def text_of(page: str) -> str:
    return (DOCS / page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert text_of(page) == PAGES[page](), "run python scripts/reference.py"


def test_every_command_and_its_every_option_are_there() -> None:
    text = text_of("commands.md")
    sections = dict(zip(COMMANDS, re.split(r"^## ropeconv [\w-]+\n", text, flags=re.MULTILINE)[1:], strict=True))
    assert all(f"ropeconv {name} " in section for name, section in sections.items())
    assert all("--help" in section for section in sections.values())
    assert "--theta-bound" in sections["apply"]
    assert "--theta-bound" not in sections["restore"]


def test_the_help_is_the_same_in_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = helps()
    for name, value in {"COLUMNS": "40", "TERMINAL_WIDTH": "40", "FORCE_COLOR": "1", "LANG": "C"}.items():
        monkeypatch.setenv(name, value)
    assert helps() == usual
    assert max(len(line) for text in usual.values() for line in text.splitlines()) <= WIDTH
    assert "\x1b" not in "".join(usual.values())


def test_every_exported_name_stands_in_the_api_once() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(set(ropeconv.__all__) - {"__version__"})


def test_a_receipt_and_a_result_have_the_keys_of_their_schemas(run: Run, llama: object) -> None:
    done = run("apply", "model", "--yarn", "4", "-o", "out", "-q")
    assert done.returncode == 0, done.stderr
    sections = (part.partition("\n") for part in text_of("schemas.md").split("\n## ")[1:])
    schemas = {title: json.loads(body.split("```json\n")[1].split("\n```")[0]) for title, _, body in sections}
    assert schemas.keys() >= {"The receipt", "The result of eval", "The journal of apply"}
    receipt = json.loads((llama.parent / "out" / "ropeconv.json").read_text())  # type: ignore[attr-defined]
    schema = schemas["The receipt"]["$defs"]["Receipt"]
    assert receipt.keys() <= schema["properties"].keys()
    assert set(schema["required"]) <= receipt.keys()
    assert not {"method", "sha256"} & schema["properties"].keys()
