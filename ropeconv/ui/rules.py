"""Rules: what visitors of the page may do, and how much of the machine a request may take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from ..errors import UsageError
from ..models.gguf import GgufSource
from ..models.open import HUB_FILE, HUB_ID, open_source
from ..models.source import PAGE, Source
from ..rope.errors import shown
from .forms import ModelForm


@dataclass(frozen=True)
class Rules:
    """What visitors may do.

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
"""How many of the largest dropped files there is room for, of one visitor and of all."""
LOCAL = Rules()
"""Of a page on one's own machine."""
SPACE = Rules(
    public=True, weights=False, seconds=60.0, baking_seconds=300.0, memory=4 << 30, at_once=4, waiting=40,
    of_visitor=8, upload=64 << 20,
)  # fmt: skip
"""Of a Space."""


ON_HUB = tuple(map(re.compile, (HUB_ID, HUB_FILE, PAGE.pattern)))


def opened(form: ModelForm, rules: Rules) -> Source | GgufSource:
    """The model of a form: the dropped file, else what is named. Raises UsageError and what `open_source` raises."""
    if form.upload:
        return dropped(Path(form.upload))
    return open_source(named(form.source, rules))


def dropped(path: Path) -> Source | GgufSource:
    """The model in a dropped file, by its own name and not by its place on this machine."""
    if path.suffix not in (".json", ".gguf"):
        raise UsageError(f"{shown(path.name)} is no config.json and no GGUF file; drop one of these")
    source = open_source(str(path))
    source.reference = path.name
    if not isinstance(source, GgufSource):
        source.name = path.stem  # its folder is named by a hash
    return source


def named(reference: str, rules: Rules) -> str:
    """A model as it is named. Raises UsageError for none, and in public for what is not on the Hub."""
    if not reference:
        raise UsageError("no model is named; write owner/name as on the Hub, or drop a config.json or GGUF file")
    if rules.public and not is_on_hub(reference):
        raise UsageError(
            f"{shown(reference)} is no repository of the Hub; write owner/name, owner/name@revision or "
            "owner/name/file.gguf"
        )
    return reference


def is_on_hub(reference: str) -> bool:
    """Whether a reference can only mean something on the Hub, where no file of this machine has such a name."""
    parts = unquote(reference).split("/")
    return ".." not in parts and any(pattern.fullmatch(reference) for pattern in ON_HUB)
