"""Rules, the limits for visitors of the page, and Desk, the context of a task."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import msgspec

from ..errors import UsageError
from ..formats.disk import Advance
from ..formats.files import expanded
from ..models.gguf import GgufSource
from ..models.open import HUB_FILE, HUB_ID, open_source
from ..models.source import PAGE, Source
from ..rope.errors import shown
from .forms import ModelForm, PageForm


@dataclass(frozen=True)
class Rules:
    """The limits for visitors.

    public: whether visitors are strangers, as in a Space: models are named by repository or dropped, nothing is written
    to the disk, and the Hub is used with the login of the visitor, or without one. weights: whether what moves weights
    is done. seconds, baking_seconds: that an answer and a bake may take, None for no limit. memory: bytes of a request,
    None for no limit. at_once, waiting: requests that run, and that wait. of_visitor: requests of one visitor that run
    or wait, None for no limit. upload: bytes of a dropped file, None for no limit.
    """

    public: bool = False
    weights: bool = True
    seconds: float | None = 300.0
    baking_seconds: float | None = None
    memory: int | None = None
    at_once: int = 8
    waiting: int | None = None
    of_visitor: int | None = None
    upload: int | None = None

    @property
    def fetched(self) -> int | None:
        """Bytes of a file that is fetched or written: as of an upload where no weights move, else None for no limit."""
        return None if self.weights else self.upload


KEPT = (600, 7200)
"""Seconds between two looks at dropped files, and after which they are removed."""
UPLOADS_OF_ONE, UPLOADS_OF_ALL = 4, 32
"""Number of dropped files of the largest size that are kept, of one visitor and of all."""
LOCAL = Rules()
"""The rules of a page on one's own machine."""
SPACE = Rules(
    public=True, weights=False, seconds=60.0, baking_seconds=300.0, memory=4 << 30, at_once=4, waiting=40,
    of_visitor=8, upload=64 << 20,
)  # fmt: skip
"""The rules of a Space."""


ON_HUB = tuple(map(re.compile, (HUB_ID, HUB_FILE, PAGE.pattern)))


def opened(form: ModelForm, rules: Rules) -> Source | GgufSource:
    """The model of a form: the dropped file, else what is named. Raises UsageError and what `open_source` raises."""
    if form.upload:
        return dropped(Path(form.upload))
    return open_source(named(form.source, rules))


def dropped(path: Path) -> Source | GgufSource:
    """The model in a dropped file, by its own name and not by its place on this machine."""
    if path.suffix not in (".json", ".gguf"):
        raise UsageError(f"{shown(path.name)} is not a config.json or GGUF file; drop one of these")
    source = open_source(str(path))
    source.reference = path.name
    if not isinstance(source, GgufSource):
        source.name = path.stem  # its folder is named by a hash
    return source


def named(reference: str, rules: Rules) -> str:
    """Return the name of a model.

    Raises:
        UsageError: Nothing is named; in public, what is named is not on the Hub; else, there is no such file.
    """
    if not reference:
        raise UsageError("no model is given; write owner/name as on the Hub, or drop a config.json or GGUF file")
    on_hub = is_on_hub(reference)
    if rules.public and not on_hub:
        raise UsageError(
            f"{shown(reference)} is not a repository on the Hub; write owner/name, owner/name@revision or "
            "owner/name/file.gguf"
        )
    if not on_hub and ":" not in reference and not expanded(reference).exists():
        place = shown(str(expanded(reference).absolute()))
        raise UsageError(f"no such file or folder: {place}; write its full path, or owner/name as on the Hub")
    return reference


def is_on_hub(reference: str) -> bool:
    """Whether a reference can only mean something on the Hub, where no file of this machine has such a name."""
    parts = unquote(reference).split("/")
    return ".." not in parts and any(pattern.fullmatch(reference) for pattern in ON_HUB)


class PageProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The progress of a task. title: of the step. done, total: in bytes; total 0 where it is not known."""

    title: str
    done: int = 0
    total: int = 0


class PageAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """The end: what the page shows. failed: whether it is about a failure."""

    html: str
    failed: bool = False


Message = PageProgress | PageAnswer
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
encode = msgspec.json.encode


def decode(data: bytes) -> Message:
    """A message from its bytes."""
    return _decoder.decode(data)


SECONDS = 0.25
"""Between two messages about progress."""


@dataclass(frozen=True)
class Desk:
    """The context of a task. rules: for visitors. tell: called with progress. token: of the visitor, or empty.

    finish: called when what is asked for is done, after which nothing stops it any more.
    """

    rules: Rules
    tell: Callable[[PageProgress], None]
    token: str = ""
    finish: Callable[[], None] = lambda: None

    @contextmanager
    def progress(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Says how far something is, which is called with the bytes done since the last call."""
        done, last = 0, time.monotonic()
        self.tell(PageProgress(title, 0, total))

        def advance(more: int) -> None:
            nonlocal done, last
            done += more
            if time.monotonic() - last > SECONDS:
                last = time.monotonic()
                self.tell(PageProgress(title, done, total))

        yield advance


@dataclass(frozen=True)
class PageRequest:
    """A task for a process.

    task: its name in the registry. form: what was typed. rules: for visitors. token: of the visitor's login.
    """

    task: str
    form: PageForm
    rules: Rules
    token: str = ""
