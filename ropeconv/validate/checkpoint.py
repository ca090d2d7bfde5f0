"""Compare logits of an output in stock transformers with those of its patched source.

The two sides share no config: the output is loaded with `from_pretrained`, the reference is the
source with the buffers of its rotary modules overwritten from the schedule. A control, the
unpatched source, has to disagree.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..engines.engine import Progress
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.load import choose_place, folder_of, stored_dtype, weight_bytes
from ..errors import BadSource
from ..formats.disk import human
from .checks import needs_trust
from .comparison import Comparison, Settings
from .sampling import TokenRun
from .source_reading import ComparisonSpec, SourceReading, read_with_power
from .validation import (
    SAME_KERNELS,
    BucketResult,
    Validation,
    bucket_result,
    conclusion,
    count_compared,
    describe_changes,
    on_reach,
    rule,
)

if TYPE_CHECKING:
    from torch import Tensor

Curve = tuple[tuple[int, float], ...]


def validate_checkpoint(
    comparison: Comparison, settings: Settings | None = None, progress: Progress | None = None
) -> Validation:
    """Compare the logits of a checkpoint in the installed transformers with the reference.

    Args:
        comparison: The output and its source.
        settings: How to run, by default `Settings()`.
        progress: Callbacks.

    Raises:
        BadSource: If `settings.length` is beyond the context of the output.
        UsageError: For a device that is not available.
    """
    settings = settings or Settings()
    progress = progress or Progress()
    source = comparison.checkpoint
    baked = comparison.baked
    schedule = comparison.schedule
    if comparison.draft:
        raise BadSource(
            f"{baked} is {comparison.draft.says}, which transformers does not run; validate its"
            " target"
        )
    trust = needs_trust(baked, settings.trust_remote_code)
    if settings.length > schedule.context:
        raise BadSource(
            f"{baked} has a context of {schedule.context} tokens; pass a --length of at most that"
        )
    with folder_of(source) as folder:
        return _compare(ComparisonSpec(comparison, settings, progress), folder, trust)


def _compare(spec: ComparisonSpec, folder: Path, trust: bool) -> Validation:
    """Compare an output with its source.

    Args:
        spec: The comparison, its settings, and callbacks.
        folder: The folder of the source.
        trust: Whether to run code in the output.
    """
    comparison = spec.comparison
    settings = spec.settings
    source = comparison.checkpoint
    baked = comparison.baked
    schedule = comparison.schedule
    wanted = settings.place(stored_dtype(source.config()), comparison.stands_for)
    place = choose_place(source, wanted)
    if place.layer_by_layer:
        size = human(weight_bytes(source, place.dtype))
        spec.progress.note(
            f"The weights ({size} as {place.dtype}) are read from the disk layer by layer, which is"
            " slow."
        )

    # the source first; settings and precision may change so that the test is sensitive enough
    reading = read_with_power(spec, folder, place)
    at = reading.at
    spec = reading.spec
    states = reading.states
    # then the output, as stock transformers loads it
    stock = TransformersEngine.load(baked, at, trust, settings.chunk)
    if reading.head.vocabulary != stock.vocabulary:
        raise BadSource(
            f"{baked} has a vocabulary of {stock.vocabulary} tokens and its source of"
            f" {reading.head.vocabulary}; name the source it was made from"
        )

    # both sides may have been stopped early: only what both have read is compared
    runs = _runs_that_were_read(reading.runs, states.reference)
    states.baked = states.read_runs("baked", runs, lambda run: spec.plain(stock, run))
    runs = _runs_that_were_read(runs, states.baked)
    compared = sum(len(run.kept) for run in runs)
    partial = compared != sum(len(run.kept) for run in reading.runs)

    # the conclusion, and how it was reached
    results, curve = _buckets(reading, runs, stock)
    agrees, sentence = conclusion(results, comparison.unchanged, schedule.original_context)
    if states.formula:
        sentence += _describe_steps(reading, runs)
    sentence += describe_changes(reading.changes) + comparison.remark
    sentence += on_reach(results, schedule.original_context, schedule.context, "--length")
    if partial:
        sentence += " It was stopped before its end."

    return Validation(
        transformers=stock_version(),
        device=at.device,
        digest=schedule.digest,
        tokens=spec.settings.spread,
        seed=settings.seed,
        buckets=tuple(results),
        agrees=agrees,
        sentence=sentence,
        dtype=at.dtype,
        length=settings.length,
        chunk=settings.chunk,
        partial=partial,
        curve=curve,
        speed=states.speed,
        score_factor=spec.score_factor,
        temperature=reading.temperature,
        rule=rule(SAME_KERNELS, not reading.head.has_logits),
        reached=count_compared(results),
        **comparison.result_fields(),
    )


def _runs_that_were_read(runs: list[TokenRun], rows: list[Tensor]) -> list[TokenRun]:
    """Return runs up to the positions that have a row of hidden states."""
    return [run.until(len(of_run)) for run, of_run in zip(runs, rows, strict=True)]


def _describe_steps(reading: SourceReading, runs: list[TokenRun]) -> str:
    """Return a sentence on how far an output that scales queries in steps is from log-n.

    Log-n grows with each position, and some runtimes have a scaling that grows in steps only.
    """
    states = reading.states
    head = reading.head
    mean_kls = []
    for run, with_log_n, reference in zip(runs, states.formula, states.reference, strict=False):
        measures = reading.measure(head, with_log_n, head, reference, run.targets())
        mean_kls.append(measures.kl.mean().item())
    return (
        " The output has steps in place of log-n, which differ from it by a KL of"
        f" {max(mean_kls):.2e}."
    )


def stock_version() -> str:
    """Return the version of the installed transformers."""
    import transformers

    return str(transformers.__version__)


def _buckets(
    reading: SourceReading, runs: list[TokenRun], stock: TransformersEngine
) -> tuple[list[BucketResult], Curve]:
    """Return how far the output is from the reference in each bucket, a range of positions.

    The hidden states of both were computed before; here their heads make logits of them.

    Args:
        reading: The source: the hidden states of the reference (the source patched to the
            schedule), and for each spread run a control (how far the unscaled source and rounding
            are from the reference).
        runs: The tokens that both have read: spread runs, and possibly one over every position.
        stock: The output in stock transformers.

    Returns:
        The results, those of spread runs first, and (position, KL) along the run over every
        position.
    """
    results: list[BucketResult] = []
    curve: Curve = ()
    states = reading.states
    for number, run in enumerate(runs):
        measures = reading.measure(
            reading.head, states.reference[number], stock, states.baked[number], run.targets()
        )

        if run.kind == "spread":
            # one bucket, whose control has the number of the run
            controls = [reading.controls[number]]
        else:
            # a bucket for the range of each spread run, in order, so that the buckets have the
            # controls of these; a short run does not reach all ranges
            controls = reading.controls
            positions = [run.positions[index] for index in run.kept]
            curve = tuple(zip(positions, measures.kl.tolist(), strict=False))

        for (bucket, rows), control in zip(run.parts(), controls, strict=False):
            result = bucket_result(
                bucket,
                measures[rows],
                control.kl,
                noise=control.noise,
                kind=run.kind,
                allowed=control.allowed,
            )
            results.append(result)
    return results, curve
