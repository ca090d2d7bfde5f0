"""The original of a GGUF file that ropeconv wrote: the file before the first run of ropeconv.

Each output has a record (`GgufRecord`) of what was changed since. `original_of` makes the edit that
restores the original from the record, and the `record_of_...` functions make the record.
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
    RESERVED,
    SPLIT,
    Change,
    Edit,
    Layout,
    RewrittenHeader,
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

    A fault is the end of a sentence that begins with "the receipt of FILE". The caller stops at the
    first fault, since later checks need a record that has passed the earlier checks.

    Args:
        record: The record in a receipt, from which the original is restored: the file before
            ropeconv changed it. Anybody can have written the record.
        file: The file with the receipt.
    """
    # where tensor data began in the original, and how many bytes were behind the data (`tail`)
    if record.version not in (2, 3):
        yield f"says GGUF version {record.version}"
    if record.data_start < 0 or not 0 <= record.tail <= MOST_SMALL_BYTES:
        yield f"says that data began at byte {record.data_start} with {record.tail} bytes after it"

    # the names of all keys of the original
    has_repeated_keys = len(set(record.keys)) != len(record.keys)
    has_long_keys = any(len(key.encode()) > LONGEST_KEY for key in record.keys)
    if has_repeated_keys or has_long_keys:
        yield "names keys twice, or too long"
    if ARCH not in record.keys:
        yield f"has no {ARCH}"

    if _changes_alignment(record, file.header.alignment):
        yield f"has another {ALIGNMENT}"

    # The values of the original that ropeconv has changed (`values`), and the new values in the
    # file (`written`). A text of spaces is recorded as the number of spaces. A restore makes these
    # texts in memory, so their sum has a limit.
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
    """Whether the original in a record has another alignment of tensors than the file.

    ropeconv never changes the alignment, so ropeconv has not written such a record.

    Args:
        record: The record in the receipt of the file. `record.keys` has the names of all keys of
            the original, and `record.values` only values that were changed.
        alignment: The alignment of the file, in bytes.
    """
    # the record says that the value was changed
    if ALIGNMENT in record.values:
        return True
    # the original has the key with the same value as the file
    if ALIGNMENT in record.keys:
        return False
    # the original has no key, and with it the default alignment
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

    # projections whose rows were reordered within each head, which has `record.head_dim` rows
    for name in record.interleaved:
        fault = f"says that the rows of {name} were reordered by {record.head_dim}"
        if name in ROPE_TENSORS:  # a vector, which has no rows
            yield fault
            continue
        tensor = file.tensors.get(name)
        if tensor is None:  # refused with another message when the tensor is restored
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
    """The original of a GGUF file: the file before ropeconv changed it."""

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
    """Return the receipt in a file; None if the file has no receipt that can be read."""
    text = file.get(RECEIPT)
    if not isinstance(text, str):
        return None
    try:
        return parse_receipt(text, RECEIPT)
    except BadSource:
        return None


def first_reading(file: GgufFile, receipt: Receipt) -> RopeSpec | None:
    """Return the RoPE that a file had before ropeconv changed it; None if the receipt lacks it."""
    try:
        before = original_of(file, receipt)
        return read(before.header, before.vectors, arch_of_header(before.header)).spec
    except RopeconvError:
        return None


def edit_to_original(file: GgufFile, spec: RopeSpec) -> Edit | None:
    """Return the edit that undoes all changes of ropeconv in a file, for `--replace`.

    Args:
        file: The file.
        spec: The RoPE of the file.

    Returns:
        The edit; None for a file that ropeconv did not write, or whose receipt has no record of the
        original, the file before all changes.

    Raises:
        BadSource: The changes cannot be undone, or a key that ropeconv wrote was edited since.
    """
    receipt = _readable_receipt(file)
    if receipt is None or receipt.original is None or receipt.original.gguf is None:
        return None

    # Refuse edited keys before the RoPE is compared: another RoPE would mean "not of ropeconv",
    # although ropeconv may have changed the weights of this file.
    record = receipt.original.gguf
    first_fault = next(_faults_of_values(record.written), None)
    if first_fault is not None:
        raise _distrust(file, first_fault)
    source_in_words = receipt.first.described
    _refuse_edited_keys(file, record, source_in_words)

    # the file has another RoPE than its receipt, which is only possible for receipts of early
    # versions: they do not list the keys that ropeconv wrote
    if valid_gguf_receipt(file, spec) is None:
        return None
    return original_of(file, receipt, whole=True).edit


