"""How long work reports its progress: `Reporter`, the protocol, and `SilentReporter`.

The library prints nothing. The command line reports on a terminal, the pages in the browser, and a
Python program may pass an object of its own with the four methods of `Reporter`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable

Advance = Callable[[int], None]
"""Is called with what was done since the last call: bytes, tokens or steps."""
Counter = tuple[Callable[[int], None], Advance]
"""Sets the total of a count, and advances it."""


@runtime_checkable
class Reporter(Protocol):
    """The receiver of what work tells while it runs. Every method may do nothing."""

    @property
    def quiet(self) -> bool:
        """Whether libraries should not draw progress bars of their own."""

    def note(self, message: str) -> None:
        """Take a sentence for the user; an empty one is to be ignored."""

    def progress(self, title: str, total: int) -> AbstractContextManager[Advance]:
        """Follow work over `total` bytes, as a function of the bytes done since its last call."""

    def counting(self, title: str, unit: str = "tokens") -> AbstractContextManager[Counter]:
        """Follow work whose total is not known yet. unit: what is counted, in the plural."""

    def stopping(self, afterwards: str) -> AbstractContextManager[Callable[[], bool]]:
        """Follow work that can end early, as a function that says whether it should end now.

        afterwards: what happens then, as the end of a sentence.
        """


class SilentReporter:
    """Keeps the sentences in `notes`, and shows nothing."""

    quiet = True

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        """Keep a sentence."""
        if message:
            self.notes.append(message)

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """Show nothing."""
        yield _ignore

    @contextmanager
    def counting(self, title: str, unit: str = "tokens") -> Iterator[Counter]:
        """Show nothing."""
        yield _ignore, _ignore

    @contextmanager
    def stopping(self, afterwards: str) -> Iterator[Callable[[], bool]]:
        """Never ask for an end; Ctrl-C raises KeyboardInterrupt as everywhere in Python."""
        yield lambda: False


def _ignore(amount: int) -> None:
    """Do nothing with an amount of work."""
