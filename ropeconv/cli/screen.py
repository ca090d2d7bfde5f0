"""Output: all that commands print, data on stdout and everything else on stderr, without control
characters.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

from ..environment import redacted
from ..errors import StopRequest
from ..options import option
from ..version import SCHEMA
from ..views.sheet import MARKS

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table

    from ..reporting import Advance, Counter

TRAILING = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")
"""Blanks and codes of colours at the end of a line."""
UNSAFE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for tab and newline, those that change the direction of text, and halves
of surrogate pairs.

https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing
rich.control removes five of them, and leaves ESC.
"""


def printable(text: str) -> str:
    """The text with unsafe characters as escapes, `\\x1b` or `\\u202e`, and without tokens, keys
    and passwords.
    """
    return UNSAFE.sub(lambda match: repr(match[0])[1:-1], redacted(text))


def printable_json(text: str) -> str:
    """A JSON document with unsafe characters as escapes of JSON, which leave it the same
    document.
    """
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", redacted(text))


def trimmed(line: str) -> str:
    """A line without the blanks at its end, also those between the codes of colours."""
    return TRAILING.sub(lambda match: match[0].replace(" ", ""), line)


STYLES = {"good": "green", "fair": "yellow", "bad": "red"}
UNLIMITED = 10_000
"""Width in characters for files and pipes, in which nothing is cut or wrapped."""


@dataclass
class Screen:
    """Prints tables and sentences, or one JSON document with `as_json`. quiet: print neither notes
    nor progress.
    """

    as_json: bool = option(
        False, "Print one JSON document instead of tables.", "General", flag="--json"
    )
    quiet: bool = False

    def __post_init__(self) -> None:
        self._live: Console | None = None

    def data(self, document: dict[str, Any]) -> None:
        """Prints the JSON document of a command, with its schema."""
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        text = json.dumps({"schema": SCHEMA} | document, indent=2, ensure_ascii=ascii_only)
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
        """As in `Sheet`. A terminal that is too narrow shows no `optional` columns."""
        from rich.text import Text

        console = self._console()
        body = [tuple(map(printable, row)) for row in rows]
        shown = list(columns)
        built = _table(columns, body, shown, right, styles)
        for name in optional:
            if _width(console, built) <= console.width:
                break
            shown = [other for other in shown if other != name]
            built = _table(columns, body, shown, right, styles)

        # rich breaks the title of a table at the width of its columns, so it is printed before
        if title:
            _print(console, Text(printable(title), "bold"))
        _print(console, built)
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
        built = _table(columns, rows, columns)
        return _width(console, built) <= console.width

    def say(self, message: str) -> None:
        """Prints a sentence on stdout, wrapped between words."""
        _print(self._console(), printable(message))

    def copyable(self, text: str, aside: bool = False) -> None:
        """Prints a command or a path on stdout, which is never wrapped, so that it can be copied.

        aside: on stderr instead, and not with `quiet`.
        """
        if not (aside and self.quiet):
            (sys.stderr if aside else sys.stdout).write(f"{printable(text)}\n")

    def note(self, message: str) -> None:
        """Prints a note on stderr, wrapped between words; nothing for an empty one and with
        `quiet`.
        """
        if message and self._live is not None:  # above the bar
            self._live.print(printable(message))
        elif message and not self.quiet:
            _print(self._console(stderr=True), printable(message))

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """A progress bar over bytes on stderr; none with `quiet` and where stderr is not a
        terminal.
        """
        with self.counting(title, "bytes") as (set_total, advance):
            set_total(total)
            yield advance

    @contextmanager
    def counting(self, title: str, unit: str = "tokens") -> Iterator[Counter]:
        """A progress bar on stderr, as (set the total, advance); none without `progress`. unit: in
        the plural.
        """
        if self.quiet or not sys.stderr.isatty():
            yield (lambda total: None), (lambda done: None)
            return
        self._live = self._console(stderr=True)
        try:
            with bar(title, unit, self._live) as functions:
                yield functions
        finally:
            self._live = None

    @contextmanager
    def stopping(self, afterwards: str) -> Iterator[Callable[[], bool]]:
        """While it is entered, Ctrl-C makes the yielded function return True once.

        A second Ctrl-C raises KeyboardInterrupt. afterwards: what happens after the first, as the
        end of a sentence.
        """
        pressed = 0
        pending = False

        def handle(number: int, frame: object) -> None:
            nonlocal pressed, pending
            pressed += 1
            pending = True
            if pressed > 1:
                raise StopRequest
            self.note(f"Stopping: {afterwards}. Press again to give up.")

        def stopped() -> bool:
            nonlocal pending
            was_pending = pending
            pending = False
            return was_pending

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield stopped
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def watching(self) -> Iterator[Callable[[str], None]]:
        """A status line on stderr, as a function that sets its text; none where `progress` has
        none.
        """
        if self.quiet or not sys.stderr.isatty():
            yield lambda message: None
            return
        from rich.text import Text

        with self._console(stderr=True).status("") as status:
            yield lambda message: status.update(
                Text(printable(message))
            )  # a spinner reads markup in a string

    def _console(self, stderr: bool = False) -> Console:
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else UNLIMITED
        return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


