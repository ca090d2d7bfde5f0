"""Output of the commands: data on stdout, and notes and progress on stderr.

`Screen` is the first thing to read: every command gets one and prints through it. Below it is how
tables are made with rich. All text passes through `printable` on its way out, since names in a
checkpoint may hold characters that a terminal obeys.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..environment import redacted
from ..errors import StopRequest
from ..options import option
from ..version import SCHEMA
from ..views.sheet import MARKS
from .progress import bar

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, RenderableType
    from rich.table import Table

    from ..reporting import Advance, Counter

UNSAFE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for tab and newline, those that change the direction of text, and halves
of surrogate pairs.

https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing
rich.control removes five of them, and leaves ESC.
"""
LINE_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")
"""Blanks and codes of colours at the end of a line."""
STYLES = {"good": "green", "fair": "yellow", "bad": "red"}
"""The colour of rich for each meaning in `MARKS`."""
UNLIMITED = 10_000
"""Width in characters for files and pipes, in which nothing is cut or wrapped."""


@dataclass
class _Presses:
    """How often Ctrl-C was pressed, and whether the run knows it."""

    tell: Callable[[], None]
    """Called at the first press."""

    count: int = 0
    is_pending: bool = False
    """Whether `should_stop` has still to return True."""

    def handle(self, number: int, frame: object) -> None:
        """Handle SIGINT. Raises StopRequest at the second press."""
        self.count += 1
        self.is_pending = True
        if self.count > 1:
            raise StopRequest
        self.tell()

    def should_stop(self) -> bool:
        """Return True once after a press."""
        pressed = self.is_pending
        self.is_pending = False
        return pressed


def printable(text: str) -> str:
    """Return a text with unsafe characters as escapes, `\\x1b` or `\\u202e`, and without tokens,
    keys and passwords.
    """
    return UNSAFE.sub(_python_escape, redacted(text))


def printable_json(text: str) -> str:
    """Return a JSON document with unsafe characters as escapes of JSON, which leave it the same
    document.
    """
    return UNSAFE.sub(_json_escape, redacted(text))


def _python_escape(match: re.Match[str]) -> str:
    """Return a character as an escape of Python, such as `\\x1b`."""
    quoted = repr(match[0])
    return quoted[1:-1]


def _json_escape(match: re.Match[str]) -> str:
    """Return a character as an escape of JSON, such as `\\u001b`."""
    code = ord(match[0])
    return f"\\u{code:04x}"


