"""SourceReading: hidden states of the source in all variants, with the control and the noise floor.

The settings are chosen so that the logits distinguish a wrong output from a right one, before the
output is read. The measure is the power: the KL of the control over the KL that is allowed for
rounding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..engines.engine import Progress
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.load import DeviceSpec, fits, load_widened
from ..engines.transformers.patch import (
    attention_modules,
    choose_all_keys,
    indexers,
    nudge,
    patch,
    round_weights,
    scale_scores,
)
from ..rope.schedule import LogN, QueryScaling, Schedule
from .comparison import Comparison, Settings
from .sampling import TokenRun, doublings, synthetic, token_runs
from .validation import (
    DETAIL,
    NOISE,
    POWER,
    SAME_KERNELS,
    SEPARATION,
    Measures,
    in_blocks,
    measure,
    measure_states,
    spread_of,
    tolerance,
)

if TYPE_CHECKING:
    from torch import Tensor

FAINT = 1.02  # by which attention scores are multiplied, for a fault that is small
SPREAD_POSITIONS = 64  # of each run, for the spread of the logits


@dataclass(frozen=True)
class Control:
    """Properties of the test itself in a spread run: KL from the reference in nats.

    kl: mean, of the unscaled source. faint: mean, of the reference with attention scores 2 %
    larger; infinite for a model without a softmax scale. noise: the noise floor. allowed: the
    tolerance. worst_noise: the largest KL of a noise run at one position.
    """

    kl: float
    faint: float
    noise: float
    allowed: float
    worst_noise: float


@dataclass(frozen=True)
class SourceReading:
    """The source, read once in all variants that a comparison needs.

    spec: what is compared, and how. at: device and precision. head: the source, for its head.
    temperature: logits are divided by it for the KL. changes: phrases on settings that were
    changed. read_tokens: how many were read up to now. indexed: whether an indexer chooses the keys
    that attention sees.
    """

    spec: ComparisonSpec
    at: DeviceSpec
    runs: list[TokenRun]
    states: HiddenStates
    head: TransformersEngine
    temperature: float = 1.0
    changes: tuple[str, ...] = ()
    read_tokens: int = 0
    indexed: bool = False

    @classmethod
    def read(
        cls,
        spec: ComparisonSpec,
        folder: Path,
        at: DeviceSpec,
        changes: tuple[str, ...] = (),
        before: int = 0,
    ) -> SourceReading:
        """Load the source and read it.

        folder: of the source. before: tokens that were read already, for the progress. Others: as
        in the class.
        """
        comparison = spec.comparison
        settings = spec.settings
        progress = spec.progress
        engine = TransformersEngine.load(folder, at, chunk=settings.chunk)
        runs = token_runs(settings, comparison.schedule, engine.vocabulary, folder)
        times = {"spread": 6 + (at.dtype != "float32"), "whole": 2}
        work = sum(len(run.ids) * times[run.kind] for run in runs)
        progress.total(before + work)
        if before:
            settings_of_test = f": {', '.join(changes)}" if changes else ""
            progress.note(
                f"Running {work:,} tokens again, for a more sensitive test{settings_of_test}."
            )
        else:
            run = "control, reference, noise floor, baked"
            progress.note(f"Running {work:,} tokens on {at.device} in {at.dtype}: {run}.")
        fault = replace(spec, score_factor=FAINT * spec.score_factor)
        samples = (
            [run for run in runs if run.kind == "spread"] if attention_modules(engine.model) else []
        )
        faint = [fault.patched(engine, run) for run in samples]
        states = read_source(engine, spec, runs, at.dtype)
        states.faint = faint
        indexed = bool(indexers(engine.model))
        wide = replace(at, dtype="float32")
        head = engine.without_layers()
        if at.dtype != "float32" and fits(comparison.checkpoint, wide):
            widened_engine = TransformersEngine(load_widened(folder, at), settings.chunk)
            states.noise_runs.append(read_noise_run(widened_engine, spec, runs))
        elif at.dtype != "float32":
            progress.note(
                "The source does not fit into the memory in float32, so the noise floor leaves"
                " float32 out."
            )
        return cls(
            spec,
            at,
            runs,
            states,
            head,
            changes=changes,
            read_tokens=before + work,
            indexed=indexed,
        )

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped before its end."""
        return any(
            len(hidden) < len(run.kept)
            for run, hidden in zip(self.runs, self.states.reference, strict=True)
        )

    def normalised(self) -> SourceReading:
        """Return the reading with logits divided by their spread for the KL; without logits, the
        same reading.
        """
        if not self.head.has_logits:
            return self
        blocks = [
            self.head.head(hidden[:SPREAD_POSITIONS])
            for run, hidden in zip(self.runs, self.states.reference, strict=True)
            if run.kind == "spread"
        ]
        spread = math.sqrt(sum(spread_of(logits) ** 2 for logits in blocks) / len(blocks))
        change = f"logits divided by their spread of {spread:.2g}"
        return replace(self, temperature=spread, changes=(*self.changes, change))

    @cached_property
    def controls(self) -> list[Control]:
        """The control of each spread run, which come first among the runs."""
        # noise does not fall with the position
        controls = []
        noise = 0.0
        states = self.states
        folded = bool(self.spec.comparison.rounded_weights(self.at.dtype))
        part = 1.0 if folded else 1 / NOISE  # folded keys round to other numbers in low precision
        for number, (run, control) in enumerate(zip(self.runs, states.control, strict=False)):

            def kl(engine: TransformersEngine, hidden: Tensor, number: int = number) -> Tensor:
                reference = self.states.reference[number]
                targets = self.runs[number].targets()
                return self.measured(self.head, reference, engine, hidden, targets).kl

            noise_kl = [
                kl(engine or self.head, hidden[number]) for engine, hidden in states.noise_runs
            ]
            floors = [run_kl.quantile(0.95).item() for run_kl in noise_kl]
            worst = max((run_kl.max().item() for run_kl in noise_kl), default=0.0)
            noise = max(noise, states.noise_floor(floors, part))
            faint = kl(self.head, states.faint[number]).mean().item() if states.faint else math.inf
            allowed = tolerance(run.positions[-1], noise, SAME_KERNELS, faint)
            controls.append(
                Control(kl(self.head, control).mean().item(), faint, noise, allowed, worst)
            )
        return controls

    @property
    def power(self) -> float:
        """The smallest ratio of the KL of the control to the allowed KL, beyond the trained
        context.
        """
        return min(control.kl / control.allowed for control in self.controls[1:] or self.controls)

    @property
    def detail(self) -> float:
        """The smallest ratio of the KL of a faint fault to the allowed KL: small for one-hot
        attention.
        """
        return min(
            control.faint / control.allowed for control in self.controls[1:] or self.controls
        )

    def measured(
        self,
        head: TransformersEngine,
        reference: Tensor,
        other: TransformersEngine,
        hidden: Tensor,
        targets: Tensor,
    ) -> Measures:
        """Compare hidden states with those of the reference. head, other: their engines. targets:
        the next tokens.
        """
        count = min(len(reference), len(hidden), len(targets))

        def part(rows: slice) -> Measures:
            if not head.has_logits:
                return measure_states(reference[rows], hidden[rows])
            return measure(
                head.head(reference[rows]),
                other.head(hidden[rows]),
                targets[rows],
                self.temperature,
            )

        return in_blocks(part, count, head.vocabulary)


