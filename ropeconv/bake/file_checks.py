"""Compares the files of an output, a folder or a GGUF model, with those of its plan."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..convert.to_gguf.write import output_blocks
from ..errors import BadSource
from ..formats.disk import Advance, sha256
from ..formats.files import LONGEST, read_bytes, scratch
from ..formats.gguf.edit import RESERVED, Change, RewrittenHeader, rewrite
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import GgufHeader, GgufValue, TensorInfo
from ..formats.gguf.header import read_header as read_gguf
from ..formats.jsontext import JsonObject
from ..formats.safetensors import read_header
from ..loader import CODE
from ..models.source import OTHER_WEIGHTS, RECEIPT
from ..rope.errors import counted, shown
from ..runtimes.llamacpp.read_header import ROPE_TENSORS
from .checkpoint import SHARD, CheckpointPlan
from .findings import (
    CopiedRange,
    Findings,
    GeneratedRange,
    Range,
    StreamedRange,
    first_difference,
    folded_ranges,
    tensor_at,
)
from .gguf import ExportPlan, GgufPlan
from .plan import GgufOutput, PlannedFile

WITHOUT_EFFECT = ("_name_or_path", "transformers_version", "_commit_hash")
"""Keys that no runtime computes with."""
OF_CODE = ("auto_map", "architectures", "model_type")
"""Keys that name the code of a model."""


def json_differences(text: str, planned: str) -> list[tuple[str, str]] | None:
    """Return the keys in which two JSON objects differ, as (key, clause); None where one of them is
    not a JSON object.

    Nested keys are joined by points.
    """
    try:
        ours, theirs = (json.loads(data, object_pairs_hook=_unique) for data in (text, planned))
    except (ValueError, RecursionError):
        return None
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return None
    return list(_differences(ours, theirs, ""))


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    """A JSON object. Raises ValueError for a repeated key, of which readers use the first or the
    last value.
    """
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("repeated key")
    return data


def _differences(ours: JsonObject, theirs: JsonObject, prefix: str) -> Iterator[tuple[str, str]]:
    for key in dict.fromkeys((*theirs, *ours)):
        name = f"{prefix}{key}"
        if key not in ours:
            yield name, f"has no {name}, which is {shown(theirs[key])} there"
        elif key not in theirs:
            yield name, f"has {name} = {shown(ours[key])}, which is not there"
        elif isinstance(ours[key], dict) and isinstance(theirs[key], dict):
            yield from _differences(ours[key], theirs[key], f"{name}.")
        elif type(ours[key]) is not type(theirs[key]) or ours[key] != theirs[key]:
            yield name, f"has {name} = {shown(ours[key])}, where {shown(theirs[key])} belongs"


DOCUMENTS = (
    "*.md",
    "*.rst",
    "*.html",
    "*.pdf",
    "*.png",
    "*.jpg",
    "*.jpeg",
    "*.gif",
    "*.svg",
    "*.webp",
    "citation.cff",
    "requirements.txt",
)
"""Names of files for people, which no runtime loads."""
LEGAL = re.compile(
    r"(authors|copying|licen[cs]e|notice|readme|use_policy)([-_ ]\w+)*(\.\d+)*(\.txt)?", re.ASCII
)
"""Names of files on rights: LICENSE, LICENSE-MODEL.txt, NOTICE-2.0."""


def is_document(name: str) -> bool:
    """Return whether a file is for people, and no runtime loads it.

    The list is closed: a runtime of tomorrow, and a loader of a tokenizer, read files of any other
    name.
    """
    plain = Path(name).name.lower()  # some filesystems ignore case
    if any(fnmatch(plain, pattern) for pattern in DOCUMENTS):
        return True
    return LEGAL.fullmatch(plain) is not None


def is_code(name: str) -> bool:
    """Return whether Python may import a file."""
    return name.lower().endswith(CODE)


def files_of(folder: Path) -> Iterator[str]:
    """Yield the names of all files of a folder that are not hidden, also those behind links to
    folders.
    """
    visited: set[str] = set()
    for place, subfolders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:
            subfolders.clear()
            continue
        visited.add(real)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from (
            Path(place, name).relative_to(folder).as_posix()
            for name in names
            if not name.startswith(".")
        )


WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class FolderCheck:
    """The comparison of a folder with its plan, which was made again.

    advance: called with the bytes of weights that were compared since the last call.
    """

    folder: Path
    plan: CheckpointPlan
    findings: Findings
    advance: Advance

    def run(self) -> None:
        """Compare every file of the plan, and search for others."""
        for file in self.plan.files:
            path = self.folder / file.name
            self.findings.files += 1
            if not path.is_file():
                self.findings.differs(f"it has no {file.name}", harmless=is_document(file.name))
            elif file.text is not None:
                self._text(file.name, path, file.text.encode())
            elif file.name.endswith(WEIGHTS) or any(
                fnmatch(file.name, pattern) for pattern in OTHER_WEIGHTS
            ):
                self._weights(file, path)
            elif (
                file.sha256 is None
                or path.stat().st_size != file.size
                or sha256(path) != file.sha256
            ):
                self._other(file, path)
        for name in sorted(
            set(files_of(self.folder)) - {RECEIPT, *(file.name for file in self.plan.files)}
        ):
            harmless = is_document(name) or (is_code(name) and self.findings.options.code)
            words = f"{name} is not among the files that ropeconv wrote"
            if not harmless:
                words += " (a runtime may load it: move it out of the folder)"
            self.findings.differs(words, harmless=harmless)

    def _text(self, name: str, path: Path, planned: bytes | None) -> None:
        """Compare a file with its text, None for one that is too long to be read: by keys where
        both are JSON.
        """
        options, differences = self.findings.options, None
        if planned is not None and path.stat().st_size <= LONGEST:
            content = read_bytes(path, name)
            if content == planned:
                return
            with suppress(UnicodeDecodeError):
                differences = (
                    json_differences(content.decode(), planned.decode())
                    if name.endswith(".json")
                    else None
                )
        if differences is None:
            harmless = is_document(name) or (is_code(name) and options.code)
            self.findings.differs(f"{name} has other contents", harmless=harmless)
        elif not differences:
            self.findings.differs(
                f"{name} has the same values in another layout", harmless=options.edited
            )
        for key, clause in differences or ():
            of_code = options.code and name == "config.json" and key.split(".")[0] in OF_CODE
            harmless = of_code or (options.edited and key in WITHOUT_EFFECT)
            self.findings.differs(f"{name} {clause}", harmless=harmless)

    def _other(self, file: PlannedFile, path: Path) -> None:
        """Compare a file that is neither a text of the plan nor weights: a copied one, a tokenizer,
        the README.md.
        """
        with scratch() as folder:
            planned = self._planned(file, folder)
            size = planned.stat().st_size
            if (
                path.stat().st_size != size
                or first_difference(path, [CopiedRange(0, size, planned, 0)]) is not None
            ):
                self._text(
                    file.name, path, read_bytes(planned, file.name) if size <= LONGEST else None
                )

    def _weights(self, file: PlannedFile, path: Path) -> None:
        size = path.stat().st_size
        options = self.findings.options
        if size != file.size:
            return self.findings.differs(
                f"{file.name} has {size:,} bytes, and {file.size:,} belong there"
            )
        if options.quick and file.name != SHARD:  # that of stored frequencies is small
            return self._quick(file, path)
        self.findings.bytes += 0 if options.quick else size
        if file.action == "copy" and file.sha256 is not None:
            same = sha256(path) == file.sha256
            self.advance(size)
            return None if same else self.findings.differs(f"{file.name} has other contents")
        streams = {item.name: item.stream for item in self.plan.source.generated_files()}
        with scratch() as folder:
            if folded := self._folded(file):
                ranges = folded
            elif (
                file.action != "copy"
                and (stream := streams.get(file.origin or file.name)) is not None
            ):
                ranges = [StreamedRange(0, file.size, stream)]
            else:
                ranges = [CopiedRange(0, file.size, self._planned(file, folder), 0)]
            return self._differs_from(file.name, path, first_difference(path, ranges, self.advance))

    def _quick(self, file: PlannedFile, path: Path) -> None:
        """Compare the header of a copied shard, and the tensors that a fold changes."""
        if folded := self._folded(file):
            changed = [
                part for part in folded if isinstance(part, GeneratedRange) and part.multiplied
            ]
            self._differs_from(file.name, path, first_difference(path, changed, whole=False))
        elif file.action == "copy" and file.name.endswith(WEIGHTS):
            planned = self.plan.source.headers.get(file.origin or file.name)
            header = read_header(path)
            if planned is not None and (
                header != planned or list(header.tensors) != list(planned.tensors)
            ):
                self.findings.differs(f"{file.name} has another header")

    def _folded(self, file: PlannedFile) -> list[Range]:
        """The ranges of a shard with factors in its weights; none for other files."""
        fold = self.plan.result.fold
        return (
            folded_ranges(self.plan.source, file.name, fold)
            if fold and file.action == "patch"
            else []
        )

    def _planned(self, file: PlannedFile, folder: Path) -> Path:
        """The file that a planned one is copied from, or one that is made again in a folder."""
        planned = self.plan.origin(file) or folder / "made"
        if file.make is not None:
            file.make(folder / "made", lambda done: None)
        return planned

    def _differs_from(self, name: str, path: Path, place: int | None) -> None:
        """Record the first byte of a file of weights that differs, and the tensor there; None for
        no difference.
        """
        if place is None:
            return
        try:
            where = tensor_at(path, place) if name.endswith(WEIGHTS) else "something"
        except BadSource:
            where = "the header"
        self.findings.differs(f"{where} of {name} differs from byte {place:,} on")


LONGEST_VALUE = 1000  # bytes of a value that a message shows
SMALL = 1 << 16  # bytes of a tensor that is compared in any case
QUANTISER = (
    "general.file_type",
    "general.quantization_version",
)  # keys that llama.cpp's quantiser writes
DESCRIPTIVE = "general."
EFFECTIVE = (
    "general.architecture",
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "general.sampling.",
)
"""Beginnings of keys of the general part that something is computed with; the others describe a
model to people.

