"""Compares a GGUF file, or its shards, with those of its plan: keys, tensors, and every byte of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...convert.to_gguf.write import converted
from ...formats.disk import Advance
from ...formats.files import scratch
from ...formats.gguf.edit import RESERVED, Change, RewrittenHeader, rewrite
from ...formats.gguf.file import GgufFile
from ...formats.gguf.header import GgufHeader, TensorInfo, read_header
from ...formats.gguf.values import GgufValue
from ...models.source import RECEIPT
from ...rope.errors import counted, shown
from ...runtimes.llamacpp.read_header import ROPE_TENSORS
from ..gguf import ExportPlan, GgufPlan
from ..plan import GgufOutput
from .findings import Findings
from .ranges import CopiedRange, GeneratedRange, Range, StreamedRange, first_difference

LONGEST = 1000  # bytes of a value that a message shows
SMALL = 1 << 16  # bytes of a tensor that is compared in any case
QUANTISER = ("general.file_type", "general.quantization_version")  # keys that llama.cpp's quantiser writes
DESCRIPTIVE = "general."
EFFECTIVE = (
    "general.architecture", "general.alignment", "general.file_type", "general.quantization_version",
    "general.sampling.",
)  # fmt: skip
"""Beginnings of keys of the general part that something is computed with; the others describe a model to people.

