"""SourceReading: the source of a comparison in all variants, with the control and the noise floor.

How the source is read is chosen so that the logits can tell a wrong output from a right one. The choice is made on the
source alone, before the output is read. Its measure is the power: the KL of the control over the one that rounding is
allowed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
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
    nudged,
    round_weights,
    scale_scores,
)
from ..rope.schedule import LogN, QueryScaling, Schedule
from .comparison import Comparison, Settings
from .sampling import TokenRun, doubling_buckets, synthetic, token_runs
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
    noise_floor,
    spread_of,
    tolerance,
)

if TYPE_CHECKING:
    from torch import Tensor

FAINT = 1.02  # by which attention scores are multiplied, for a fault that is small
SPREAD_POSITIONS = 64  # of each run, for the spread of the logits


@dataclass(frozen=True)
class Control:
    """What a spread run tells about the test itself: KL from the reference in nats.

    kl: mean, of the unscaled source. faint: mean, of the reference with attention scores 2 % larger; infinite where a
    model has no softmax scale. noise: the noise floor. allowed: the tolerance. worst_noise: the largest KL of a noise
    run at one position.
    """

    kl: float
    faint: float
    noise: float
    allowed: float
    worst_noise: float


@dataclass(frozen=True)
class SourceReading:
    """The source, read once in all variants that a comparison needs.

    spec: what is compared, and how. at: device and precision. runs: the tokens. states: the hidden states. head: the
    source, for its head. widened: whether a noise run in float32 is among the states. temperature: by which logits are
    divided for the KL. changes: phrases on what was chosen otherwise than the settings say. read_tokens: how
    many were read up to now. indexed: whether an indexer chooses the keys that attention sees.
    """

    spec: ComparisonSpec
    at: DeviceSpec
    runs: list[TokenRun]
    states: HiddenStates
    head: TransformersEngine
    widened: bool
    temperature: float = 1.0
    changes: tuple[str, ...] = ()
    read_tokens: int = 0
    indexed: bool = False

    @classmethod
    def read(
        cls, spec: ComparisonSpec, folder: Path, at: DeviceSpec, changes: tuple[str, ...] = (), before: int = 0
    ) -> SourceReading:
        """Loads the source and reads it.

        spec: what is compared. folder: of the source. at: device and precision. changes: as in the class. before:
        tokens that have been read already, for the progress.
        """
        case, settings, progress = spec.comparison, spec.settings, spec.progress
        engine = TransformersEngine.load(folder, at, chunk=settings.chunk)
        runs = token_runs(settings, case.schedule, engine.vocabulary, folder)
        times = {"spread": 6 + settings.config_reference + (at.dtype != "float32"), "whole": 2}
        work = sum(len(run.ids) * times[run.kind] for run in runs)
        progress.total(before + work)
        progress.note(f"Running {work:,} tokens on {at.device} in {at.dtype}: control, reference, noise floor, baked.")
        fault = replace(spec, score_factor=FAINT * spec.score_factor)
        samples = [run for run in runs if run.kind == "spread"] if attention_modules(engine.model) else []
        faint = [fault.patched(engine, run) for run in samples]
        states = read_source(engine, spec, runs, at.dtype)
        states.faint, indexed = faint, bool(indexers(engine.model))
        wide = replace(at, dtype="float32")
        head, widened = engine.without_layers(), at.dtype != "float32" and fits(case.checkpoint, wide)
        if widened:
            loaded = TransformersEngine(load_widened(folder, at), settings.chunk)
            states.noise_runs.append(read_noise_run(loaded, spec, runs))
        elif at.dtype != "float32":
            progress.note("There is no room for the source in float32, so the noise floor leaves it out.")
        return cls(
            spec, at, runs, states, head, widened, changes=changes, read_tokens=before + work, indexed=indexed
        )  # fmt: skip

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped before its end."""
        return any(len(read) < len(run.kept) for run, read in zip(self.runs, self.states.reference, strict=True))

    def normalised(self) -> SourceReading:
        """The same reading with logits divided by their own spread for the KL; of hidden states the same reading."""
        if not self.head.has_logits:
            return self
        blocks = [
            self.head.head(read[:SPREAD_POSITIONS])
            for run, read in zip(self.runs, self.states.reference, strict=True)
            if run.kind == "spread"
        ]
        spread = math.sqrt(sum(spread_of(logits) ** 2 for logits in blocks) / len(blocks))
        said = f"logits divided by their spread of {spread:.2g}"
        return replace(self, temperature=spread, changes=(*self.changes, said))

    @cached_property
    def controls(self) -> list[Control]:
        """The control of each spread run, which come first among the runs."""
        found, noise, states = [], 0.0, self.states  # does not fall with the position
        folded = bool(self.spec.comparison.rounded_weights(self.at.dtype))
        part = 1.0 if folded else 1 / NOISE  # folded keys round to other numbers in low precision
        for number, (run, read) in enumerate(zip(self.runs, states.control, strict=False)):

            def kl(other: TransformersEngine, read: Tensor, number: int = number) -> Tensor:
                wanted, targets = self.states.reference[number], self.runs[number].targets()
                return self.measured(self.head, wanted, other, read, targets).kl

            apart = [kl(own or self.head, other[number]) for own, other in states.noise_runs]
            floors = [run_kl.quantile(0.95).item() for run_kl in apart]
            worst = max((run_kl.max().item() for run_kl in apart), default=0.0)
            noise = max(noise, noise_floor(*states.by_precision(floors), part))
            faint = kl(self.head, states.faint[number]).mean().item() if states.faint else math.inf
            allowed = tolerance(run.positions[-1], noise, SAME_KERNELS, faint)
            found.append(Control(kl(self.head, read).mean().item(), faint, noise, allowed, worst))
        return found

    @property
    def power(self) -> float:
        """The KL of the control over the one that is allowed, where it is smallest beyond the trained context."""
        return min(control.kl / control.allowed for control in self.controls[1:] or self.controls)

    @property
    def detail(self) -> float:
        """The KL of a faint fault over the one that is allowed, as `power`: small where attention is one-hot."""
        return min(control.faint / control.allowed for control in self.controls[1:] or self.controls)

    def measured(
        self, head: TransformersEngine, wanted: Tensor, other: TransformersEngine, read: Tensor, targets: Tensor
    ) -> Measures:
        """Measures between two sets of hidden states.

        head: gives logits to the states `wanted`. other: gives logits to the states `read`. targets: the next tokens.
        """
        count = min(len(wanted), len(read), len(targets))

        def part(rows: slice) -> Measures:
            if not head.has_logits:
                return measure_states(wanted[rows], read[rows])
            return measure(head.head(wanted[rows]), other.head(read[rows]), targets[rows], self.temperature)

        return in_blocks(part, count, head.vocabulary)


