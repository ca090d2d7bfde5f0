"""Every command of ropeconv and of `scripts/` that stands anywhere in the repository, and its
parsing.

`every_command` collects them from workflows, shell files, templates, pages, help, and the strings
of the code. `problem_of` parses one through the real command line, or through the parser of its
script, and runs nothing.
"""

import argparse
import ast
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from ropeconv.cli.app import complete_app
from ropeconv.cli.typer_classes import Command
from ropeconv.rope.errors import RopeconvError

ROOT = Path(__file__).parents[2]
VALUE = "X"
"""What stands for a part that is known only when a command is printed."""
CONTROL = re.compile(r"[();<>|&]+")
"""Words of shell between two commands, or between a command and the file that it reads or
writes.
"""
VARIABLE = re.compile(r"\$\{[^}]*\}|\$\w+")
NUMBER = "2"
"""What stands for a variable of shell, and for an open value of an option."""
DATA = (".txt", ".toml", ".json", ".md", "/")
"""Ends of the names of files and folders of `scripts/` that are not programs."""
FENCED = re.compile(r"^[ ]*```(?P<language>\w*)\n(?P<body>.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(
    r"`((?:\.venv/bin/|\./)?(?:ropeconv|python(?: -m)? scripts|scripts)[\s/.][^`]*)`"
)
SHELLS = ("", "sh", "bash", "console")


@dataclass(frozen=True)
class Found:
    """A command and where it stands."""

    text: str
    place: str
    mention: bool = False
    """Whether it stands in a sentence, which may name a command and an option without their
    values.
    """

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


def every_command() -> list[Found]:
    """Return all commands of the repository, each once for a place."""
    found = [*of_workflows(), *of_shell_files(), *of_templates(), *of_pages(), *of_code()]
    return list(dict.fromkeys(found))


def of_workflows() -> Iterator[Found]:
    """Yield the commands of the steps of workflows on GitHub, and of their texts."""
    for path in sorted((ROOT / ".github").rglob("*.yml")):
        for key, text in _strings(yaml.safe_load(path.read_text("utf-8"))):
            yield from (
                of_shell(text, _name(path)) if key == "run" else of_sentences(text, _name(path))
            )


def of_shell_files() -> Iterator[Found]:
    """Yield the commands of the shell programs of the repository, and of their comments."""
    for path in shell_files():
        text = path.read_text("utf-8")
        yield from of_shell(text, _name(path))
        yield from of_sentences(text, _name(path))


def shell_files() -> list[Path]:
    """Return the shell programs of the repository."""
    candidates = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    return [
        path
        for path in (*sorted(candidates), ROOT / ".ci" / "run")
        if b"bash" in path.read_bytes()[:30]
    ]


def of_templates() -> Iterator[Found]:
    """Yield the commands of templates, whose expressions become `VALUE`."""
    for path in sorted((ROOT / "templates").rglob("*")):
        if path.is_file() and path.suffix in (".jinja", ".md", ".html", ".js"):
            text = re.sub(r"\{\{.*?\}\}", VALUE, re.sub(r"\{%.*?%\}", "", path.read_text("utf-8")))
            lines = [
                line
                for line in text.splitlines()
                if re.match(r"\W*(?:\./)?(?:ropeconv|scripts/)", line)
            ]
            yield from of_shell("\n".join(lines), _name(path))
            yield from of_sentences(text, _name(path))


def of_pages() -> Iterator[Found]:
    """Yield the commands of pages, in blocks and in sentences."""
    for path in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))):
        yield from of_page(path.read_text("utf-8"), _name(path))
    for folder in ("tests", "scripts", "scripts/research", "templates"):
        yield from of_page((ROOT / folder / "README.md").read_text("utf-8"), f"{folder}/README.md")


