"""What a terminal shows, what a pipe gets, what reaches neither uninvited, and the progress bar."""

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from ropeconv.cli import process as errors
from ropeconv.cli.app import complete_app
from ropeconv.cli.progress import bar, pace
from ropeconv.cli.screen import Screen, printable, printable_json

from ..conftest import CONFIGS, Run
from ..support.extent import sample
from ..support.in_process import Terminal, plain
from ..support.optional import of_features
from ..support.waiting import Clock

LLAMA_2 = str(CONFIGS / "meta-llama--Llama-2-7b-hf.json")
QWEN = str(CONFIGS / "Qwen--Qwen3-8B.json")
COMMANDS = {
    "apply": ("apply", LLAMA_2, "--yarn", "16", "--dry-run"),
    "named": ("apply", LLAMA_2, "--mixed", "16", "--runtime", "vllm", "--dry-run"),
    "explain": ("apply", LLAMA_2, "--yarn", "16", "--dry-run", "--explain"),
    "inspect": ("inspect", QWEN),
    "advise --explain": ("advise", LLAMA_2, "--context", "32k", "--explain"),
    "methods": ("list", "methods"),
    "methods yarn": ("list", "methods", "yarn"),
    "runtimes": ("list", "runtimes"),
    "archs": ("list", "archs"),
    "bound": ("bound", "4k"),
    "frequencies": ("plot", "--yarn", "16"),
    "apply --help": ("apply", "--help"),
}
COPIED = (
    "ropeconv ",
    "Next: ",
    "Run: ",
    "Check: ",
    "Fix: ",
    "Bake: ",
    "Train: ",
    "Untuned: ",
    "Measure: ",
)
"""Beginnings of lines with a command, which are never wrapped."""
SHORT = {"apply": ("--yarn", "4", "--replace", "--dry-run"), "inspect": (), "compare": (QWEN,)}


def on_screen(width: int, *arguments: str) -> str:
    """What a terminal of that width is sent, without colours."""
    screen = Terminal()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(screen),
        contextlib.redirect_stderr(screen),
    ):
        for name, value in (("COLUMNS", str(width)), ("LINES", "50"), ("TERM", "xterm")):
            patch.setenv(name, value)
        errors.run(lambda **kwargs: complete_app()(arguments, prog_name="ropeconv", **kwargs))
    return plain(screen.getvalue())


def in_terminal(folder: Path, width: int, *arguments: str) -> str:
    """The same of a process with a terminal of the system."""
    screen, end = pty.openpty()
    env = {**os.environ, "COLUMNS": str(width), "LINES": "50", "TERM": "xterm"}
    command = [sys.executable, "-m", "ropeconv", *arguments]
    process = subprocess.Popen(command, stdout=end, stderr=end, stdin=end, cwd=folder, env=env)
    os.close(end)
    output = b""
    with contextlib.suppress(OSError):
        while part := os.read(screen, 1 << 16):
            output += part
    process.wait()
    os.close(screen)
    return plain(output.decode()).replace("\r\n", "\n")


def words(text: str) -> set[str]:
    """Words of letters of at least six characters: those that a narrow column would break first."""
    return set(re.findall(r"[A-Za-z_]{6,}", text))


@of_features
@pytest.mark.parametrize("name", ["apply --help", *sample(list(COMMANDS)[:-1], 5)])
def test_no_line_is_too_wide_or_ends_with_blanks_and_no_word_is_broken(
    run: Run, name: str, tmp_path: Path
) -> None:
    show = (
        partial(in_terminal, tmp_path) if "--help" in name else on_screen
    )  # Typer measures the terminal, not the stream
    whole = show(250, *COMMANDS[name])
    for width in (80, 60):
        text = show(width, *COMMANDS[name])
        wide = [line for line in text.splitlines() if len(line) > width]
        assert [line for line in wide if not line.strip().startswith(COPIED)] == []
        assert words(text) - words(whole) == set()
    pipe = run(*COMMANDS[name]).stdout
    for text in (
        [pipe] if "--help" in name else [whole, pipe]
    ):  # rich fills the width with blanks around its panels
        assert text.strip()
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("command", list(SHORT))
@pytest.mark.parametrize("config", sample(sorted(path.name for path in CONFIGS.glob("*.json")), 4))
def test_a_screen_has_at_most_15_lines_at_80_columns(
    command: str, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIGS)  # a longer path of the checkout would take lines
    text = on_screen(80, command, config, *SHORT[command])
    answer = re.split(r"^(?:Note:|!) ", text, maxsplit=1, flags=re.MULTILINE)[
        0
    ]  # warnings and problems come last
    assert len([line for line in answer.splitlines() if line]) <= 15, text


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", LLAMA_2),
        ("advise", LLAMA_2, "--context", "8k"),
        ("bound", "4k"),
        ("plot", "--yarn", "2"),
        ("list", "methods"),
        ("list", "families"),
        ("list", "archs"),
        ("list", "runtimes"),
        ("apply", LLAMA_2, "--yarn", "2", "--dry-run"),
    ],
)
def test_every_document_has_its_schema(run: Run, arguments: tuple[str, ...]) -> None:
    assert json.loads(run(*arguments, "--json").stdout)["schema"] == 2