TOKENS = 256  # of spread runs at least, where a shorter one had not enough power
TRIED = 128  # tokens of the runs by which the factor of the attention scores is found
FACTORS = tuple(16.0**exponent for exponent in range(-5, 9))
AROUND = (0.25, 4.0)  # the best of these


def read_with_power(spec: ComparisonSpec, folder: Path, at: DeviceSpec) -> SourceReading:
    """The first reading of the source that has enough power, or the one that has most.

    spec: what is compared, and how. folder: of the source. at: device and precision. A low precision that the settings
    name is left only where the control could not be distinguished from rounding in it, or rounding exchanges tokens.
    """
    asked = at.dtype if spec.settings.dtype != "auto" else "float32"
    best = None
    for reading in _readings(spec, folder, at):
        if spec.comparison.unchanged or (reading.at.dtype == asked != "float32" and _is_clear(reading)):
            return reading
        if best is None or _worth(reading) > _worth(best):
            best = reading
        if _worth(best) >= 1:
            break
    assert best is not None
    return best


def _is_clear(reading: SourceReading) -> bool:
    """Whether the control can be distinguished from rounding, which nowhere changes as much as the method does.

    Where attention is one-hot, rounding exchanges the likeliest token at a few positions, and the 95th percentile of
    one reading says little of that of the next.
    """
    exchanged = any(control.worst_noise > control.kl / 2 for control in reading.controls)
    return reading.power >= SEPARATION and not exchanged