def _refuse_unrestorable(file: GgufFile, record: GgufRecord, first: str, whole: bool) -> None:
    """Refuse a file from which the original cannot be restored.

    Args:
        file: A file that ropeconv wrote.
        record: The record of the changes, from its receipt.
        first: The source of the original in words, for messages.
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
    """Return the original of a file: its header and RoPE tensors before ropeconv changed it.

    The receipt of the file records the keys and tensors of the original that were changed. The
    result has also the edit that turns the file back into the original. Nothing is written.

    Args:
        file: A file that ropeconv wrote.
        receipt: The receipt of the file.
        whole: Whether to refuse a file with tensors that cannot be restored, or with edited keys
            whose edits would be lost.

    Raises:
        BadSource: The receipt has no record of the original, or was not written by ropeconv, or
            keys or tensors are missing or cannot be restored.
    """
    record = receipt.original.gguf if receipt.original else None
    if record is None:
        raise BadSource(
            f"the receipt of {file.name} does not say what its source had; take the source again, "
            f"{receipt.source.described}"
        )
    source_in_words = receipt.first.described  # for messages
    _refuse_unrestorable(file, record, source_in_words, whole)

    # the edit restores keys and changed tensors, and removes the tensors that ropeconv has added
    edit = Edit(
        base=_original_values(file, record, source_in_words),
        changes=_original_tensors(file, record, source_in_words),
        removed=frozenset(record.added),
    )

    # The header of the original. With a layout, `rewrite` keeps all keys of the original, also a
    # reserve, a key of spaces that keeps a place for later keys.
    layout = Layout(version=record.version, data_start=record.data_start, tail=record.tail)
    rewritten = rewrite(file.header, replace(edit, layout=layout))
    # the header of no file on the disk: it has no size, and no place where data begins
    header = GgufHeader(
        version=record.version,
        values=rewritten.values,
        tensors=rewritten.tensors,
        alignment=rewritten.alignment,
        data_start=0,
        size=0,
    )

    # the RoPE tensors of the original, float32
    vectors = {}
    for name, vector in rope_tensors(file).items():
        if name in edit.removed:
            continue
        vectors[name] = vector
        if name in edit.changes:
            # the bytes are in the receipt, so the present bytes (b"") do not matter
            restored = edit.changes[name].apply(b"")
            vectors[name] = np.frombuffer(restored, "<f4").astype(np.float64)
    return OriginalGguf(edit, header, vectors)


def original_was_file(record: GgufRecord, header: GgufHeader) -> bool:
    """Return whether the original was on the disk in the form in which it would be restored.

    The original is the file before ropeconv changed it.

    Args:
        record: The record in the receipt of the file.
        header: The header of the file.
    """
    # A checkpoint that is converted and extended at once: the conversion before the extension is
    # never written, so the record has 0 for the place where its data began.
    was_on_disk = record.data_start > 0
    # a file that was split or merged since: the restored file has other shards than the original
    recorded_split_keys = {key for key in record.keys if key.startswith(SPLIT)}
    has_same_shards = split_keys(header).keys() == recorded_split_keys
    return was_on_disk and has_same_shards


def layout_of(record: GgufRecord, header: GgufHeader, edit: Edit) -> Layout:
    """Return where tensor data begins in the original, and how many bytes are behind the data.

    The original is the file before ropeconv changed it. Writers of GGUF files put different amounts
    of padding before and behind the data. With the layout, every byte of the original is restored.

    Args:
        record: The record in the receipt of the file.
        header: The header of the file.
        edit: The edit that restores the original.

    Raises:
        BadSource: The receipt has a place that is too far behind the header.
    """
    # an original that was not on the disk gets the layout of gguf-py: padding to the alignment
    if not original_was_file(record, header):
        rewritten = rewrite(header, edit)
        padding = -rewritten.data_size % rewritten.alignment
        return Layout(version=3, data_start=len(rewritten.plain()), tail=padding)

    # Data begins at the first aligned place behind the header. A receipt with a later place was
    # edited.
    layout = Layout(version=record.version, data_start=record.data_start, tail=record.tail)
    restored_header = rewrite(header, replace(edit, layout=layout))
    first_aligned_place = len(restored_header.plain())
    if record.data_start > first_aligned_place:
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


def _original_values(file: GgufFile, record: GgufRecord, first: str) -> dict[str, GgufValue]:
    """Return the keys and values of the original, the file before ropeconv changed it.

    Args:
        file: A file that ropeconv wrote.
        record: The record in the receipt of the file. `record.keys` are all keys of the original,
            and `record.values` are the values that were changed.
        first: The source of the original in words, for messages.

    Raises:
        BadSource: A key of the original is not in the file any more.
    """
    # ropeconv can change the architecture, with which the names of keys begin
    new_arch = str(file.get(ARCH))
    old_arch = new_arch
    if ARCH in record.values:
        old_arch = str(value_of(record.values[ARCH]).decode())

    values: dict[str, GgufValue] = {}
    for key in record.keys:
        # changed by ropeconv: the old value is in the record
        if key in record.values:
            values[key] = value_of(record.values[key])
            continue

        # unchanged: the value is in the file
        key_in_file = _rename_arch(key, old_arch, new_arch)
        value = file.header.values.get(key_in_file)
        if value is not None:
            values[key] = value
            continue

        # Missing. Only a conversion that was extended at once, and never on the disk before
        # (`data_start` is 0), lists keys that may be missing: keys of llama.cpp's quantiser.
        was_on_disk = record.data_start > 0
        if was_on_disk:
            raise BadSource(
                f"{file.name} has no {key_in_file} any more; take the source again, {first}"
            )

    # keys that other programs have added since, and keys about shards
    for key in keys_of_others(file, record):
        values[key] = file.header.values[key]
    return values | split_keys(file.header)


def _refuse_edited_keys(file: GgufFile, record: GgufRecord, first: str) -> None:
    """Refuse a file in which a value that ropeconv wrote was edited: the edit would be lost.

    Args:
        file: A file that ropeconv wrote.
        record: The record in its receipt.
        first: The source of the original in words, for the message.

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

    Args:
        file: A file that ropeconv wrote.
        record: The record in the receipt of the file.
    """
    # a receipt of an early version does not say which keys ropeconv wrote
    if not record.written:
        return ()
    new_arch = str(file.get(ARCH))
    old_arch = new_arch
    if ARCH in record.values:
        old_arch = str(value_of(record.values[ARCH]).decode())

    # the keys that ropeconv has not changed, by their names in the file: with another architecture,
    # qwen2.block_count is llama.block_count there
    unchanged = []
    for key in record.keys:  # all keys of the original, the file before ropeconv changed it
        is_changed = key in record.values
        if not is_changed:
            unchanged.append(_rename_arch(key, old_arch, new_arch))

    # all other keys, without the keys about the file, such as the receipt
    known = {*record.written, *unchanged}
    added_by_others = []
    for key in file.header.values:
        if key not in known and not _describes_file(key):
            added_by_others.append(key)
    return tuple(added_by_others)


def _describes_file(key: str) -> bool:
    """Whether a key is about the file and not its model: the receipt, the reserve, and shards."""
    return key in (RECEIPT, RESERVED) or key.startswith(SPLIT)


def split_keys(header: GgufHeader) -> dict[str, GgufValue]:
    """Return the keys about shards, which stay as in the present file when it is restored.

    Args:
        header: The header of the present file.
    """
    return {key: value for key, value in header.values.items() if key.startswith(SPLIT)}


def _replace_by(data: bytes) -> Change:
    """The change of a tensor to these bytes, whatever it has before."""
    return Change(len(data), lambda old: data)


def _original_tensors(file: GgufFile, record: GgufRecord, first: str) -> dict[str, Change]:
    """Return the changes that undo what ropeconv has changed in the tensors of a file, by name.

    Args:
        file: A file that ropeconv wrote.
        record: The record in its receipt, with the contents of small tensors in base64 and the
            names of tensors whose rows were reordered.
        first: The source of the original in words, for messages.

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
    """Return the record for the receipt of an output, from which its source can be restored.

    The record has the values and the small tensors of the source that the output changes, such as
    llama.context_length.

    Args:
        file: The source, a file that ropeconv has not changed before.
        edit: The edit that makes the output.
    """
    # the padding behind the last tensor, a few zeros; one byte more is read to see longer data
    header = file.header
    first_shard = file.shards[0]
    end_of_data = header.data_start + header.data_size
    tail = first_shard.read(end_of_data, min(header.size, end_of_data + MOST_SMALL_BYTES + 1))
    is_padding = len(tail) <= MOST_SMALL_BYTES and not any(tail)

    # A digest of the header, by which `restore` proves that every byte is the same again. There is
    # none if ropeconv would write this header otherwise, such as with other padding.
    header_bytes = first_shard.read(0, header.data_start)
    layout = Layout(version=header.version, data_start=header.data_start, tail=0)
    rewritten_header = rewrite(header, Edit(base=header.values, layout=layout))
    digest = ""
    if rewritten_header.bytes_as_before(layout) == header_bytes:
        digest = hashlib.sha256(header_bytes).hexdigest()

    # a record without changes, and then the changes of the output
    unchanged = GgufRecord(
        keys=tuple(header.values),
        version=header.version,
        data_start=header.data_start,
        tail=len(tail) if is_padding else 0,
        sha256=digest,
    )
    changed_tensors = _sort_changed_tensors(unchanged, file.tensors, file.read, edit.changes)
    return _record_differences(
        unchanged,
        original_header=header,
        header_before_run=header,  # the same header, since this is the first run
        output_header=rewrite(header, edit),
        changed_tensors=changed_tensors,
    )


