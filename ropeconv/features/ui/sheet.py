"""A task as its page shows it: its progress, and a sheet that becomes HTML.

`HtmlSheet` is what tasks and views fill. The template escapes all texts, so that nothing that a
model says is markup.
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

LABELLED = re.compile(r"([A-Z][a-z]+(?:: +not measured)?)[:;] +(.+)")
"""A command with the words before it."""
MOST_ROWS = 300
"""Rows of a table."""


class PageProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The progress of a task."""

    title: str
    """The title of the step."""

    done: int = 0
    """The bytes that are done."""

    total: int = 0
    """The bytes of the whole step; 0 where they are not known."""


class PageAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The last message of a task."""

    html: str
    """The part of the page."""

    failed: bool = False
    """Whether it is about a failure."""


PAUSE = 0.25
"""Seconds between two messages about progress."""


@dataclass(frozen=True)
class TaskContext:
    """The context of a task."""

    tell: Callable[[PageProgress], None]
    """Is called with progress."""

    finish: Callable[[], None] = lambda: None
    """Is called when what is asked for is done, after which nothing stops it any more."""

    @contextmanager
    def progress(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Tell how far a step is.

        It gives a function that is called with the bytes done since its last call.
        """
        step = _StepProgress(title=title, total=total, tell=self.tell)
        step.show()
        yield step.advance


@dataclass
class _StepProgress:
    """How far a step is, which its page shows at most every PAUSE seconds."""

    title: str
    total: int
    tell: Callable[[PageProgress], None]
    done: int = 0
    shown_at: float = 0.0

    def advance(self, more: int) -> None:
        """Count some bytes as done."""
        self.done += more
        if time.monotonic() - self.shown_at > PAUSE:  # a message for each block would be thousands
            self.show()

    def show(self) -> None:
        """Tell the page how far the step is."""
        self.shown_at = time.monotonic()
        self.tell(PageProgress(self.title, self.done, self.total))


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
        """Add a table, as in `Sheet`.

        All columns are shown, since tables of a page can be scrolled.

        Args:
            title: The title above it.
            columns: The headings.
            rows: The cells of each line.
            optional: Headings of columns that a narrow screen leaves out; not read here.
            right: Headings of columns whose cells are aligned to the right.
            styles: Styles of cells by line and column. A word of MARKS has its own.
        """
        all_rows = list(rows)
        alignments = ["right" if name in right else "" for name in columns]

        # for the template: a cell is a text, its style and its alignment
        lines = []
        for line, row in enumerate(all_rows[:MOST_ROWS]):
            cells = []
            for column, text in enumerate(row):
                style = styles.get((line, column), "")
                if text in MARKS:
                    style = MARKS[text]
                cells.append((text, style, alignments[column]))
            lines.append(cells)
        headings = list(zip(columns, alignments, strict=True))
        self._add("table", text=title, columns=headings, rows=lines)

        left_out = len(all_rows) - MOST_ROWS
        if left_out > 0:
            self.note(f"{left_out:,} more rows are left out.")
        return tuple(columns)

    def fits(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Return True, since tables of a page can be scrolled."""
        return True

    def say(self, message: str) -> None:
        """Add a sentence; nothing for an empty one."""
        self._text(message.replace("--explain", "see Details"), "plain")

    def note(self, message: str) -> None:
        """Add a sentence in small type; nothing for an empty one."""
        self._text(message, "quiet")

    def problem(self, message: str) -> None:
        """Add a sentence on a failure, which screen readers read at once."""
        self._text(message, "problem")

    def good(self, message: str) -> None:
        """Add a sentence on a success."""
        self._text(message, "good")

    def copyable(self, text: str) -> None:
        """Add a command or a text, unchanged, with a button that copies it.

        For "Check: COMMAND", only the command is copied.
        """
        if not text.strip():
            return
        label = ""
        command = text
        labelled = LABELLED.fullmatch(text)
        if labelled:
            label, command = labelled.groups()
        self._add("command", text=dedent(command).strip("\n"), name=label)

    def title(self, text: str) -> None:
        """Add a heading."""
        self._add("title", text=text)

    def file(self, name: str, text: str) -> None:
        """Add a text that can be opened, and saved as a file of this name."""
        self._add("file", text=text, name=name, data=b64encode(text.encode()).decode())

    def pictures(self, pictures: Iterable[Picture]) -> None:
        """Add pictures, two in a row where they fit.

        Raises:
            RopeconvError: matplotlib is not installed.
        """
        self._add("pictures", drawn=drawn(pictures))

    def link(self, address: str, words: str) -> None:
        """Add a link to a page of the Hub; only the words for any other address."""
        is_safe = address.startswith(("https://", "http://"))
        self._add("link", text=words, data=address if is_safe else "")

    def ways(self, title: str, ways: Iterable[tuple[str, str]]) -> None:
        """Add links to other pages of this site, with their forms filled in.

        Args:
            title: The title above them.
            ways: The words and the address of each.
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
        """Return the sheet as HTML."""
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
