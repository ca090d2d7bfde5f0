"""The help: panels in one order, choices as choices, no types where nothing is typed, examples for
every command.
"""

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest

from ropeconv.cli.app import GROUPS, all_commands, find
from ropeconv.cli.other_words import OTHER_COMMANDS, OTHER_OPTIONS
from ropeconv.options import EXPERT, METHOD, PANELS

from ..conftest import Run
from ..support.in_process import command, plain
from ..support.optional import of_features
from .conftest import Refuses

ROPECONV = [sys.executable, "-m", "ropeconv"]


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The help of every command, with its expert options."""
    folder = tmp_path_factory.mktemp("help")
    return {
        name: command(folder, *name.split(), "--help-all", code=0).stdout for name in all_commands()
    }


def panels(text: str) -> list[str]:
    titles = re.findall(r"^(\w.*):$", text, re.MULTILINE)
    return [title for title in titles if title not in ("Arguments", "Examples")]


def test_the_panels_of_apply_are_in_order(helps: dict[str, str]) -> None:
    assert panels(helps["apply"]) == [
        METHOD,
        "Length",
        "Running",
        "Output",
        "Runtimes",
        "Hub",
        "General",
        EXPERT,
    ]


def test_the_short_help_of_apply_leaves_expert_options_out_and_names_the_long_one(
    run: Run,
) -> None:
    short = run("apply", "--help").stdout
    assert "--encoding" not in short
    assert re.search(r"--help-all .* \d\d expert options", short)
    assert "--encoding" in run("apply", "--help-all").stdout


def test_a_shell_completes_commands_and_options() -> None:
    completions = {}
    for words in ("ropeconv ins", "ropeconv list fam", "ropeconv apply --ya"):
        env = {**os.environ, "_ROPECONV_COMPLETE": "complete_bash", "COMP_WORDS": words}
        env["COMP_CWORD"] = str(len(words.split()) - 1)
        done = subprocess.run(
            [sys.executable, "-m", "ropeconv"], env=env, capture_output=True, text=True
        )
        completions[words] = done.stdout.split()
    assert list(completions.values()) == [["inspect"], ["families"], ["--yarn"]]


def test_the_lists_of_commands_have_the_first_sentence_of_each(run: Run) -> None:
    groups = [run(group, "--help").stdout for group in GROUPS]
    lists = f"{run('--help').stdout}{''.join(groups)}"
    text = "".join(lists.split())
    for name, (_, summary) in all_commands().items():
        first, _, _ = (find(name).help or "").partition("\n\n")
        assert summary == " ".join(first.split())
        assert f"{name.split()[-1]}{summary}".replace(" ", "") in text


BOXES = re.compile("[\u2500-\u257f]")


@of_features
@pytest.mark.parametrize("words", [(), ("list",), ("apply",), ("eval",)])
def test_a_terminal_has_panels_and_a_pipe_has_text_that_can_be_searched(
    words: tuple[str, ...],
) -> None:
    terminal, end = pty.openpty()
    in_terminal = {**os.environ, "COLUMNS": "200", "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen([*ROPECONV, *words, "--help"], stdout=end, env=in_terminal)
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # Linux says so when the other end is closed
        while part := os.read(terminal, 1 << 16):
            shown += part
    assert process.wait() == 0
    panels = shown.decode()
    assert BOXES.search(panels)
    assert "\x1b[3" not in panels, "a colour, in spite of NO_COLOR"

    text = subprocess.run(
        [*ROPECONV, *words, "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert not BOXES.search(text)
    assert "\x1b" not in text
    assert words_of(text) - words_of(plain(panels)) == set(), "markup of rich, or a cut line"


def words_of(text: str) -> set[str]:
    """Words, flags and paths of a help."""
    unbroken = re.sub(r"-\n +", "-", text)
    return {word.rstrip(":.,;") for word in re.findall(r"[\w./@-]{3,}", unbroken)}


@pytest.mark.parametrize("name", list(all_commands()))
def test_every_command(helps: dict[str, str], name: str) -> None:
    text = helps[name]
    assert "Examples:" in text
    assert f"ropeconv {name}" in text.split("Examples:")[1]
    assert "BOOLEAN" not in text
    assert "INTEGER" not in text
    assert [title for title in PANELS if title in panels(text)] == panels(text)
    assert [option.name for option in find(name).options if not option.help] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("apply", "nowhere", "--yarn", "4", "--to", "onnx"),
        ("apply", "nowhere", "--yarn", "4", "--encoding", "inline"),
        ("apply", "nowhere", "--yarn", "4", "--fold-into", "v"),
        ("apply", "nowhere", "--yarn", "4", "--log-n", "half"),
        ("apply", "nowhere", "--yarn", "4", "--validate", "tpu"),
        ("validate", "nowhere", "--against", "nowhere", "--dtype", "int8"),
        ("validate", "nowhere", "--against", "nowhere", "--model", "x"),
        ("apply", "nowhere", "--yarn", "4", "--private"),
        ("apply", "nowhere", "--yarn", "4", "--token", "hf_x"),
        ("apply", "nowhere", "--as-is", "--replace"),
        ("list", "methods", "nothing"),
        ("--yarn", "4", "nowhere"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    refuses: Refuses, arguments: tuple[str, ...]
) -> None:
    """`nowhere` does not exist, which would be exit code 1."""
    refuses(2, "", *arguments)


@of_features
def test_the_words_of_other_tools_lead_to_what_is_there() -> None:
    options = {
        flag for name in all_commands() for option in find(name).options for flag in option.opts
    }
    assert {
        meant for meant in OTHER_COMMANDS.values() if not meant.startswith("--")
    } <= all_commands().keys()
    assert {meant.partition(" ")[0] for meant in OTHER_OPTIONS.values()} <= options
    assert not {*OTHER_COMMANDS} & all_commands().keys()
