"""OriginalSource: a checkpoint that ropeconv wrote, presented as its first source was."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSource
from ..families.config import Config
from ..formats.copying import copy_file
from ..formats.digest import sha256
from ..formats.floats import STORED, widened
from ..formats.index import INDEX, safe_name, tensors
from ..formats.safetensors import Header, read_header
from ..sources import RECEIPT
from ..sources.source import GeneratedFile, Source, SourceFile
from .original import FolderRecord, ScaledRecord, TextRecord
from .read import parse_receipt
from .receipt import Receipt


def stated(source: Source) -> Receipt | None:
    """The receipt of a checkpoint; None where it has none that can be read, or its config.json is another one now."""
    try:
        text = source.text(RECEIPT)
        receipt = None if text is None else parse_receipt(text, RECEIPT)
    except BadSource:
        return None
    return receipt if receipt is not None and not _edited(source, receipt, ("config.json",)) else None


def original_source(source: Source) -> OriginalSource:
    """A checkpoint that ropeconv wrote, as its first source was.

    Raises BadSource where it has no receipt, where files were changed since, and where weights were rounded.
    """
    text = source.text(RECEIPT)
    if text is None:
        raise BadSource(
            f"{source.reference} has no {RECEIPT}, so it is not an output of ropeconv; give the folder `apply` made"
        )
    receipt = parse_receipt(text, f"{source.reference}/{RECEIPT}")
    if receipt.original is None or receipt.original.folder is None:
        raise BadSource(
            f"{source.reference} was made before ropeconv kept what its source had; take the source again, "
            f"{receipt.source.described}"
        )
    record, first = receipt.original.folder, receipt.original.source.described
    edited = _edited(source, receipt, tuple(file.name for file in receipt.files if file.action == "write"))
    if edited:
        raise BadSource(
            f"{edited} of {source.reference} was changed after ropeconv wrote it, and the change would be lost; take "
            f"the source again, {first}, or remove {RECEIPT} to start from the files as they are"
        )
    if record.rounded:
        raise BadSource(
            f"{record.rounded[0]} of {source.reference} was multiplied and rounded, which cannot be undone; take the "
            f"source again, {first}"
        )
    return OriginalSource(source, receipt, record)


def first_source(source: Source) -> Source:
    """What `--replace` starts from: the first source of an output of ropeconv, and any other source itself.

    Raises BadSource where an output cannot be taken back, as `original_source`. Receipts without an original count as
    none.
    """
    text = source.text(RECEIPT)
    if text is None or parse_receipt(text, RECEIPT).original is None:
        return source
    return original_source(source)


def first_config(source: Source, receipt: Receipt) -> Config | None:
    """The config.json of the first source of an output; None where the receipt does not have it."""
    record = receipt.original.folder if receipt.original else None
    if record is None:
        return None
    try:
        return OriginalSource(source, receipt, record).config()
    except BadSource:
        return None


class OriginalSource(Source):
    """A checkpoint that ropeconv wrote, as its first source was: its texts, its names of files, its tensors.

    inner: the checkpoint. receipt: of it. record: what the first source had.
    """

    def __init__(self, inner: Source, receipt: Receipt, record: FolderRecord) -> None:
        self.inner, self.receipt, self.record = inner, receipt, record
        self.name, self.reference, self.commit = inner.name, inner.reference, inner.commit
        self.kind = "folder" if record.renamed else inner.kind  # the Hub copies files under the names it has
        for name in (*record.renamed.values(), *(text.name for text in record.texts)):
            if not safe_name(name):
                raise BadSource(f"the receipt of {inner.reference} names a file {name!r}, outside it; do not trust it")
        self._texts = {text.name: self._restored(text) for text in record.texts}
        self._inner_names = {original: now for now, original in record.renamed.items()}

    def files(self) -> tuple[SourceFile, ...]:
        gone = {RECEIPT, *self.record.added, *self._texts}
        kept = [file for file in self.inner.files() if file.name not in gone]
        found = [SourceFile(self.record.renamed.get(f.name, f.name), f.size, f.sha256) for f in kept]
        found += [SourceFile(name, len(text.encode())) for name, text in self._texts.items()]
        return tuple(sorted(found, key=lambda file: file.name))

    def path(self, name: str) -> Path:
        """The local path of a file. Raises BadSource for one that has to be written first."""
        if name in self._texts or name in {file.name for file in self.generated_files()}:
            raise BadSource(
                f"{name} of {self.reference} is not as it was in its source; run `ropeconv restore` first, and start "
                "from the folder that it writes"
            )
        return self.inner.path(self._inner_names.get(name, name))

    def text(self, name: str) -> str | None:
        if name in self._texts:
            return self._texts[name]
        return super().text(name)

    def generated_texts(self) -> tuple[str, ...]:
        return tuple(self._texts)

    def generated_files(self) -> tuple[GeneratedFile, ...]:
        """The shards with tensors that were multiplied by powers of two."""
        found = []
        for file in self.inner.files() if self.record.scaled else ():
            header = self.inner.headers.get(file.name)
            inside = [one for one in self.record.scaled if header and one.tensor in header.tensors]
            if inside:
                write = partial(_write_divided, self.inner.path(file.name), inside)
                found.append(GeneratedFile(self.record.renamed.get(file.name, file.name), file.size, write))
        return tuple(found)

    @property
    def headers(self) -> dict[str, Header]:
        """The headers of the first source's safetensors files, by its names of them."""
        found = {self.record.renamed.get(name, name): header for name, header in self.inner.headers.items()}
        return {name: found[name] for name in self.weights()}

    def tensor_names(self) -> tuple[str, ...] | None:
        index = self.text(INDEX)
        if index is not None:
            return tensors(index)
        known = self.inner.tensor_names()
        return None if known is None else tuple(name for header in self.headers.values() for name in header.tensors)

    def _restored(self, record: TextRecord) -> str:
        now = (self.inner.text(record.name) or "") if record.prefix or record.suffix else ""
        text = now[: record.prefix] + record.text + now[len(now) - record.suffix :]
        if hashlib.sha256(text.encode()).hexdigest() != record.sha256:
            raise BadSource(
                f"the receipt of {self.inner.reference} no longer gives {record.name} as it was; take the source "
                f"again, {self.first}"
            )
        return text

    @property
    def first(self) -> str:
        """The first source, for a sentence."""
        original = self.receipt.original
        return original.source.described if original else self.receipt.source.described


