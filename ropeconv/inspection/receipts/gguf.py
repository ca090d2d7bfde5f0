"""A GGUF file that ropeconv wrote, as its first source: the edit that restores it, and the record
for that.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import msgspec
import numpy as np

from ...errors import BadSource
from ...formats.gguf.edit import (
    COUNT,
    SPLIT,
    Change,
    Edit,
    Layout,
    RewrittenHeader,
    deinterleave,
    recount,
    rewrite,
)
from ...formats.gguf.file import GgufFile
from ...formats.gguf.header import (
    ALIGNMENT,
    DEFAULT_ALIGNMENT,
    STRING,
    GgufHeader,
    GgufValue,
    TensorInfo,
    read_value,
    string,
)
from ...models.source import RECEIPT
from ...rope.errors import RopeconvError
from ...rope.forms import Vector
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp.archs import arch_of_header
from ...runtimes.llamacpp.read_header import ROPE_TENSORS, read, rope_tensors
from .receipt import GgufRecord, Receipt, ValueRecord
from .storage import parse_receipt

ARCH = "general.architecture"
SMALL = 1 << 16
"""The most bytes of changed tensors in a receipt, before base64, and of zeros after the last
tensor.
"""
SPACES = 1 << 24
"""The most spaces of a receipt: reserves of earlier headers."""
HEAD_DIM = 1 << 13
KEY = 0xFFFF  # bytes, as llama.cpp reads them


def value_of(record: ValueRecord) -> GgufValue:
    """Return a value from a receipt. Raises ValueError if its bytes are not of its kind."""
    if not record.raw:
        if record.kind != STRING:
            raise ValueError(f"no bytes for a value of kind {record.kind}")
        return string(" " * record.spaces)
    raw = base64.b64decode(record.raw, validate=True)
    try:
        return read_value(record.kind, raw)
    except RopeconvError:
        raise ValueError(f"{len(raw)} bytes for a value of kind {record.kind}") from None


def check_gguf(record: GgufRecord, file: GgufFile) -> None:
    """Raise BadSource for a record that ropeconv does not write. record: from the receipt of the
    file.
    """
    for fault in _untrue(record, file):
        raise BadSource(
            f"the receipt of {file.name} {fault}; do not trust it, take the source again"
        )


def _untrue(record: GgufRecord, file: GgufFile) -> Iterator[str]:
    """Yield what is wrong with a record; nothing is asked of it after the first fault."""
    if record.version not in (2, 3):
        yield f"says GGUF version {record.version}"
    if record.data_start < 0 or not 0 <= record.tail <= SMALL:
        yield f"says that data began at byte {record.data_start} with {record.tail} bytes after it"
    if len(set(record.keys)) != len(record.keys) or any(
        len(key.encode()) > KEY for key in record.keys
    ):
        yield "names keys twice, or too long"
    if ARCH not in record.keys:
        yield f"has no {ARCH}"
    aligned = ALIGNMENT in record.keys or file.header.alignment == DEFAULT_ALIGNMENT
    if ALIGNMENT in record.values or not aligned:
        yield f"has another {ALIGNMENT}"
    spaces = [value.spaces for value in record.values.values()]
    if min(spaces, default=0) < 0 or sum(spaces) > SPACES:
        yield f"asks for {sum(spaces)} spaces"
    yield from _untrue_values(record)
    yield from _untrue_tensors(record, file)


def _untrue_values(record: GgufRecord) -> Iterator[str]:
    """Yield values that do not have the bytes of their kind."""
    for key, value in record.values.items():
        try:
            kind = value_of(value).kind
        except ValueError as problem:
            yield f"has no readable value under {key!r} ({problem})"
        else:
            if key == ARCH and kind != STRING:
                yield f"has no text under {ARCH}"


def _untrue_tensors(record: GgufRecord, file: GgufFile) -> Iterator[str]:
    """Yield contents and reordered rows that the tensors of the file cannot have."""
    for name, text in record.contents.items():
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError as problem:
            yield f"has no readable contents of {name} ({problem})"
        else:
            if name in ROPE_TENSORS and (
                len(data) % 4 or not (np.frombuffer(data, "<f4") > 0).all()
            ):
                yield f"has divisors in {name} that are not positive"
    for name in record.interleaved:
        info = file.tensors.get(name)
        if name in ROPE_TENSORS or (info is not None and not _has_heads(info, record.head_dim)):
            yield f"says that the rows of {name} were reordered by {record.head_dim}"


def _has_heads(info: TensorInfo, head_dim: int) -> bool:
    """Whether the rows of a weight, or the numbers of a bias, form whole heads."""
    rows = prod(info.shape[1:]) if len(info.shape) > 1 else info.shape[0]
    whole = 0 < head_dim <= HEAD_DIM and head_dim % 2 == 0 and rows > 0 and rows % head_dim == 0
    return whole and info.size > 0 and info.size % rows == 0


CLOSE = 1e-5


@dataclass(frozen=True)
class Earlier:
    """The first source of a GGUF file.

    edit: restores the keys and tensors. header: with these keys. vectors: its rope tensors, by
    name.
    """

    edit: Edit
    header: GgufHeader
    vectors: Mapping[str, Vector]


def gguf_stated(file: GgufFile, spec: RopeSpec) -> Receipt | None:
    """Return the receipt of a file; None if it has no readable one, or now computes another RoPE.

    spec: the RoPE of the file.
    """
    text = file.get(RECEIPT)
    try:
        receipt = parse_receipt(text, RECEIPT) if isinstance(text, str) else None
    except BadSource:
        return None
    if receipt is None or receipt.schedule.context != spec.context:
        return None
    recorded = np.array(receipt.computed_inv_freq)
    computed = spec.form.inv_freq(spec.rotary_dim)
    same = recorded.shape == computed.shape and np.allclose(recorded, computed, rtol=CLOSE, atol=0)
    return receipt if same else None


def first_reading(file: GgufFile, receipt: Receipt) -> RopeSpec | None:
    """Return the RoPE of the first source of a file; None if the receipt lacks it."""
    try:
        before = earlier(file, receipt)
        return read(before.header, before.vectors, arch_of_header(before.header)).spec
    except RopeconvError:
        return None


def first_gguf(file: GgufFile, spec: RopeSpec) -> Edit | None:
    """Return the edit for `--replace`: to the first source of a file that ropeconv wrote; None for
    other files.

    spec: the RoPE of the file. Receipts without an original count as none. Raises BadSource if the
    file cannot be restored.
    """
    receipt = gguf_stated(file, spec)
    if receipt is None or receipt.original is None or receipt.original.gguf is None:
        return None
    return earlier(file, receipt, whole=True).edit


def earlier(file: GgufFile, receipt: Receipt, whole: bool = False) -> Earlier:
    """Return the first source of a file. whole: refuse a file with tensors that cannot be restored.

    Raises BadSource for that, for a receipt without an original, for one that ropeconv does not
    write, and if keys or tensors are missing.
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
            f"{record.changed[0]} of {file.name} was multiplied and rounded, which cannot be"
            f" undone; take the source again, {first}"
        )
    added = frozenset(record.added)
    if moved := sorted((added & file.tensors.keys()) - file.header.tensors.keys()):
        raise BadSource(
            f"{moved[0]} of {file.name} is not in its first shard any more; take the source again,"
            f" {first}"
        )
    edit = Edit(
        base=_values(file, record, first), changes=_changes(file, record, first), removed=added
    )
    layout = Layout(
        record.version, record.data_start, record.tail
    )  # so that an earlier reserve stays among the keys
    rewritten = rewrite(file.header, replace(edit, layout=layout))
    header = GgufHeader(
        record.version, rewritten.values, rewritten.tensors, rewritten.alignment, 0, 0
    )
    vectors = {name: vector for name, vector in rope_tensors(file).items() if name not in added}
    for name in vectors.keys() & edit.changes.keys():
        vectors[name] = np.frombuffer(edit.changes[name].apply(b""), "<f4").astype(np.float64)
    return Earlier(edit, header, vectors)


