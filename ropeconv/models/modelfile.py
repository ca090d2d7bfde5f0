"""The grammar of Ollama's Modelfiles.

Begin with `parse_modelfile`. It reads a text as Ollama does
(https://github.com/ollama/ollama, parser/parser.go), and keeps the place of each value, so that
one value can be replaced and the rest stays.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

WITH_FILE = ("FROM", "ADAPTER", "DRAFT")
"""Commands whose value may be the path of a file. A second FROM names a projector."""
BETWEEN = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
"""Blanks, empty lines and comments between commands."""
WORD = re.compile(r"([A-Za-z]+)[ \t]")
KEYS = {
    "PARAMETER": re.compile(r"[ \t]*([A-Za-z0-9_]+)[ \t]"),
    "MESSAGE": re.compile(r"[ \t]*([A-Za-z]+)[ \t]"),
}
"""The word before the value, for the commands that have one."""
LINE_END = re.compile(r"[\r\n]|\Z")
BLANKS = " \t\r\n"
BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Instruction:
    """A command of a Modelfile, such as `PARAMETER num_ctx 4096`."""

    name: str
    """In capitals: "FROM", "PARAMETER"."""

    key: str
    """The name of a parameter, or the role of a message; empty for other commands."""

    value: str
    """As Ollama reads it, without the quotes around it."""

    start: int
    """The place of its first character in the text."""

    stop: int
    """The place behind its last character."""

    value_start: int
    """The place of its value, behind the opening quotes."""

    value_stop: int
    """The place behind its value, where the closing quotes are."""


@dataclass(frozen=True)
class ParsedModelfile:
    """The commands of a Modelfile."""

    commands: tuple[Instruction, ...]
    """In their order, up to the first fault."""

    fault: str
    """The first thing that Ollama does not read, such as "line 3 is not a command"; else empty."""

    def of(self, *names: str) -> list[Instruction]:
        """Return the commands with one of some names, such as "FROM"."""
        return [command for command in self.commands if command.name in names]


def parse_modelfile(text: str) -> ParsedModelfile:
    """Return the commands of a Modelfile.

    Words that Ollama does not know yet are commands too. A value goes to the end of its line. One
    that begins with one or three quotes goes to the first line that ends with as many.
    """
    commands: list[Instruction] = []
    place = 0
    if text.startswith(BYTE_ORDER_MARK):
        place = 1
    while True:
        start = _skip_between(text, place)
        if start == len(text):
            return ParsedModelfile(tuple(commands), "")
        command = _read_command(text, start)
        if isinstance(command, str):
            # Ollama counts each \r and each \n as one line, and editors count \r\n as one
            line = len(re.findall(r"\r\n|\r|\n", text[:start])) + 1
            return ParsedModelfile(tuple(commands), f"line {line} {command}")
        commands.append(command)
        place = _end_of_line(text, command.stop)


def quote_path(path: str) -> str:
    """Return a path as the value of a command, in quotes only where Ollama would drop blanks."""
    if path != path.strip(BLANKS) or path.startswith('"'):
        return f'"{path}"'
    return path


def replace_paths(text: str, paths: Mapping[Instruction, str]) -> str:
    """Return a Modelfile with other paths as the values of some commands.

    Args:
        text: The text of the Modelfile.
        paths: The new path of each command that changes; the commands are those of the text.
    """
    # from the end, so that the places before stay right
    for command in sorted(paths, key=lambda command: -command.start):
        path = paths[command]
        has_quotes = text[command.value_start - 1] == '"'
        value = path if has_quotes else quote_path(path)
        text = text[: command.value_start] + value + text[command.value_stop :]
    return text


def _read_command(text: str, start: int) -> Instruction | str:
    """Return the command at a place of a Modelfile; a clause on what is wrong where none is."""
    match = WORD.match(text, start)
    if match is None:
        return "is not a command with a value"
    name = match[1].upper()
    value_place = match.end()

    # `PARAMETER num_ctx 4096`, `MESSAGE user Hello`
    key = ""
    if name in KEYS:
        key_match = KEYS[name].match(text, match.end())
        if key_match is None:
            return f"is a {name} without a value"
        key = key_match[1]
        value_place = key_match.end()

    end = _end_of_value(text, value_place)
    if end is None:
        return "has quotes that are not closed"
    first, last = _without_blanks(text, value_place, end)
    quotes = _opening_quotes(text[first:last])
    value_start = first + len(quotes)
    value_stop = last - len(quotes)
    return Instruction(
        name=name,
        key=key,
        value=_readable(text[value_start:value_stop]),
        start=start,
        stop=last,
        value_start=value_start,
        value_stop=value_stop,
    )


def _end_of_value(text: str, place: int) -> int | None:
    """Return the end of the last line of a value; None where its quotes are not closed.

    Args:
        text: The text of the Modelfile.
        place: Where the value begins, with the blanks before it.
    """
    end = _end_of_line(text, place)
    line = _readable(text[place:end]).strip(BLANKS)
    quotes = _opening_quotes(line)
    is_closed = line.endswith(quotes) and len(line) >= 2 * len(quotes)
    while not is_closed:
        if end == len(text):
            return None
        place = end + 1
        end = _end_of_line(text, place)
        line = _readable(text[place:end]).strip(BLANKS)
        is_closed = line.endswith(quotes)
    return end


def _without_blanks(text: str, start: int, stop: int) -> tuple[int, int]:
    """Return the part of a text without blanks, and unreadable characters, at both ends."""
    while start < stop and not _readable(text[start]).strip(BLANKS):
        start += 1
    while start < stop and not _readable(text[stop - 1]).strip(BLANKS):
        stop -= 1
    return start, stop


def _opening_quotes(value: str) -> str:
    """Return the quotes with which a value begins; empty without any."""
    for quotes in ('"""', '"'):
        if value.startswith(quotes):
            return quotes
    return ""


def _readable(text: str) -> str:
    """Return a text without the characters that Ollama drops, such as zero-width ones."""
    if text.isprintable():
        return text
    return "".join(letter for letter in text if letter.isprintable() or letter in BLANKS)


def _end_of_line(text: str, place: int) -> int:
    """Return the end of the line at a place."""
    match = LINE_END.search(text, place)
    assert match is not None  # the end of the text matches
    return match.start()


def _skip_between(text: str, place: int) -> int:
    """Return the place of the next command, or the end of the text."""
    match = BETWEEN.match(text, place)
    assert match is not None  # it may be empty
    return match.end()
