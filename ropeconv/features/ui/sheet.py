"""A task as its page shows it: its progress, and a sheet as HTML in which nothing that a model says
is markup.
"""

import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from textwrap import dedent

import msgspec

from ropeconv.formats.package_data import render
from ropeconv.reporting import Advance, Counter
from ropeconv.views.plot_style import Picture, drawn
from ropeconv.views.sheet import MARKS

LABELLED = re.compile(r"([A-Z][a-z]+): +(.+)")
"""A command with the word before it."""
MOST_ROWS = 300
"""Of a table."""


class PageProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The progress of a task. title: of the step. done, total: in bytes; total 0 where it is not
    known.
    """

    title: str
    done: int = 0
    total: int = 0


class PageAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The end: what the page shows. failed: whether it is about a failure."""

    html: str
    failed: bool = False


PAUSE = 0.25
"""Seconds between two messages about progress."""


@dataclass(frozen=True)
class TaskContext:
    """The context of a task.

    tell: called with progress. finish: called when what is asked for is done, after which nothing
    stops it any more.
    """

    tell: Callable[[PageProgress], None]
    finish: Callable[[], None] = lambda: None

    @contextmanager
    def progress(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Says how far something is, which is called with the bytes done since the last call."""
        done = 0
        last = time.monotonic()
        self.tell(PageProgress(title, 0, total))

        def advance(more: int) -> None:
            nonlocal done, last
            done += more
            if time.monotonic() - last > PAUSE:
                last = time.monotonic()
                self.tell(PageProgress(title, done, total))

        yield advance


@dataclass
class HtmlSheet:
    """A sheet that becomes a part of a page.

    Its tables are `<table>` with headers of rows and columns, which screen readers tell; the HTML
    of `rich.console.Console.export_html` is text with colours in a `<pre>`.
    """

    blocks: list[dict[str, object]] = field(default_factory=list)
    """The parts that it has so far, for the template."""
    colours: bool = True

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        optional: Sequence[str] = (),
        right: Sequence[str] = (),
        styles: Mapping[tuple[int, int], str] = {},
    ) -> tuple[str, ...]:
        """As in `Sheet`. All columns are shown, since tables of a page can be scrolled."""
        body = list(rows)
        sides = ["right" if name in right else "" for name in columns]
        cells = []
        for number, row in enumerate(body[:MOST_ROWS]):
            line = []
            for place, text in enumerate(row):
                style = MARKS.get(text, styles.get((number, place), ""))
                line.append((text, style, sides[place]))
            cells.append(line)
        self._add("table", text=title, columns=list(zip(columns, sides, strict=True)), rows=cells)
        if len(body) > MOST_ROWS:
            self.note(f"{len(body) - MOST_ROWS:,} more rows are left out.")
        return tuple(columns)

    def fits(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """True, since tables of a page can be scrolled."""
        return True

    def say(self, message: str) -> None:
        """A sentence; nothing for an empty one."""
        self._text(message.replace("--explain", "see Details"), "plain")

    def note(self, message: str) -> None:
        """A sentence in small type; nothing for an empty one."""
        self._text(message, "quiet")

    def problem(self, message: str) -> None:
        """A sentence on a failure, which screen readers read at once."""
        self._text(message, "problem")

    def good(self, message: str) -> None:
        """A sentence on a success."""
        self._text(message, "good")

    def copyable(self, text: str) -> None:
        """A command or a text, unchanged, with a button that copies it. "Next: COMMAND" has a
        label.
        """
        labelled = LABELLED.fullmatch(text)
        label, command = labelled.groups() if labelled else ("", text)
        if text.strip():
            self._add("command", text=dedent(command).strip("\n"), name=label)

    def title(self, text: str) -> None:
        """A heading."""
        self._add("title", text=text)

    def file(self, name: str, text: str) -> None:
        """A text that can be opened and saved. name: of the file."""
        self._add("file", text=text, name=name, data=b64encode(text.encode()).decode())

    def pictures(self, pictures: Iterable[Picture]) -> None:
        """Pictures, two in a row where they fit. Raises RopeconvError without matplotlib."""
        self._add("pictures", drawn=drawn(pictures))

    def link(self, address: str, words: str) -> None:
        """A link to a page of the Hub; only the words for any other address."""
        self._add(
            "link", text=words, data=address if address.startswith(("https://", "http://")) else ""
        )

    def ways(self, title: str, ways: Iterable[tuple[str, str]]) -> None:
        """Links to other pages of this site, filled in. title: of them. ways: pairs of words and an
        address.
        """
        self._add("ways", text=title, ways=list(ways))

    @contextmanager
    def folded(self, title: str) -> Iterator[None]:
        """Fold everything shown while it is entered, under a title."""
        before = self.blocks
        self.blocks = []
        try:
            yield
        finally:
            inner = self.html()
            self.blocks = before
        self._add("folded", text=title, data=inner)

    def html(self) -> str:
        """The answer as HTML."""
        return render("ui/answer.html.jinja", blocks=self.blocks)

    def _text(self, message: str, mark: str) -> None:
        if message.strip():
            self._add("text", text=message.strip(), mark=mark)

    def _add(self, kind: str, **values: object) -> None:
        self.blocks.append({"kind": kind, **values})


@dataclass(frozen=True)
class PageReporter:
    """A Reporter that shows progress while a task runs, and notes in its answer."""

    task: TaskContext
    sheet: HtmlSheet
    quiet = True

    def note(self, message: str) -> None:
        """Add a note to the answer."""
        if message:
            self.sheet.note(message)

    def progress(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Show how far something is."""
        return self.task.progress(title, total)

    @contextmanager
    def counting(self, title: str, unit: str = "tokens") -> Iterator[Counter]:
        """Show the title; how far it is, a page does not show."""
        with self.task.progress(title) as advance:
            yield (lambda total: None), advance

    @contextmanager
    def stopping(self, afterwards: str) -> Iterator[Callable[[], bool]]:
        """Never ask for an end: the page stops the whole task."""
        yield lambda: False
