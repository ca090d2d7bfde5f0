"""The context of a task: the model that it is about, its limits, and what it sends to the page."""

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

SECONDS = 300.0
"""That an answer may take; a bake may take any time."""
AT_ONCE = 8
"""Requests that run."""
KEPT = (600, 7200)
"""Seconds between two looks at dropped files, and after which they are removed."""


ON_HUB = tuple(map(re.compile, (HUB_ID, HUB_FILE, PAGE.pattern)))


def opened(form: ModelForm) -> Source | GgufSource:
    """The model of a form: the dropped file, else what is named. Raises UsageError and what `open_source` raises."""
    if form.upload:
        return dropped(Path(form.upload))
    return open_source(named(form.source))


def dropped(path: Path) -> Source | GgufSource:
    """The model in a dropped file, by its own name and not by its place on this machine."""
    if path.suffix not in (".json", ".gguf"):
        raise UsageError(f"{shown(path.name)} is not a config.json or GGUF file; drop one of these")
    source = open_source(str(path))
    source.reference = path.name
    if not isinstance(source, GgufSource):
        source.name = path.stem  # its folder is named by a hash
    return source


def named(reference: str) -> str:
    """Return the name of a model.

    Raises:
        UsageError: Nothing is named, or there is no such file.
    """
    if not reference:
        raise UsageError("no model is given; write owner/name as on the Hub, or drop a config.json or GGUF file")
    if not is_on_hub(reference) and ":" not in reference and not expanded(reference).exists():
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


PAUSE = 0.25
"""Seconds between two messages about progress."""


@dataclass(frozen=True)
class TaskContext:
    """The context of a task.

    tell: called with progress. finish: called when what is asked for is done, after which nothing stops it any more.
    """

    tell: Callable[[PageProgress], None]
    finish: Callable[[], None] = lambda: None

    @contextmanager
    def progress(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Says how far something is, which is called with the bytes done since the last call."""
        done, last = 0, time.monotonic()
        self.tell(PageProgress(title, 0, total))

        def advance(more: int) -> None:
            nonlocal done, last
            done += more
            if time.monotonic() - last > PAUSE:
                last = time.monotonic()
                self.tell(PageProgress(title, done, total))

        yield advance


@dataclass(frozen=True)
class PageRequest:
    """A task for a process. task: its name in the registry. form: what was typed."""

    task: str
    form: PageForm
