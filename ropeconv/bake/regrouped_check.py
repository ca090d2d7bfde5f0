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

    A receipt records the header of the GGUF file that an output was made from. Without its keys
    about shards, such as split.count, and without facts about the bytes of the first shard, the
    receipts for a model in one file and in three shards are equal.
    """
    original = receipt.original
    if original is None or original.gguf is None:
        return receipt
    gguf_record = original.gguf
    without_shards_record = msgspec.structs.replace(
        gguf_record,
        keys=tuple(key for key in gguf_record.keys if not _depends_on_split(key)),
        values=_without_split_keys(gguf_record.values),
        # facts about the bytes of the first shard, replaced by 0 and ""
        version=0,  # of the GGUF format
        data_start=0,  # the byte at which the data begins
        tail=0,  # the bytes after the last tensor
        sha256="",  # the digest of the header
    )
    new_original = msgspec.structs.replace(original, gguf=without_shards_record)
    return msgspec.structs.replace(receipt, original=new_original)


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
        """Compare the keys of the model, and each tensor by its name, in whatever shard it is."""
        plan = self.plan
        # an edited GGUF file: the tensors of its source, some of them changed by the edit
        if isinstance(plan, GgufPlan):
            planned_header = self._plan_as_one_file(plan)
            self._compare_with(plan.source.file, planned_header)
            return

        # a converted checkpoint, with --quick: only its keys and shapes
        assert isinstance(plan, ExportPlan)
        if self.findings.options.quick:
            self._compare_without_converting(plan)
            return

        # a converted checkpoint: the keys and tensors of a second conversion, in a temporary file
        with scratch() as folder:
            path = folder / "remade.gguf"
            plan.write_whole(path, lambda done: None)
            second_file = GgufFile.open(path)
            second_header = RewrittenHeader(
                values=second_file.header.values,
                tensors=second_file.tensors,
                alignment=second_file.header.alignment,
                kept_size=0,  # the size of the data, which is not compared here
            )
            self._compare_with(second_file, second_header)

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
        """Compare the keys of the first shard with the plan, and the later shards with no keys.

        Every difference is recorded. Keys about the split itself (`split.no`, `split.count`) are
        not compared.

        Args:
            planned: The planned header.
            except_keys: Keys that may differ.
        """
        first_header = self.file.header
        actual = replace(first_header, values=_without_split_keys(first_header.values))
        expected = replace(planned, values=_without_split_keys(planned.values))
        differences = []  # each is a key, and a clause for the message
        for key, clause in unlike_keys(actual, expected):
            if key not in except_keys:
                differences.append((key, clause))
        self._record_keys(differences)

        # llama.cpp reads the keys of the model from the first shard only; a later shard may have
        # the key of its alignment
        for path, header in zip(self.file.paths[1:], self.file.headers[1:], strict=True):
            values = {key: value for key, value in header.values.items() if key != ALIGNMENT}
            has_keys_of_model = bool(_without_split_keys(values))
            if has_keys_of_model:
                self.findings.add_difference(
                    f"{path.name} has keys, which belong in the first shard"
                )

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
                self.findings.add_difference(f"it has no tensor {name}")
                return False
            if name not in planned.tensors:
                self.findings.add_difference(f"it has a tensor {name}, which is not there")
                return False
            has_other_shape = actual[name].shape != planned.tensors[name].shape
            has_other_type = types and actual[name].type != planned.tensors[name].type
            if has_other_shape or has_other_type:
                self.findings.add_difference(f"its tensor {name} has another shape or type")
                return False
        return True

    def _compare_data(self, source: GgufFile | None, names: set[str]) -> None:
        """Compare the bytes of the named tensors with the expected bytes, shard by shard.

        With --quick, the caller names only a few small tensors.

        Args:
            source: The file with tensors of the same names. None if the plan itself has the bytes
                of all named tensors, since its edit adds them.
            names: The names of the tensors to compare.
        """
        for path, header in zip(self.file.paths, self.file.headers, strict=True):
            self.findings.files += 1
            self._compare_end(path, header, source)  # nothing may follow the last tensor

            infos = [info for name, info in header.tensors.items() if name in names]
            infos.sort(key=lambda info: info.offset)
            if not self.findings.options.quick:
                self.findings.bytes += sum(info.size for info in infos)
            ranges = [self._expected_range(info, header.data_start, source) for info in infos]
            # whole=False: bytes outside of these tensors are not compared
            differing_byte = first_difference(path, ranges, self.advance, whole=False)
            if differing_byte is None:
                continue

            # name the tensor that has this byte
            offset = differing_byte - header.data_start
            for info in infos:
                if info.offset <= offset < info.offset + info.size:
                    clause = f"{info.name} of {path.name} differs from byte {differing_byte:,} on"
                    self.findings.add_difference(clause)
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
            self.findings.add_difference(f"{path.name} has {extra:,} bytes after its last tensor")

    def _expected_range(self, info: TensorInfo, data_start: int, source: GgufFile | None) -> Range:
        """Return the range of bytes of a tensor in its shard, with the bytes that it should have.

        Args:
            info: The tensor.
            data_start: The byte of the shard at which data begins.
            source: The file with the tensor of the same name; None if the edit adds the tensor.
        """
        start = data_start + info.offset
        stop = start + info.size

        # a tensor that the edit adds, such as rope_freqs.weight
        added = self.plan.edit.added.get(info.name)
        if added is not None:
            return StreamedRange.with_bytes(start, stop, added)

        # the first byte of the tensor in the source, where it may be in another shard
        assert source is not None  # None only for tensors that the edit adds
        shard = source.shard(info.name)
        header = source.headers[shard]
        path = source.shards[shard].path()
        source_start = header.data_start + header.tensors[info.name].offset

        # a tensor of the source without a change; a second conversion has the changes already
        change = None
        if isinstance(self.plan, GgufPlan):
            change = self.plan.edit.changes.get(info.name)
        if change is None:
            return CopiedRange(start=start, stop=stop, origin=path, place=source_start)

        # a tensor that the edit changes: the change is computed again, piece by piece
        make = partial(change_piece, change, path, source_start)
        return GeneratedRange(start=start, stop=stop, make=make, unit=change.unit)


def _bytes_after_tensors(header: GgufHeader) -> int:
    """The bytes of a shard after its last tensor."""
    return header.size - header.data_start - header.data_size
