"""Names from checkpoints are printed without what a terminal obeys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropeconv.cli.output import Output
from ropeconv.cli.printable import printable

from ..conftest import Run
from ..support.gguf_files import write

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb"
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e")


@pytest.mark.parametrize("character", [*OBEYED, "\x00", "\r", "\x7f", "\u2066", "\u200f", "\ud800"])
def test_what_a_terminal_obeys_is_an_escape(character: str) -> None:
    assert printable(f"a{character}b") == "a" + ascii(character).strip("'") + "b"


def test_text_stays_as_it_is() -> None:
    text = "Grüße\u00a0aus 你好 😀👍🏽 naïve\n\tπ ≈ 3"
    assert printable(text) == text


def test_nothing_in_a_text_is_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """`dynamic:yarn:4` has the name of an emoji in it, and `[bold]` is markup of rich."""
    text = "dynamic:yarn:4 [bold]of[/bold] :smile:"
    output = Output()
    output.say(text)
    output.copyable(text)
    output.note(text)
    output.table(text, (text, "b"), [(text, "1")])
    said = capsys.readouterr()
    assert said.err == f"{text}\n"
    assert said.out.count(text) == 5
    assert said.out.splitlines()[2] == text, "a title is not wrapped at the width of its table"


@pytest.mark.parametrize("variable", ["HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_a_token_that_was_stored_by_the_hubs_client_is_not_printed(variable: str, tmp_path: Path) -> None:
    program = (
        "from ropeconv.cli.printable import printable\n"
        "print(printable('refused: hf_stored_secret'))\n"
        "from huggingface_hub.constants import HF_TOKEN_PATH as path\n"
        "import pathlib\n"
        "pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)\n"
        "pathlib.Path(path).write_text('hf_stored_secret\\n')\n"
        "print(path, printable('refused: hf_stored_secret'))"
    )
    names = ("HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME", "HF_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**environment, "HOME": str(tmp_path), variable: str(tmp_path / "place")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    before, after = done.stdout.splitlines()
    assert before == "refused: hf_stored_secret"
    assert after.startswith(f"{tmp_path / 'place'}")
    assert after.endswith(" refused: ***")


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
