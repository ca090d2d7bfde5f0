"""ChangedKey: what a bake changed in config.json, or among the keys of a GGUF file, for display."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RopeconvError, counted
from ..formats.gguf import Header
from ..sources import RECEIPT, GgufSource, Source, open_source
from .folder_original import OriginalSource
from .gguf_original import earlier
from .receipt import Receipt

LONGEST = 100
"""Characters of a value."""


@dataclass(frozen=True)
class ChangedKey:
    """A key with its values as text. name: with dots between levels. before, after: empty where it is absent."""

    name: str
    before: str
    after: str


def changed_keys(baked: Path, receipt: Receipt) -> tuple[ChangedKey, ...]:
    """The keys that an output has otherwise than its first source.

    baked: the folder or GGUF file. receipt: of it. None of them where the receipt does not tell the source's own, as
    where that had another format.
    """
    try:
        before, after = _both(open_source(str(baked)), receipt)
    except (RopeconvError, OSError):
        return ()
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    return tuple(ChangedKey(name, before.get(name, ""), after.get(name, "")) for name in names)


def _both(source: Source | GgufSource, receipt: Receipt) -> tuple[dict[str, str], dict[str, str]]:
    """The keys of the first source and of an output. Raises RopeconvError where the receipt does not tell them."""
    if isinstance(source, GgufSource):
        return _header(earlier(source.file, receipt).header), _header(source.file.header)
    record = receipt.original.folder if receipt.original else None
    if record is None:
        return {}, {}
    first = OriginalSource(source, receipt, record)
    return dict(_flat(first.config())), dict(_flat(source.config()))


def _header(header: Header) -> dict[str, str]:
    """The keys of a GGUF file but the receipt; arrays by their bytes, since vocabularies are long."""
    found = {}
    for name, value in header.values.items():
        if name != RECEIPT:
            found[name] = f"{value.count()} values" if value.count() > 8 else _shown(value.decode())
    return found


def _flat(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) > 8:
        return f"{counted(len(value), 'value')}, {json.dumps(value[0])} to {json.dumps(value[-1])}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
