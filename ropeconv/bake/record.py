"""Makes the receipt of a plan."""

from __future__ import annotations

from ..convert.encoding import CheckpointResult
from ..convert.target import EncodeResult, Target
from ..inspection.receipts.receipt import (
    BeforeRecord,
    ConfigRecord,
    FoldRecord,
    LogNRecord,
    OriginalRecord,
    Receipt,
    RuntimeRecord,
    ScheduleRecord,
    SourceRecord,
    TargetRecord,
)
from ..models.source import Origin
from ..options import copied
from ..rope.bound.reach import effective_length, source_reach
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.verdict import Verdict, describe, frequencies
from ..version import __version__


def runtime_record(verdict: Verdict) -> RuntimeRecord:
    """A verdict as a receipt has it."""
    return RuntimeRecord(
        verdict.runtime, verdict.status, verdict.reason, verdict.source, verdict.display_name,
        verdict.evidence.grade, verdict.evidence.detail,
    )  # fmt: skip


def source_record(source: Origin) -> SourceRecord:
    """A source as a receipt has it, without a path of this machine, which says nothing to others."""
    reference = source.reference if source.kind == "hub" or source.commit else None
    return SourceRecord(source.name, source.kind, reference, source.commit, source.treat_as)


def target_record(target: Target, to_gguf: bool) -> TargetRecord:
    """A target as a receipt has it, without places. to_gguf: whether the output is GGUF."""
    return copied(TargetRecord, target, to="gguf" if to_gguf else "safetensors")


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
        runtimes=tuple(runtime_record(verdict) for verdict in result.verdicts),
        original=original,
        target=target_record(target, not isinstance(result, CheckpointResult)),
    )
