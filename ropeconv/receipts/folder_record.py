"""Makes the FolderRecord of an output: what of its first source it has not, or has otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ..formats.digest import sha256
from ..formats.index import safe_name
from ..formats.splice import Splice
from ..sources.source import Source, SourceFile
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
    spliced: Mapping[str, Splice] = MappingProxyType({}),
) -> FolderRecord:
    """The record of an output folder, which includes what the receipt of its source already says.

    source: of the output. written: its new texts, by name. made: names of its other files that are not copies. renamed:
    names in the source, by those in the output. skipped: names of files of the source that are left out. scaled:
    tensors multiplied by powers of two, rounded: names of those multiplied by others. spliced: what changes in large
    text files, by name.
    """
    record = _earlier(source)
    here = {file.name: file for file in source.files()}
    new = {name for name in (*written, *made) if name not in here}
    added = {name for name in record.added if name in here} | new
    texts = {text.name: text for text in record.texts}
    for name, text in written.items():
        if name in new or name in record.added:
            continue
        was = (source.text(name) or "").encode()
        if name in texts:
            was = b"".join(texts[name].splice(len(was)).applied((was,)))
        if was != text.encode():
            texts[name] = _difference(name, was, text.encode())
        else:
            texts.pop(name, None)
    for name, splice in spliced.items():
        texts[name] = _spliced(source, here[name], splice, texts.get(name))
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


def _difference(name: str, was: bytes, now: bytes) -> TextRecord:
    digest = hashlib.sha256(was).hexdigest()
    if name in WHOLE:
        return TextRecord(name, digest, was.decode())
    shorter = min(len(was), len(now))
    prefix = next((i for i in range(shorter) if was[i] != now[i]), shorter)
    while any(prefix < len(text) and _continues(text[prefix]) for text in (was, now)):
        prefix -= 1
    suffix = next((i for i in range(shorter - prefix) if was[-1 - i] != now[-1 - i]), shorter - prefix)
    while suffix and _continues(was[-suffix]):
        suffix -= 1
    return TextRecord(name, digest, was[prefix : len(was) - suffix].decode(), prefix, suffix)


def _continues(byte: int) -> bool:
    """Whether a byte of UTF-8 is not the first of its character."""
    return byte & 0xC0 == 0x80


def _spliced(source: Source, file: SourceFile, splice: Splice, known: TextRecord | None) -> TextRecord:
    """The record of a file that a splice changes. known: what is recorded of it already."""
    name, prefix, suffix = file.name, splice.start, file.size - splice.stop
    if known is None:
        digest = file.sha256 or sha256(source.path(name))
        return TextRecord(name, digest, source.read(name, splice.start, splice.stop).decode(), prefix, suffix)
    earlier = known.splice(file.size)
    prefix, suffix = min(prefix, known.prefix), min(suffix, known.suffix)
    before = source.read(name, prefix, earlier.start).decode()
    after = source.read(name, earlier.stop, file.size - suffix).decode()
    return TextRecord(name, known.sha256, before + known.text + after, prefix, suffix)
