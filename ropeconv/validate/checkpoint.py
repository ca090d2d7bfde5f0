"""Compare logits of an output in stock transformers with those of its patched source.

The two sides share no config: the output is loaded with `from_pretrained`, the reference is the
source with the buffers of its rotary modules overwritten from the schedule. A control, the
unpatched source, has to disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..engines.engine import Progress
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.load import (
    DeviceSpec,
    choose_place,
    folder_of,
    stored_dtype,
    weight_bytes,
)
from ..errors import BadSource
from ..formats.disk import human
from .checks import needs_trust
from .comparison import Comparison, Settings
from .sampling import Bucket, TokenRun
from .source_reading import (
    ComparisonSpec,
    Control,
    SourceReading,
    read_parts,
    read_with_power,
)
from .validation import (
    SAME_KERNELS,
    BucketResult,
    Measures,
    Validation,
    bucket_result,
    conclusion,
    count_compared,
    describe_changes,
    reach_warning,
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
        progress: Callbacks, which are called while tokens are read.

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


@dataclass(frozen=True)
class BothSides:
    """Hidden states of an output and of its source, over the same tokens."""

    reading: SourceReading
    """The source in all its variants."""

    stock: TransformersEngine
    """The output, as transformers loads it."""

    runs: list[TokenRun]
    """The tokens that both have read; a run may have been stopped early."""

    of_parts: list[Tensor]
    """The hidden states of the output in the part of each spread run."""

    partial: bool
    """Whether a run was stopped early."""

    @classmethod
    def read(
        cls, spec: ComparisonSpec, folder: Path, place: DeviceSpec, trust: bool, before: int = 0
    ) -> BothSides:
        """Run the source, and then the output, over the same tokens; return the states of both.

        A run is a sequence of tokens with their positions. The part of a run has a quarter of its
        tokens over the same range. Logits are made from the hidden states later, when results are
        computed.

        Args:
            spec: The comparison, its settings, and callbacks.
            folder: The folder of the source.
            place: Device and precision.
            trust: Whether to run code in the output.
            before: Tokens that were read already, for the progress.

        Raises:
            BadSource: The output has another vocabulary.
        """
        # The source first. Settings and precision are changed until the test is sensitive enough to
        # notice a wrong output. The output then runs with the same ones.
        reading = read_with_power(spec, folder, place, before)
        changed_spec = reading.spec

        # then the output, as stock transformers loads it
        baked = spec.comparison.baked
        stock = TransformersEngine.load(baked, reading.at, trust, changed_spec.settings.chunk)
        if reading.head.vocabulary != stock.vocabulary:
            raise BadSource(
                f"{baked} has a vocabulary of {stock.vocabulary} tokens and its source of"
                f" {reading.head.vocabulary}; name the source it was made from"
            )

        def read_output(run: TokenRun) -> Tensor:
            return changed_spec.plain(stock, run)  # without a patch of its RoPE

        # The user may stop a run early. The output reads what the source has read, and what both
        # have read is compared.
        states = reading.states
        runs = _runs_that_were_read(reading.runs, states.reference)
        states.baked = states.read_runs("baked", runs, read_output)
        of_parts = read_parts(reading.runs, states.baked, reading.parts, read_output)
        runs_of_both = _runs_that_were_read(runs, states.baked)

        planned_positions = sum(len(run.kept) for run in reading.runs)
        compared_positions = sum(len(run.kept) for run in runs_of_both)
        return cls(
            reading=reading,
            stock=stock,
            runs=runs_of_both,
            of_parts=of_parts,
            partial=compared_positions != planned_positions,
        )

    def results_of_parts(self) -> list[BucketResult]:
        """Return how far the output is from the reference in the part of each spread run."""
        reading = self.reading
        results = []
        for number, part in enumerate(reading.parts):
            measures = reading.measure(
                head=reading.head,
                reference=reading.states.reference_of_parts[number],
                other=self.stock,
                hidden=self.of_parts[number],
                targets=part.targets(),
            )
            results.append(_judge(part.buckets[0], measures, reading.controls[number], "spread"))
        return results

    def results_of_runs(self) -> tuple[list[BucketResult], Curve]:
        """Return how far the output is from the reference in each bucket, a range of positions.

        A spread run is a sequence whose positions are spread over one range. There is one for each
        range, and they come first. A whole run has every position from 0 on.

        Returns:
            The results, in the order of the runs; and along the whole run (position, KL), which is
            a curve for a picture.
        """
        # Each range has a control: the distance of the unscaled source from the reference, and the
        # noise there.
        reading = self.reading
        controls_of_ranges = reading.controls
        results: list[BucketResult] = []
        curve: Curve = ()
        for number, run in enumerate(self.runs):
            # the hidden states of both sides, of which `measure` makes logits
            measures = reading.measure(
                head=reading.head,
                reference=reading.states.reference[number],
                other=self.stock,
                hidden=reading.states.baked[number],
                targets=run.targets(),
            )

            # A spread run is one bucket, with the control of its range. A whole run has a bucket
            # for each range that it reaches, which may be fewer than all (strict=False).
            controls = controls_of_ranges
            if run.kind == "spread":
                controls = [controls_of_ranges[number]]
            for (bucket, rows), control in zip(run.parts(), controls, strict=False):
                results.append(_judge(bucket, measures[rows], control, run.kind))
            if run.kind == "whole":
                positions = [run.positions[index] for index in run.kept]
                curve = tuple(zip(positions, measures.kl.tolist(), strict=False))
        return results, curve


def _judge(
    bucket: Bucket, measures: Measures, control: Control, kind: Literal["spread", "whole"]
) -> BucketResult:
    """Judge a bucket of positions by the control and the noise floor of its range."""
    return bucket_result(
        bucket, measures, control.kl, noise=control.noise, kind=kind, allowed=control.allowed
    )


def _conclude(both: BothSides, results: list[BucketResult]) -> tuple[bool, str]:
    """Return whether the output agrees with its source, and sentences on how that was found.

    Args:
        both: Both sides, with the comparison and what was changed for it.
        results: The result of each range of positions.
    """
    reading = both.reading
    comparison = reading.spec.comparison
    schedule = comparison.schedule
    agrees, sentences = conclusion(results, comparison.unchanged, schedule.original_context)

    # an output that approximates log-n by steps: the source was run with log-n itself too
    if reading.states.formula:
        sentences += _describe_steps(reading)
    sentences += describe_changes(reading.changes) + comparison.remark
    # a warning if no position beyond the trained context was compared; --length compares more
    sentences += reach_warning(
        results, schedule.original_context, schedule.context, flag="--length"
    )
    if both.partial:
        sentences += " It was stopped before its end."
    return agrees, sentences


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
    schedule = comparison.schedule
    wanted = settings.place(stored_dtype(source.config()), comparison.loaded_as)
    place = choose_place(source, wanted)
    if place.layer_by_layer:
        size = human(weight_bytes(source, place.dtype))
        spec.progress.note(
            f"The weights ({size} as {place.dtype}) are read from the disk layer by layer, which is"
            " slow."
        )

    # A run is 512 tokens, say, and its part 128 of them over the same positions. The rounding that
    # is allowed (noise floor) is measured in the parts, which is faster.
    both = BothSides.read(spec, folder, place, trust)
    results, curve = both.results_of_runs()
    of_parts = both.results_of_parts()

    # The noise floor of a part may be too small for its run. So where the output agrees in the
    # parts and differs in a run, all is measured again in whole runs; not where the user has
    # stopped a run, since that would read less.
    parts_agree = all(result.agrees for result in of_parts)
    runs_agree = all(result.agrees for result in results)
    has_parts = both.reading.parts != both.reading.runs[: len(of_parts)]
    only_runs_differ = parts_agree and not runs_agree
    if has_parts and only_runs_differ and not both.partial:
        read_tokens = both.reading.read_tokens
        del both  # frees its models before others are loaded
        whole_spec = replace(spec, in_whole=True)
        both = BothSides.read(whole_spec, folder, place, trust, read_tokens)
        results, curve = both.results_of_runs()
        of_parts = both.results_of_parts()

    # A run and its part test the same range, and the worse of the two counts. The first results
    # are those of spread runs, in the order of their parts.
    for number, of_part in enumerate(of_parts):
        if of_part.kl_95 > results[number].kl_95:
            results[number] = of_part

    reading = both.reading
    agrees, sentence = _conclude(both, results)
    return Validation(
        transformers=stock_version(),
        device=reading.at.device,
        digest=schedule.digest,
        tokens=reading.spec.settings.spread,
        seed=settings.seed,
        buckets=tuple(results),
        agrees=agrees,
        sentence=sentence,
        dtype=reading.at.dtype,
        length=settings.length,
        chunk=settings.chunk,
        partial=both.partial,
        curve=curve,
        speed=reading.states.speed,
        score_factor=reading.spec.score_factor,
        temperature=reading.temperature,
        rule=rule(SAME_KERNELS, not reading.head.has_logits),
        reached=count_compared(results),
        **comparison.result_fields(),
    )


def _runs_that_were_read(runs: list[TokenRun], rows: list[Tensor]) -> list[TokenRun]:
    """Return runs up to the positions that have a row of hidden states."""
    return [run.until(len(of_run)) for run, of_run in zip(runs, rows, strict=True)]


def _describe_steps(reading: SourceReading) -> str:
    """Return a sentence on how far an output that scales queries in steps is from log-n.

    Log-n multiplies the query at position p by ln(p + 1) / ln T, for the trained context T. It
    grows with each position, and some runtimes have a scaling that grows in steps only.
    """
    # The source was run twice over a few tokens of each range of positions: with log-n (`formula`)
    # and with steps (`reference_of_parts`). It is one model, so both sides have the same head.
    mean_kls = []
    for number, part in enumerate(reading.parts):
        measures = reading.measure(
            head=reading.head,
            reference=reading.states.formula[number],
            other=reading.head,
            hidden=reading.states.reference_of_parts[number],
            targets=part.targets(),
        )
        mean_kls.append(measures.kl.mean().item())
    return (
        " The output has steps in place of log-n, which differ from it by a KL of"
        f" {max(mean_kls):.2e}."
    )


def stock_version() -> str:
    """Return the version of the installed transformers."""
    import transformers

    return str(transformers.__version__)
