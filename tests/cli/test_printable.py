"""Names from checkpoints, and secrets, are printed without what a terminal obeys or a reader should not see."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ropeconv.cli.screen import Screen, printable, printable_json

from ..conftest import CONFIGS, Run

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e\u2066b"
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("character", "\x00\x07\r\x1b\x7f\x9b\u200f\u202e\u2066\ud800")
def test_what_a_terminal_obeys_is_an_escape(character: str) -> None:
    assert printable(f"a{character}b") == "a" + ascii(character).strip("'") + "b"


def test_text_stays_as_it_is() -> None:
    text = "Grüße\u00a0aus 你好 😀👍🏽 naïve\n\tπ ≈ 3, |"
    assert printable(text) == text


def test_json_stays_the_same_document() -> None:
    document = {"name": HOSTILE + "\udcff é\n"}
    text = printable_json(json.dumps(document, ensure_ascii=False))
    assert text.encode()
    assert not OBEYED.search(text)
    assert json.loads(text) == document


def test_nothing_in_a_text_is_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """`dynamic:yarn:4` has the name of an emoji in it, and `[bold]` is markup of rich."""
    text = "dynamic:yarn:4 [bold]of[/bold] :smile:"
    output = Screen()
    output.say(text)
    output.copyable(text)
    output.note(text)
    output.table(text, (text, "b"), [(text, "1")])
    said = capsys.readouterr()
    assert said.err == f"{text}\n"
    assert said.out.count(text) == 5
    assert said.out.splitlines()[2] == text, "a title is not wrapped at the width of its table"


@pytest.mark.parametrize(
    "variable",
    [
        "HF_TOKEN_PATH",
        "HOME",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("HF_HOME", "XDG_CACHE_HOME")),
    ],
)
def test_a_token_that_was_stored_by_the_hubs_client_is_not_printed(variable: str, tmp_path: Path) -> None:
    program = (
        "from ropeconv.cli.screen import printable\n"
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


def test_names_of_a_config(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / f"model{HOSTILE}"
    folder.mkdir()
    config = json.loads((CONFIGS / "meta-llama--Llama-2-7b-hf.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": f"llama{HOSTILE}", "name": HOSTILE}))
    for arguments in (("inspect", folder), ("inspect", folder, "--json"), ("apply", folder, "--yarn", "4"),
                      ("validate", folder), ("plot", folder, "--yarn", "4"), ("push", folder, f"me/{HOSTILE}"),
                      ("apply", folder, f"--{HOSTILE}"), ("bound", HOSTILE)):  # fmt: skip
        done = run(*arguments)
        assert not OBEYED.search(done.stdout + done.stderr), arguments
    assert "\\x1b" in run("inspect", folder).stderr