def _edited(source: Source, receipt: Receipt, names: tuple[str, ...]) -> str:
    """The first of some files that is not as the receipt says; empty where all are."""
    known, present = {file.name: file for file in receipt.files}, {file.name for file in source.files()}
    for name in names:
        file = known.get(name)
        if file is None or name not in present or (file.sha256 and sha256(source.path(name)) != file.sha256):
            return name
    return ""


def _write_divided(shard: Path, scaled: list[ScaledRecord], target: Path, advance: Callable[[int], None]) -> None:
    """Copies a shard and divides its tensors. Raises BadSource where the division would not be exact."""
    copy_file(shard, target, advance)
    header = read_header(target)
    file = os.open(target, os.O_RDWR)
    try:
        for one in scaled:
            tensor = header.tensors[one.tensor]
            size = np.dtype(STORED[tensor.dtype]).itemsize
            for start, stop in one.spans:
                place = header.data_start + tensor.start + start * size
                old = np.frombuffer(os.pread(file, (stop - start) * size, place), STORED[tensor.dtype])
                os.pwrite(file, _divided(old, tensor.dtype, one), place)
    finally:
        os.close(file)


def _divided(old: NDArray[Any], dtype: str, one: ScaledRecord) -> bytes:
    """Stored numbers divided by a power of two. Only normal numbers were surely multiplied without rounding."""
    values = widened(old, dtype)
    new = values / np.float32(one.factor)
    least = np.finfo(np.float16 if dtype == "F16" else np.float32).tiny
    for numbers in (np.abs(values), np.abs(new)):
        if not (np.isfinite(numbers) & (numbers >= least)).all():
            raise BadSource(
                f"{one.tensor} was multiplied by {one.factor:g} and has numbers that may have lost bits; take the "
                "source again"
            )
    if dtype == "BF16":
        return np.ascontiguousarray((new.view(np.uint32) >> 16).astype("<u2")).tobytes()
    return np.ascontiguousarray(new.astype(STORED[dtype])).tobytes()