def shown(clock: Clock, steps: list[tuple[float, int]]) -> str:
    """The last line of a bar after some steps: seconds that pass, and what is done then."""
    screen = io.StringIO()
    console = Console(
        file=screen, force_terminal=True, width=80, color_system=None, legacy_windows=False
    )
    with bar("Running", "tokens", console, clock) as (set_total, advance):
        clock.now += 30  # a model is loaded, which does not count
        set_total(1000)
        for seconds, done in steps:
            clock.now += seconds
            advance(done)
        screen.truncate(0)
    return screen.getvalue()


@pytest.mark.parametrize(
    ("steps", "cols"),
    [
        ([(2, 100)], ("10%", "50 tokens/s", "0:00:18 left")),
        ([(1, 10), (1, 90)], ("10%", "50 tokens/s", "0:00:18 left")),
        ([(60, 1)], ("0%", "0.0 tokens/s", "16:39:00 left")),
        ([(2, 500), (2, 500)], ("100%", "250 tokens/s", "finishing")),
    ],
)
def test_percentage_rate_and_time_from_the_first_step_on(
    steps: list[tuple[float, int]], cols: tuple[str, ...]
) -> None:
    text = shown(Clock(), steps)
    assert [words for words in cols if words not in text] == []


@pytest.mark.parametrize(
    ("seconds", "done", "total", "expected"),
    [
        (0.9, 10**9, 2 * 10**9, ("", "")),  # a cache takes the first gigabyte
        (1.1, 656, 2 * 10**9, ("", "")),  # config.json is written, and the weights are not begun
        (2.0, 10**9, 2 * 10**9, ("500.0 MB/s", "0:00:02 left")),
        (59, 656, 2 * 10**9, ("", "")),
        (120, 10**6, 2 * 10**9, ("0.0 MB/s", "2 days, 18:38:00 left")),  # which is true by now
        (8, 2 * 10**9, 2 * 10**9, ("250.0 MB/s", "finishing")),
        (2, 10**9, None, ("500.0 MB/s", "")),
    ],
)
def test_no_estimate_from_nothing(
    seconds: float, done: int, total: int | None, expected: tuple[str, str]
) -> None:
    assert pace("bytes", done, total, seconds) == expected


# Names from checkpoints, and secrets, are printed without what a terminal obeys or a reader should
# not see


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
    captured = capsys.readouterr()
    assert captured.err == f"{text}\n"
    assert captured.out.count(text) == 5
    assert captured.out.splitlines()[2] == text, "a title is not wrapped at the width of its table"


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("m" * 13, ("model", "status", "note")),
        ("m" * 14, ("model", "status")),
        ("模型" * 3 + "m", ("model", "status", "note")),  # a character is two columns wide
        ("模型" * 3 + "mm", ("model", "status")),
    ],
)
def test_an_optional_column_is_left_out_where_the_terminal_is_too_narrow(
    name: str, columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "30")
    with contextlib.redirect_stdout(screen):
        row = (name, "exact", "1234567")
        output = Screen()
        assert output.fits(("model", "status", "note"), [row]) is (len(columns) == 3)
        assert output.table("", ("model", "status", "note"), [row], optional=["note"]) == columns
    assert max(map(cell_len, plain(screen.getvalue()).splitlines())) <= 30


@pytest.mark.parametrize(
    "variable",
    [
        "HF_TOKEN_PATH",
        "HOME",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("HF_HOME", "XDG_CACHE_HOME")),
    ],
)
def test_a_token_that_was_stored_by_the_hubs_client_is_not_printed(
    variable: str, tmp_path: Path
) -> None:
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
        [sys.executable, "-c", program],
        env={**environment, "HOME": str(tmp_path), variable: str(tmp_path / "place")},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = done.stdout.splitlines()
    assert before == "refused: hf_stored_secret"
    assert after.startswith(f"{tmp_path / 'place'}")
    assert after.endswith(" refused: ***")


def test_names_of_a_config(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / f"model{HOSTILE}"
    folder.mkdir()
    config = json.loads((CONFIGS / "meta-llama--Llama-2-7b-hf.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": f"llama{HOSTILE}", "name": HOSTILE})
    )
    for arguments in (
        ("inspect", folder),
        ("inspect", folder, "--json"),
        ("apply", folder, "--yarn", "4"),
        ("validate", folder),
        ("plot", folder, "--yarn", "4"),
        ("push", folder, f"me/{HOSTILE}"),
        ("apply", folder, f"--{HOSTILE}"),
        ("bound", HOSTILE),
    ):
        done = run(*arguments)
        assert not OBEYED.search(done.stdout + done.stderr), arguments
    assert "\\x1b" in run("inspect", folder).stderr
