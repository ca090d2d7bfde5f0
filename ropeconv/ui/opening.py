"""The model that a form names, within the rules."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from ..errors import UsageError, shown
from ..sources import GgufSource, Source, open_source
from ..sources.open import HUB_FILE, HUB_ID
from ..sources.reference import PAGE
from .forms import ModelForm
from .rules import Rules

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
