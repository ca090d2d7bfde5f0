"""Makes the GgufRecord of an output: what of its first source it has not, or has otherwise."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping

from ..formats.gguf import Change, Edit, GgufFile, Header, TensorInfo, Value, rewrite
from ..formats.gguf.edit import Layout
from ..formats.gguf.values import STRING
from .gguf_checked import ARCH, SMALL
from .gguf_original import Earlier
from .original import GgufRecord, ValueRecord

QUANTISED = "general.quantization_version"


def record_of_file(file: GgufFile, edit: Edit) -> GgufRecord:
    """The record of an output of a file that is its own first source. edit: from the file to the output."""
    header = file.header
    values, added = _difference(header, edit)
    made = rewrite(header, Edit(base=header.values, layout=Layout(header.version, header.data_start, 0)))
    first, end = file.shards[0], header.data_start + header.data_size
    head, tail = first.read(0, header.data_start), first.read(end, min(header.size, end + SMALL + 1))
    same = made.exact(Layout(header.version, header.data_start, 0)) == head
    small, interleaved, other = _sorted_changes(file.tensors, file.read, edit.changes)
    return GgufRecord(
        keys=tuple(header.values),
        values=values,
        added=added,
        contents=small,
        interleaved=interleaved,
        head_dim=_head_dim(edit),
        changed=other,
        version=header.version,
        data_start=header.data_start,
        tail=len(tail) if len(tail) <= SMALL and not any(tail) else 0,
        sha256=hashlib.sha256(head).hexdigest() if same else "",
    )


def record_of_output(file: GgufFile, known: GgufRecord, before: Earlier, edit: Edit, replaced: bool) -> GgufRecord:
    """The record of an output of a file that ropeconv wrote.

    known: the record of that file. before: its first source. edit: from the file, or where it was `replaced` from its
    first source, to the output.
    """
    if replaced:
        values, added = _difference(before.header, edit)
        small, interleaved, other = _sorted_changes(file.tensors, file.read, edit.changes, known)
    else:
        made = rewrite(file.header, edit)
        values, added = _unlike(before.header, made.values), tuple(set(made.tensors) - set(before.header.tensors))
        own = {name: change for name, change in edit.changes.items() if name not in known.added}
        small, interleaved, other = _sorted_changes(file.tensors, file.read, own, known)
        small = {**small, **known.contents}
        interleaved = tuple(name for name in dict.fromkeys((*known.interleaved, *interleaved)) if name not in small)
        other = tuple(dict.fromkeys((*known.changed, *other, *(own.keys() & set(known.interleaved)))))
    head_dim = _head_dim(edit) or known.head_dim
    return GgufRecord(
        known.keys, values, tuple(sorted(added)), small, interleaved, head_dim, other, known.version, known.data_start,
        known.tail, known.sha256,
    )  # fmt: skip


def record_of_export(
    plain: Header, header: Header, read: Callable[[str], bytes], edit: Edit, quantised: bool
) -> GgufRecord:
    """The record of a conversion: the same one without scaling, which nobody has written.

    plain: the header of the conversion without scaling. header: the same under the name of the method. read: gives the
    bytes of a converted tensor. edit: from that to the output. quantised: whether llama.cpp quantises the output
    afterwards, which adds a key.
    """
    keys = (*plain.values, *((QUANTISED,) if quantised and QUANTISED not in plain.values else ()))
    added = tuple(item.name for item in edit.added)
    small, interleaved, other = _sorted_changes(header.tensors, read, edit.changes)
    return GgufRecord(
        keys, _unlike(plain, rewrite(header, edit).values), added, small, interleaved, _head_dim(edit), other
    )


def _head_dim(edit: Edit) -> int:
    return max((change.interleaved for change in edit.changes.values()), default=0)


def _difference(header: Header, edit: Edit) -> tuple[dict[str, ValueRecord], tuple[str, ...]]:
    """Values that an edit takes away, and names of tensors that it adds."""
    made = rewrite(header, edit)
    return _unlike(header, made.values), tuple(item.name for item in edit.added)


def _unlike(header: Header, values: Mapping[str, Value]) -> dict[str, ValueRecord]:
    """The values of a header that are not among others, where the keys may be those of another architecture."""
    old, now = header.values[ARCH].decode(), values[ARCH].decode()
    found = {}
    for key, value in header.values.items():
        here = now + key.removeprefix(old) if key.startswith(f"{old}.") else key
        if values.get(here) != value:
            found[key] = _record(value)
    return found


def _record(value: Value) -> ValueRecord:
    text = value.raw[8:]
    if value.kind == STRING and text and not text.strip(b" "):
        return ValueRecord(STRING, spaces=len(text))  # the reserve of an earlier header
    return ValueRecord(value.kind, base64.b64encode(value.raw).decode())


def _sorted_changes(
    tensors: Mapping[str, TensorInfo],
    read: Callable[[str], bytes],
    changes: Mapping[str, Change],
    known: GgufRecord | None = None,
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Changed tensors: the contents of small ones, names of those with other rows, and names of the others."""
    small: dict[str, str] = {}
    interleaved, other = [], []
    room = SMALL
    for name, change in changes.items():
        size = tensors[name].size
        if known is not None and name in known.contents:
            small[name] = known.contents[name]
        elif change.interleaved:
            interleaved.append(name)
        elif size <= room and not (known is not None and name in known.interleaved):
            small[name] = base64.b64encode(read(name)).decode()
            room -= size
        else:
            other.append(name)
    return small, tuple(interleaved), tuple(other)
