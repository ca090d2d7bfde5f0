"""Compares logits of an output in stock transformers with those of its source, patched at run time from the recipe.

The two sides share no config: the output is loaded with `from_pretrained`, the reference is the source with the buffers
of its rotary modules overwritten from the schedule. A control, the unpatched source, has to disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engines import Progress
from ..engines.transformers import DeviceSpec, TransformersEngine
from ..engines.transformers.config_method import load_with_method, parameters
from ..engines.transformers.distributed import check_heads, world_size
from ..engines.transformers.load import fits_in_gpu, load_widened, local_folder, stored_dtype
from ..errors import BadSource
from .checks.trust import needs_trust
from .comparison import Comparison
from .hidden_states import ComparisonSpec, HiddenStates, read_noise_run, read_source
from .rule.measures import Measures, in_blocks, measure, summarise
from .rule.validation import BucketResult, Validation, bucket_result, conclusion, noise_floor
from .sampling.token_runs import TokenRun, token_runs
from .settings import Settings

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
        check_heads(source.config())
    at, folder = settings.place(stored_dtype(source.config())), local_folder(source)
    engine = TransformersEngine.load(folder, at, chunk=settings.chunk)
    runs = token_runs(settings, schedule, engine.model.get_input_embeddings().weight.shape[0], folder)
    times = {"spread": 5 + settings.config_reference + (at.dtype != "float32"), "whole": 2}
    work = sum(len(run.ids) * times[run.kind] for run in runs)
    progress.total(work)
    progress.note(f"Running {work:,} tokens on {at.device} in {at.dtype}: control, reference, noise floor, baked.")
    spec = ComparisonSpec(comparison, settings, progress)
    states = read_source(engine, spec, runs, at.dtype)
    head, wide = engine.without_layers(), at.dtype != "float32" and fits_in_gpu(source, 4)
    if wide:
        loaded = TransformersEngine(load_widened(folder, at), settings.chunk)
        states.noise_runs.append(read_noise_run(loaded, spec, runs))
    elif at.dtype != "float32":
        progress.note("There is no room for the source in float32, so the noise floor is without it.")
    stock = TransformersEngine.load(baked, at, trust, settings.chunk)
    _same_vocabulary(head, stock, baked)
    cut = [run.until(len(read)) for run, read in zip(runs, states.reference, strict=True)]
    states.baked = states.timed("baked", cut, lambda run: spec.plain(stock, run))
    cut = [run.until(len(read)) for run, read in zip(cut, states.baked, strict=True)]
    compared = _Compared(spec, cut, states, head)
    results, curve = compared.buckets(stock)
    agrees, sentence = conclusion(results, comparison.unchanged)
    config_reference_kl = None
    if settings.config_reference:
        del stock
        config_reference_kl, agreed = compared.config_reference(folder, at, results)
        agrees = agrees and agreed
        words = "agrees" if agreed else "does not agree"
        kl = f"KL up to {config_reference_kl:.1e}"
        sentence += f" The source with the method in its config {words} with the reference ({kl})."
    if states.formula:
        sentence += compared.distance_from_formula()
    partial = [len(run.kept) for run in cut] != [len(run.kept) for run in runs]
    if partial:
        sentence += " It was stopped before its end."
    where = f"{at.device} x {world_size()}" if world_size() > 1 else at.device
    return Validation(
        stock_version(), where, schedule.digest, settings.spread, settings.seed, tuple(results), agrees, sentence,
        dtype=at.dtype, length=settings.length, chunk=settings.chunk, partial=partial, curve=curve,
        precision_kl=compared.precision() if wide else 0.0, config_reference_kl=config_reference_kl,
        speed=states.speed, **comparison.described(),
    )  # fmt: skip


def stock_version() -> str:
    """The version of the installed transformers."""
    import transformers

    return str(transformers.__version__)


@dataclass(frozen=True)
class _Compared:
    """The hidden states of both sides and their measures.

    spec: what is compared, and how. runs: as far as both sides were read. head: the source, for its head.
    """

    spec: ComparisonSpec
    runs: list[TokenRun]
    states: HiddenStates
    head: TransformersEngine

    def buckets(self, stock: TransformersEngine) -> tuple[list[BucketResult], Curve]:
        """The result of each bucket, spread runs first, and (position, KL) of the whole run. stock: the output."""
        results: list[BucketResult] = []
        curve: Curve = ()
        noise = 0.0  # does not fall with the position
        for number, run in enumerate(self.runs):
            wanted, targets = self.states.reference[number], run.targets()
            found = self._against(wanted, stock, self.states.baked[number], targets)
            if run.kind == "spread":
                control = self._against(wanted, self.head, self.states.control[number], targets).kl.mean().item()
                floors = [
                    self._against(wanted, own or self.head, read[number], targets).kl.quantile(0.95).item()
                    for own, read in self.states.noise_runs
                ]
                noise = max(noise, noise_floor(*self.states.by_precision(floors)))
                results.append(bucket_result(run.buckets[0], summarise(found), control, noise))
                continue
            for like, (bucket, rows) in zip(list(results), run.parts(), strict=False):
                results.append(bucket_result(bucket, summarise(found[rows]), like.control_kl, like.noise_kl, "whole"))
            curve = tuple((run.positions[k], kl) for k, kl in zip(run.kept, found.kl.tolist(), strict=False))
        return results, curve

    def config_reference(self, folder: Path, at: DeviceSpec, results: list[BucketResult]) -> tuple[float, bool]:
        """The KL in nats between the source with the method in its config and the reference, and whether it agrees.

        folder: of the source. at: device and precision. results: per bucket, with the tolerance.
        """
        case = self.spec.comparison
        engine = TransformersEngine(load_with_method(folder, at, case.schedule, case.spec), self.spec.settings.chunk)
        worst, agrees = 0.0, True
        for run, wanted, result in zip(self.runs, self.states.reference, results, strict=False):
            if run.kind == "spread":
                found = self._against(wanted, engine, self.spec.plain(engine, run), run.targets())
                kl = found.kl.quantile(0.95).item()
                worst, agrees = max(worst, kl), agrees and kl <= result.tolerance
        return worst, agrees

    def precision(self) -> float:
        """The KL in nats of the reference in the precision of the run from float32, at the end of the context."""
        wide, read = self.states.noise_runs[-1]
        assert wide is not None
        last = len(read) - 1
        targets = self.runs[last].targets()
        return float(self._measured(wide, read[last], self.head, self.states.reference[last], targets).kl.mean())

    def distance_from_formula(self) -> str:
        """A sentence on the KL between log-n itself and the log-n approximation in the output."""
        pairs = zip(self.runs, self.states.formula, self.states.reference, strict=False)
        found = max(self._measured(self.head, a, self.head, b, run.targets()).kl.mean().item() for run, a, b in pairs)
        return f" It agrees with the steps that were written; log-n itself is a KL of {found:.2e} away from them."

    def _against(self, wanted: Any, other: TransformersEngine, read: Any, targets: Any) -> Measures:
        return self._measured(self.head, wanted, other, read, targets)

    def _measured(
        self, head: TransformersEngine, wanted: Any, other: TransformersEngine, read: Any, targets: Any
    ) -> Measures:
        """Measures between two sets of hidden states.

        head: gives logits to the states `wanted`. other: gives logits to the states `read`. targets: the next tokens.
        """
        count = min(len(wanted), len(read), len(targets))

        def measured(rows: slice) -> Measures:
            return measure(head.head(wanted[rows]), other.head(read[rows]), targets[rows])

        return in_blocks(measured, count, head.vocabulary)


def _same_vocabulary(head: TransformersEngine, stock: TransformersEngine, baked: Path) -> None:
    if head.vocabulary != stock.vocabulary:
        raise BadSource(
            f"{baked} has a vocabulary of {stock.vocabulary} and its source one of {head.vocabulary}; name the source "
            "it is from"
        )
