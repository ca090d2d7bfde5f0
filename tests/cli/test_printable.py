"""Names from checkpoints are printed without what a terminal obeys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.cli.printable import printable

from ..conftest import Run
from ..gguf_files import write

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb"
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e")


@pytest.mark.parametrize("character", [*OBEYED, "\x00", "\r", "\x7f", "\u2066", "\u200f", "\ud800"])
def test_what_a_terminal_obeys_is_an_escape(character: str) -> None:
    assert printable(f"a{character}b") == "a" + ascii(character).strip("'") + "b"


def test_text_stays_as_it_is() -> None:
    text = "Grüße\u00a0aus 你好 😀👍🏽 naïve\n\tπ ≈ 3"
    assert printable(text) == text


def test_the_name_of_a_gguf_file(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", extra={"general.name": HOSTILE})
    done = run("inspect", "a.gguf")
    assert done.returncode == 0, done.stderr
    assert "GGUF, a" in done.stdout
    assert not any(character in done.stdout for character in OBEYED)


def test_the_source_in_a_receipt(llama: Path, run: Run, tmp_path: Path) -> None:
    assert run("apply", "model", "--yarn", "4", "-o", "out", "-q").returncode == 0
    path = tmp_path / "out" / "ropeconv.json"
    receipt = json.loads(path.read_text())
    receipt["original"]["source"] |= {"reference": f"me/{HOSTILE}", "commit": HOSTILE}
    path.write_text(json.dumps(receipt))
    done = run("restore", "out", "--dry-run")
    assert "me/a" in done.stdout
    assert not any(character in done.stdout + done.stderr for character in OBEYED)