def was_written(record: GgufRecord, header: GgufHeader) -> bool:
    """Whether the first source was a file with these shards; not for a conversion, or where it was
    split since.
    """
    return record.data_start > 0 and split_keys(header).keys() == {
        key for key in record.keys if key.startswith(SPLIT)
    }


def layout_of(record: GgufRecord, header: GgufHeader, edit: Edit) -> Layout:
    """The places that a file had, or those of a file without a reserve where no such file was
    written.

    record: from the receipt. header: of the present file. edit: brings the first source back.
    Raises BadSource for places that its header cannot have had.
    """
    if not was_written(record, header):
        rewritten = rewrite(header, edit)
        bare = rewritten.plain()
        return Layout(3, len(bare), -rewritten.data_size % rewritten.alignment)
    layout = Layout(record.version, record.data_start, record.tail)
    if record.data_start > len(rewrite(header, replace(edit, layout=layout)).plain()):
        raise BadSource(
            "the receipt of this file has another place for its data than its header can have; take"
            " its source again"
        )
    return layout


def _values(file: GgufFile, record: GgufRecord, first: str) -> dict[str, GgufValue]:
    now = str(file.get(ARCH))
    old = str(value_of(record.values[ARCH]).decode()) if ARCH in record.values else now
    values: dict[str, GgufValue] = {}
    for key in record.keys:
        if key in record.values:
            values[key] = value_of(record.values[key])
            continue
        new_key = now + key.removeprefix(old) if key.startswith(f"{old}.") else key
        value = file.header.values.get(new_key)
        if value is not None:
            values[key] = value
        elif record.data_start:
            raise BadSource(
                f"{file.name} has no {new_key} any more; take the source again, {first}"
            )
    return values | split_keys(file.header, frozenset(record.added))


