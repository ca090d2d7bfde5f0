"""Compare logits of an output in stock transformers with those of its source, patched at run time
from the recipe.

The two sides share no config: the output is loaded with `from_pretrained`, the reference is the
source with the buffers of its rotary modules overwritten from the schedule. A control, the
unpatched source, has to disagree.
"""

from pathlib import Path

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
    on_reach,
    otherwise,
    reached,
    rule,
)

Curve = tuple[tuple[int, float], ...]


def validate_checkpoint(
    comparison: Comparison, settings: Settings | None = None, progress: Progress | None = None
) -> Validation:
    """Compare the logits of a checkpoint, as the installed transformers loads it, with those of the
    reference.

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
    """Compare an output with its source. folder: of the source. trust: run the code of the
    output.
    """
    comparison, settings = spec.comparison, spec.settings
    source = comparison.checkpoint
    baked = comparison.baked
    schedule = comparison.schedule
    place = choose_place(
        source, settings.place(stored_dtype(source.config()), comparison.stands_for)
    )
    if place.layer_by_layer:
        size = human(weight_bytes(source, place.dtype))
        spec.progress.note(
            f"The weights ({size} as {place.dtype}) are read from the disk layer by layer, which is"
            " slow."
        )
    reading = read_with_power(spec, folder, place)
    at = reading.at
    spec = reading.spec
    states = reading.states
    stock = TransformersEngine.load(baked, at, trust, settings.chunk)
    if reading.head.vocabulary != stock.vocabulary:
        raise BadSource(
            f"{baked} has a vocabulary of {stock.vocabulary} tokens and its source of"
            f" {reading.head.vocabulary}; name the source it was made from"
        )
    runs = [
        run.until(len(hidden)) for run, hidden in zip(reading.runs, states.reference, strict=True)
    ]
    states.baked = states.timed("baked", runs, lambda run: spec.plain(stock, run))
    runs = [run.until(len(hidden)) for run, hidden in zip(runs, states.baked, strict=True)]
    results, curve = _buckets(reading, runs, stock)
    agrees, sentence = conclusion(results, comparison.unchanged, schedule.original_context)
    if states.formula:
        head = reading.head
        pairs = zip(runs, states.formula, states.reference, strict=False)
        kl = max(
            reading.measured(head, a, head, b, run.targets()).kl.mean().item()
            for run, a, b in pairs
        )
        sentence += (
            f" The output has steps in place of log-n, which differ from it by a KL of {kl:.2e}."
        )
    sentence += otherwise(reading.changes) + comparison.remark
    partial = [len(run.kept) for run in runs] != [len(run.kept) for run in reading.runs]
    sentence += on_reach(results, schedule.original_context, schedule.context, "--length")
    if partial:
        sentence += " It was stopped before its end."
    return Validation(
        stock_version(),
        at.device,
        schedule.digest,
        spec.settings.spread,
        settings.seed,
        tuple(results),
        agrees,
        sentence,
        dtype=at.dtype,
        length=settings.length,
        chunk=settings.chunk,
        partial=partial,
        curve=curve,
        speed=states.speed,
        score_factor=spec.score_factor,
        temperature=reading.temperature,
        rule=rule(SAME_KERNELS, not reading.head.has_logits),
        reached=reached(results),
        **comparison.described(),
    )


def stock_version() -> str:
    """The version of the installed transformers."""
    import transformers

    return str(transformers.__version__)


def _buckets(
    reading: SourceReading, runs: list[TokenRun], stock: TransformersEngine
) -> tuple[list[BucketResult], Curve]:
    """The result of each bucket, spread runs first, and (position, KL) of the whole run. runs: as
    far as was read.
    """
    results: list[BucketResult] = []
    curve: Curve = ()
    states = reading.states
    for number, run in enumerate(runs):
        measures = reading.measured(
            reading.head, states.reference[number], stock, states.baked[number], run.targets()
        )
        controls = reading.controls[number:] if run.kind == "spread" else reading.controls
        results += [
            bucket_result(
                bucket, measures[rows], control.kl, control.noise, run.kind, control.allowed
            )
            for control, (bucket, rows) in zip(controls, run.parts(), strict=False)
        ]
        if run.kind == "whole":
            curve = tuple(
                (run.positions[k], kl)
                for k, kl in zip(run.kept, measures.kl.tolist(), strict=False)
            )
    return results, curve