TOKENS = 256  # of spread runs at least, if a shorter one had not enough power
FACTOR_TOKENS = 128  # of the runs that find the factor of the attention scores
FACTORS = tuple(16.0**exponent for exponent in range(-5, 9))
STEPS = (0.25, 4.0)  # from the best factor


def read_with_power(spec: ComparisonSpec, folder: Path, at: DeviceSpec) -> SourceReading:
    """Return the first reading of the source with enough power, or the one with most.

    A low precision that the settings name is left only if the control cannot be distinguished from
    rounding in it, or rounding exchanges tokens. spec: what is compared. folder: of the source. at:
    device and precision.
    """
    dtype = at.dtype if spec.settings.dtype != "auto" else "float32"
    best = None
    for reading in _readings(spec, folder, at):
        if spec.comparison.unchanged or (
            reading.at.dtype == dtype != "float32" and _is_clear(reading)
        ):
            return reading
        if best is None or _worth(reading) > _worth(best):
            best = reading
        if _worth(best) >= 1:
            break
    assert best is not None
    return best


def _is_clear(reading: SourceReading) -> bool:
    """Whether the control can be distinguished from rounding, which changes no position as much as
    the method does.

    With one-hot attention, rounding exchanges the likeliest token at a few positions, and 95th
    percentiles vary.
    """
    exchanged = any(control.worst_noise > control.kl / 2 for control in reading.controls)
    return reading.power >= SEPARATION and not exchanged


def _worth(reading: SourceReading) -> float:
    """Return how close a reading is to enough power and to half of the possible detail; 1 is
    enough.
    """
    return min(reading.power / POWER, reading.detail / (DETAIL / 2))


