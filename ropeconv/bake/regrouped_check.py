"""Compares a GGUF model with its plan where the tensors are in other shards than in the plan.

The profiles of a GGUF file have their rope tensors in a shard of their own, and `llama-gguf-split`
splits and merges files. llama.cpp computes the same from all of them: it reads the keys of the
first shard, and the tensors of all shards by their names.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from ..formats.files import scratch
from ..formats.gguf.edit import RESERVED, SPLIT, RewrittenHeader, rewrite
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import ALIGNMENT, GgufHeader, TensorInfo
from ..inspection.receipts.receipt import Receipt
from ..runtimes.llamacpp.read_header import ROPE_TENSORS
from .file_checks import KEYS_OF_QUANTISER, SMALL, GgufCheck, change_piece, unlike_keys
from .findings import CopiedRange, GeneratedRange, Range, StreamedRange, first_difference
from .gguf import ExportPlan, GgufPlan
from .plan import GgufOutput

Value = TypeVar("Value")


def is_regrouped(file: GgufFile, plan: GgufOutput) -> bool:
    """Return whether a model was split or merged since it was planned, as by llama-gguf-split.

    It then has another number of shards, or the same tensors in other shards. A model with as many
    shards and other tensors was not regrouped: some are missing or were added.
    """
    # the names of the tensors of each shard, as they are and as they were planned
    actual = [set(header.tensors) for header in file.headers]
    if isinstance(plan, GgufPlan):
        # the edit adds tensors to the first shard of the source, and removes some
        source = plan.source.file
        _, *other_headers = source.headers
        planned = [set(rewrite(source.header, plan.edit).tensors)]
        planned += [set(header.tensors) for header in other_headers]
    else:
        planned = [set(file.tensors)]  # a conversion is planned as one file
    if len(actual) != len(planned):
        return True

    all_actual = set().union(*actual)
    all_planned = set().union(*planned)
    return all_actual == all_planned and actual != planned


def without_shards(receipt: Receipt) -> Receipt:
    """Return a receipt without the facts that depend on how its source was split into shards.

    A receipt records the GGUF file that an output was made from. Its keys about shards, such as
    split.count, are left out. The byte at which its data begins, and the digest of its header, are
    replaced by 0 and "". Two receipts are then equal if their sources have the same tensors, also
    in other shards.
    """
    original = receipt.original
    if original is None or original.gguf is None:
        return receipt
    record = msgspec.structs.replace(
        original.gguf,
        keys=tuple(key for key in original.gguf.keys if not _depends_on_split(key)),
        values=_without_split_keys(original.gguf.values),
        version=0,
        data_start=0,
        tail=0,
        sha256="",
    )
    without = msgspec.structs.replace(original, gguf=record)
    return msgspec.structs.replace(receipt, original=without)


def _depends_on_split(key: str) -> bool:
    """Return whether a key is about shards, such as split.count, or only keeps bytes free."""
    return key == RESERVED or key.startswith(SPLIT)


def _without_split_keys(values: dict[str, Value]) -> dict[str, Value]:
    """The keys of a header that do not depend on how a model is split into shards."""
    return {key: value for key, value in values.items() if not _depends_on_split(key)}


@dataclass(frozen=True)
class RegroupedCheck(GgufCheck):
    """The comparison by the names of tensors. Its fields are those of `GgufCheck`."""

    def run(self) -> None:
        """Compare the keys of the first shard, and each tensor with the planned one of its name."""
        # an edited file: its tensors are those of the source, some of them changed by the edit
        plan = self.plan
        if isinstance(plan, GgufPlan):
            planned = self._plan_as_one_file(plan)
            self._compare_with(plan.source.file, planned)
            return

        # A conversion of a checkpoint. With --quick only its keys and shapes are compared.
        # Otherwise it is converted again, into a temporary file whose tensors are compared.
        assert isinstance(plan, ExportPlan)
        if self.findings.options.quick:
            self._compare_without_converting(plan)
            return
        with scratch() as folder:
            remade = folder / "remade.gguf"
            plan.write_whole(remade, lambda done: None)
            file = GgufFile.open(remade)
            header = RewrittenHeader(
                values=file.header.values,
                tensors=file.tensors,
                alignment=file.header.alignment,
                kept_size=0,  # the size of the data, which is not compared here
            )
            self._compare_with(file, header)

    @staticmethod
    def _plan_as_one_file(plan: GgufPlan) -> RewrittenHeader:
        """The planned keys, with the planned tensors of all shards."""
        file = plan.source.file
        first = rewrite(file.header, plan.edit)
        others = [header.tensors for header in file.headers[1:]]
        tensors = dict(first.tensors)
        for shard in others:
            tensors.update(shard)
        return replace(first, tensors=tensors)

    def _compare_without_converting(self, plan: ExportPlan) -> None:
        """Compare the keys and shapes of a conversion with the planned ones, for --quick."""
        planned = rewrite(plan.exported.model.header, plan.edit)
        except_keys: tuple[str, ...] = ()
        if plan.quantisation is not None:
            planned = replace(planned, values={**planned.values, **plan.quantisation.values})
            except_keys = KEYS_OF_QUANTISER
        self._compare_keys(planned, except_keys)
        self._compare_infos(planned, types=plan.quantisation is None)
        added = {name for name in plan.edit.added if name in self.file.tensors}
        self._compare_data(source=None, names=added)
        self.findings.unverified.append("to compare the numbers of tensors, leave out --quick")

    def _compare_with(self, source: GgufFile, planned: RewrittenHeader) -> None:
        """Compare everything with a planned header, whose tensors are those of a file."""
        self._compare_keys(planned, ())
        if not self._compare_infos(planned):
            return
        names = set(self.file.tensors)
        if self.findings.options.quick:
            names = self._tensors_of_schedule()
        self._compare_data(source, names)

    def _tensors_of_schedule(self) -> set[str]:
        """The names of the small tensors that hold the schedule, which --quick compares too."""
        edit = self.plan.edit
        changed = {*edit.changes, *edit.added}
        names = set()
        for name, info in self.file.tensors.items():
            is_small_change = name in changed and info.size <= SMALL
            if name in ROPE_TENSORS or is_small_change:
                names.add(name)
        return names

    def _compare_keys(self, planned: RewrittenHeader, except_keys: tuple[str, ...]) -> None:
        """Record the keys of the first shard that differ from the planned ones.

        The other shards must have no keys, which are recorded too. Keys about the split itself
        (`split.no`, `split.count`) are not compared.

        Args:
            planned: The planned header.
            except_keys: Keys that may differ.
        """
        first = self.file.header
        actual_header = replace(first, values=_without_split_keys(first.values))
        planned_header = replace(planned, values=_without_split_keys(planned.values))
        clauses = []
        for key, clause in unlike_keys(actual_header, planned_header):
            if key not in except_keys:
                clauses.append((key, clause))
        self._record_keys(clauses)

        # llama.cpp reads only the keys of the first shard; a later shard has at most the key of its
        # alignment
        for path, header in zip(self.file.paths[1:], self.file.headers[1:], strict=True):
            values = {key: value for key, value in header.values.items() if key != ALIGNMENT}
            has_misplaced_keys = bool(_without_split_keys(values))
            if has_misplaced_keys:
                self.findings.differs(f"{path.name} has keys, which belong in the first shard")

    def _compare_infos(self, planned: RewrittenHeader, types: bool = True) -> bool:
        """Compare the shapes and types of tensors, and return whether they are the same.

        In other shards a tensor has another place, so places are not compared.

        Args:
            planned: The planned header.
            types: Whether types are compared too; not those that llama.cpp's quantiser chooses.
        """
        actual = self.file.tensors
        for name in dict.fromkeys((*planned.tensors, *actual)):
            if name not in actual:
                self.findings.differs(f"it has no tensor {name}")
                return False
            if name not in planned.tensors:
                self.findings.differs(f"it has a tensor {name}, which is not there")
                return False
            has_other_shape = actual[name].shape != planned.tensors[name].shape
            has_other_type = types and actual[name].type != planned.tensors[name].type
            if has_other_shape or has_other_type:
                self.findings.differs(f"its tensor {name} has another shape or type")
                return False
        return True

    def _compare_data(self, source: GgufFile | None, names: set[str]) -> None:
        """Compare the bytes of some tensors with those of a source, shard by shard.

        Args:
            source: The file with the tensors of the same names. None if the edit of the plan has
                the bytes of all these tensors, since it adds them.
            names: The names of the tensors to compare.
        """
        for path, header in zip(self.file.paths, self.file.headers, strict=True):
            self.findings.files += 1
            self._compare_end(path, header, source)  # no more padding than is usual

            infos = [info for name, info in header.tensors.items() if name in names]
            infos.sort(key=lambda info: info.offset)
            ranges = [self._expected_range(info, header.data_start, source) for info in infos]
            if not self.findings.options.quick:
                self.findings.bytes += sum(info.size for info in infos)
            # whole=False: only the ranges of these tensors
            place = first_difference(path, ranges, self.advance, whole=False)
            if place is None:
                continue

            # name the tensor that has this byte
            offset = place - header.data_start
            for info in infos:
                if info.offset <= offset < info.offset + info.size:
                    clause = f"{info.name} of {path.name} differs from byte {place:,} on"
                    self.findings.differs(clause)
                    break

    def _compare_end(self, path: Path, header: GgufHeader, source: GgufFile | None) -> None:
        """Record bytes after the last tensor of a shard that no padding explains."""
        # padding to the alignment, or as many bytes as a shard of the source has there
        allowed = header.alignment - 1
        if source is not None:
            for source_header in source.headers:
                allowed = max(allowed, _bytes_after_tensors(source_header))
        extra = _bytes_after_tensors(header)
        if extra > allowed:
            self.findings.differs(f"{path.name} has {extra:,} bytes after its last tensor")

    def _expected_range(self, info: TensorInfo, data_start: int, source: GgufFile | None) -> Range:
        """The bytes that a tensor should have, and its place in its shard.

        Args:
            info: The tensor.
            data_start: The byte of the shard at which data begins.
            source: The file with the tensor of the same name; None if the edit adds the tensor.

        Returns:
            A StreamedRange with bytes that the edit adds, a CopiedRange with bytes of the source,
            or a GeneratedRange with bytes of the source that the edit changes.
        """
        start = data_start + info.offset
        stop = start + info.size
        added = self.plan.edit.added.get(info.name)
        if added is not None:
            # `chunks` is a function without arguments that returns an iterator of bytes
            return StreamedRange(start, stop, chunks=partial(iter, (added,)))

        # the place of the tensor in the source, which may be in another shard than here
        assert source is not None  # it is only None for tensors that the edit adds
        shard = source.shard(info.name)
        header = source.headers[shard]
        path = source.shards[shard].path()
        place = header.data_start + header.tensors[info.name].offset

        # the change that the edit makes to the tensor; a file that was converted again has it
        change = None
        if isinstance(self.plan, GgufPlan):
            change = self.plan.edit.changes.get(info.name)
        if change is None:
            return CopiedRange(start=start, stop=stop, origin=path, place=place)
        make = partial(change_piece, change, path, place)
        return GeneratedRange(start=start, stop=stop, make=make, unit=change.unit)


def _bytes_after_tensors(header: GgufHeader) -> int:
    """The bytes of a shard after its last tensor."""
    return header.size - header.data_start - header.data_size
