"""Compares logits of an output in stock transformers with those of its source, patched at run time from the recipe.

The two sides share no config: the output is loaded with `from_pretrained`, the reference is the source with the buffers
of its rotary modules overwritten from the schedule. A control, the unpatched source, has to disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..engines.engine import Progress
from ..engines.transformers.engine import TransformersEngine, load_with_method, parameters
from ..engines.transformers.load import check_heads, folder_of, placed, stored_dtype, weight_bytes, world_size
from ..errors import BadSource
from ..formats.disk import human
from .checks import needs_trust
from .comparison import Comparison, Settings
from .sampling import TokenRun
from .source_reading import ComparisonSpec, SourceReading, read_with_power
from .validation import SAME_KERNELS, BucketResult, Validation, bucket_result, conclusion, otherwise, rule

Curve = tuple[tuple[int, float], ...]


def validate_checkpoint(
    comparison: Comparison, settings: Settings | None = None, progress: Progress | None = None
) -> Validation:
    """Compares the logits of a checkpoint, as the installed transformers loads it, with those of the reference.

    comparison: the output and its source. settings: how to run, by default as `Settings()`. progress: callbacks. Raises
    BadSource where the length is beyond the context, UsageError for a device that is not available.
    """
    settings, progress = settings or Settings(), progress or Progress()
    source, baked, schedule = comparison.checkpoint, comparison.baked, comparison.schedule
    trust = needs_trust(baked, settings.trust_remote_code)
    if settings.length > schedule.context:
        raise BadSource(f"{baked} is made for {schedule.context} tokens, so --length {settings.length} is beyond it")
    if settings.config_reference:
        parameters(schedule, comparison.spec)  # raises before anything long
    if world_size() > 1:
        check_heads(source.config(), source.family)
    with folder_of(source) as folder:
        return _validated(ComparisonSpec(comparison, settings, progress), folder, trust)


def _validated(asked: ComparisonSpec, folder: Path, trust: bool) -> Validation:
    """The result of a comparison. folder: the checkpoint of the source. trust: run the code of the output."""
    comparison, settings = asked.comparison, asked.settings
    source, baked, schedule = comparison.checkpoint, comparison.baked, comparison.schedule
    place = placed(source, settings.place(stored_dtype(source.config()), comparison.stands_for))
    if place.layer_by_layer:
        size = human(weight_bytes(source, place.dtype))
        asked.progress.note(
            f"The weights ({size} as {place.dtype}) are read from the disk layer by layer, which is slow."
        )
    reading = read_with_power(asked, folder, place)
    at, spec, runs, states = reading.at, reading.spec, reading.runs, reading.states
    stock = TransformersEngine.load(baked, at, trust, settings.chunk)
    if reading.head.vocabulary != stock.vocabulary:
        raise BadSource(
            f"{baked} has a vocabulary of {stock.vocabulary} and its source one of {reading.head.vocabulary}; name the "
            "source it is from"
        )
    cut = [run.until(len(read)) for run, read in zip(runs, states.reference, strict=True)]
    states.baked = states.timed("baked", cut, lambda run: spec.plain(stock, run))
    cut = [run.until(len(read)) for run, read in zip(cut, states.baked, strict=True)]
    compared = _ComparedModels(reading, cut)
    results, curve = compared.buckets(stock)
    agrees, sentence = conclusion(results, comparison.unchanged)
    config_reference_kl = None
    if settings.config_reference:
        del stock
        config_reference_kl, agreed = compared.config_reference(folder, results)
        agrees = agrees and agreed
        words = "agrees" if agreed else "does not agree"
        kl = f"KL up to {config_reference_kl:.1e}"
        sentence += f" The source with the method in its config {words} with the reference ({kl})."
    if states.formula:
        sentence += compared.distance_from_formula()
    sentence += otherwise(reading.changes)
    partial = [len(run.kept) for run in cut] != [len(run.kept) for run in runs]
    if partial:
        sentence += " It was stopped before its end."
    where = f"{at.device} x {world_size()}" if world_size() > 1 else at.device
    return Validation(
        stock_version(), where, schedule.digest, spec.settings.spread, settings.seed, tuple(results), agrees, sentence,
        dtype=at.dtype, length=settings.length, chunk=settings.chunk, partial=partial, curve=curve,
        precision_kl=compared.precision() if reading.widened else 0.0, config_reference_kl=config_reference_kl,
        speed=states.speed, score_factor=spec.score_factor, temperature=reading.temperature,
        rule=rule(SAME_KERNELS, not reading.head.has_logits),
        **comparison.described(),
    )  # fmt: skip


def stock_version() -> str:
    """The version of the installed transformers."""
    import transformers

    return str(transformers.__version__)


@dataclass(frozen=True)
class _ComparedModels:
    """The hidden states of both sides and their measures. runs: as far as both sides were read."""

    reading: SourceReading
    runs: list[TokenRun]

    def buckets(self, stock: TransformersEngine) -> tuple[list[BucketResult], Curve]:
        """The result of each bucket, spread runs first, and (position, KL) of the whole run. stock: the output."""
        results: list[BucketResult] = []
        curve: Curve = ()
        reading, states = self.reading, self.reading.states
        for number, run in enumerate(self.runs):
            wanted, read = states.reference[number], states.baked[number]
            found = reading.measured(reading.head, wanted, stock, read, run.targets())
            if run.kind == "spread":
                control = reading.controls[number]
                results.append(
                    bucket_result(run.buckets[0], found, control.kl, control.noise, "spread", control.allowed)
                )
                continue
            for like, (bucket, rows) in zip(list(results), run.parts(), strict=False):
                results.append(
                    bucket_result(bucket, found[rows], like.control_kl, like.noise_kl, "whole", like.tolerance)
                )
            curve = tuple((run.positions[k], kl) for k, kl in zip(run.kept, found.kl.tolist(), strict=False))
        return results, curve

    def config_reference(self, folder: Path, results: list[BucketResult]) -> tuple[float, bool]:
        """The KL in nats between the source with the method in its config and the reference, and whether it agrees.

        folder: of the source. results: per bucket, with the tolerance.
        """
        reading, spec = self.reading, self.reading.spec
        model = load_with_method(folder, reading.at, spec.comparison.schedule, spec.comparison.spec)
        engine = TransformersEngine(model, spec.settings.chunk)
        worst, agrees = 0.0, True
        for run, wanted, result in zip(self.runs, reading.states.reference, results, strict=False):
            if run.kind == "spread":
                found = reading.measured(reading.head, wanted, engine, spec.plain(engine, run), run.targets())
                kl = found.kl.quantile(0.95).item()
                worst, agrees = max(worst, kl), agrees and kl <= result.tolerance
        return worst, agrees

    def precision(self) -> float:
        """The KL in nats of the reference in the precision of the run from float32, at the end of the context."""
        reading = self.reading
        wide, read = reading.states.noise_runs[-1]
        assert wide is not None
        last = len(read) - 1
        targets = self.runs[last].targets()
        found = reading.measured(wide, read[last], reading.head, reading.states.reference[last], targets)
        return float(found.kl.mean())

    def distance_from_formula(self) -> str:
        """A sentence on the KL between log-n itself and the log-n approximation in the output."""
        reading, head = self.reading, self.reading.head
        pairs = zip(self.runs, reading.states.formula, reading.states.reference, strict=False)
        found = max(reading.measured(head, a, head, b, run.targets()).kl.mean().item() for run, a, b in pairs)
        return f" It agrees with the steps that were written; log-n itself is a KL of {found:.2e} away from them."