def split_keys(header: GgufHeader, removed: frozenset[str] = frozenset()) -> dict[str, GgufValue]:
    """Return the keys about shards, which follow the present file and not its first source.
    removed: tensors.
    """
    keys = {key: value for key, value in header.values.items() if key.startswith(SPLIT)}
    if COUNT in keys and removed:
        keys[COUNT] = recount(keys[COUNT], -len(removed & header.tensors.keys()))
    return keys


def _changes(file: GgufFile, record: GgufRecord, first: str) -> dict[str, Change]:
    changes: dict[str, Change] = {}
    for name, text in record.contents.items():
        data = base64.b64decode(text)
        if name not in file.tensors or file.tensors[name].size != len(data):
            raise BadSource(
                f"{name} of {file.name} is not as ropeconv wrote it; take the source again, {first}"
            )
        changes[name] = Change(len(data), lambda old, data=data: data)  # type: ignore[misc]
    for name in record.interleaved:
        if name not in file.tensors:
            raise BadSource(f"{file.name} has no {name} any more; take the source again, {first}")
        changes[name] = deinterleave(file.tensors[name], record.head_dim)
    return changes


QUANTISED = "general.quantization_version"


def record_of_file(file: GgufFile, edit: Edit) -> GgufRecord:
    """Return the record of an output of a file that is its own first source. edit: from the file to
    the output.
    """
    header = file.header
    rewritten = rewrite(
        header, Edit(base=header.values, layout=Layout(header.version, header.data_start, 0))
    )
    first = file.shards[0]
    end = header.data_start + header.data_size
    head = first.read(0, header.data_start)
    tail = first.read(end, min(header.size, end + SMALL + 1))
    same = rewritten.exact(Layout(header.version, header.data_start, 0)) == head
    unchanged = GgufRecord(
        keys=tuple(header.values),
        version=header.version,
        data_start=header.data_start,
        tail=len(tail) if len(tail) <= SMALL and not any(tail) else 0,
        sha256=hashlib.sha256(head).hexdigest() if same else "",
    )
    return _record(unchanged, header, rewrite(header, edit), file.tensors, file.read, edit.changes)


