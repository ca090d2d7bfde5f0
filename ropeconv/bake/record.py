"""Makes the receipt of a plan, with the OriginalRecord from which `restore` brings its first source back."""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp
from typing import TYPE_CHECKING

from ..convert.encoding import CheckpointResult
from ..convert.fold import NEGLIGIBLE, Fold
from ..convert.target import EncodeResult, Target
from ..convert.to_gguf.export import GgufExport
from ..convert.to_gguf.write import converted
from ..formats.gguf.edit import Edit
from ..formats.safetensors import Tensor
from ..inspection.receipts.folder import first_record, folder_record, stated
from ..inspection.receipts.gguf import earlier, gguf_stated, record_of_export, record_of_file, record_of_output
from ..inspection.receipts.receipt import (
    BeforeRecord,
    ConfigRecord,
    FoldRecord,
    LogNRecord,
    OriginalRecord,
    Receipt,
    RuntimeRecord,
    ScaledRecord,
    ScheduleRecord,
    SourceRecord,
    StepRecord,
    TargetRecord,
)
from ..models.gguf import GgufSource
from ..models.source import Origin, Source
from ..options import copied
from ..rope.bound.reach import effective_length, source_reach
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.verdict import describe, frequencies
from ..version import __version__

if TYPE_CHECKING:
    from .plan import PlannedFile


def source_record(source: Origin) -> SourceRecord:
    """A source as a receipt has it, without a path of this machine, which says nothing to others."""
    reference = source.reference if source.kind == "hub" or source.commit else None
    return SourceRecord(source.name, source.kind, reference, source.commit, source.treat_as)


def receipt_of(
    source: Origin,
    target: Target,
    family: str,
    recipe: Recipe,
    before: RopeSpec,
    schedule: Schedule,
    result: EncodeResult,
    original: OriginalRecord | None = None,
) -> Receipt:
    """The receipt of a planned output, without its files and check.

    before: the RoPE of the source as it is. source, target, family, recipe, schedule, result, original: as in `Plan`.
    """
    approximation = result.log_n_approximation
    fold = result.fold if isinstance(result, CheckpointResult) else None
    in_config = None
    if isinstance(result, CheckpointResult):
        said = result.in_config
        in_config = ConfigRecord(result.written_as, said.attention_factor, said.softmax_scale)
    runtimes = tuple(
        RuntimeRecord(
            verdict.runtime, verdict.status, verdict.reason, verdict.source, verdict.display_name,
            verdict.evidence.grade, verdict.evidence.detail,
        )
        for verdict in result.verdicts
    )  # fmt: skip
    return Receipt(
        ropeconv=__version__,
        source=source_record(source),
        family=family,
        recipe=recipe.to_dict(),
        before=BeforeRecord(
            describe(before.form),
            frequencies(schedule),
            before.attention_factor,
            before.context,
            before.original_context,
            effective_length(before.current(), before),
            source_reach(schedule, before),
        ),
        encoding=result.encoding,
        fold=None if fold is None else FoldRecord(fold.fold_into, fold.tensors, fold.expected_kl),
        in_config=in_config,
        log_n_approximation=None
        if approximation is None
        else LogNRecord(approximation.beta, approximation.length, approximation.gain, result.deviation),
        schedule=ScheduleRecord(**schedule.to_dict()),
        effective_length=effective_length(schedule, before),
        runtimes=runtimes,
        original=original,
        target=copied(TargetRecord, target, to="safetensors" if isinstance(result, CheckpointResult) else "gguf"),
    )


EXACT = ("F32", "BF16", "F16")


def original_of_folder(
    source: Source, files: tuple[PlannedFile, ...], skipped: tuple[str, ...], fold: Fold | None
) -> OriginalRecord:
    """The record of an output folder.

    source, files, skipped: of its plan. fold: factors in weights, None without.
    """
    texts = {file.name: file.text for file in files if file.text is not None}
    made = [
        file.name for file in files if file.action in ("write", "convert") and file.text is None and not file.origin
    ]
    renamed = {file.name: file.origin for file in files if file.origin and file.origin != file.name}
    scaled, rounded = _scalings(fold, source.tensors) if fold is not None else ((), ())
    splices = {file.name: file.splice for file in files if file.splice is not None}
    record = folder_record(source, texts, made, renamed, skipped, scaled, rounded, splices)
    return OriginalRecord(first_record(source, source_record(source)), folder=record, steps=_steps(stated(source)))


def original_of_gguf(source: GgufSource, spec: RopeSpec, edit: Edit, replaced: bool) -> OriginalRecord:
    """The record of an output of a GGUF file.

    source: the file. spec: its RoPE as it is. edit: what the encoding changes, without the receipt. replaced: whether
    it starts from the first source of the file.
    """
    receipt = gguf_stated(source.file, spec)
    if receipt is None or receipt.original is None or receipt.original.gguf is None:
        return OriginalRecord(source_record(source), gguf=record_of_file(source.file, edit))
    known = receipt.original.gguf
    record = record_of_output(source.file, known, earlier(source.file, receipt), edit, replaced)
    return OriginalRecord(receipt.original.source, gguf=record, steps=() if replaced else _steps(receipt))


def original_of_export(source: Source, exported: GgufExport, edit: Edit) -> OriginalRecord:
    """The record of a conversion, whose original is the same conversion without scaling.

    source: the checkpoint. exported: its conversion. edit: what the encoding changes, without the receipt.
    """
    tensors = {tensor.name: tensor for tensor in exported.tensors}

    def read(name: str) -> bytes:
        return b"".join(converted(tensors[name]))

    record = record_of_export(exported.unlabelled, exported.model.header, read, edit, bool(exported.quantised))
    return OriginalRecord(first_record(source, source_record(source)), gguf=record, steps=_steps(stated(source)))


def _steps(receipt: Receipt | None) -> tuple[StepRecord, ...]:
    """The bakes that led to a source. receipt: of the source; None for one that is no output, or starts anew."""
    return () if receipt is None else receipt.steps


def _scalings(fold: Fold, tensors: Mapping[str, Tensor]) -> tuple[tuple[ScaledRecord, ...], tuple[str, ...]]:
    """Scalings of tensors by powers of two alone, and names of the other tensors that a fold changes."""
    rounded = {
        one.tensor
        for one in fold.scalings
        if one.plus_one or abs(frexp(one.factor)[0] - 0.5) > NEGLIGIBLE or tensors[one.tensor].dtype not in EXACT
    }
    exact = (one for one in fold.scalings if one.tensor not in rounded)
    return tuple(ScaledRecord(one.tensor, one.factor, one.spans) for one in exact), tuple(sorted(rounded))
