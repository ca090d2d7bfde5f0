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
from ..inspection.inspection import inspect_config
from .checks import needs_trust, reads_source_alike
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

    output: TransformersEngine
    """The output, as transformers loads it."""

    runs: list[TokenRun]
    """The tokens that both have read; a run may have been stopped early."""

    output_states_of_parts: list[Tensor]
    """The hidden states of the output in the part of each spread run."""

    stopped_early: bool
    """Whether the user stopped a run before its end."""

    @classmethod
    def read(
        cls, spec: ComparisonSpec, folder: Path, place: DeviceSpec, trust: bool, before: int = 0
    ) -> BothSides:
        """Run the source and the output over the same tokens, and return the hidden states of both.

        A run is a sequence of tokens with their positions. A part of a run has a quarter of its
        tokens, over the same range of positions. Logits are computed from the hidden states later.

        Args:
            spec: The comparison, its settings, and callbacks.
            folder: The folder of the source.
            place: Device and precision.
            trust: Whether to run code in the output.
            before: Tokens that were read already, for the progress.

        Raises:
            BadSource: The output has another vocabulary.
        """
        # The source. `read_with_power` repeats this with other settings and another precision until
        # the test is sensitive enough to notice a wrong output.
        reading = read_with_power(spec, folder, place, before)
        spec_in_use = reading.spec
        device_in_use = reading.at

        # the output, with the same settings and precision
        path = spec.comparison.baked
        output = TransformersEngine.load(path, device_in_use, trust, spec_in_use.settings.chunk)
        source_vocabulary = reading.head.vocabulary
        if source_vocabulary != output.vocabulary:
            raise BadSource(
                f"{path} has a vocabulary of {output.vocabulary} tokens and its source of"
                f" {source_vocabulary}; name the source it was made from"
            )

        def read_output(run: TokenRun) -> Tensor:
            """Return the hidden states of the output, whose RoPE is not patched."""
            return spec_in_use.plain(output, run)

        # The user may stop a run early. The output reads as many tokens as the source has read, and
        # the tokens that both have read are compared.
        states = reading.states
        runs = _runs_that_were_read(reading.runs, states.reference)
        states.baked = states.read_runs("baked", runs, read_output)
        states_of_parts = read_parts(reading.runs, states.baked, reading.parts, read_output)
        runs_of_both = _runs_that_were_read(runs, states.baked)

        planned_positions = sum(len(run.kept) for run in reading.runs)
        compared_positions = sum(len(run.kept) for run in runs_of_both)
        return cls(
            reading=reading,
            output=output,
            runs=runs_of_both,
            output_states_of_parts=states_of_parts,
            stopped_early=compared_positions != planned_positions,
        )

    def results_of_parts(self) -> list[BucketResult]:
        """Return how far the output is from the reference in a part of each spread run.

        A spread run is a sequence of tokens whose positions are spread over one range. Its part has
        a quarter of these tokens. The reference is the source with the planned RoPE.
        """
        reading = self.reading
        results = []
        for number, part in enumerate(reading.parts):
            # logits of both sides, from their hidden states, and the KL between these
            measures = reading.measure(
                head=reading.head,
                reference=reading.states.reference_of_parts[number],
                other=self.output,
                hidden=self.output_states_of_parts[number],
                targets=part.targets(),
            )
            # a spread run has one bucket, its range; the control is the unscaled source there
            bucket = part.buckets[0]
            control = reading.controls[number]
            results.append(_judge(bucket, measures, control, "spread"))
        return results

    def results_of_runs(self) -> tuple[list[BucketResult], Curve]:
        """Return how far the output is from the reference in each range of positions.

        The reference is the source with the planned RoPE. Spread runs come first, one for each
        range: sequences of tokens whose positions are spread over the range. A whole run has every
        position from 0 on.

        Returns:
            The results, in the order of the runs; and for a picture the pairs (position, KL) of the
            whole run.
        """
        reading = self.reading
        results: list[BucketResult] = []
        curve: Curve = ()
        for number, run in enumerate(self.runs):
            # logits of both sides, from their hidden states, and the KL between these
            measures = reading.measure(
                head=reading.head,
                reference=reading.states.reference[number],
                other=self.output,
                hidden=reading.states.baked[number],
                targets=run.targets(),
            )

            # A result compares the output in a range (bucket) with the control of the range: how
            # far the unscaled source is from the reference there. A spread run has one range. A
            # whole run may end before the last ranges, so it has fewer of them (strict=False).
            controls = reading.controls
            if run.kind == "spread":
                controls = [reading.controls[number]]
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
    """Return whether the output agrees with its source, and sentences for the user.

    Args:
        both: The hidden states of the output and of its source.
        results: The result of each range of positions.
    """
    reading = both.reading
    comparison = reading.spec.comparison
    schedule = comparison.schedule
    agrees, sentences = conclusion(results, comparison.unchanged, schedule.original_context)
    if agrees and comparison.unchanged:
        source = comparison.checkpoint
        misread = ""
        if reads_source_alike(source, inspect_config(source)):
            misread = _describe_misread_source(reading)
        if misread:
            agrees = False
            sentences = misread

    # If the output approximates log-n by steps, the source was run with log-n itself too, and
    # `formula` has its states.
    if reading.states.formula:
        sentences += _describe_steps(reading)
    # settings that were changed to make the test sensitive
    sentences += describe_changes(reading.changes) + comparison.remark
    # a warning if no position beyond the trained context was compared; --length compares more
    sentences += reach_warning(
        results, schedule.original_context, schedule.context, flag="--length"
    )
    if both.stopped_early:
        sentences += " It was stopped before its end."
    return agrees, sentences


def _describe_misread_source(reading: SourceReading) -> str:
    """Return a sentence if the source does not compute the RoPE that ropeconv reads; else empty.

    An output of --as-is has the RoPE of its source. The reference is the source with the RoPE that
    was read from it, and the control is the source as transformers runs it, so both must agree.
    """
    for part, control in zip(reading.parts, reading.controls, strict=True):
        if control.kl > control.allowed:
            return (
                f"FAIL: the source as transformers runs it has a KL of {control.kl:.2e} at"
                f" {part.buckets[0].name} from the source with the RoPE that ropeconv reads, where"
                f" {control.allowed:.2e} is allowed, so the output has another RoPE than its"
                " source; report it."
            )
    return ""


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
    if has_parts and only_runs_differ and not both.stopped_early:
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
        partial=both.stopped_early,
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
    # The source was run twice over some tokens of each range of positions, with log-n and with
    # steps. `measure` computes the logits of both by the output layer (head) of the source.
    states_with_log_n = reading.states.formula
    states_with_steps = reading.states.reference_of_parts
    mean_kls = []
    for number, part in enumerate(reading.parts):
        measures = reading.measure(
            head=reading.head,
            reference=states_with_log_n[number],
            other=reading.head,
            hidden=states_with_steps[number],
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
