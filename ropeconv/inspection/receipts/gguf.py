"""A GGUF file that ropeconv wrote, as its first source.

The first source is the file before the first bake: each output carries a record (`GgufRecord`) of
what was changed since. `earlier` makes the edit that restores the first source from the record, and
the `record_of_...` functions make the record.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import msgspec
import numpy as np

from ...errors import BadSource
from ...formats.gguf.edit import (
    COUNT,
    RESERVED,
    SPLIT,
    Change,
    Edit,
    Layout,
    RewrittenHeader,
    add_to_count,
    deinterleave,
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
"""The key with the architecture, with which the names of many other keys begin."""
MOST_SMALL_BYTES = 1 << 16
"""The most bytes of changed tensors in a receipt, before base64, and of zeros after the last."""
MOST_SPACES = 1 << 24
"""The most spaces of a receipt: reserves of earlier headers."""
WIDEST_HEAD = 1 << 13
"""The most rows of a head."""
LONGEST_KEY = 0xFFFF
"""The most bytes of a key, as llama.cpp reads them."""


def value_of(record: ValueRecord) -> GgufValue:
    """Return the value of a GGUF key from a receipt.

    A text of nothing but spaces is recorded by their number (`spaces`), without bytes (`raw`):
    earlier versions of ropeconv reserved space in a header by such a text.

    Raises:
        ValueError: Its bytes are not of its kind.
    """
    is_only_spaces = not record.raw and record.kind == STRING
    if is_only_spaces:
        return string(" " * record.spaces)
    if not record.raw:
        raise ValueError(f"no bytes for a value of kind {record.kind}")
    raw = base64.b64decode(record.raw, validate=True)
    try:
        return read_value(record.kind, raw)
    except RopeconvError:
        raise ValueError(f"{len(raw)} bytes for a value of kind {record.kind}") from None


def check_gguf(record: GgufRecord, file: GgufFile) -> None:
    """Check that a record from the receipt of a file is one that ropeconv writes.

    Raises:
        BadSource: It is not.
    """
    for fault in _faults(record, file):
        raise _distrust(file, fault)


def _distrust(file: GgufFile, fault: str) -> BadSource:
    """The error for a receipt that ropeconv did not write."""
    return BadSource(f"the receipt of {file.name} {fault}; do not trust it, take the source again")


def _faults(record: GgufRecord, file: GgufFile) -> Iterator[str]:
    """Yield what is wrong with a record, such as "has no general.architecture".

    Each fault is the end of a sentence that begins with "the receipt of FILE". The caller stops at
    the first one: later checks rely on earlier ones.

    Args:
        record: The record from the receipt in the file, by which the file can be restored as it was
            before the first run of `ropeconv apply`. It has the names of all keys of that file
            (`keys`), the values that were changed since (`values`), and those that ropeconv wrote
            in their place (`written`).
        file: The file.
    """
    # the layout of the first source: the byte where data began, and the bytes behind all data
    if record.version not in (2, 3):
        yield f"says GGUF version {record.version}"
    if record.data_start < 0 or not 0 <= record.tail <= MOST_SMALL_BYTES:
        yield f"says that data began at byte {record.data_start} with {record.tail} bytes after it"

    # the names of its keys
    has_repeated_keys = len(set(record.keys)) != len(record.keys)
    has_long_keys = any(len(key.encode()) > LONGEST_KEY for key in record.keys)
    if has_repeated_keys or has_long_keys:
        yield "names keys twice, or too long"
    if ARCH not in record.keys:
        yield f"has no {ARCH}"

    if _changes_alignment(record, file.header.alignment):
        yield f"has another {ALIGNMENT}"

    # Its values. A text of nothing but spaces is recorded by their number (`spaces`), which is 0
    # for all other values. A restore makes these texts in memory, so their sum has a limit.
    recorded_values = [*record.values.values(), *record.written.values()]
    numbers_of_spaces = [value.spaces for value in recorded_values]
    sum_of_spaces = sum(numbers_of_spaces)
    has_negative_number = min(numbers_of_spaces, default=0) < 0
    if has_negative_number or sum_of_spaces > MOST_SPACES:
        yield f"asks for {sum_of_spaces} spaces"
    yield from _faults_of_values(record.values)
    yield from _faults_of_values(record.written)
    yield from _faults_of_tensors(record, file)


def _changes_alignment(record: GgufRecord, alignment: int) -> bool:
    """Whether the first source in a record has another alignment than the file.

    `ropeconv apply` never changes the alignment of tensors, so such a record is not of ropeconv.

    Args:
        record: The record.
        alignment: The alignment of the file, in bytes.
    """
    # a changed value is recorded, and an unchanged one is not
    has_recorded_value = ALIGNMENT in record.values
    if has_recorded_value:
        return True
    # a first source with the key has the value that the file has
    first_source_has_key = ALIGNMENT in record.keys
    if first_source_has_key:
        return False
    # a first source without the key had the default
    return alignment != DEFAULT_ALIGNMENT


def _faults_of_values(values: Mapping[str, ValueRecord]) -> Iterator[str]:
    """Yield values that do not have the bytes of their kind."""
    for key, value in values.items():
        try:
            kind = value_of(value).kind
        except ValueError as problem:
            yield f"has no readable value under {key!r} ({problem})"
            continue
        if key == ARCH and kind != STRING:
            yield f"has no text under {ARCH}"


def _faults_of_tensors(record: GgufRecord, file: GgufFile) -> Iterator[str]:
    """Yield what is wrong with the tensors of a record, such as "has no readable contents of NAME".

    Args:
        record: The record in the receipt of the file. Anybody can have written it.
        file: The file.
    """
    # small tensors, whose bytes are in the record
    for name, text in record.contents.items():
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError as problem:
            yield f"has no readable contents of {name} ({problem})"
            continue
        # rope tensors have the numbers by which frequencies are divided
        if name in ROPE_TENSORS and not _are_divisors(data):
            yield f"has divisors in {name} that are not positive"

    # projections whose rows were reordered within each head
    for name in record.interleaved:
        fault = f"says that the rows of {name} were reordered by {record.head_dim}"
        if name in ROPE_TENSORS:  # a rope tensor has no rows
            yield fault
            continue
        tensor = file.tensors.get(name)
        if tensor is None:  # a missing tensor is refused with a message of its own, when it is used
            continue
        if not _has_heads(tensor, record.head_dim):
            yield fault


def _are_divisors(data: bytes) -> bool:
    """Whether bytes are positive numbers in float32."""
    return len(data) % 4 == 0 and bool((np.frombuffer(data, "<f4") > 0).all())


def _has_heads(info: TensorInfo, head_dim: int) -> bool:
    """Whether the rows of a weight, or the numbers of a bias, form heads of `head_dim` rows."""
    is_possible_width = 0 < head_dim <= WIDEST_HEAD and head_dim % 2 == 0
    if not is_possible_width:
        return False
    rows = info.shape[0]
    if len(info.shape) > 1:  # GGUF has the length of a row first
        rows = prod(info.shape[1:])
    if rows <= 0 or rows % head_dim:
        return False
    # every row has the same number of bytes
    return info.size > 0 and info.size % rows == 0


FREQUENCY_TOLERANCE = 1e-5
"""The relative difference that frequencies of a file may have from its receipt."""


@dataclass(frozen=True)
class OriginalGguf:
    """The first source of a GGUF file."""

    edit: Edit
    """The edit that restores its keys and tensors."""

    header: GgufHeader
    """A header with these keys."""

    vectors: Mapping[str, Vector]
    """Its rope tensors, by name."""


def valid_gguf_receipt(file: GgufFile, spec: RopeSpec) -> Receipt | None:
    """Return the receipt that ropeconv left in a file, if the file still has the RoPE that it says.

    Args:
        file: The file.
        spec: The RoPE of the file.

    Returns:
        The receipt; None if the file has no readable one, or now computes another RoPE.
    """
    receipt = _readable_receipt(file)
    if receipt is None:
        return None
    # another tool may have changed keys and copied the receipt with the others
    if receipt.schedule.context != spec.context:
        return None
    recorded = np.array(receipt.computed_inv_freq)
    computed = spec.form.inv_freq(spec.rotary_dim)
    if recorded.shape != computed.shape:
        return None
    if not np.allclose(recorded, computed, rtol=FREQUENCY_TOLERANCE, atol=0):
        return None
    return receipt


def _readable_receipt(file: GgufFile) -> Receipt | None:
    """Return the receipt in a file, whatever RoPE the file has; None without a readable one."""
    text = file.get(RECEIPT)
    if not isinstance(text, str):
        return None
    try:
        return parse_receipt(text, RECEIPT)
    except BadSource:
        return None


def first_reading(file: GgufFile, receipt: Receipt) -> RopeSpec | None:
    """Return the RoPE of the first source of a file; None if the receipt lacks it."""
    try:
        before = original_of(file, receipt)
        return read(before.header, before.vectors, arch_of_header(before.header)).spec
    except RopeconvError:
        return None


def edit_to_original(file: GgufFile, spec: RopeSpec) -> Edit | None:
    """Return the edit that makes of a file what it was before ropeconv changed it, for `--replace`.

    A receipt counts as none if it does not say what was before (`original`), or if the file now has
    another RoPE than it says.

    Args:
        file: The file.
        spec: The RoPE of the file.

    Returns:
        The edit; None for files that ropeconv did not write.

    Raises:
        BadSource: The file cannot be restored, or a key that ropeconv wrote was edited since.
    """
    receipt = _readable_receipt(file)
    if receipt is None or receipt.original is None or receipt.original.gguf is None:
        return None
    # A key that ropeconv wrote and that was edited since is refused first. Beside such keys,
    # ropeconv may have folded or reordered weights, so that another method cannot start from the
    # file.
    record = receipt.original.gguf
    first_fault = next(_faults_of_values(record.written), None)
    if first_fault is not None:
        raise _distrust(file, first_fault)
    _refuse_edited_keys(file, record, receipt.first.described)

    # A receipt of an early version does not list the keys that ropeconv wrote, so that the check
    # above finds nothing. Then the RoPE of the file is compared with that of its receipt.
    if valid_gguf_receipt(file, spec) is None:
        return None
    return original_of(file, receipt, whole=True).edit


def _refuse_unrestorable(file: GgufFile, record: GgufRecord, first: str, whole: bool) -> None:
    """Refuse a file whose first source cannot be made from it and its receipt.

    Args:
        file: A file that ropeconv wrote.
        record: The record of the changes, from its receipt.
        first: The first source in words, for messages.
        whole: Whether all tensors must be restored, and not only the keys and RoPE tensors; edited
            keys are then refused too.

    Raises:
        BadSource: The record does not fit the file, a tensor cannot be restored, or a key was
            edited.
    """
    check_gguf(record, file)
    if whole and record.changed:
        raise BadSource(
            f"{record.changed[0]} of {file.name} was multiplied and rounded, which cannot be"
            f" undone; take the source again, {first}"
        )
    if whole:
        _refuse_edited_keys(file, record, first)

    # ropeconv adds tensors to the first shard only
    in_other_shards = file.tensors.keys() - file.header.tensors.keys()
    moved = sorted(in_other_shards.intersection(record.added))
    if moved:
        raise BadSource(
            f"{moved[0]} of {file.name} is not in its first shard any more; take the source again,"
            f" {first}"
        )


def original_of(file: GgufFile, receipt: Receipt, whole: bool = False) -> OriginalGguf:
    """Return the first source of a file: how it was before the first run of `ropeconv apply`.

    It is computed from the file and from its receipt, which records what the first source had in
    place of each key and tensor that was changed. The result has the edit that turns the file back
    into its first source, and the header and RoPE tensors that this gives; nothing is written.

    Args:
        file: A file that ropeconv wrote.
        receipt: Its receipt.
        whole: Whether to refuse a file with tensors that cannot be restored, or with edited keys
            whose edits would be lost.

    Raises:
        BadSource: The receipt has no original, or is not one that ropeconv writes, or keys or
            tensors are missing or cannot be restored.
    """
    record = receipt.original.gguf if receipt.original else None
    if record is None:
        raise BadSource(
            f"the receipt of {file.name} does not say what its source had; take the source again, "
            f"{receipt.source.described}"
        )
    first = receipt.first.described  # the first source in words, for messages
    _refuse_unrestorable(file, record, first, whole)

    # the edit: all keys of the first source, the tensors that were changed, and without those that
    # were added
    edit = Edit(
        base=_first_values(file, record, first),
        changes=_first_tensors(file, record, first),
        removed=frozenset(record.added),
    )

    # The header that the edit gives. An edit with a layout restores a file, so that `rewrite` keeps
    # all of its keys, also a key of blanks that ropeconv had reserved for later keys.
    layout = Layout(version=record.version, data_start=record.data_start, tail=record.tail)
    rewritten = rewrite(file.header, replace(edit, layout=layout))
    # it is only read and never a file, so it has neither a size nor a place where data begins
    header = GgufHeader(
        version=record.version,
        values=rewritten.values,
        tensors=rewritten.tensors,
        alignment=rewritten.alignment,
        data_start=0,
        size=0,
    )

    # the rope tensors (float32) that the first source had, with their restored contents
    vectors = {}
    for name, vector in rope_tensors(file).items():
        if name in edit.removed:
            continue
        vectors[name] = vector
        if name in edit.changes:
            restored = edit.changes[name].apply(b"")  # from the receipt, whatever the file has
            vectors[name] = np.frombuffer(restored, "<f4").astype(np.float64)
    return OriginalGguf(edit, header, vectors)


def original_was_file(record: GgufRecord, header: GgufHeader) -> bool:
    """Return whether the first source of a file, with the same shards, was a file on the disk.

    The first source is the file without the changes of ropeconv. There are two cases without such a
    file on the disk:

    - The present file was split or merged since, so that it has other shards than the first source.
    - It was converted from a checkpoint and extended at once, so that the conversion without
      scaling was never written. The record then has 0 for the byte where its data began.

    Args:
        record: The record from the receipt of the file.
        header: The header of the file.
    """
    recorded_split_keys = {key for key in record.keys if key.startswith(SPLIT)}
    has_same_shards = split_keys(header).keys() == recorded_split_keys
    was_a_file = record.data_start > 0
    return was_a_file and has_same_shards


def layout_of(record: GgufRecord, header: GgufHeader, edit: Edit) -> Layout:
    """Return where data began in the first source of a file, and the bytes behind its end.

    The first source is the file as it was before ropeconv changed it. A GGUF file is a header, then
    the data of the tensors. Space between the two, and behind the last tensor, is padding, of which
    writers use different amounts; with the same layout, the restored file is the same byte by byte.

    Args:
        record: The record from the receipt of the file.
        header: The header of the file.
        edit: The edit that brings the first source back.

    Raises:
        BadSource: The header of the first source ends long before that place.
    """
    # A first source that was never on the disk has no layout to restore. It gets the one that
    # gguf-py writes, with padding to the alignment in front of the data and behind the last tensor.
    if not original_was_file(record, header):
        rewritten = rewrite(header, edit)
        padding = -rewritten.data_size % rewritten.alignment
        return Layout(version=3, data_start=len(rewritten.plain()), tail=padding)

    # The data begins behind the header and its padding, and not later: a receipt with a later place
    # was edited.
    layout = Layout(version=record.version, data_start=record.data_start, tail=record.tail)
    restored = rewrite(header, replace(edit, layout=layout))
    latest_data_start = len(restored.plain())
    if record.data_start > latest_data_start:
        raise BadSource(
            "the receipt of this file has another place for its data than its header can have; take"
            " its source again"
        )
    return layout


def _rename_arch(key: str, old: str, new: str) -> str:
    """The key with another architecture: `qwen2.block_count` becomes `llama.block_count`."""
    if key.startswith(f"{old}."):
        return new + key.removeprefix(old)
    return key


def _first_values(file: GgufFile, record: GgufRecord, first: str) -> dict[str, GgufValue]:
    """The metadata keys of a file as it was before ropeconv changed it, with their values.

    Args:
        file: A file that ropeconv wrote.
        record: The record in its receipt: all keys of the first source, and the values that were
            changed since. The others are still in the file.
        first: The first source in words, for messages.

    Raises:
        BadSource: A key of the first source is not in the file any more.
    """
    # `ropeconv apply` can change the architecture, with which the names of keys begin
    new_arch = str(file.get(ARCH))
    old_arch = new_arch
    if ARCH in record.values:
        old_arch = str(value_of(record.values[ARCH]).decode())

    values: dict[str, GgufValue] = {}
    for key in record.keys:
        if key in record.values:
            values[key] = value_of(record.values[key])
            continue
        key_in_file = _rename_arch(key, old_arch, new_arch)
        value = file.header.values.get(key_in_file)
        if value is not None:
            values[key] = value
            continue
        # A conversion that was extended at once was never a file (its `data_start` is 0). Its list
        # has keys that llama.cpp's quantiser may add, and those need not be there.
        was_a_file = record.data_start > 0
        if was_a_file:
            raise BadSource(
                f"{file.name} has no {key_in_file} any more; take the source again, {first}"
            )

    # keys that other programs have added since, and those about shards, are as in the present file
    for key in keys_of_others(file, record):
        values[key] = file.header.values[key]
    return values | split_keys(file.header, frozenset(record.added))


def _refuse_edited_keys(file: GgufFile, record: GgufRecord, first: str) -> None:
    """Refuse a file in which a value that ropeconv wrote was edited: the edit would be lost.

    Args:
        file: A file that ropeconv wrote.
        record: The record in its receipt.
        first: The first source in words, for the message.

    Raises:
        BadSource: A key has another value than ropeconv wrote, or is gone.
    """
    for key, recorded in record.written.items():
        written = value_of(recorded)
        if file.header.values.get(key) != written:
            value = written.decode()
            raise BadSource(
                f"{key} of {file.name} was edited after ropeconv wrote it, and the edit would be"
                f" lost; set it to {value!r} again, or take the source again, {first}"
            )


def keys_of_others(file: GgufFile, record: GgufRecord) -> tuple[str, ...]:
    """Return the keys that other programs have added to a file since ropeconv wrote it.

    These are keys that ropeconv has not written, and that the first source, the file before
    ropeconv changed it, did not have.

    Args:
        file: A file that ropeconv wrote.
        record: The record in its receipt.
    """
    # receipts of earlier versions do not say which keys ropeconv wrote, so nothing can be said
    if not record.written:
        return ()
    new_arch = str(file.get(ARCH))
    old_arch = new_arch
    if ARCH in record.values:
        old_arch = str(value_of(record.values[ARCH]).decode())

    # Keys of the first source that ropeconv has not changed. `record.values` has the old values of
    # the others, which are in `record.written`, or which the file lacks.
    unchanged = []
    for key in record.keys:
        if key not in record.values:
            # with another architecture, qwen2.block_count is llama.block_count in the file
            unchanged.append(_rename_arch(key, old_arch, new_arch))

    known = {*record.written, *unchanged}
    added_by_others = []
    for key in file.header.values:
        if key not in known and not _describes_file(key):
            added_by_others.append(key)
    return tuple(added_by_others)


def _describes_file(key: str) -> bool:
    """Whether a key is about the file and not its model: the receipt, the reserve, and shards."""
    return key in (RECEIPT, RESERVED) or key.startswith(SPLIT)


def split_keys(header: GgufHeader, removed: frozenset[str] = frozenset()) -> dict[str, GgufValue]:
    """Return the keys about shards, which follow the present file and not its first source.

    Args:
        header: The header of the present file.
        removed: Names of tensors that its first source does not have.
    """
    keys = {key: value for key, value in header.values.items() if key.startswith(SPLIT)}
    if COUNT in keys and removed:
        keys[COUNT] = add_to_count(keys[COUNT], -len(removed & header.tensors.keys()))
    return keys


def _replace_by(data: bytes) -> Change:
    """The change of a tensor to these bytes, whatever it has before."""
    return Change(len(data), lambda old: data)


def _first_tensors(file: GgufFile, record: GgufRecord, first: str) -> dict[str, Change]:
    """Return the changes that undo what ropeconv has changed in the tensors of a file, by name.

    Args:
        file: A file that ropeconv wrote.
        record: The record in its receipt, with the contents of small tensors in base64 and the
            names of tensors whose rows were reordered.
        first: The first source in words, for messages.

    Raises:
        BadSource: Such a tensor is gone, or has another size.
    """
    # small tensors have their old bytes in the receipt, whatever the file has now
    changes: dict[str, Change] = {}
    for name, text in record.contents.items():
        data = base64.b64decode(text)
        if name not in file.tensors or file.tensors[name].size != len(data):
            raise BadSource(
                f"{name} of {file.name} is not as ropeconv wrote it; take the source again, {first}"
            )
        changes[name] = _replace_by(data)

    # reordered rows are put back
    for name in record.interleaved:
        if name not in file.tensors:
            raise BadSource(f"{file.name} has no {name} any more; take the source again, {first}")
        changes[name] = deinterleave(file.tensors[name], record.head_dim)
    return changes


QUANTISED = "general.quantization_version"
"""The key that llama.cpp adds when it quantises."""


def record_of_file(file: GgufFile, edit: Edit) -> GgufRecord:
    """Return the record for the receipt of an output, from which its source can be made again.

    The source is a file that ropeconv has not changed before. The record has the values of its keys
    that the output changes, such as llama.context_length, and its small tensors that change.

    Args:
        file: The source.
        edit: The edit that makes the output from it.
    """
    # The bytes after the last tensor. Where they are few and all zeros, they are padding, whose
    # length is recorded. One byte more than "few" is read, to see that there are more.
    header = file.header
    first_shard = file.shards[0]
    end = header.data_start + header.data_size
    tail = first_shard.read(end, min(header.size, end + MOST_SMALL_BYTES + 1))
    is_padding = len(tail) <= MOST_SMALL_BYTES and not any(tail)

    # The digest of the header lets `restore` show that it wrote every byte again. That only works
    # where ropeconv writes the keys of this header to the same bytes; another tool may pad it
    # otherwise.
    header_bytes = first_shard.read(0, header.data_start)
    layout = Layout(version=header.version, data_start=header.data_start, tail=0)
    written_again = rewrite(header, Edit(base=header.values, layout=layout))
    digest = ""
    if written_again.bytes_as_before(layout) == header_bytes:
        digest = hashlib.sha256(header_bytes).hexdigest()

    # the record of the file without changes, and then with the changes of the output
    unchanged = GgufRecord(
        keys=tuple(header.values),
        version=header.version,
        data_start=header.data_start,
        tail=len(tail) if is_padding else 0,
        sha256=digest,
    )
    changed_tensors = _sort_changes(unchanged, file.tensors, file.read, edit.changes)
    return _add_differences(
        unchanged,
        first_header=header,
        header_before_run=header,  # the same, since this is the first run of ropeconv
        output_header=rewrite(header, edit),
        changed_tensors=changed_tensors,
    )


def record_of_output(
    file: GgufFile, input_record: GgufRecord, before: OriginalGguf, edit: Edit, replaced: bool
) -> GgufRecord:
    """Return the record for the receipt of an output whose source ropeconv has written too.

    Say that model-64k.gguf was made from model.gguf, and that model-128k.gguf is made from
    model-64k.gguf now. The record of model-128k.gguf then says how it differs from model.gguf, the
    first of the three, so that `ropeconv restore` can make that again.

    Args:
        file: The source, model-64k.gguf.
        input_record: The record in its receipt: how model-64k.gguf differs from model.gguf.
        before: The header of model.gguf, which was restored with that record.
        edit: The edit that gives the header and the tensors of model-128k.gguf. It is applied to
            model.gguf with `--replace`, and to model-64k.gguf otherwise.
        replaced: Whether the output is made with `--replace`.
    """
    first_header = before.header  # of model.gguf
    changed_tensors = _sort_changes(input_record, file.tensors, file.read, edit.changes)

    # with --replace, the output is made from model.gguf: it has none of the changes of the earlier
    # run, nor the values that this has written
    if replaced:
        return _add_differences(
            msgspec.structs.replace(input_record, written={}),
            first_header=first_header,
            header_before_run=first_header,
            output_header=rewrite(first_header, edit),
            changed_tensors=changed_tensors,
        )

    # without it, the output has the changes of the earlier run too
    changed_tensors = _add_earlier_changes(input_record, changed_tensors, edit.changes)

    # The values that this run has written are those that differ from model-64k.gguf. (A value that
    # the user has edited there by hand is not one of them.) A receipt of an early version of
    # ropeconv does not list the values that the earlier run has written. Then those of both runs
    # are found by a comparison with model.gguf.
    lists_earlier_values = bool(input_record.written)
    header_before_run = file.header if lists_earlier_values else first_header
    return _add_differences(
        input_record,
        first_header=first_header,
        header_before_run=header_before_run,
        output_header=rewrite(file.header, edit),
        changed_tensors=changed_tensors,
    )


def record_of_export(
    plain: GgufHeader,
    header: GgufHeader,
    read: Callable[[str], bytes],
    edit: Edit,
    later_keys: Sequence[str],
) -> GgufRecord:
    """Return the record for a GGUF file that is converted from a checkpoint and extended at once.

    From the file and this record, `ropeconv restore` makes the conversion without scaling, although
    that was never a file.

    Args:
        plain: The header of the conversion without scaling.
        header: The same header, but with the name that the model has with the method.
        read: Returns the bytes of a converted tensor.
        edit: The edit from `header` to the header of the output.
        later_keys: Keys that are added to the output afterwards, such as those of llama.cpp's
            quantiser.
    """
    # The record of the conversion without scaling has the names of its keys, each once. Since the
    # conversion was never a file, it has no byte where data began, and no digest of its header.
    keys = tuple(dict.fromkeys((*plain.values, *later_keys)))
    record_of_conversion = GgufRecord(keys)

    # the record of the output adds the differences to the conversion, which is its first source
    changed_tensors = _sort_changes(record_of_conversion, header.tensors, read, edit.changes)
    return _add_differences(
        record_of_conversion,
        first_header=plain,
        header_before_run=plain,  # the same, since no earlier run has changed the conversion
        output_header=rewrite(header, edit),
        changed_tensors=changed_tensors,
    )


@dataclass(frozen=True)
class _ChangedTensors:
    """The tensors that an output changes, by how `restore` gets them back."""

    contents: Mapping[str, str]
    """Small tensors, whose bytes in the first source are in the receipt, in base64."""

    interleaved: tuple[str, ...]
    """Tensors whose rows were reordered, which is undone."""

    head_dim: int
    """The rows of a head of these."""

    lost: tuple[str, ...]
    """Other tensors, which cannot be restored."""


def _sort_changes(
    input_record: GgufRecord,
    tensors: Mapping[str, TensorInfo],
    read: Callable[[str], bytes],
    changes: Mapping[str, Change],
) -> _ChangedTensors:
    """Sort the tensors that an output changes by how `ropeconv restore` can undo the change.

    A small tensor is kept in the receipt as it was. Rows that were only reordered can be put back.
    A large tensor whose numbers were multiplied and rounded is lost.

    Args:
        input_record: The record of the file that is changed: what earlier runs of `ropeconv apply`
            changed in it.
        tensors: The tensors of the file.
        read: Returns the bytes of a tensor of the file.
        changes: The new tensors of the output.
    """
    contents: dict[str, str] = {}
    reordered = []
    lost = []
    head_dim = 0
    remaining_bytes = MOST_SMALL_BYTES
    for name, change in changes.items():
        # a tensor that an earlier run added is removed again, whatever is in it
        if name in input_record.added:
            continue
        # a change that reorders rows has the rows of a head in `change.interleaved`; another has 0
        reorders_rows = change.interleaved > 0
        head_dim = max(head_dim, change.interleaved)
        size = tensors[name].size
        was_reordered = name in input_record.interleaved
        if name in input_record.contents:
            # an earlier run has recorded the bytes from before all changes
            contents[name] = input_record.contents[name]
        elif reorders_rows:
            reordered.append(name)
        elif size <= remaining_bytes and not was_reordered:
            contents[name] = base64.b64encode(read(name)).decode()
            remaining_bytes -= size
        else:
            # its numbers were rounded, and its bytes are too many for a header
            lost.append(name)
    return _ChangedTensors(
        contents=contents,
        interleaved=tuple(reordered),
        head_dim=head_dim or input_record.head_dim,
        lost=tuple(lost),
    )


def _add_earlier_changes(
    input_record: GgufRecord, of_this_run: _ChangedTensors, changes: Mapping[str, Change]
) -> _ChangedTensors:
    """Return all tensors that were changed by this run of `ropeconv apply` and by earlier ones.

    They are sorted by how `ropeconv restore` gets them back: small tensors have their old contents
    in the record, reordered rows are put back, and others are lost.

    Args:
        input_record: The record of the file that is changed. For the tensors that earlier runs
            changed it has the fields `contents`, `interleaved` (reordered) and `changed` (lost).
        of_this_run: The tensors that this run changes, sorted.
        changes: The changes of this run, by the name of the tensor.
    """
    # where both have contents of a tensor, those from before the first run count
    contents = {**of_this_run.contents, **input_record.contents}

    # a tensor whose contents are kept needs no reordering; `fromkeys` leaves each name once
    all_reordered = dict.fromkeys((*input_record.interleaved, *of_this_run.interleaved))
    reordered = [name for name in all_reordered if name not in contents]

    # rows that an earlier run has reordered cannot be put back after a further change
    reordered_and_changed = [name for name in input_record.interleaved if name in changes]
    lost = dict.fromkeys((*input_record.changed, *of_this_run.lost, *reordered_and_changed))
    return _ChangedTensors(
        contents=contents,
        interleaved=tuple(reordered),
        head_dim=of_this_run.head_dim,
        lost=tuple(lost),
    )


def _add_differences(
    input_record: GgufRecord,
    first_header: GgufHeader,
    header_before_run: GgufHeader,
    output_header: RewrittenHeader,
    changed_tensors: _ChangedTensors,
) -> GgufRecord:
    """Return the record of an output, with its differences to its first source.

    The first source is the file before the first run of `ropeconv apply`. `ropeconv restore` makes
    it again from the output and this record.

    Args:
        input_record: The record of the file that is changed, which has the keys and the layout of
            the first source.
        first_header: The header of the first source: values that differ from it are recorded as
            they were there.
        header_before_run: The header that this run changes: values of the output that differ from
            it count as written by this run.
        output_header: The header of the output.
        changed_tensors: The tensors of the output that differ from those of the first source, by
            how they are restored.
    """
    added_tensors = output_header.tensors.keys() - first_header.tensors.keys()
    return msgspec.structs.replace(
        input_record,
        values=_changed_values(first_header, output_header.values),
        written=_written_values(input_record, header_before_run, output_header.values),
        added=tuple(sorted(added_tensors)),
        contents=dict(changed_tensors.contents),
        interleaved=changed_tensors.interleaved,
        head_dim=changed_tensors.head_dim,
        changed=changed_tensors.lost,  # changed, and impossible to restore
    )


def _changed_values(header: GgufHeader, values: Mapping[str, GgufValue]) -> dict[str, ValueRecord]:
    """The values of a header that an output does not have any more, by key.

    An output with llama.context_length 131072 in place of 32768 gives the value 32768.

    Args:
        header: The header of the first source, the file before ropeconv changed it.
        values: The values of the output, by key.
    """
    # qwen2.block_count is llama.block_count in an output that became a llama
    old_arch = header.values[ARCH].decode()
    new_arch = values[ARCH].decode()
    records = {}
    for key, value in header.values.items():
        if values.get(_rename_arch(key, old_arch, new_arch)) != value:
            records[key] = _record_value(value)
    return records


def _written_values(
    input_record: GgufRecord,
    header_before_run: GgufHeader,
    output_values: Mapping[str, GgufValue],
) -> dict[str, ValueRecord]:
    """The values that this run or an earlier one has written into an output, by key.

    A key that was edited by hand between two runs keeps the value of the earlier run here, so that
    `ropeconv restore` still sees the edit.

    Args:
        input_record: The record of the file that is changed, with the values that earlier runs
            wrote (`written`).
        header_before_run: The header before this run: values that differ from it were written by
            this run.
        output_values: The values of the output, by key.
    """
    # the values before this run, by the keys that they have in the output: with another
    # architecture, qwen2.block_count is llama.block_count there
    old_arch = header_before_run.values[ARCH].decode()
    new_arch = output_values[ARCH].decode()
    values_before_run = {}
    for key, value in header_before_run.values.items():
        values_before_run[_rename_arch(key, old_arch, new_arch)] = value

    # first those of earlier runs, and then those of this one
    records = {}
    for key, record in input_record.written.items():
        records[_rename_arch(key, old_arch, new_arch)] = record
    for key, value in output_values.items():
        # the receipt, the reserve and keys about shards are not part of the model
        if values_before_run.get(key) != value and not _describes_file(key):
            records[key] = _record_value(value)

    # without keys that this run has removed
    removed = values_before_run.keys() - output_values.keys()
    return {key: record for key, record in records.items() if key not in removed}


def _record_value(value: GgufValue) -> ValueRecord:
    """Return the record of a value, of which a text of nothing but spaces is only their number."""
    # ropeconv keeps spaces in a header for later edits, of which only the number matters
    text = value.raw[8:]  # a string in GGUF begins with its length, in 8 bytes
    is_only_spaces = value.kind == STRING and text and not text.strip(b" ")
    if is_only_spaces:
        return ValueRecord(kind=STRING, spaces=len(text))
    raw = base64.b64encode(value.raw).decode()
    return ValueRecord(kind=value.kind, raw=raw)