@dataclass
class Screen:
    """Where a command prints: tables and sentences, or one JSON document with `--json`."""

    as_json: bool = option(
        False, "Print one JSON document instead of tables.", "General", flag="--json"
    )
    quiet: bool = False
    """Whether notes and progress are left out."""

    def __post_init__(self) -> None:
        self._live: Console | None = None
        """The console of the progress bar that is being drawn."""

    def data(self, document: dict[str, Any]) -> None:
        """Print the JSON document of a command, with its schema."""
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        with_schema = {"schema": SCHEMA} | document
        text = json.dumps(with_schema, indent=2, ensure_ascii=encoding != "utf8")
        sys.stdout.write(printable_json(text) + "\n")

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        optional: Sequence[str] = (),
        right: Sequence[str] = (),
        styles: Mapping[tuple[int, int], str] = {},
    ) -> tuple[str, ...]:
        """Print a table, and return the columns that were shown.

        Args:
            title: The title, or empty.
            columns: The titles of the columns.
            rows: The cells of each row.
            optional: Columns that are left out, in this order, where the terminal is too narrow.
            right: Columns that are aligned on the right.
            styles: Styles of rich by the row and the column of a cell, both from 0.
        """
        from rich.text import Text

        console = self._console()
        cells = []
        for row in rows:
            cells.append([printable(cell) for cell in row])

        # leave out optional columns, one after the other, until the others fit
        shown = list(columns)
        table = _rich_table(columns, cells, shown, right, styles)
        for name in optional:
            if _unwrapped_width(console, table) <= console.width:
                break
            shown = [other for other in shown if other != name]
            table = _rich_table(columns, cells, shown, right, styles)

        # rich breaks the title of a table at the width of its columns, so it is printed before
        if title:
            _print(console, Text(printable(title), "bold"))
        _print(console, table)
        sys.stdout.write("\n")
        return tuple(shown)

    @property
    def colours(self) -> bool:
        """Whether stdout is a terminal that shows bold and grey."""
        console = self._console()
        return console.is_terminal and not console.no_color and console.color_system is not None

    def fits(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Whether a table is shown with all its columns unbroken."""
        console = self._console()
        table = _rich_table(columns, rows, columns)
        return _unwrapped_width(console, table) <= console.width

    def say(self, message: str) -> None:
        """Print a sentence on stdout, wrapped between words."""
        _print(self._console(), printable(message))

    def copyable(self, text: str, aside: bool = False) -> None:
        """Print a command or a path, which is never wrapped, so that it can be copied.

        Args:
            text: The command or path.
            aside: Whether it is printed on stderr instead, and not at all with `quiet`.
        """
        line = f"{printable(text)}\n"
        if not aside:
            sys.stdout.write(line)
        elif not self.quiet:
            sys.stderr.write(line)

    def note(self, message: str) -> None:
        """Print a note on stderr, wrapped between words; nothing for an empty one and with
        `quiet`.
        """
        if not message:
            return
        if self._live is not None:  # above the progress bar
            self._live.print(printable(message))
        elif not self.quiet:
            _print(self._console(stderr=True), printable(message))

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """Show a progress bar over `total` bytes on stderr, unless `quiet` or where stderr is not a
        terminal.
        """
        with self.counting(title, "bytes") as (set_total, advance):
            set_total(total)
            yield advance

    @contextmanager
    def counting(self, title: str, unit: str = "tokens") -> Iterator[Counter]:
        """Show a progress bar as `progress` does, whose total is set later.

        Args:
            title: The words before the bar.
            unit: The things that are counted, in the plural.

        Yields:
            A function that sets the total, and one that advances the bar. Without a terminal both
            do nothing.
        """
        is_shown = not self.quiet and sys.stderr.isatty()
        if not is_shown:
            yield _ignore, _ignore
            return
        # while the bar is there, `note` prints through its console, above it
        console = self._console(stderr=True)
        self._live = console
        try:
            with bar(title, unit, console) as (set_total, advance):
                yield set_total, advance
        finally:
            self._live = None

    @contextmanager
    def stopping(self, afterwards: str) -> Iterator[Callable[[], bool]]:
        """Let a long run finish its current step at Ctrl-C, and end at once at a second Ctrl-C.

            with screen.stopping("the results so far are kept") as should_stop:
                for step in steps:
                    if should_stop():
                        break

        Args:
            afterwards: The consequence of Ctrl-C, for the message "Stopping: {afterwards}."

        Yields:
            A function that the run calls between two steps. The first call after Ctrl-C returns
            True. All other calls return False.

        Raises:
            StopRequest: At a second Ctrl-C.
        """
        message = f"Stopping: {afterwards}. Press again to give up."
        print_message = partial(self.note, message)  # at the first Ctrl-C
        presses = _Presses(print_message)
        old_handler = signal.signal(signal.SIGINT, presses.handle)
        try:
            yield presses.should_stop
        finally:
            signal.signal(signal.SIGINT, old_handler)

    @contextmanager
    def watching(self) -> Iterator[Callable[[str], None]]:
        """Show a status line on stderr where `progress` shows a bar.

        Yields:
            A function that sets the text of the line.
        """
        if self.quiet or not sys.stderr.isatty():
            yield _ignore
            return
        from rich.text import Text

        with self._console(stderr=True).status("") as status:

            def show(message: str) -> None:
                status.update(Text(printable(message)))  # a spinner reads markup in a string

            yield show

    def _console(self, stderr: bool = False) -> Console:
        """Return a console of rich for stdout or stderr; lines are cut only on a terminal."""
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else UNLIMITED
        return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


@dataclass
class ProgressScreen(Screen):
    """The screen of a command that has notes and progress bars."""

    quiet: bool = option(False, "Suppress progress bars and notes.", "General", short="-q")


def _ignore(value: object) -> None:
    """Show nothing."""


def _print(console: Console, content: RenderableType) -> None:
    """Print a text or table without blanks at the ends of its lines."""
    # rich fills the last column of a table with blanks, which a copied line would have too
    with console.capture() as captured:
        console.print(content)
    lines = [_without_blanks_at_end(line) for line in captured.get().splitlines()]
    console.file.write("".join(f"{line}\n" for line in lines))


def _without_blanks_at_end(line: str) -> str:
    """Return a line without the blanks at its end, also those between the codes of colours."""
    return LINE_END.sub(lambda match: match[0].replace(" ", ""), line)


def _rich_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    shown: Sequence[str],
    right: Sequence[str] = (),
    styles: Mapping[tuple[int, int], str] = {},
) -> Table:
    """Return a table of rich.

    Args:
        columns: The titles of all columns.
        rows: The cells of all columns.
        shown: The titles of the columns that are shown.
        right: The titles of columns that are aligned to the right.
        styles: Styles of rich, by row and column.
    """
    from rich.table import Table
    from rich.text import Text

    # long words are broken and not cut off ("fold"), so that paths can be copied
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    places = [place for place, name in enumerate(columns) if name in shown]
    for place in places:
        side: JustifyMethod = "right" if columns[place] in right else "left"
        table.add_column(columns[place], overflow="fold", justify=side)

    for number, row in enumerate(rows):
        cells = []
        for place in places:
            # a style of its own, else that of its word: "exact" is green
            meaning = MARKS.get(row[place], "")
            style_of_word = STYLES.get(meaning, "")
            style = styles.get((number, place), style_of_word)
            cells.append(Text(row[place], style))
        table.add_row(*cells)
    return table


def _unwrapped_width(console: Console, table: Table) -> int:
    """Return the width that a table has without wrapping, in columns of the terminal."""
    from rich.measure import Measurement

    options = console.options.update(width=UNLIMITED)
    return Measurement.get(console, options, table).maximum