llama.cpp takes its defaults of sampling from `general.sampling.*`:
https://github.com/ggml-org/llama.cpp/pull/17120
"""


@dataclass(frozen=True)
class GgufCheck:
    """The comparison of a GGUF model with a plan, which was made again.

    elsewhere: whether the source is given from another place than when the output was made, so that
    descriptions may differ. advance: called with the bytes of tensors that were compared since the
    last call.
    """

    file: GgufFile
    plan: GgufOutput
    findings: Findings
    elsewhere: bool
    advance: Advance

    def run(self) -> None:
        """Compare every shard; a conversion that llama.cpp has quantised is made again, or with
        `quick` in part.
        """
        plan = self.plan
        if isinstance(plan, ExportPlan):
            planned = rewrite(plan.exported.model.header, plan.edit)
            if not plan.exported.quantised:
                return self._first(planned, 0)
            return (
                self._quantised(plan, planned)
                if self.findings.options.quick
                else self._remade(plan)
            )
        assert isinstance(plan, GgufPlan)
        source = plan.source.file
        self._first(rewrite(source.header, plan.edit), _tail(source.header))
        if len(source.shards) != len(self.file.shards):
            shards = counted(len(self.file.shards), "shard")
            belong = counted(len(source.shards), "belongs", "belong")
            return self.findings.differs(f"it has {shards}, and {belong} there")
        for number in range(1, len(source.shards)):
            self._other(source, number)
        return None

    def _remade(self, plan: ExportPlan) -> None:
        with scratch() as folder:
            remade = folder / plan.out.name
            write = plan.files[0].make
            assert write is not None
            write(remade, lambda done: None)
            header = read_gguf(remade)
            planned = RewrittenHeader(
                header.values, header.tensors, header.alignment, header.data_size
            )
            start = self.file.header.data_start
            data = CopiedRange(start, start + header.data_size, remade, header.data_start)
            self._first(planned, _tail(header), data)

    def _first(
        self, planned: RewrittenHeader, tail: int, remade: CopiedRange | None = None
    ) -> None:
        """Compare a first shard. tail: bytes after the last tensor. remade: the data of one that
        was made again.
        """
        ours = self.file.header
        path = self.file.path
        options = self.findings.options
        self.findings.files += 1
        clauses = list(unlike_keys(ours, planned))
        self._keys(clauses)
        if ours.tensors != planned.tensors or list(ours.tensors) != list(planned.tensors):
            return self.findings.differs(_unlike_tensors(ours.tensors, planned.tensors))
        if not clauses and remade is None and not _laid_out(path, ours, planned):
            self.findings.differs("its header has another layout", harmless=options.edited)
        end = ours.data_start + planned.data_size
        if ours.size - end not in (0, tail):
            return self.findings.differs(f"it has {ours.size - end:,} bytes after its last tensor")
        if options.quick:
            return self._small(path, ours.tensors, ours.data_start, 0)
        head = CopiedRange(0, ours.data_start, path, 0)  # compared above
        data = [remade] if remade is not None else self._data(planned.tensors, ours.data_start, 0)
        return self._compare(path, ours, [head, *data])

    def _quantised(self, plan: ExportPlan, planned: RewrittenHeader) -> None:
        """Compare the fixed parts of a file that llama.cpp has quantised: keys, shapes, and tensors
        in F32.
        """
        ours = self.file.header
        self.findings.files += 1
        self._keys(
            [
                (key, clause)
                for key, clause in unlike_keys(ours, planned)
                if key and key not in QUANTISER
            ]
        )
        shapes, planned_shapes = (
            {name: info.shape for name, info in of.tensors.items()} for of in (ours, planned)
        )
        if shapes != planned_shapes:
            name = next(
                name
                for name in (*planned_shapes, *shapes)
                if planned_shapes.get(name) != shapes.get(name)
            )
            return self.findings.differs(f"its tensor {name} is not there or has another shape")
        same = {
            name: info
            for name, info in ours.tensors.items()
            if info.type == planned.tensors[name].type
        }
        self._small(self.file.path, same, ours.data_start, 0)
        outtype = plan.exported.outtype
        return self.findings.unverified.append(
            f"to compare the types of tensors, {outtype} must be made again"
        )

    def _keys(self, clauses: Iterable[tuple[str, str]]) -> None:
        for key, clause in clauses:
            described = key.startswith(DESCRIPTIVE) and not key.startswith(EFFECTIVE)
            self.findings.differs(
                clause, harmless=described and (self.findings.options.edited or self.elsewhere)
            )

    def _small(self, path: Path, tensors: Mapping[str, TensorInfo], start: int, shard: int) -> None:
        """Compare the tensors of a shard that hold the schedule, some hundred bytes each, for
        `quick` too.
        """
        changed = {*self.plan.edit.changes, *self.plan.edit.added}
        for name, info in tensors.items():
            if name in ROPE_TENSORS or (name in changed and info.size <= SMALL):
                place = first_difference(path, self._data({name: info}, start, shard), whole=False)
                if place is not None:
                    self.findings.differs(f"{name} of {path.name} differs from byte {place:,} on")

    def _other(self, source: GgufFile, number: int) -> None:
        path = self.file.paths[number]
        before = source.headers[number]
        header = self.file.headers[number]
        self.findings.files += 1
        if (header.values, header.tensors, header.size) != (
            before.values,
            before.tensors,
            before.size,
        ):
            return self.findings.differs(f"{path.name} has another header")
        if self.findings.options.quick:
            return self._small(path, header.tensors, header.data_start, number)
        head = CopiedRange(0, before.data_start, source.shards[number].path(), 0)
        return self._compare(
            path, header, [head, *self._data(before.tensors, before.data_start, number)]
        )

    def _compare(self, path: Path, header: GgufHeader, ranges: list[Range]) -> None:
        self.findings.bytes += header.size - header.data_start
        place = first_difference(path, ranges, self.advance)
        if place is not None:
            at = place - header.data_start
            name = next(
                (i.name for i in header.tensors.values() if i.offset <= at < i.offset + i.size),
                "padding",
            )
            self.findings.differs(f"{name} of {path.name} differs from byte {place:,} on")

    def _data(self, tensors: Mapping[str, TensorInfo], start: int, shard: int) -> list[Range]:
        """The ranges of tensors of a shard, whose data begins at `start`, in their order."""
        plan = self.plan
        ranges = list[Range]()
        added = plan.edit.added if shard == 0 else {}
        for name in added.keys() & tensors.keys():
            at = start + tensors[name].offset
            ranges.append(StreamedRange(at, at + tensors[name].size, partial(iter, (added[name],))))
        others = {name: info for name, info in tensors.items() if name not in added}
        if isinstance(plan, ExportPlan):
            ranges += _converted(plan, others, start)
        elif isinstance(plan, GgufPlan):
            ranges += _edited(plan, others, start, shard)
        return sorted(ranges, key=lambda part: part.start)


def _tail(header: GgufHeader) -> int:
    """The number of bytes of a file after its last tensor."""
    return header.size - header.data_start - header.data_size


def _edited(
    plan: GgufPlan, tensors: Mapping[str, TensorInfo], start: int, shard: int
) -> Iterator[Range]:
    """The ranges of tensors of a shard of an edited file, without added ones."""
    edit, file = plan.edit, plan.source.file
    header = file.headers[shard]
    path = file.shards[shard].path()

    def changed(change: Change, place: int, at: int, size: int) -> bytes:
        with path.open("rb") as reader:
            reader.seek(place + at)
            return change.whole(reader.read(size))

    infos = list(tensors.values())
    for info, following in zip_longest(infos, infos[1:]):
        at = start + info.offset
        stop = start + info.offset + info.size
        old = header.tensors[info.name]
        change = edit.changes.get(info.name)
        place = header.data_start + old.offset
        if change is None or (info.name in edit.removed and shard == 0):
            yield CopiedRange(at, stop, path, place)
        else:
            yield GeneratedRange(at, stop, partial(changed, change, place), change.unit)
        if following is not None:
            gap = following.offset - info.offset - info.size
            here = header.tensors[following.name]
            if (
                gap and here.offset - old.offset == following.offset - info.offset
            ):  # copied with its padding
                yield CopiedRange(stop, stop + gap, path, place + info.size)


def _converted(plan: ExportPlan, tensors: Mapping[str, TensorInfo], start: int) -> Iterator[Range]:
    """The ranges of tensors of a conversion, without added ones."""
    sources = {tensor.name: tensor for tensor in plan.exported.tensors}

    def chunks(name: str) -> Iterator[bytes]:
        change = plan.edit.changes.get(name)
        if change is None:
            yield from output_blocks(sources[name])
        else:
            yield change.whole(b"".join(output_blocks(sources[name])))

    for info in tensors.values():
        at = start + info.offset
        yield StreamedRange(at, at + info.size, partial(chunks, info.name))


def unlike_keys(ours: GgufHeader, planned: RewrittenHeader) -> Iterator[tuple[str, str]]:
    """Yield (key, clause) for keys that are not those of the plan, except for the receipt and the
    reserve.
    """
    mine, theirs = (
        {key: value for key, value in of.values.items() if key not in (RECEIPT, RESERVED)}
        for of in (ours, planned)
    )
    for key in dict.fromkeys((*theirs, *mine)):
        if key not in mine:
            yield key, f"it has no {key}"
        elif key not in theirs:
            yield key, f"it has {key} = {_shown(mine[key])}, which is not there"
        elif mine[key] != theirs[key]:
            yield key, f"it has {key} = {_shown(mine[key])}, where {_shown(theirs[key])} belongs"
    if list(mine) != list(theirs) and mine.keys() == theirs.keys():
        yield "", "its keys are in another order"
    if ours.alignment != planned.alignment:
        yield "", f"its alignment is {ours.alignment}, where {planned.alignment} belongs"


def _unlike_tensors(ours: Mapping[str, TensorInfo], planned: Mapping[str, TensorInfo]) -> str:
    for name in dict.fromkeys((*planned, *ours)):
        if name not in ours:
            return f"it has no tensor {name}"
        if name not in planned:
            return f"it has a tensor {name}, which is not there"
        if ours[name] != planned[name]:
            return f"its tensor {name} has another shape, type or place"
    return "its tensors are in another order"


def _laid_out(path: Path, ours: GgufHeader, planned: RewrittenHeader) -> bool:
    """Whether the bytes of a header are those that ropeconv writes for its keys."""
    values = {
        key: ours.values[key] if key == RECEIPT else value for key, value in planned.values.items()
    }
    values.pop(RESERVED, None)
    expected = RewrittenHeader(values, planned.tensors, planned.alignment, planned.kept).layout(
        ours.data_start
    )
    with path.open("rb") as file:
        return file.read(ours.data_start) == expected


def _shown(value: GgufValue) -> str:
    return shown(value.decode()) if len(value.raw) < LONGEST_VALUE else f"{len(value.raw):,} bytes"