def _worth(reading: SourceReading) -> float:
    """How near a reading comes to enough power, and half of the detail that there can be; 1 is enough."""
    return min(reading.power / POWER, reading.detail / (DETAIL / 2))


def _readings(spec: ComparisonSpec, folder: Path, at: DeviceSpec) -> Iterator[SourceReading]:
    """Readings of the source, from what the settings say to what departs most from it.

    First as it is, and with logits divided by their spread: the KL of flat ones is below any floor, and that of sharp
    ones is noise. Then in float32; with attention to all keys, where an indexer chooses some; last on synthetic tokens,
    more of them, with attention scores that are neither uniform nor one-hot. One that the user has stopped is not
    followed by another one.
    """
    yield (last := SourceReading.read(spec, folder, at))
    yield last.normalised()
    if last.is_stopped:
        return
    changes: tuple[str, ...] = ()
    wide = replace(at, dtype="float32")
    if at.dtype != "float32" and fits(spec.comparison.checkpoint, wide):
        at, changes = wide, ("float32",)
        yield (last := SourceReading.read(spec, folder, at, changes, last.read_tokens))
        yield last.normalised()
        if last.is_stopped:
            return
    settings = spec.settings
    if last.indexed:
        spec, changes = replace(spec, all_keys=True), (*changes, "attention to all keys")
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
        spec, changes = replace(spec, score_factor=factor), (*changes, f"attention scores multiplied by {factor:g}")
    del engine
    yield SourceReading.read(spec, folder, at, changes, last.read_tokens).normalised()