def record_of_output(
    file: GgufFile, known: GgufRecord, before: Earlier, edit: Edit, replaced: bool
) -> GgufRecord:
    """Return the record of an output of a file that ropeconv wrote.

    known: the record of that file. before: its first source. edit: from the file, or if `replaced`
    from its first source, to the output.
    """
    output = rewrite(before.header if replaced else file.header, edit)
    return _record(known, before.header, output, file.tensors, file.read, edit.changes, replaced)


def record_of_export(
    plain: GgufHeader, header: GgufHeader, read: Callable[[str], bytes], edit: Edit, quantised: bool
) -> GgufRecord:
    """Return the record of a conversion, whose first source is the conversion without scaling,
    which is not written.

    plain: the header of the conversion without scaling. header: the same under the name of the
    method. read: returns the bytes of a converted tensor. edit: from that to the output. quantised:
    whether llama.cpp quantises the output afterwards, which adds a key.
    """
    keys = (*plain.values, *((QUANTISED,) if quantised and QUANTISED not in plain.values else ()))
    return _record(
        GgufRecord(keys), plain, rewrite(header, edit), header.tensors, read, edit.changes
    )


def _record(
    known: GgufRecord,
    first: GgufHeader,
    output: RewrittenHeader,
    tensors: Mapping[str, TensorInfo],
    read: Callable[[str], bytes],
    changes: Mapping[str, Change],
    replaced: bool = False,
) -> GgufRecord:
    """Return a record with the parts of the first source that an output changes.

    known: the record of the file that is changed. first: the header of the first source. tensors,
    read: of the file. changes: its new tensors. replaced: whether they are made from the first
    source, so that earlier changes end.
    """
    changes = {name: change for name, change in changes.items() if name not in known.added}
    small: dict[str, str] = {}
    interleaved = list[str]()
    other = list[str]()
    remaining = SMALL
    for name, change in changes.items():
        size = tensors[name].size
        if name in known.contents:
            small[name] = known.contents[name]
        elif change.interleaved:
            interleaved.append(name)
        elif size <= remaining and name not in known.interleaved:
            small[name] = base64.b64encode(read(name)).decode()
            remaining -= size
        else:
            other.append(name)
    if not replaced:
        small |= known.contents
        interleaved = [
            name for name in dict.fromkeys((*known.interleaved, *interleaved)) if name not in small
        ]
        other = [
            *dict.fromkeys((*known.changed, *other, *(changes.keys() & set(known.interleaved))))
        ]
    return msgspec.structs.replace(
        known,
        values=_unlike(first, output.values),
        added=tuple(sorted(output.tensors.keys() - first.tensors.keys())),
        contents=small,
        interleaved=tuple(interleaved),
        head_dim=max((change.interleaved for change in changes.values()), default=0)
        or known.head_dim,
        changed=tuple(other),
    )


def _unlike(header: GgufHeader, values: Mapping[str, GgufValue]) -> dict[str, ValueRecord]:
    """Return the values of a header that differ from others, whose keys may be those of another
    architecture.
    """
    old = header.values[ARCH].decode()
    new = values[ARCH].decode()
    records = {}
    for key, value in header.values.items():
        new_key = new + key.removeprefix(old) if key.startswith(f"{old}.") else key
        if values.get(new_key) != value:
            text = value.raw[8:]
            records[key] = ValueRecord(value.kind, base64.b64encode(value.raw).decode())
            if (
                value.kind == STRING and text and not text.strip(b" ")
            ):  # the reserve of an earlier header
                records[key] = ValueRecord(STRING, spaces=len(text))
    return records