@dataclass
class ProgressScreen(Screen):
    """The screen of a command that has notes and progress bars."""

    quiet: bool = option(False, "Suppress progress bars and notes.", "General", short="-q")


def _print(console: Console, *lines: Any) -> None:
    """Prints lines or tables one below another, without blanks at the ends of lines."""
    # rich fills the last column of a table with blanks, which a copied line would have too
    with console.capture() as captured:
        for line in lines:
            console.print(line)
    console.file.write("".join(f"{trimmed(line)}\n" for line in captured.get().splitlines()))


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    shown: Sequence[str],
    right: Sequence[str] = (),
    styles: Mapping[tuple[int, int], str] = {},
) -> Table:
    """A table of rich with those of its columns that are `shown`; the rest is as in `Sheet`."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(columns))
    places = [place for place, name in enumerate(columns) if name in shown]
    for place in places:
        side: JustifyMethod = "right" if columns[place] in right else "left"
        table.add_column(columns[place], overflow="fold", justify=side)

    for number, row in enumerate(rows):
        cells = []
        for place in places:
            by_word = STYLES.get(MARKS.get(row[place], ""), "")
            cells.append(Text(row[place], styles.get((number, place), by_word)))
        table.add_row(*cells)
    return table


def _width(console: Console, table: Table) -> int:
    """The width that a table has without wrapping, in columns of the terminal."""
    from rich.measure import Measurement

    options = console.options.update(width=UNLIMITED)
    return Measurement.get(console, options, table).maximum


Clock = Callable[[], float]
SETTLED = 1.0
"""Seconds before which a rate says little."""
SHARE = 1 / 200
"""The part of the work before which a rate says little: the first files of a model have some
kilobytes.
"""
PATIENCE = 60.0
"""Seconds after which the rate of any part is shown, since that part is a step of a long run."""


def pace(unit: str, done: float, total: float | None, seconds: float) -> tuple[str, str]:
    """Return the rate since the start, `12.3 MB/s`, and the time left, `0:01:30 left`.

    Both are empty at first. It is not the rate of the last steps, as rich has it: that needs two of
    them, which are minutes apart where a step is a chunk of a large model.
    """
    if seconds < SETTLED or not done:
        return "", ""
    if total is not None and done < SHARE * total and seconds < PATIENCE:
        return "", ""

    speed = done / seconds
    words = _rate(unit, speed)
    if total is None:
        return words, ""
    if done >= total:  # the disk is waited for, and the output is checked
        return words, "finishing"
    left = timedelta(seconds=ceil((total - done) / speed))
    return words, f"{left} left"


def _rate(unit: str, speed: float) -> str:
    """A rate in words. speed: units per second."""
    if unit == "bytes":
        if speed >= 1e9:
            return f"{speed / 1e9:.2f} GB/s"
        return f"{speed / 1e6:.1f} MB/s"
    if speed >= 10:
        return f"{speed:,.0f} {unit}/s"
    return f"{speed:.1f} {unit}/s"


@contextmanager
def bar(
    title: str, unit: str, console: Console, clock: Clock = time.monotonic
) -> Iterator[Counter]:
    """A progress bar, as (set the total, advance). Time runs from the first total, which is known
    when work begins.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    words = (TextColumn("{task.fields[speed]}"), TextColumn("{task.fields[left]}"))
    columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(), *words)
    with Progress(*columns, console=console, transient=True, get_time=clock) as shown:
        shown.add_task(title, total=None, start=False, speed="", left="")
        (task,) = shown.tasks

        def total(number: int) -> None:
            shown.update(task.id, total=number)
            shown.start_task(task.id)

        def advance(done: int) -> None:
            speed, left = pace(unit, task.completed + done, task.total, task.elapsed or 0.0)
            shown.update(task.id, advance=done, speed=speed, left=left)

        yield total, advance
