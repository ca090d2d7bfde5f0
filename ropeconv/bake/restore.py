"""Restores the first source of an output from its receipt.

RoPE, context, the length of the tokenizer and the names of files are those of the source again.
Read `restore_plan` first.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from ..errors import BadSource, UsageError
from ..formats.disk import Advance, copy_file, sha256
from ..formats.gguf.edit import Edit, rewrite
from ..formats.gguf.file import shard_names
from ..formats.jsontext import JsonObject
from ..formats.kind import is_gguf
from ..formats.safetensors import safe_name
from ..inspection.receipts.folder import OriginalSource, original_source
from ..inspection.receipts.gguf import keys_of_others, layout_of, original_of, original_was_file
from ..inspection.receipts.receipt import SourceRecord
from ..inspection.receipts.storage import parse_receipt
from ..models.gguf import GgufSource
from ..models.source import CARD, RECEIPT, SOURCE_CARD, Source
from ..rope.errors import shown
from .apply import change_in_place
from .execution import ApplyOptions, Placed, execute_plan
from .gguf import shard_file
from .plan import FilePlan, PlannedFile

LONGEST = 200
"""The most bytes of a file name without its ending; filesystems have 255."""


@dataclass(frozen=True)
class RestorePlan(FilePlan):
    """The files of the first source of an output. `skipped` are those that it did not have."""

    source: OriginalSource | GgufSource
    """The output; of a folder, its files as the source had them."""

    first: SourceRecord
    """The first source."""

    absent: tuple[str, ...] = ()
    """Names of its files that the output never had."""

    kept: tuple[str, ...] = ()
    """Keys that others have added to a GGUF file since, and that the restored file keeps."""

    in_place: bool = False
    """Whether the GGUF file itself is changed."""

    edit: Edit | None = None
    """The edit from a GGUF file to the first source; None for a folder."""

    @property
    def is_folder(self) -> bool:
        return isinstance(self.source, Source)

    @property
    def resume_key(self) -> str:
        return "restore"

    def origin(self, file: PlannedFile) -> Path | None:
        if file.action == "copy" and isinstance(self.source, GgufSource):
            return self.source.file.shards[self.files.index(file)].path()
        return super().origin(file)

    def to_dict(self) -> JsonObject:
        """Return the plan as JSON-ready data, as `--json` prints it; keys stay within a schema."""
        return super().to_dict() | {
            "first": msgspec.to_builtins(self.first),
            "in_place": self.in_place,
            "absent": list(self.absent),
            "kept": list(self.kept),
        }


def restore_plan(
    source: Source | GgufSource, out: Path | None = None, in_place: bool = False
) -> RestorePlan:
    """Plan to restore the first source of an output. Writes nothing.

    Args:
        source: The output, from `open_source`.
        out: The folder or GGUF file to write, by default `./NAME-restored` after the first source.
        in_place: Change the GGUF file itself.

    Raises:
        BadSource: Where the receipt does not record the source, files were changed since, or
            weights were rounded.
        UsageError: For a name of another format.
    """
    if isinstance(source, GgufSource):
        return _of_gguf(source, out, in_place)
    if in_place:
        raise UsageError(
            "--in-place changes a GGUF file itself, and a folder is written anew; leave it out"
        )
    if out is not None and is_gguf(out):
        raise UsageError(f"-o {out} is not a name for a folder; choose another name")
    return _of_folder(source, out)


def restore(
    plan: RestorePlan,
    *,
    force: bool = False,
    fsync: bool = True,
    advance: Advance = lambda done: None,
) -> Placed:
    """Write the restored source of a plan.

    Args:
        plan: From `restore_plan`.
        force: Replace an earlier output of ropeconv at the place.
        fsync: Wait until everything is on the disk before it gets its final name.
        advance: Called with the bytes done since the last call.

    Returns:
        The place of the restored source.

    Raises:
        RopeconvError: Where it cannot be written. Nothing is kept then.
        BadSource: Where a file was changed. Nothing is kept then.
    """
    if plan.in_place and isinstance(plan.source, GgufSource) and plan.edit is not None:
        return Placed(change_in_place(plan.source, plan.edit))
    return execute_plan(plan, ApplyOptions(force=force, fsync=fsync), advance=advance)


def _of_folder(source: Source, out: Path | None) -> RestorePlan:
    """Plan to restore the source of an output that is a folder.

    Weights and most other files are copied from the output, under the names that they had. Texts
    such as config.json follow from their differences in the receipt. Files that ropeconv added are
    left out, and so are those that were put into the folder later.

    Args:
        source: The output.
        out: The folder to write; None for one named after the first source.

    Raises:
        BadSource: A file is not as ropeconv wrote it.
    """
    original = original_source(source)
    receipt = original.receipt
    record = original.record
    sizes_now = {file.name: file.size for file in source.files()}
    written_sizes = {file.name: file.size for file in receipt.files}
    if len(written_sizes) != len(receipt.files):
        raise BadSource(
            f"the receipt of {source.reference} lists a file twice; use the original source,"
            f" {original.first}"
        )

    # Files that are copied from the output. `absent` are files of the source that cannot be
    # restored: the output never had them, or it has them no longer.
    files = list[PlannedFile]()
    absent = list(record.skipped)
    restored_texts = set(original.generated_texts())
    for written in receipt.files:
        name = record.renamed.get(written.name, written.name)  # the name in the source
        if written.name in record.added or name in restored_texts:
            continue
        # only the size is compared now: weights are hashed while they are copied
        has_written_size = sizes_now.get(written.name) == written.size
        is_card = written.name in (CARD, SOURCE_CARD)
        if is_card and not has_written_size:
            # people replace the card of a repository, and nothing else has that of the source
            absent.append(name)
            continue
        if not has_written_size or not safe_name(written.name):
            raise BadSource(
                f"{written.name} of {source.reference} is not as ropeconv wrote it; use the"
                f" original source, {original.first}"
            )
        make = None
        if written.sha256:
            make = partial(_copy_and_check, original, name, written.sha256)
        files.append(
            PlannedFile(
                action="copy", name=name, size=written.size, sha256=written.sha256, make=make
            )
        )

    # texts of the source that follow from the output and its receipt, such as config.json
    for name in restored_texts:
        text = original.text(name) or ""
        files.append(PlannedFile("write", name, len(text.encode()), text=text))

    return RestorePlan(
        source=original,
        out=out or _default_out(receipt.first, "-restored"),
        files=tuple(sorted(files, key=lambda file: file.name)),
        skipped=_added_later(sizes_now, written_sizes, absent),
        first=receipt.first,
        absent=tuple(absent),
    )


def _added_later(
    sizes_now: Mapping[str, int], written_sizes: Mapping[str, int], absent: Iterable[str]
) -> tuple[str, ...]:
    """Return the files of an output that were put there after ropeconv wrote it.

    Args:
        sizes_now: The size of each file that it has now.
        written_sizes: The size of each file in its receipt.
        absent: Files of the source that cannot be restored.
    """
    written_by_ropeconv = {RECEIPT, *written_sizes}
    # README.md, the card of a repository, may be one that a user has written in place of the card
    # by ropeconv. It has another size than in the receipt, and counts as added later.
    was_card_replaced = CARD in written_sizes and written_sizes[CARD] != sizes_now.get(CARD)
    if was_card_replaced:
        written_by_ropeconv.discard(CARD)

    not_added = written_by_ropeconv.union(absent)
    return tuple(name for name in sizes_now if name not in not_added)


def _default_out(first: SourceRecord, ending: str) -> Path:
    """Return the path of a restored model where the user gives none with -o.

    It is in the current folder, under the name of the first source with an ending: the source
    Qwen2.5-7B is restored into Qwen2.5-7B-restored.

    Args:
        first: The first source, as the receipt of the output records it.
        ending: Such as "-restored", so that the source itself is not replaced.

    Raises:
        BadSource: The receipt may come from anyone, and has a name that cannot be that of a file.
    """
    name = Path(first.name).name
    is_name = name not in ("", ".", "..") and name.isprintable()
    is_portable = "\\" not in name and len(name.encode()) <= LONGEST
    if not is_name or not is_portable:
        raise BadSource(
            f"the receipt names its source {shown(name)}, which is not a file name; choose one"
            " with -o"
        )
    return Path(f"{name}{ending}")


def _of_gguf(source: GgufSource, out: Path | None, in_place: bool) -> RestorePlan:
    """Plan to restore the source of a GGUF file, by the edit that undoes the runs of ropeconv.

    The receipt among the keys of the file records what each run changed. An edit says which keys
    and tensors of a file are changed, added and removed, and where its data begins.

    Args:
        source: The output.
        out: The file to write; None for one named after the first source.
        in_place: Change the GGUF file itself.

    Raises:
        UsageError: For options that do not go together.
        BadSource: The receipt does not lead back to the source.
    """
    if in_place and out is not None:
        raise UsageError("--in-place changes the GGUF file itself; leave -o out")
    if out is not None and not is_gguf(out):
        raise UsageError(f"-o {out} is not a name for GGUF; end its name in .gguf")
    file = source.file
    text = file.get(RECEIPT)
    if not isinstance(text, str):
        raise BadSource(
            f"{source.reference} has no receipt among its keys, so it is not an output of ropeconv"
        )

    # the edit that leads back to the keys and tensors before the first run of ropeconv
    receipt = parse_receipt(text, source.reference)
    edit = original_of(file, receipt, whole=True).edit
    assert receipt.original is not None
    record_of_first = receipt.original.gguf
    assert record_of_first is not None

    # A source that was a GGUF file is restored with every byte. So it must have no new keys, and
    # its header must be the recorded one. A checkpoint that was converted to GGUF was no such file.
    keys_since = keys_of_others(file, record_of_first)
    if original_was_file(record_of_first, file.header):
        if keys_since:
            raise BadSource(
                f"{keys_since[0]} was added to {file.name} after ropeconv wrote it, or its receipt"
                f" was changed; remove the key, or take the source again, {receipt.first.described}"
            )
        edit = replace(edit, layout=layout_of(record_of_first, file.header, edit))
        _check_header(source, edit, record_of_first.sha256, receipt.first.described)
    elif not in_place:
        # a new file gets a usual layout: where its data begins, and padding
        edit = replace(edit, layout=layout_of(record_of_first, file.header, edit))

    # the place and the names of the shards
    first = receipt.original.source
    if in_place:
        place = source.place_to_change()
        names = [place.name]
    else:
        place = out or _default_out(first, "-restored.gguf")
        names = shard_names(place.name, len(file.shards))
    return RestorePlan(
        source=source,
        out=place.with_name(names[0]),
        files=tuple(shard_file(source, edit, shard, name) for shard, name in enumerate(names)),
        skipped=(),
        first=first,
        kept=keys_since,
        in_place=in_place,
        edit=edit,
    )


def _check_header(source: GgufSource, edit: Edit, digest: str, first: str) -> None:
    """Check that a restored GGUF file will have the header that it had before ropeconv changed it.

    Args:
        source: The output.
        edit: The edit that restores the file: its keys, and the layout of its header (the length
            of the header in bytes, and padding), from the receipt.
        digest: The sha256 of the header that the file had; empty where the receipt does not have
            it.
        first: The file before the change in words, for the message.

    Raises:
        BadSource: The header would be another one.
    """
    if not digest:
        return
    assert edit.layout is not None
    # the restored keys, and then the bytes of the header in that layout
    restored = rewrite(source.file.header, edit)
    restored_header = restored.bytes_as_before(edit.layout)
    if hashlib.sha256(restored_header).hexdigest() != digest:
        raise BadSource(
            f"keys of {source.file.name} were changed after ropeconv wrote it, or its receipt was,"
            f" so that its source would not be what it was; take the source again, {first}"
        )


def _copy_and_check(
    first: OriginalSource, name: str, digest: str, target: Path, advance: Callable[[int], None]
) -> None:
    """Copy a file whose sha256 is in the receipt. Raises BadSource where it was changed."""
    copy_file(first.path(name), target, advance)
    if sha256(target) != digest:
        raise BadSource(
            f"{name} of {first.reference} was changed after ropeconv wrote it; use the original"
            f" source, {first.first}"
        )