def of_page(text: str, place: str) -> Iterator[Found]:
    """Yield the commands of a page in Markdown."""
    for block in FENCED.finditer(text):
        if block["language"] in SHELLS:
            lines = block["body"].replace("\\\n", " ").splitlines()
            yield from of_shell(
                "\n".join(line.removeprefix("$ ") for line in lines if _is_typed(line)), place
            )
    yield from of_sentences(FENCED.sub("", text), place)


def of_code() -> Iterator[Found]:
    """Yield the commands in the strings of the package and of the scripts: help, examples, errors
    and notes.
    """
    for path in sorted(
        path for folder in ("ropeconv", "scripts") for path in (ROOT / folder).rglob("*.py")
    ):
        yield from of_module(path.read_text("utf-8"), _name(path))
    for path in sorted((ROOT / "ropeconv").rglob("*.toml")):
        yield from of_sentences(path.read_text("utf-8"), _name(path))


def of_module(text: str, place: str) -> Iterator[Found]:
    """Yield the commands in the strings of a module, and those that `command_line` makes."""
    tree = ast.parse(text)
    # the pieces of an f-string are read with it, and not once more by themselves
    pieces: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces.update(id(piece) for piece in node.values)

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "command_line":
            words = [_written(word) for word in node.args if not isinstance(word, ast.Starred)]
            is_whole = len(words) == len(node.args)
            if words and words[0] != VALUE:
                yield Found(shlex.join(["ropeconv", *words]), place, mention=not is_whole)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in pieces:
            yield from of_sentences(_written(node), place)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").endswith("EXAMPLES"):
            yield from of_shell(_written(node.value), place)  # of the help of a command


def of_shell(text: str, place: str) -> Iterator[Found]:
    """Yield the commands of a program in shell."""
    for line in text.replace("\\\n", " ").splitlines():
        hands_on = '"$@"' in line  # the words of its own command line
        for words in commands_of(re.sub(r"`[^`]*`", "", line)):
            yield Found(shlex.join(words), place, mention=hands_on)


def of_sentences(text: str, place: str) -> Iterator[Found]:
    """Yield the commands between backticks."""
    for match in INLINE.finditer(text):
        line = " ".join(match[1].split()).removeprefix(".venv/bin/")
        for words in commands_of(re.sub(r"\[|\]|\.\.\.", " ", line)):
            yield Found(shlex.join(words), place, mention=True)


