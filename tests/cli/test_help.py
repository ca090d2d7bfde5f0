"""The help: panels in one order, choices as choices, no types where nothing is typed, examples for every command."""

import os
import re
import subprocess
import sys

import pytest

from ropeconv.cli.app import COMMANDS, find
from ropeconv.cli.command import EXPERT, METHOD, PANELS, PanelOption

from ..conftest import Run
from ..support.in_process import command
from .conftest import Refuses


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The help of every command, with its expert options."""
    folder = tmp_path_factory.mktemp("help")
    return {name: command(folder, *name.split(), "--help-all", code=0).stdout for name in COMMANDS}


def panels(text: str) -> list[str]:
    titles = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    return [title for title in titles if title not in ("Positional arguments", "Examples")]


def test_the_panels_of_apply_are_in_order(helps: dict[str, str]) -> None:
    assert panels(helps["apply"]) == [
        METHOD, "Length", "Running", "Output", "Runtimes", "Hub", "General", EXPERT,
    ]  # fmt: skip


def test_the_short_help_of_apply_fits_two_screens_and_names_the_long_one(run: Run) -> None:
    short = run("apply", "--help").stdout  # 80 columns, since it is not a terminal
    assert len(short.splitlines()) <= 100
    assert "--encoding" not in short
    assert "expert options: --help-all" in short
    assert "--encoding" in run("apply", "--help-all").stdout


def test_a_shell_completes_commands_and_options() -> None:
    completions = {}
    for words in ("ropeconv ins", "ropeconv list fam", "ropeconv apply --ya"):
        env = {**os.environ, "_ROPECONV_COMPLETE": "bash_complete", "COMP_WORDS": words}
        env["COMP_CWORD"] = str(len(words.split()) - 1)
        done = subprocess.run([sys.executable, "-m", "ropeconv"], env=env, capture_output=True, text=True)
        completions[words] = done.stdout.split()
    assert list(completions.values()) == [["plain,inspect"], ["plain,families"], ["plain,--yarn"]]


def test_the_lists_of_commands_have_the_first_sentence_of_each(run: Run) -> None:
    lists = f"{run('--help').stdout}{run('list', '--help').stdout}"
    text, names = "".join(lists.split()), {name: name.split()[-1] for name in COMMANDS}
    shown = [f"{names[name]}{find(name).short_help}".replace(" ", "") for name in COMMANDS]
    assert [line for line in shown if line not in text] == []


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command(helps: dict[str, str], name: str) -> None:
    text = helps[name]
    assert "Examples:" in text
    assert f"ropeconv {name}" in text.split("Examples:")[1]
    assert "BOOLEAN" not in text
    assert "INTEGER" not in text
    assert [title for title in PANELS if title in panels(text)] == panels(text)
    assert [param.name for param in find(name).params if isinstance(param, PanelOption) and not param.help] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("apply", "nowhere", "--yarn", "4", "--to", "onnx"),
        ("apply", "nowhere", "--yarn", "4", "--encoding", "inline"),
        ("apply", "nowhere", "--yarn", "4", "--fold-into", "v"), ("apply", "nowhere", "--yarn", "4", "--log-n", "half"),
        ("apply", "nowhere", "--yarn", "4", "--validate", "tpu"),
        ("validate", "nowhere", "--against", "nowhere", "--dtype", "int8"),
        ("validate", "nowhere", "--against", "nowhere", "--model", "x"),
        ("apply", "nowhere", "--yarn", "4", "--private"), ("apply", "nowhere", "--yarn", "4", "--token", "hf_x"),
        ("apply", "nowhere", "--as-is", "--replace"), ("list", "methods", "nothing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(refuses: Refuses, arguments: tuple[str, ...]) -> None:
    """`nowhere` does not exist, which would be exit code 1."""
    refuses(2, "", *arguments)