def record_of_output(
    file: GgufFile, input_record: GgufRecord, before: OriginalGguf, edit: Edit, replaced: bool
) -> GgufRecord:
    """Return the record for the receipt of an output whose source ropeconv has written too.

    The record has the differences between the output and the original. An example: an earlier run
    made model-64k.gguf from model.gguf, and this run makes model-128k.gguf from model-64k.gguf.
    `ropeconv restore model-128k.gguf` makes model.gguf, the original.

    Args:
        file: The source, model-64k.gguf.
        input_record: The record in the receipt of the source.
        before: The original, model.gguf, as restored from this record.
        edit: The edit that makes the output. With `--replace` it is applied to the original, and
            otherwise to the source.
        replaced: Whether the output is made with `--replace`.
    """
    original_header = before.header
    changed_tensors = _sort_changed_tensors(input_record, file.tensors, file.read, edit.changes)

    # with --replace, the output has no changes and no values of the earlier run
    if replaced:
        without_earlier_run = msgspec.structs.replace(input_record, written={})
        return _record_differences(
            without_earlier_run,
            original_header=original_header,
            header_before_run=original_header,
            output_header=rewrite(original_header, edit),
            changed_tensors=changed_tensors,
        )

    # without --replace, the output has the changes of both runs
    changed_tensors = _add_earlier_changes(input_record, changed_tensors, edit.changes)

    # This run has written the values that differ from the source. A receipt of an early version of
    # ropeconv does not list the values of the earlier run. Then all values that differ from the
    # original count as written by this run.
    lists_earlier_values = bool(input_record.written)
    header_before_run = file.header if lists_earlier_values else original_header
    return _record_differences(
        input_record,
        original_header=original_header,
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

    From the file and this record, `ropeconv restore` makes the conversion without the extension,
    the original, which was never written to the disk.

    Args:
        plain: The header of the original.
        header: The same header with the name of the extended model, such as "Qwen3 8B YaRN 4".
        read: Returns the bytes of a converted tensor.
        edit: The edit that makes the header of the output from `header`.
        later_keys: Keys that are added to the output later, such as those of llama.cpp's quantiser.
    """
    # a record without changes has the keys of the original, each once; `data_start` and `sha256`
    # stay empty, since the original is not on the disk
    keys = tuple(dict.fromkeys((*plain.values, *later_keys)))
    unchanged = GgufRecord(keys)

    changed_tensors = _sort_changed_tensors(unchanged, header.tensors, read, edit.changes)
    return _record_differences(
        unchanged,
        original_header=plain,
        header_before_run=plain,  # the same header, since this is the first run
        output_header=rewrite(header, edit),
        changed_tensors=changed_tensors,
    )


@dataclass(frozen=True)
class _ChangedTensors:
    """The tensors that an output changes, by how `restore` gets them back."""

    contents: Mapping[str, str]
    """The bytes of small tensors in the original, in base64."""

    interleaved: tuple[str, ...]
    """Tensors whose rows were reordered, which is undone."""

    head_dim: int
    """The rows of a head in these tensors."""

    lost: tuple[str, ...]
    """Tensors that cannot be restored."""


def _sort_changed_tensors(
    input_record: GgufRecord,
    tensors: Mapping[str, TensorInfo],
    read: Callable[[str], bytes],
    changes: Mapping[str, Change],
) -> _ChangedTensors:
    """Sort the tensors that an output changes by how `ropeconv restore` can undo the change.

    Args:
        input_record: The record of the file that is changed, with the changes of earlier runs.
        tensors: The tensors of the file.
        read: Returns the bytes of a tensor of the file.
        changes: The changes of this run, by the name of the tensor.
    """
    contents: dict[str, str] = {}
    reordered = []
    lost = []
    head_dim = 0
    remaining_bytes = MOST_SMALL_BYTES
    for name, change in changes.items():
        # a tensor that an earlier run has added: `restore` removes it
        if name in input_record.added:
            continue

        # `change.interleaved` is the number of rows of a head if the change only reorders rows
        only_reorders_rows = change.interleaved > 0
        head_dim = max(head_dim, change.interleaved)
        size = tensors[name].size
        is_small = size <= remaining_bytes
        was_reordered_before = name in input_record.interleaved
        if name in input_record.contents:
            # an earlier run has recorded the original bytes
            contents[name] = input_record.contents[name]
        elif only_reorders_rows:
            reordered.append(name)
        elif is_small and not was_reordered_before:
            # the present bytes are the original bytes, and are recorded
            contents[name] = base64.b64encode(read(name)).decode()
            remaining_bytes -= size
        else:
            # the change rounds the numbers, and the original bytes are not recorded
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
    """Return all tensors that this run and earlier runs have changed, by how they are restored.

    Args:
        input_record: The record of the file that is changed, with the changes of earlier runs.
        of_this_run: The tensors that this run changes.
        changes: The changes of this run, by the name of the tensor.
    """
    # small tensors, whose original bytes are recorded: an earlier run has recorded them first
    contents = {**of_this_run.contents, **input_record.contents}

    # tensors with reordered rows (`interleaved`), each name once; recorded bytes are simpler
    all_reordered = dict.fromkeys((*input_record.interleaved, *of_this_run.interleaved))
    reordered = [name for name in all_reordered if name not in contents]

    # tensors that cannot be restored (`record.changed`); rows that an earlier run has reordered
    # cannot be put back if this run changes the tensor again
    lost_before = input_record.changed
    reordered_and_changed = [name for name in input_record.interleaved if name in changes]
    lost = dict.fromkeys((*lost_before, *of_this_run.lost, *reordered_and_changed))
    return _ChangedTensors(
        contents=contents,
        interleaved=tuple(reordered),
        head_dim=of_this_run.head_dim,
        lost=tuple(lost),
    )


def _record_differences(
    input_record: GgufRecord,
    original_header: GgufHeader,
    header_before_run: GgufHeader,
    output_header: RewrittenHeader,
    changed_tensors: _ChangedTensors,
) -> GgufRecord:
    """Return the record of an output: how it differs from the original.

    The original is the file before the first run of ropeconv, which `ropeconv restore` makes again
    from the output and the record.

    Args:
        input_record: The record of the source, which has the keys and the layout of the original.
        original_header: The header of the original.
        header_before_run: The header of the source. Values of the output that differ from this
            header were written by this run.
        output_header: The header of the output.
        changed_tensors: The changed tensors of the output, by how they are restored.
    """
    added_tensors = output_header.tensors.keys() - original_header.tensors.keys()
    return msgspec.structs.replace(
        input_record,
        # old values of keys that differ, and new values by ropeconv
        values=_changed_values(original_header, output_header.values),
        written=_written_values(input_record, header_before_run, output_header.values),
        # tensors that the original does not have
        added=tuple(sorted(added_tensors)),
        # changed tensors: with recorded bytes, with reordered rows, and lost
        contents=dict(changed_tensors.contents),
        interleaved=changed_tensors.interleaved,
        head_dim=changed_tensors.head_dim,
        changed=changed_tensors.lost,
    )


def _changed_values(header: GgufHeader, values: Mapping[str, GgufValue]) -> dict[str, ValueRecord]:
    """The values of a header that an output does not have any more, by key.

    An output with llama.context_length 131072 in place of 32768 gives the value 32768.

    Args:
        header: The header of the original, the file before ropeconv changed it.
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
    """Return the values that this run and earlier runs of ropeconv have written, by key.

    A value that was edited by hand between two runs is not one of these values: the record keeps
    the value of the earlier run, so that `ropeconv restore` notices the edit.

    Args:
        input_record: The record of the source, with the values that earlier runs have written.
        header_before_run: The header of the source. Values that differ from this header were
            written by this run.
        output_values: The values of the output, by key.
    """
    # the values of the source, by the keys of the output: with another architecture,
    # qwen2.block_count is llama.block_count there
    old_arch = header_before_run.values[ARCH].decode()
    new_arch = output_values[ARCH].decode()
    values_before_run = {}
    for key, value in header_before_run.values.items():
        values_before_run[_rename_arch(key, old_arch, new_arch)] = value

    # written by earlier runs
    written = {}
    for key, record in input_record.written.items():
        written[_rename_arch(key, old_arch, new_arch)] = record

    # written by this run, without keys about the file, such as the receipt and keys about shards
    for key, value in output_values.items():
        is_new = values_before_run.get(key) != value
        if is_new and not _describes_file(key):
            written[key] = _record_value(value)

    # without the keys that this run has removed
    removed = values_before_run.keys() - output_values.keys()
    return {key: record for key, record in written.items() if key not in removed}


def _record_value(value: GgufValue) -> ValueRecord:
    """Return the record of a value, of which a text of nothing but spaces is only their number."""
    # ropeconv keeps spaces in a header for later edits, of which only the number matters
    text = value.raw[8:]  # a string in GGUF begins with its length, in 8 bytes
    is_only_spaces = value.kind == STRING and text and not text.strip(b" ")
    if is_only_spaces:
        return ValueRecord(kind=STRING, spaces=len(text))
    raw = base64.b64encode(value.raw).decode()
    return ValueRecord(kind=value.kind, raw=raw)