def commands_of(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of ropeconv and of `scripts/` in a line of shell, without
    those before it.
    """
    plain = VARIABLE.sub(NUMBER, re.sub(r"\d?>&\d", "", line.replace('"$@"', "")))
    reader = shlex.shlex(plain, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    reader.commenters = "#"
    try:
        words = list(reader)
    except ValueError:  # a text over several lines
        words = line.split()

    # a command ends at a word such as `&&`, and the last one at the end of the line
    words_of_command: list[str] = []
    for word in [*words, ";"]:
        if not CONTROL.fullmatch(word):
            words_of_command.append(word)
            continue
        found = _from_name(words_of_command)
        if found:
            yield found
        words_of_command = []


def _from_name(words: list[str]) -> list[str]:
    """The words from the name of ropeconv or of a program of `scripts/`; none for other
    commands.

    ["nice", "./scripts/test", "--all"] gives ["scripts/test", "--all"].
    """
    for place, word in enumerate(words):
        rest = words[place + 1 :]
        is_ropeconv = re.fullmatch(r"(?:\S*/)?ropeconv", word) is not None
        if is_ropeconv and rest:
            return ["ropeconv", *rest]
        if word == "-m" and rest and rest[0].startswith("scripts."):
            return words[place:]

        script = re.fullmatch(r"(?:\S*/)?(scripts/\w[\w./-]*)", word)
        if script is None or word.endswith(DATA):
            continue
        has_placeholder = re.search(r"[A-Z]{3}", script[1]) is not None
        if has_placeholder:
            continue
        by_python = place > 0 and "python" in words[place - 1]
        program = ["python", script[1]] if by_python else [script[1]]
        return [*program, *rest]
    return []


def problem_of(found: Found) -> str:
    """Return why a command would be refused; empty for one that is accepted."""
    try:
        words = shlex.split(found.text)
    except ValueError as problem:
        return str(problem)
    if words[0] == "ropeconv":
        return parse_problem(words[1:], found.mention)
    return script_problem(words, found.mention)


OF_ROPECONV = ("--version", "--help", "-h", "--install-completion", "--show-completion")
"""Options of `ropeconv` itself, which act while they are parsed."""


def parse_problem(words: list[str], mention: bool = False) -> str:
    """Return why the command line of ropeconv refuses words; empty where it parses them.

    mention: values and arguments may be left out, as in "`ropeconv apply --explain` says why".
    """
    context: Any = None
    command: Any = get_command(complete_app())
    name = "ropeconv"
    if words and words[0] in OF_ROPECONV:
        return ""
    if words and mention and _is_open(words[0]):  # `ropeconv COMMAND`
        return ""

    # the command, or the command of a group such as `ropeconv data COMMAND`
    while isinstance(command, TyperGroup):
        if not words:
            return "" if mention else f"{name} needs a command"
        try:
            context = command.make_context(name, [words[0]], parent=context)
            name, command, _ = command.resolve_command(context, [words[0]])
        except (RopeconvError, typer.TyperException) as problem:
            return str(problem)
        words = words[1:]

    try:
        with redirect_stdout(StringIO()):
            command.make_context(name, _with_values(command, words), parent=context)
    except typer.Exit:
        return ""
    except typer.TyperException as problem:
        kind = type(problem).__name__  # Typer exports neither of these two classes
        lacks_argument = kind == "MissingParameter"
        lacks_value = kind == "BadOptionUsage" and "argument" in str(problem)
        if mention and (lacks_argument or lacks_value):
            return ""
        return problem.format_message()
    except RopeconvError as problem:
        return str(problem)
    return ""


def _with_values(command: Command, words: list[str]) -> list[str]:
    """The words with values that the options accept in the place of `VALUE` and of words in
    capitals.
    """
    options = {flag: option for option in command.options for flag in option.opts}
    filled: list[str] = []
    for word in words:
        option = options.get(filled[-1]) if filled else None
        if option is not None and not option.is_flag and _is_open(word):
            filled.append(_sample(option))
        else:
            filled.append(word)
    return filled


def _is_open(word: str) -> bool:
    """Whether a word stands for others: one in capitals, or a part of a string that is filled
    in.
    """
    return word == VALUE or re.fullmatch(r"[A-Z][A-Z_]*", word) is not None


def _sample(option: Any) -> str:
    """A value that an option of Typer accepts: the first of its choices, else a number."""
    choices = get_args(option.type_descriptor.annotation)
    return str(choices[0]) if choices else NUMBER


def script_problem(words: list[str], mention: bool = False) -> str:
    """Return why a command with a program of `scripts/` cannot work; empty where nothing is wrong.

    Its file is there, and can be executed where it is called without python. Its words are accepted
    by its parser; a shell program has to name its words and options. mention: as in
    `parse_problem`.
    """
    # ["-m", "scripts.pages", ...], ["python", "scripts/faults.py", ...] or ["scripts/test", ...]
    is_python = words[0] == "python"
    is_module = words[0] == "-m"
    script, *given = words[1:] if is_python or is_module else words
    place = ROOT / script
    if is_module:
        place = ROOT / script.replace(".", "/")
        place = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")

    if place.is_dir():
        return ""
    if not place.is_file():
        return f"{script} does not exist"
    if place.suffix == ".py":
        return _python_problem(place, given, mention)
    if not place.stat().st_mode & 0o100:
        return f"{script} cannot be executed"
    return _shell_problem(place, given, mention)


def _shell_problem(place: Path, given: list[str], mention: bool) -> str:
    """Why a shell program does not know the words that it is given, or the program to which it
    hands them.
    """
    lines = place.read_text("utf-8").splitlines()
    code = "\n".join(re.sub(r"(?:^|\s)#.*", "", line) for line in lines)

    # the code that the words lead to: all, or a line such as `files) python -m scripts.x "$@" ;;`
    # for the first word
    reached = code
    rest = given
    if given:
        branch = re.search(rf"^\s*{re.escape(given[0])}\)(.*)$", code, re.MULTILINE)
        if branch is not None:
            reached = branch[1]
            rest = given[1:]

    # the program that gets the words
    programs = re.findall(r"(?:-m\s+)?(?:\S*/)?(scripts[./][\w./]+)\s+\"\$@\"", reached)
    if programs and "pytest" not in programs[-1]:
        module = programs[-1].replace("/", ".").removesuffix(".py")
        return script_problem(["-m", module, *rest], mention)

    if place.name == "setup":
        return _extras_problem(given, code)
    runs_pytest = "pytest" in code
    for word in given:
        is_in_code = re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", code) is not None
        if is_in_code or _is_open(word):
            continue
        if runs_pytest and _is_for_pytest(word, given):
            continue
        return f"{place.name} does not know {word}"
    return ""


def _is_for_pytest(word: str, given: list[str]) -> bool:
    """Whether pytest accepts a word: a short option, a test, or the value of -k or -n."""
    is_short_option = word.startswith("-") and word[1] != "-"
    previous = given[max(0, given.index(word) - 1)]
    return is_short_option or (ROOT / word).exists() or previous in ("-k", "-n")


def _extras_problem(given: list[str], code: str) -> str:
    """Why `scripts/setup` does not install what it is asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for word in given:
        if word.startswith("-"):
            if word not in code:
                return f"setup has no option {word}"
            continue
        if word.isupper() or word == "plain":  # a placeholder, or no extra at all
            continue
        if not all(name in extras for name in word.split(",")):
            return f"there is no extra {word}"
    return ""


def _python_problem(place: Path, given: list[str], mention: bool) -> str:
    """Why the parser of a program in Python refuses words; for one without a parser, whether it
    names its options.
    """
    # a package may have its parsers in several files
    files = [place]
    if place.name == "__main__.py":
        files = list(place.parent.glob("*.py"))
    has_parser = any("argparse" in file.read_text("utf-8") for file in files)
    if not has_parser:
        text = place.read_text("utf-8")
        for word in given:
            if word.startswith("--") and f'"{word}"' not in text:
                return f"{place.name} does not know {word}"
        return ""

    problem = _problem_of_parser(place, given)
    if problem is None:
        return f"{place.name} parses no arguments"
    leaves_words_out = "required" in problem or not given
    if mention and leaves_words_out:
        return ""
    return problem


def _problem_of_parser(place: Path, given: list[str]) -> str | None:
    """The last line of the error with which the parser of a program refuses words.

    It is empty where the parser accepts them, and None where the program parses none. The program
    is run up to its parser.
    """
    said = StringIO()
    parse = argparse.ArgumentParser.parse_args

    def only_parse(
        parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None
    ) -> None:
        parse(parser, args, namespace)
        raise SystemExit(0)

    module = ".".join(place.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said), redirect_stdout(said):
        patch.setattr("sys.argv", [str(place), *given])
        patch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as end:
            if not end.code:
                return ""
            message = end.code if isinstance(end.code, str) else said.getvalue()
            return message.strip().splitlines()[-1]
    return None


def _written(node: ast.expr) -> str:
    """A string of the code, with `VALUE` for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str | int) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_written(part) for part in node.values)
    return VALUE


def _strings(document: object, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a YAML document, each with the key that it is under."""
    if isinstance(document, str):
        yield key, document
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from _strings(value, str(name))
    elif isinstance(document, list):
        for value in document:
            yield from _strings(value, key)


def _is_typed(line: str) -> bool:
    """Whether a line of a block is typed, and is not output."""
    return bool(line.strip()) and not line.startswith("#")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
