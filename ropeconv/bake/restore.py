"""Restores the first source of an output from its receipt: RoPE, context, tokenizer length, names
of files.
"""

import hashlib
from collections.abc import Callable
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
from ..inspection.receipts.gguf import earlier, layout_of, was_written
from ..inspection.receipts.receipt import SourceRecord
from ..inspection.receipts.storage import parse_receipt
from ..models.gguf import GgufSource
from ..models.source import CARD, RECEIPT, SOURCE_CARD, Source
from ..rope.errors import shown
from .apply import change_in_place
from .execution import ApplyOptions, execute_plan
from .gguf import shard_file
from .plan import FilePlan, PlannedFile

LONGEST = 200  # bytes of a file name without its ending; filesystems have 255


@dataclass(frozen=True)
class RestorePlan(FilePlan):
    """The files of the first source of an output.

    skipped: files that are not from the first source. first: that source. absent: names of its
    files that the output never had. in_place: whether `source` itself is changed.
    """

    source: OriginalSource | GgufSource
    first: SourceRecord
    absent: tuple[str, ...] = ()
    in_place: bool = False
    edit: Edit | None = None

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
) -> Path:
    """Write the restored source of a plan, and return its path.

    force, fsync: as in `ApplyOptions`. Raises RopeconvError where it cannot be written, BadSource
    where a file was changed; nothing is kept then.
    """
    if plan.in_place and isinstance(plan.source, GgufSource) and plan.edit is not None:
        return change_in_place(plan.source, plan.edit)
    return execute_plan(plan, ApplyOptions(force=force, fsync=fsync), advance=advance)


def _of_folder(source: Source, out: Path | None) -> RestorePlan:
    first = original_source(source)
    sizes = {file.name: file.size for file in source.files()}
    record = first.record
    receipt = first.receipt
    source_name = first.first
    texts = set(first.generated_texts())
    files = list[PlannedFile]()
    absent = list(record.skipped)
    written = {file.name: file.size for file in receipt.files}
    if len(written) != len(receipt.files):
        raise BadSource(
            f"the receipt of {source.reference} lists a file twice; use the original source,"
            f" {source_name}"
        )
    for known in receipt.files:
        name = record.renamed.get(known.name, known.name)
        if known.name in record.added or name in texts:
            continue
        if known.name in (CARD, SOURCE_CARD) and sizes.get(known.name) != known.size:
            absent.append(
                name
            )  # as in a repository, which has a card of its own, and that of the source nowhere
            continue
        if sizes.get(known.name) != known.size or not safe_name(known.name):
            raise BadSource(
                f"{known.name} of {source.reference} is not as ropeconv wrote it; use the original"
                f" source, {source_name}"
            )
        make = partial(_checked_copy, first, name, known.sha256) if known.sha256 else None
        files.append(PlannedFile("copy", name, known.size, known.sha256, make=make))
    for name in texts:
        text = first.text(name) or ""
        files.append(PlannedFile("write", name, len(text.encode()), text=text))
    known_names = {
        RECEIPT,
        *(name for name, size in written.items() if name != CARD or size == sizes.get(CARD)),
    }
    return RestorePlan(
        source=first,
        out=out or _default_out(receipt.first, "-restored"),
        files=tuple(sorted(files, key=lambda file: file.name)),
        skipped=tuple(name for name in sizes if name not in {*known_names, *absent}),
        first=receipt.first,
        absent=tuple(absent),
    )


def _default_out(first: SourceRecord, ending: str) -> Path:
    name = Path(first.name).name
    if (
        name in ("", ".", "..")
        or "\\" in name
        or not name.isprintable()
        or len(name.encode()) > LONGEST
    ):
        raise BadSource(
            f"the receipt names its source {shown(name)}, which is not a file name; choose one"
            " with -o"
        )
    return Path(f"{name}{ending}")


def _of_gguf(source: GgufSource, out: Path | None, in_place: bool) -> RestorePlan:
    if in_place and out is not None:
        raise UsageError("--in-place changes the GGUF file itself; leave -o out")
    if out is not None and not is_gguf(out):
        raise UsageError(f"-o {out} is not a name for GGUF; end its name in .gguf")
    file = source.file
    text = source.file.get(RECEIPT)
    if not isinstance(text, str):
        raise BadSource(
            f"{source.reference} has no receipt among its keys, so it is not an output of ropeconv"
        )
    receipt = parse_receipt(text, source.reference)
    edit = earlier(file, receipt, whole=True).edit
    assert receipt.original is not None
    record = receipt.original.gguf
    assert record is not None
    written = was_written(record, file.header)  # else its unscaled header was never anywhere
    if written or not in_place:
        layout = layout_of(record, file.header, edit)
        edit = replace(edit, layout=layout)
        if written and record.sha256 not in (
            "",
            hashlib.sha256(rewrite(file.header, edit).exact(layout)).hexdigest(),
        ):
            raise BadSource(
                f"keys of {file.name} were changed after ropeconv wrote it, or its receipt was, so"
                " that its source would not be what it was; take the source again,"
                f" {receipt.first.described}"
            )
    first = receipt.original.source
    place = source.place_to_change() if in_place else out or _default_out(first, "-restored.gguf")
    names = [place.name] if in_place else shard_names(place.name, len(file.shards))
    return RestorePlan(
        source=source,
        out=place.with_name(names[0]),
        files=tuple(shard_file(source, edit, shard, name) for shard, name in enumerate(names)),
        skipped=(),
        first=first,
        in_place=in_place,
        edit=edit,
    )


def _checked_copy(
    first: OriginalSource, name: str, digest: str, target: Path, advance: Callable[[int], None]
) -> None:
    """Copy a file whose sha256 is in the receipt. Raises BadSource where it was changed."""
    copy_file(first.path(name), target, advance)
    if sha256(target) != digest:
        raise BadSource(
            f"{name} of {first.reference} was changed after ropeconv wrote it; use the original"
            f" source, {first.first}"
        )
