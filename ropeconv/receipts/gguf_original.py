"""A GGUF file that ropeconv wrote, as its first source was: the edit that brings it back, and the record for that."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..errors import BadSource, RopeconvError
from ..formats.gguf import Change, Edit, GgufFile, Header, Value, rewrite
from ..formats.gguf.edit import Layout
from ..formats.gguf.interleave import deinterleave
from ..rope.forms import Vector
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp import arch_of_header
from ..runtimes.llamacpp.read_file import rope_tensors
from ..runtimes.llamacpp.read_header import read
from ..sources import RECEIPT
from .gguf_checked import ARCH as ARCH
from .gguf_checked import check_gguf, value_of
from .original import GgufRecord
from .read import parse_receipt
from .receipt import Receipt

CLOSE = 1e-5


@dataclass(frozen=True)
class Earlier:
    """The first source of a GGUF file.

    edit: brings the keys and tensors back. header: what they are then. vectors: its rope tensors, by name.
    """

    edit: Edit
    header: Header
    vectors: Mapping[str, Vector]


def gguf_stated(file: GgufFile, spec: RopeSpec) -> Receipt | None:
    """The receipt of a file; None where it has none that can be read, or computes another RoPE by now.

    spec: the RoPE of the file as it is.
    """
    text = file.get(RECEIPT)
    try:
        receipt = parse_receipt(text, RECEIPT) if isinstance(text, str) else None
    except BadSource:
        return None
    if receipt is None or receipt.schedule.context != spec.context:
        return None
    written, now = np.array(receipt.schedule.inv_freq), spec.form.inv_freq(spec.rotary_dim)
    same = written.shape == now.shape and np.allclose(written, now, rtol=CLOSE, atol=0)
    return receipt if same else None


def first_reading(file: GgufFile, receipt: Receipt) -> RopeSpec | None:
    """The RoPE of the first source of a file; None where the receipt does not say it."""
    try:
        before = earlier(file, receipt)
        return read(before.header, before.vectors, arch_of_header(before.header)).spec
    except RopeconvError:
        return None


def first_gguf(file: GgufFile, spec: RopeSpec) -> tuple[Receipt, Earlier] | None:
    """What `--replace` starts from: the first source of a file that ropeconv wrote, None for other files.

    spec: the RoPE of the file as it is. Raises BadSource where the file cannot be taken back. Receipts without an
    original count as none.
    """
    receipt = gguf_stated(file, spec)
    if receipt is None or receipt.original is None or receipt.original.gguf is None:
        return None
    return receipt, earlier(file, receipt, whole=True)


def earlier(file: GgufFile, receipt: Receipt, whole: bool = False) -> Earlier:
    """The first source of a file.

    receipt: of the file. whole: refuse a file with tensors that cannot be brought back. Raises BadSource for that, for
    a receipt without an original, for one that says what no ropeconv writes, and where keys or tensors are missing by
    now.
    """
    record = receipt.original.gguf if receipt.original else None
    if record is None:
        raise BadSource(
            f"the receipt of {file.name} does not say what its source had; take the source again, "
            f"{receipt.source.described}"
        )
    check_gguf(record, file)
    first = receipt.first.described
    if whole and record.changed:
        raise BadSource(
            f"{record.changed[0]} of {file.name} was multiplied and rounded, which cannot be undone; take the "
            f"source again, {first}"
        )
    added = frozenset(record.added)
    edit = Edit(base=_values(file, record, first), changes=_changes(file, record, first), removed=added)
    made = rewrite(file.header, edit)
    header = Header(record.version, made.values, made.tensors, made.alignment, 0, 0)
    vectors = {name: vector for name, vector in rope_tensors(file).items() if name not in added}
    for name in vectors.keys() & edit.changes.keys():
        vectors[name] = np.frombuffer(edit.changes[name].apply(b""), "<f4").astype(np.float64)
    return Earlier(edit, header, vectors)


def layout_of(record: GgufRecord, header: Header, edit: Edit) -> Layout:
    """The places that a file had, or those of a file without a reserve where no such file was written.

    record: from the receipt. header: of the file as it is. edit: brings the first source back. Raises BadSource for
    places that its header cannot have had.
    """
    if not record.data_start:
        made = rewrite(header, edit)
        bare = made.plain()
        return Layout(3, len(bare), -made.data_size % made.alignment)
    layout = Layout(record.version, record.data_start, record.tail)
    if record.data_start > len(rewrite(header, replace(edit, layout=layout)).plain()):
        raise BadSource(
            "the receipt of this file has another place for its data than its header can have; take its source again"
        )
    return layout


def refuse_other(head: bytes, record: GgufRecord, file: GgufFile, receipt: Receipt) -> None:
    """Raises BadSource where a header that is brought back is not the one that the first source had."""
    if record.sha256 and hashlib.sha256(head).hexdigest() != record.sha256:
        first = receipt.first.described
        raise BadSource(
            f"keys of {file.name} were changed after ropeconv wrote it, or its receipt was, so that its source "
            f"would not be what it was; take the source again, {first}"
        )


def _values(file: GgufFile, record: GgufRecord, first: str) -> dict[str, Value]:
    now = str(file.get(ARCH))
    old = str(value_of(record.values[ARCH]).decode()) if ARCH in record.values else now
    found: dict[str, Value] = {}
    for key in record.keys:
        if key in record.values:
            found[key] = value_of(record.values[key])
            continue
        here = now + key.removeprefix(old) if key.startswith(f"{old}.") else key
        value = file.header.values.get(here)
        if value is not None:
            found[key] = value
        elif record.data_start:
            raise BadSource(f"{file.name} has no {here} any more; take the source again, {first}")
    return found


def _changes(file: GgufFile, record: GgufRecord, first: str) -> dict[str, Change]:
    found: dict[str, Change] = {}
    for name, text in record.contents.items():
        data = base64.b64decode(text)
        if name not in file.tensors or file.tensors[name].size != len(data):
            raise BadSource(f"{name} of {file.name} is not as ropeconv wrote it; take the source again, {first}")
        found[name] = Change(len(data), lambda old, data=data: data)  # type: ignore[misc]
    for name in record.interleaved:
        if name not in file.tensors:
            raise BadSource(f"{file.name} has no {name} any more; take the source again, {first}")
        found[name] = deinterleave(file.tensors[name], record.head_dim)
    return found
