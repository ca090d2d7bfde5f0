"""Makes the FolderRecord of an output: what of its first source it has not, or has otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from ..formats.index import safe_name
from ..sources.source import Source
from .folder_original import OriginalSource, stated
from .original import FolderRecord, ScaledRecord, SourceRecord, TextRecord

WHOLE = ("config.json",)
"""Files whose text is recorded as a whole, so that people can read it; of others the part that differs."""


def folder_record(
    source: Source,
    written: Mapping[str, str],
    made: Iterable[str],
    renamed: Mapping[str, str],
    skipped: tuple[str, ...],
    scaled: tuple[ScaledRecord, ...],
    rounded: tuple[str, ...],
) -> FolderRecord:
    """The record of an output folder, which includes what the receipt of its source already says.

    source: of the output. written: its new texts, by name. made: names of its other files that are not copies. renamed:
    names in the source, by those in the output. skipped: names of files of the source that are left out. scaled:
    tensors multiplied by powers of two, rounded: names of those multiplied by others.
    """
    record = _earlier(source)
    here = {file.name for file in source.files()}
    new = {name for name in (*written, *made) if name not in here}
    added = {name for name in record.added if name in here} | new
    texts = {text.name: text for text in record.texts}
    for name, text in written.items():
        if name in new or name in record.added:
            continue
        was = source.text(name) or ""
        if name in texts:
            known = texts[name]
            was = was[: known.prefix] + known.text + was[len(was) - known.suffix :]
        if was != text:
            texts[name] = _difference(name, was, text)
        else:
            texts.pop(name, None)
    names = dict(record.renamed)
    for now, origin in renamed.items():
        names[now] = names.pop(origin, origin)
    return FolderRecord(
        texts=tuple(texts.values()),
        added=tuple(sorted(added)),
        renamed=names,
        skipped=tuple(sorted({*record.skipped, *filter(safe_name, skipped)})),
        scaled=(*record.scaled, *scaled),
        rounded=tuple(sorted({*record.rounded, *rounded})),
    )


def first_record(source: Source, own: SourceRecord) -> SourceRecord:
    """The first source of what is made from `source`: that of its receipt, or itself. own: the record of `source`."""
    receipt = source.receipt if isinstance(source, OriginalSource) else stated(source)
    return own if receipt is None or receipt.original is None else receipt.original.source


def _earlier(source: Source) -> FolderRecord:
    """What the receipt of a source says about its own first source; empty where it says nothing."""
    if isinstance(source, OriginalSource):
        return FolderRecord(skipped=source.record.skipped)
    receipt = stated(source)
    original = None if receipt is None else receipt.original
    return FolderRecord() if original is None or original.folder is None else original.folder


def _difference(name: str, was: str, now: str) -> TextRecord:
    digest = hashlib.sha256(was.encode()).hexdigest()
    if name in WHOLE:
        return TextRecord(name, digest, was)
    shorter = min(len(was), len(now))
    prefix = next((i for i in range(shorter) if was[i] != now[i]), shorter)
    suffix = next((i for i in range(shorter - prefix) if was[-1 - i] != now[-1 - i]), shorter - prefix)
    return TextRecord(name, digest, was[prefix : len(was) - suffix], prefix, suffix)