def _readings(spec: ComparisonSpec, folder: Path, at: DeviceSpec) -> Iterator[SourceReading]:
    """Yield readings of the source, first with the given settings, then with more and more changes
    to them.

    First unchanged, and with logits divided by their spread, since flat logits have a KL below any
    floor and that of sharp ones is noise. Then in float32; with attention to all keys, if an
    indexer chooses some; and last on more, synthetic tokens, with attention scores that are neither
    uniform nor one-hot. A reading that the user stopped is the last one.
    """
    yield (last := SourceReading.read(spec, folder, at))
    yield last.normalised()
    if last.is_stopped:
        return
    changes: tuple[str, ...] = ()
    wide = replace(at, dtype="float32")
    if at.dtype != "float32" and fits(spec.comparison.checkpoint, wide):
        at = wide
        changes = ("float32",)
        yield (last := SourceReading.read(spec, folder, at, changes, last.read_tokens))
        yield last.normalised()
        if last.is_stopped:
            return
    settings = spec.settings
    if last.indexed:
        spec = replace(spec, all_keys=True)
        changes = (*changes, "attention to all keys")
        yield (last := SourceReading.read(spec, folder, at, changes, last.read_tokens))
        yield last.normalised()
        if last.is_stopped:
            return
    if settings.text is not None:
        changes += ("synthetic tokens",)
    spec = replace(spec, settings=replace(settings, text=None, tokens=max(TOKENS, settings.spread)))
    engine = TransformersEngine.load(folder, at, chunk=settings.chunk)
    if attention_modules(engine.model):
        factor = _best_factor(engine, spec)
        spec = replace(spec, score_factor=factor)
        changes = (
            *changes,
            f"attention scores multiplied by {factor:g}",
        )
    del engine
    yield SourceReading.read(spec, folder, at, changes, last.read_tokens).normalised()