llama.cpp takes its defaults of sampling from `general.sampling.*`: https://github.com/ggml-org/llama.cpp/pull/17120
"""


@dataclass(frozen=True)
class GgufCheck:
    """The comparison of a GGUF model with a plan, which was made again.

    elsewhere: whether the source is given from another place than when the output was made, so that descriptions may
    differ. advance: called with the bytes of tensors that were compared since the last call.
    """

    file: GgufFile
    plan: GgufOutput
    findings: Findings
    elsewhere: bool
    advance: Advance

    def run(self) -> None:
        """Compare every shard."""
        plan = self.plan
        if isinstance(plan, ExportPlan):
            return self._conversion(plan)
        assert isinstance(plan, GgufPlan)
        source = plan.source.file
        planned = rewrite(source.header, plan.edit)
        self._first(planned, True, partial(_edited, plan, 0, planned.tensors), _tail(source.header))
        if len(source.shards) != len(self.file.shards):
            shards = counted(len(self.file.shards), "shard")
            belong = counted(len(source.shards), "belongs", "belong")
            return self.findings.differs(f"it has {shards}, and {belong} there")
        for number in range(1, len(source.shards)):
            self._other(plan, number)
        return None

    def _conversion(self, plan: ExportPlan) -> None:
        """Compare a conversion; one that llama.cpp has quantised is made again, or with `quick` compared in part."""
        if not plan.exported.quantised:
            planned = rewrite(plan.exported.model.header, plan.edit)
            return self._first(planned, True, partial(_converted, plan, planned.tensors), 0)
        if self.findings.options.quick:
            return self._quantised(plan)
        with scratch() as folder:
            remade, write = folder / plan.out.name, plan.files[0].make
            assert write is not None
            write(remade, lambda done: None)
            header = read_header(remade)
            planned = RewrittenHeader(header.values, header.tensors, header.alignment, header.data_size)

            def data(start: int) -> Iterator[Range]:
                yield CopiedRange(start, start + header.data_size, remade, header.data_start)

            return self._first(planned, False, data, _tail(header))

    def _first(self, planned: RewrittenHeader, exact: bool, ranges_at: RangesAt, tail: int) -> None:
        ours, path = self.file.header, self.file.path
        self.findings.files += 1
        clauses = list(_unlike_keys(ours, planned))
        self._keys(clauses)
        if ours.tensors != planned.tensors or list(ours.tensors) != list(planned.tensors):
            return self.findings.differs(_unlike_tensors(ours.tensors, planned.tensors))
        if not clauses and exact and not _laid_out(path, ours, planned):
            self.findings.differs("its header has another layout", harmless=self.findings.options.edited)
        end = ours.data_start + planned.data_size
        if ours.size - end not in (0, tail):
            return self.findings.differs(f"it has {ours.size - end:,} bytes after its last tensor")
        if not self.findings.options.quick:
            head = CopiedRange(0, ours.data_start, path, 0)  # compared above
            return self._compare(path, ours, [head, *ranges_at(ours.data_start)])
        return self._small(path, ours.tensors, ours.data_start, 0)

    def _quantised(self, plan: ExportPlan) -> None:
        """Compare the fixed parts of a file that llama.cpp has quantised: keys, shapes, and tensors in F32."""
        ours, planned = self.file.header, rewrite(plan.exported.model.header, plan.edit)
        self.findings.files += 1
        self._keys([(key, what) for key, what in _unlike_keys(ours, planned) if key and key not in QUANTISER])
        shapes, planned_shapes = ({name: info.shape for name, info in of.tensors.items()} for of in (ours, planned))
        if shapes != planned_shapes:
            name = next(name for name in (*planned_shapes, *shapes) if planned_shapes.get(name) != shapes.get(name))
            return self.findings.differs(f"its tensor {name} is not there or has another shape")
        same = {name: info for name, info in ours.tensors.items() if info.type == planned.tensors[name].type}
        self._small(self.file.path, same, ours.data_start, 0)
        outtype = plan.exported.outtype
        return self.findings.unverified.append(f"to compare the types of tensors, {outtype} must be made again")

    def _keys(self, clauses: Iterable[tuple[str, str]]) -> None:
        for key, what in clauses:
            described = key.startswith(DESCRIPTIVE) and not key.startswith(EFFECTIVE)
            self.findings.differs(what, harmless=described and (self.findings.options.edited or self.elsewhere))

    def _small(self, path: Path, tensors: Mapping[str, TensorInfo], start: int, shard: int) -> None:
        """Compare the tensors of a shard that hold the schedule, some hundred bytes each, for `quick` too."""
        plan = self.plan
        changed = {*plan.edit.changes, *(item.name for item in plan.edit.added)}
        for name, info in tensors.items():
            if name in ROPE_TENSORS or (name in changed and info.size <= SMALL):
                if isinstance(plan, ExportPlan):
                    ranges = _converted(plan, {name: info}, start)
                else:
                    assert isinstance(plan, GgufPlan)
                    ranges = _edited(plan, shard, {name: info}, start)
                place = first_difference(path, list(ranges), whole=False)
                if place is not None:
                    self.findings.differs(f"{name} of {path.name} differs from byte {place:,} on")

    def _other(self, plan: GgufPlan, number: int) -> None:
        source, path = plan.source.file, self.file.paths[number]
        self.findings.files += 1
        before, header = source.headers[number], self.file.headers[number]
        if (header.values, header.tensors, header.size) != (before.values, before.tensors, before.size):
            return self.findings.differs(f"{path.name} has another header")
        if not self.findings.options.quick:
            head = CopiedRange(0, before.data_start, source.shards[number].path(), 0)
            data = list(_edited(plan, number, before.tensors, before.data_start))
            return self._compare(path, header, [head, *data])
        return self._small(path, header.tensors, header.data_start, number)

    def _compare(self, path: Path, header: GgufHeader, ranges: list[Range]) -> None:
        self.findings.bytes += header.size - header.data_start
        place = first_difference(path, ranges, self.advance)
        if place is not None:
            at = place - header.data_start
            name = next((i.name for i in header.tensors.values() if i.offset <= at < i.offset + i.size), "padding")
            self.findings.differs(f"{name} of {path.name} differs from byte {place:,} on")


RangesAt = Callable[[int], Iterator[Range]]
"""Makes the ranges of the data of a first shard, from the place where its data begins."""


def _tail(header: GgufHeader) -> int:
    """The number of bytes of a file after its last tensor."""
    return header.size - header.data_start - header.data_size


def _edited(plan: GgufPlan, shard: int, tensors: Mapping[str, TensorInfo], start: int) -> Iterator[Range]:
    """The ranges of tensors of a shard of an edited file, whose data begins at `start`."""
    edit, file = plan.edit, plan.source.file
    header, path = file.headers[shard], file.shards[shard].path()
    added = {item.name: item for item in edit.added} if shard == 0 else {}
    infos = list(tensors.values())
    for info, following in zip(infos, [*infos[1:], None], strict=True):
        at, stop = start + info.offset, start + info.offset + info.size
        if info.name in added:
            yield StreamedRange(at, stop, partial(iter, (added[info.name].data,)))
            continue
        old, change = header.tensors[info.name], edit.changes.get(info.name)
        place = header.data_start + old.offset
        if change is None or (info.name in edit.removed and shard == 0):
            yield CopiedRange(at, stop, path, place)
        else:
            yield _changed(at, stop, path, place, change)
        if following is not None and following.name not in added:
            gap, here = following.offset - info.offset - info.size, header.tensors[following.name]
            if gap and here.offset - old.offset == following.offset - info.offset:  # copied with its padding
                yield CopiedRange(stop, stop + gap, path, place + info.size)


def _changed(at: int, stop: int, path: Path, place: int, change: Change) -> GeneratedRange:
    def make(start: int, size: int) -> bytes:
        with path.open("rb") as file:
            file.seek(place + start)
            return change.whole(file.read(size))

    return GeneratedRange(at, stop, make, change.unit)


def _converted(plan: ExportPlan, tensors: Mapping[str, TensorInfo], start: int) -> Iterator[Range]:
    """The ranges of tensors of a conversion, whose data begins at `start`."""
    added, sources = {item.name: item for item in plan.edit.added}, {one.name: one for one in plan.exported.tensors}
    for info in tensors.values():
        at, stop = start + info.offset, start + info.offset + info.size
        if info.name in added:
            yield StreamedRange(at, stop, partial(iter, (added[info.name].data,)))
            continue

        def chunks(name: str = info.name) -> Iterator[bytes]:
            change = plan.edit.changes.get(name)
            if change is None:
                yield from converted(sources[name])
            else:
                yield change.whole(b"".join(converted(sources[name])))

        yield StreamedRange(at, stop, chunks)


def _unlike_keys(ours: GgufHeader, planned: RewrittenHeader) -> Iterator[tuple[str, str]]:
    """Yield (key, clause) for keys that are not those of the plan, except for the receipt and the reserve."""
    mine, theirs = _comparable(ours.values), _comparable(planned.values)
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


def _comparable(values: Mapping[str, GgufValue]) -> dict[str, GgufValue]:
    return {key: value for key, value in values.items() if key not in (RECEIPT, RESERVED)}


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
    values = {key: ours.values[key] if key == RECEIPT else value for key, value in planned.values.items()}
    values.pop(RESERVED, None)
    expected = RewrittenHeader(values, planned.tensors, planned.alignment, planned.kept).layout(ours.data_start)
    with path.open("rb") as file:
        return file.read(ours.data_start) == expected


def _shown(value: GgufValue) -> str:
    return shown(value.decode()) if len(value.raw) < LONGEST else f"{len(value.raw):,} bytes"