def _best_factor(engine: TransformersEngine, spec: ComparisonSpec) -> float:
    """The factor of the attention scores with which a faint fault is furthest from the reference, measured in noise."""
    schedule = spec.comparison.schedule
    bucket = doubling_buckets(schedule.original_context, schedule.context, TRIED)[-1]
    count = len(bucket.positions)
    ids = synthetic(count, engine.vocabulary, spec.settings.seed)
    run = TokenRun("spread", ids, bucket.positions, list(range(bucket.counted.start, count)), [bucket])

    def detail(factor: float) -> float:
        case = replace(spec, score_factor=factor, progress=Progress())
        wanted = case.patched(engine, run)
        fault = replace(case, score_factor=FAINT * factor).patched(engine, run)
        near = [case.patched(engine, run, schedule=nudged(schedule))]
        if schedule.short_inv_freq is None and engine.chunked:
            near.append(case.patched(engine, run, -(-count // PARTS)))
        noise = sum(_normalised(engine, wanted, other).kl.quantile(0.95).item() for other in near)
        away = _normalised(engine, wanted, fault).kl.mean().item()
        return float(away / tolerance(run.positions[-1], noise, SAME_KERNELS))

    best = max(FACTORS, key=detail)
    return max((best, *(best * step for step in AROUND)), key=detail)


def _normalised(engine: TransformersEngine, wanted: Tensor, read: Tensor) -> Measures:
    """Measures between hidden states of one model, by logits over their spread where it has any."""
    if not engine.has_logits:
        return measure_states(wanted, read)
    reference = engine.head(wanted)
    return measure(reference, engine.head(read), None, spread_of(reference))


PARTS = 3  # chunks of a spread run, for the noise floor


@dataclass
class HiddenStates:
    """Hidden states, one tensor [positions, hidden_size] per run; all but `reference` and `baked` for spread runs only.

    control: of the unpatched source. reference: of the source patched to the schedule. noise_runs: of the reference in
    variants that differ by rounding alone (other chunks, frequencies 2 ulp of float32 away, weights rounded where a
    fold rounds them, another precision), each with the engine for its head, None for the source. formula: of the source
    with log-n itself, where the output has its approximation. faint: of the reference with attention scores 2 % larger,
    empty where a model has no softmax scale. baked: of the output. speed: tokens per second of whole runs.
    """

    control: list[Tensor] = field(default_factory=list)
    reference: list[Tensor] = field(default_factory=list)
    noise_runs: list[tuple[TransformersEngine | None, list[Tensor]]] = field(default_factory=list)
    formula: list[Tensor] = field(default_factory=list)
    faint: list[Tensor] = field(default_factory=list)
    baked: list[Tensor] = field(default_factory=list)
    speed: dict[str, float] = field(default_factory=dict)

    def by_precision(self, values: list[float]) -> tuple[list[float], list[float]]:
        """Splits values, one per entry of `noise_runs`, into those of the source's precision and those of another."""
        pairs = list(zip(self.noise_runs, values, strict=True))
        return [value for (own, _), value in pairs if own is None], [value for (own, _), value in pairs if own]

    def timed(self, name: str, runs: list[TokenRun], read: Callable[[TokenRun], Tensor]) -> list[Tensor]:
        """Reads every run, and keeps the speed of a whole run.

        name: the key in `speed`. runs: to read. read: from a run to its hidden states, which are returned.
        """
        found = []
        for run in runs:
            begin = time.perf_counter()
            found.append(read(run))
            if run.kind == "whole" and len(found[-1]) == len(run.kept):
                self.speed[name] = round(len(run.ids) / (time.perf_counter() - begin), 1)
        return found


@dataclass(frozen=True)
class ComparisonSpec:
    """What is compared, how it runs, and the callbacks of the caller.

    comparison: the output and its source. settings: how to run. progress: callbacks. score_factor: by which attention
    scores are multiplied in every model that is read. all_keys: whether indexers choose all keys in every model.
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
        """Hidden states of the source patched to the schedule, [len(run.kept), hidden_size]; the patch is undone.

        engine: the source. run: tokens to read. chunk: tokens at a time, 0 for the engine's own. schedule, scale: in
        place of those of the comparison.
        """
        case = self.comparison
        scale = scale or case.scale
        undo = engine.patch(schedule or case.schedule, case.spec, scale, case.queries if scale else "")
        own, engine.chunk = engine.chunk, chunk or engine.chunk
        try:
            return self.plain(engine, run)
        finally:
            engine.chunk = own
            undo()

    def plain(self, engine: TransformersEngine, run: TokenRun) -> Tensor:
        """Hidden states of a model as it is, [len(run.kept), hidden_size]. Only whole runs can be stopped early."""
        heard = self.progress if run.kind == "whole" else Progress(advance=self.progress.advance)
        undone = [scale_scores(engine.model, self.score_factor)]
        if self.all_keys:
            undone.append(choose_all_keys(engine.model))
        try:
            return engine.hidden_states(run.ids, run.positions, run.kept, heard)
        finally:
            for undo in undone:
                undo()


def read_source(engine: TransformersEngine, spec: ComparisonSpec, runs: list[TokenRun], dtype: str) -> HiddenStates:
    """The hidden states of the source in all variants that a comparison needs.

    engine: the source; at the end the weights that a fold rounds are rounded in it. spec: what is compared, and how.
    runs: the tokens to read. dtype: that the engine runs in.
    """
    case, samples, states = spec.comparison, [run for run in runs if run.kind == "spread"], HiddenStates()
    states.control = [spec.plain(engine, run) for run in samples]
    if isinstance(case.scale, QueryScaling) and case.schedule.log_n is not None:
        states.formula = [spec.patched(engine, run, scale=case.schedule.log_n) for run in samples]
    states.reference = states.timed("reference", runs, lambda run: spec.patched(engine, run))
    if case.schedule.short_inv_freq is None and engine.chunked:  # else the list changes with the chunk: no noise
        states.noise_runs.append((None, [spec.patched(engine, run, -(-len(run.ids) // PARTS)) for run in samples]))
    nearby = nudged(case.schedule)
    states.noise_runs.append((None, [spec.patched(engine, run, schedule=nearby) for run in samples]))
    folded = case.rounded_weights(dtype)
    if folded:
        round_weights(engine.model, {name: case.checkpoint.tensors[name].dtype for name in folded})
        states.noise_runs.append((None, [spec.patched(engine, run) for run in samples]))
    return states


def read_noise_run(
    engine: TransformersEngine, spec: ComparisonSpec, runs: list[TokenRun]
) -> tuple[TransformersEngine, list[Tensor]]:
    """An entry of `noise_runs` in another precision.

    engine: the source in that precision, of which only the head stays. spec: what is compared. runs: of which the
    spread ones are read.
    """
    found = [spec.patched(engine, run) for run in runs if run.kind == "spread"]
    return engine.without_layers(), found