def _best_factor(engine: TransformersEngine, spec: ComparisonSpec) -> float:
    """Return the factor of the attention scores with which a faint fault differs most, as a
    multiple of the noise.
    """
    schedule = spec.comparison.schedule
    low, high = doublings(schedule.original_context, schedule.context)[-1]
    count = min(FACTOR_TOKENS, high)
    run = TokenRun.spread(low, high, synthetic(count, engine.vocabulary, spec.settings.seed))

    def detail(factor: float) -> float:
        scaled = replace(spec, score_factor=factor, progress=Progress())
        reference = scaled.patched(engine, run)
        fault = replace(scaled, score_factor=FAINT * factor).patched(engine, run)
        noise_runs = [scaled.patched(engine, run, schedule=nudge(schedule))]
        if schedule.short_inv_freq is None and engine.chunked:
            noise_runs.append(scaled.patched(engine, run, -(-count // PARTS)))
        noise = sum(
            _normalised(engine, reference, hidden).kl.quantile(0.95).item() for hidden in noise_runs
        )
        kl = _normalised(engine, reference, fault).kl.mean().item()
        return float(kl / tolerance(run.positions[-1], noise, SAME_KERNELS))

    best = max(FACTORS, key=detail)
    return max((best, *(best * step for step in STEPS)), key=detail)


def _normalised(engine: TransformersEngine, reference: Tensor, hidden: Tensor) -> Measures:
    """Compare hidden states of one model, by logits over their spread if it has logits."""
    if not engine.has_logits:
        return measure_states(reference, hidden)
    logits = engine.head(reference)
    return measure(logits, engine.head(hidden), None, spread_of(logits))


PARTS = 3  # chunks of a spread run, for the noise floor


@dataclass
class HiddenStates:
    """Hidden states, one tensor [positions, hidden_size] per run; all but `reference` and `baked`
    for spread runs only.

    control: of the unpatched source. reference: of the source patched to the schedule. noise_runs:
    of the reference in variants that differ only by rounding (other chunks, frequencies 2 ulp of
    float32 away, weights rounded as a fold rounds them, another precision), each with the engine
    for its head, None for the source. formula: of the source with log-n, if the output has its
    approximation. faint: of the reference with attention scores 2 % larger, empty for a model
    without a softmax scale. baked: of the output. speed: tokens per second of whole runs.
    """

    control: list[Tensor] = field(default_factory=list)
    reference: list[Tensor] = field(default_factory=list)
    noise_runs: list[tuple[TransformersEngine | None, list[Tensor]]] = field(default_factory=list)
    formula: list[Tensor] = field(default_factory=list)
    faint: list[Tensor] = field(default_factory=list)
    baked: list[Tensor] = field(default_factory=list)
    speed: dict[str, float] = field(default_factory=dict)

    def noise_floor(self, kls: list[float], part: float) -> float:
        """Return the noise floor in nats: the sum of the KLs in the precision of the source, or a
        part of a larger one.

        kls: 95th percentiles, one per entry of `noise_runs`; KL is quadratic in errors of logits,
        so the KLs of independent errors add. part: of those in another precision; 1 if the two
        sides round differently.
        """
        same = [kl for (engine, _), kl in zip(self.noise_runs, kls, strict=True) if engine is None]
        other = [
            kl * part
            for (engine, _), kl in zip(self.noise_runs, kls, strict=True)
            if engine is not None
        ]
        return max(sum(same), *other, 0.0)

    def timed(
        self, name: str, runs: list[TokenRun], read: Callable[[TokenRun], Tensor]
    ) -> list[Tensor]:
        """Return the hidden states of every run, and add the speed of a whole run to `speed` under
        a name.
        """
        states = []
        for run in runs:
            begin = time.perf_counter()
            states.append(read(run))
            if run.kind == "whole" and len(states[-1]) == len(run.kept):
                self.speed[name] = round(len(run.ids) / (time.perf_counter() - begin), 1)
        return states


@dataclass(frozen=True)
class ComparisonSpec:
    """A comparison with its settings and the callbacks of the caller.

    score_factor: the factor of attention scores in every model. all_keys: whether indexers choose
    all keys.
    """

    comparison: Comparison
    settings: Settings
    progress: Progress
    score_factor: float = 1.0
    all_keys: bool = False

    def patched(
        self,
        engine: TransformersEngine,
        run: TokenRun,
        chunk: int = 0,
        schedule: Schedule | None = None,
        scale: LogN | QueryScaling | None = None,
    ) -> Tensor:
        """Return hidden states of the source patched to the schedule, [len(run.kept), hidden_size];
        undo the patch.

        engine: the source. chunk: tokens at a time, 0 for that of the engine. schedule, scale: in
        place of those of the comparison.
        """
        comparison = self.comparison
        schedule = schedule or comparison.schedule
        scale = scale or comparison.scale
        with ExitStack() as stack:
            stack.callback(
                patch(engine.model, schedule, comparison.spec, scale, comparison.queries)
            )
            stack.callback(setattr, engine, "chunk", engine.chunk)
            engine.chunk = chunk or engine.chunk
            return self.plain(engine, run)

    def plain(self, engine: TransformersEngine, run: TokenRun) -> Tensor:
        """Return hidden states of an unpatched model, [len(run.kept), hidden_size]. Only whole runs
        can be stopped.
        """
        progress = self.progress if run.kind == "whole" else Progress(advance=self.progress.advance)
        with ExitStack() as stack:
            scale_scores(stack, engine.model, self.score_factor)
            if self.all_keys:
                choose_all_keys(stack, engine.model)
            return engine.hidden_states(run.ids, run.positions, run.kept, progress)


def read_source(
    engine: TransformersEngine, spec: ComparisonSpec, runs: list[TokenRun], dtype: str
) -> HiddenStates:
    """Return the hidden states of the source in all variants that a comparison needs.

    engine: the source, in which the weights that a fold rounds are rounded at the end. dtype: of
    its computation.
    """
    case = spec.comparison
    samples = [run for run in runs if run.kind == "spread"]
    states = HiddenStates()
    states.control = [spec.plain(engine, run) for run in samples]
    if isinstance(case.scale, QueryScaling) and case.schedule.log_n is not None:
        states.formula = [spec.patched(engine, run, scale=case.schedule.log_n) for run in samples]
    states.reference = states.timed("reference", runs, lambda run: spec.patched(engine, run))
    if (
        case.schedule.short_inv_freq is None and engine.chunked
    ):  # else the list changes with the chunk: no noise
        states.noise_runs.append(
            (None, [spec.patched(engine, run, -(-len(run.ids) // PARTS)) for run in samples])
        )
    nearby = nudge(case.schedule)
    states.noise_runs.append(
        (None, [spec.patched(engine, run, schedule=nearby) for run in samples])
    )
    folded = case.rounded_weights(dtype)
    if folded:
        round_weights(engine.model, {name: case.checkpoint.tensors[name].dtype for name in folded})
        states.noise_runs.append((None, [spec.patched(engine, run) for run in samples]))
    return states


def read_noise_run(
    engine: TransformersEngine, spec: ComparisonSpec, runs: list[TokenRun]
) -> tuple[TransformersEngine, list[Tensor]]:
    """Return an entry of `noise_runs`: the spread runs in an engine of another precision, which
    keeps only its head.
    """
    states = [spec.patched(engine, run) for run in runs if run.kind == "spread"]
    return engine.without_layers(), states
