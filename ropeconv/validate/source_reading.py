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
    sees_all_keys,
)
from ..rope.schedule import LogN, QueryScaling, Schedule
from .comparison import Comparison, Settings
from .sampling import (
    MAIN_PASSES,
    PART_TOKENS,
    VARIANT_PASSES,
    TokenRun,
    doublings,
    synthetic,
    token_runs,
)
from .validation import (
    ENOUGH_DETAIL,
    ENOUGH_POWER,
    NOISE_FACTOR,
    SAME_KERNELS,
    SEPARATION,
    Measures,
    in_blocks,
    measure_states,
    spread_of,
    tolerance,
)
from .validation import measure as measure_logits

if TYPE_CHECKING:
    from torch import Tensor

FAINT_FAULT_FACTOR = 1.02
"""The factor of attention scores in a faint fault, the smallest one that must be noticed."""
SPREAD_POSITIONS = 64
"""Positions of each run for the spread of the logits."""


@dataclass(frozen=True)
class Control:
    """Properties of the test itself in the part of a spread run: KL from the reference in nats."""

    kl: float
    """The mean of the unscaled source."""

    faint: float
    """The mean of the reference with attention scores 2 % larger.

    It is infinite for a model without a softmax scale.
    """

    noise: float
    """The noise floor."""

    allowed: float
    """The tolerance."""

    worst_noise: float
    """The largest KL of a noise run at one position."""


@dataclass(frozen=True)
class SourceReading:
    """The source, read once in all variants that a comparison needs."""

    spec: ComparisonSpec
    """The comparison, and its settings."""

    at: DeviceSpec
    """Device and precision."""

    runs: list[TokenRun]
    """The tokens that the reference and the output read."""

    parts: list[TokenRun]
    """The part of each spread run that is read in every variant; see `choose_parts`."""

    states: HiddenStates

    head: TransformersEngine
    """The source, of which only the head is left."""

    temperature: float = 1.0
    """The number that logits are divided by for the KL."""

    changes: tuple[str, ...] = ()
    """Phrases on settings that were changed."""

    read_tokens: int = 0
    """How many tokens were read up to now."""

    indexed: bool = False
    """Whether an indexer chooses the keys that attention sees."""

    @classmethod
    def read(
        cls,
        spec: ComparisonSpec,
        folder: Path,
        at: DeviceSpec,
        changes: tuple[str, ...] = (),
        before: int = 0,
    ) -> SourceReading:
        """Load the source, and compute its hidden states in every variant that is compared.

        The variants are the unscaled source (the control), the reference (the source patched to the
        schedule), a faint fault, and the reference again with nothing but other rounding (noise).
        The reference reads all runs, sequences of tokens over a range of positions. The others read
        a part of the tokens of each (`choose_parts`).

        Args:
            spec: The comparison, and its settings.
            folder: The folder of the source.
            at: Device and precision.
            changes: Phrases on settings that were changed.
            before: Tokens that were read already, for the progress.
        """
        settings = spec.settings
        progress = spec.progress
        is_narrow = at.dtype != "float32"

        # the model, and what it reads
        engine = TransformersEngine.load(folder, at, chunk=settings.chunk)
        runs = token_runs(settings, spec.comparison.schedule, engine.vocabulary, folder)
        parts = choose_parts(spec, engine, at, runs)
        work = count_tokens(runs, parts, is_narrow)
        progress.total(before + work)
        progress.note(describe_work(work, at, changes, again=before > 0))

        # a faint fault: the reference with attention scores 2 % larger, if the class can scale them
        states_with_fault = []
        if attention_modules(engine.model):
            fault = replace(spec, score_factor=FAINT_FAULT_FACTOR * spec.score_factor)
            states_with_fault = [fault.read_patched(engine, part) for part in parts]
        # all other variants; it may round the weights of the engine, so it comes after the fault
        states = read_source(engine, spec, runs, at.dtype, parts)
        states.faint = states_with_fault
        indexed = bool(indexers(engine.model))

        # From here only the head is needed, which makes logits of hidden states. The memory of the
        # layers is free for the same source in float32, which shows the noise of a low precision.
        head = engine.without_layers()
        if is_narrow and fits(spec.comparison.checkpoint, replace(at, dtype="float32")):
            widened_engine = TransformersEngine(load_widened(folder, at), settings.chunk)
            states.noise_runs.append(read_noise_run(widened_engine, spec, parts))
        elif is_narrow:
            progress.note(
                "The source does not fit into the memory in float32, so the noise floor leaves"
                " float32 out."
            )
        return cls(
            spec=spec,
            at=at,
            runs=runs,
            parts=parts,
            states=states,
            head=head,
            changes=changes,
            read_tokens=before + work,
            indexed=indexed,
        )

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped before its end."""
        for run, hidden in zip(self.runs, self.states.reference, strict=True):
            if len(hidden) < len(run.kept):
                return True
        return False

    def normalise(self) -> SourceReading:
        """Return a copy whose logits are divided by their standard deviation before the softmax.

        If all logits of a model are almost equal, its probabilities are too, and even a wrong
        output has a small KL. After the division, the logits of all models have about the same
        size, so that a wrong output shows.

        Returns:
            The copy, with the standard deviation as its `temperature`; the same object for a model
            without logits, which is compared by hidden states.
        """
        loaded_model = self.head
        if not loaded_model.has_logits:
            return self

        # the variance of the logits over the vocabulary, at some positions of each run with gaps
        # between its positions
        variances = []
        for run, hidden_states in zip(self.runs, self.states.reference, strict=True):
            if run.kind == "spread":
                # the last projection of the model turns hidden states into logits
                logits = loaded_model.head(hidden_states[:SPREAD_POSITIONS])
                variances.append(spread_of(logits) ** 2)

        standard_deviation = math.sqrt(sum(variances) / len(variances))
        change = f"logits divided by their spread of {standard_deviation:.2g}"
        return replace(self, temperature=standard_deviation, changes=(*self.changes, change))

    @cached_property
    def controls(self) -> list[Control]:
        """The KLs by which an output is judged, for each range of positions.

        All KLs are from the reference, which is the source with the right RoPE:

        - the KL of the unscaled source, which a wrong output may have;
        - the KL of a faint fault: attention scores that are 2 % larger;
        - the noise: the KL of the reference with different rounding.
        """
        # Rounding in another precision changes more than rounding in the precision of the output,
        # so a fifth of its KL counts as noise. If factors were multiplied into the weights of the
        # output, these round to other numbers, and all of the KL counts.
        counted_share = 1 / NOISE_FACTOR
        if self.spec.comparison.rounded_weights(self.at.dtype):
            counted_share = 1.0

        # The KLs are measured with 128 of the 512 tokens of each range. The noise is about the same
        # as with all of them: 1.0e-6, 7.3e-6 and 1.4e-5 in three ranges against 1.2e-6, 5.2e-6 and
        # 1.4e-5 (SmolLM2-135M with --yarn 4).
        states = self.states
        controls = []
        noise = 0.0
        for number, unscaled_states in enumerate(states.control):
            # the noise: several runs of the reference that differ only by rounding
            percentiles = []
            worst_noise = 0.0
            for noise_engine, noise_states in states.noise_runs:
                engine = noise_engine or self.head  # None means the engine of the reference
                kl = self._kl(number, engine, noise_states[number])
                percentiles.append(kl.quantile(0.95).item())
                worst_noise = max(worst_noise, kl.max().item())
            # rounding grows with the position, so a range has at least the noise of the last one
            noise = max(noise, states.noise_floor(percentiles, counted_share))

            # the faint fault; infinite for a model class whose scores cannot be scaled
            fault_kl = math.inf
            if states.faint:
                fault_kl = self._kl(number, self.head, states.faint[number]).mean().item()

            unscaled_kl = self._kl(number, self.head, unscaled_states).mean().item()
            last_position = self.parts[number].positions[-1]
            control = Control(
                kl=unscaled_kl,
                faint=fault_kl,
                noise=noise,
                allowed=tolerance(last_position, noise, floor=SAME_KERNELS, faint=fault_kl),
                worst_noise=worst_noise,
            )
            controls.append(control)
        return controls

    def _kl(self, number: int, engine: TransformersEngine, hidden: Tensor) -> Tensor:
        """Return the KL of other hidden states from the reference in a part, [positions]."""
        reference = self.states.reference_of_parts[number]
        targets = self.parts[number].targets()
        return self.measure(self.head, reference, engine, hidden, targets).kl

    @property
    def _extended(self) -> list[Control]:
        """The controls beyond the trained context; all where none is."""
        return self.controls[1:] or self.controls

    @property
    def power(self) -> float:
        """The smallest ratio of the control to the allowed KL, beyond the trained context.

        With 1000, the method changes the result a thousand times as much as a correct output may
        differ, so that an output without the method cannot pass.
        """
        return min(control.kl / control.allowed for control in self._extended)

    @property
    def detail(self) -> float:
        """The smallest ratio of a faint fault to the allowed KL: small for one-hot attention."""
        return min(control.faint / control.allowed for control in self._extended)

    def measure(
        self,
        head: TransformersEngine,
        reference: Tensor,
        other: TransformersEngine,
        hidden: Tensor,
        targets: Tensor,
    ) -> Measures:
        """Compare two models by their logits, or by their hidden states if they have no logits.

        The logits are computed from hidden states, in blocks of positions: the logits of all
        positions together would need too much memory.

        Args:
            head: The model of the reference, for its last projection.
            reference: The hidden states of the reference, [positions, hidden_size].
            other: The model that is compared, for its last projection.
            hidden: The hidden states of the model that is compared, [positions, hidden_size].
            targets: The next tokens, [positions].
        """
        # the last projections, which turn hidden states into logits
        project_reference = head.head
        project_other = other.head

        def compare_rows(rows: slice) -> Measures:
            if not head.has_logits:
                return measure_states(reference[rows], hidden[rows])
            reference_logits = project_reference(reference[rows])
            other_logits = project_other(hidden[rows])
            return measure_logits(reference_logits, other_logits, targets[rows], self.temperature)

        # a run that was stopped early has fewer hidden states than tokens
        count = min(len(reference), len(hidden), len(targets))
        return in_blocks(compare_rows, count, head.vocabulary)


def count_tokens(runs: list[TokenRun], parts: list[TokenRun], is_narrow: bool) -> int:
    """Return how many tokens all models of a comparison read together.

    Args:
        runs: Sequences of tokens that the reference and the output read, such as 512 tokens for
            each range of positions.
        parts: Sequences that all variants of the source read, such as 128 tokens for each range. A
            short run is its own part, and is then in both lists.
        is_narrow: Whether the models run in 16 bits. The reference then runs in float32 too.
    """
    variant_passes = VARIANT_PASSES
    if is_narrow:
        variant_passes += 1  # the reference in float32

    count = 0
    for run in runs:
        count += MAIN_PASSES * len(run.ids)
    for part in parts:
        count += variant_passes * len(part.ids)
        was_counted_as_run = part in runs
        if not was_counted_as_run:
            count += MAIN_PASSES * len(part.ids)
    return count


def describe_work(token_count: int, at: DeviceSpec, changes: tuple[str, ...], again: bool) -> str:
    """Return a sentence for the user on the models that are going to run.

    Examples: "Running 12,288 tokens on cpu in float32: control, reference, noise floor, baked." and
    "Running 12,288 tokens again, for a more sensitive test: float32."

    Args:
        token_count: How many tokens all models read together.
        at: The device and the precision.
        changes: Settings that were changed for another try, such as "float32".
        again: Whether this is another try.
    """
    if again:
        purpose = "for a more sensitive test"
        if changes:
            purpose += f": {', '.join(changes)}"
        return f"Running {token_count:,} tokens again, {purpose}."

    # control: the unscaled source; reference: the source with the new RoPE; noise floor: the
    # reference with different rounding; baked: the output
    models = "control, reference, noise floor, baked"
    return f"Running {token_count:,} tokens on {at.device} in {at.dtype}: {models}."


LEAST_SPREAD_TOKENS = 256
"""Tokens of spread runs at least, if a shorter one had not enough power."""
FACTOR_TOKENS = 128
"""Tokens of the runs that find the factor of the attention scores."""
FACTORS = tuple(16.0**exponent for exponent in range(-5, 9))
"""Factors of the attention scores that are tried first."""
FACTOR_STEPS = (0.25, 4.0)
"""Steps from the best factor."""


def read_with_power(
    spec: ComparisonSpec, folder: Path, at: DeviceSpec, before: int = 0
) -> SourceReading:
    """Run the source with more and more changed settings, until a wrong output would be noticed.

    The settings are, for example, float32 and more tokens (`_readings`). With each of them the
    source runs unscaled, with the right RoPE (reference) and with a small fault. A wrong output
    would be noticed if rounding changes the logits far less than the missing scaling and the small
    fault do.

    Args:
        spec: The comparison: the output, its source, and the settings of the user.
        folder: The folder of the source.
        at: The device and the precision.
        before: How many tokens were read already, for the progress bar.

    Returns:
        The hidden states with the first settings that are sensitive enough; if there are none, with
        the most sensitive settings.
    """
    # A precision such as bfloat16 that the user asked for; empty if the user named none.
    low_precision_of_user = ""
    if spec.settings.dtype != "auto" and at.dtype != "float32":
        low_precision_of_user = at.dtype

    most_sensitive = None
    for reading in _readings(spec, folder, at, before):
        # The output has the RoPE of its source: there is no missing scaling to notice.
        if spec.comparison.unchanged:
            return reading

        # The precision of the user is kept if it shows a missing scaling, and not only if it is
        # fully sensitive.
        has_precision_of_user = reading.at.dtype == low_precision_of_user
        if has_precision_of_user and _is_clear(reading):
            return reading

        if most_sensitive is None or _sensitivity(reading) > _sensitivity(most_sensitive):
            most_sensitive = reading
        is_enough = _sensitivity(most_sensitive) >= 1
        if is_enough:
            break
    assert most_sensitive is not None  # `_readings` yields at least two
    return most_sensitive


def _is_clear(reading: SourceReading) -> bool:
    """Whether the unscaled source differs from the reference by far more than rounding does."""
    # with one-hot attention, rounding exchanges the likeliest token at a few positions, which
    # changes these as much as the method does
    for control in reading.controls:
        if control.worst_noise > control.kl / 2:
            return False
    return reading.power >= SEPARATION


def _sensitivity(reading: SourceReading) -> float:
    """Return how sensitive a reading is; 1 is enough: a power of 1,000, and a detail of 50."""
    return min(reading.power / ENOUGH_POWER, reading.detail / (ENOUGH_DETAIL / 2))


def _readings(
    spec: ComparisonSpec, folder: Path, at: DeviceSpec, before: int
) -> Iterator[SourceReading]:
    """Yield runs of the source (readings), with more and more changes to the given settings.

    The caller stops at a reading that is sensitive enough, so that it shows a wrong output.
    Each change is made on top of those before, from the least to the most:

    1. the settings of the user;
    2. float32;
    3. attention to all keys, if an indexer chooses some;
    4. more tokens, synthetic ones, with attention scores that are neither uniform nor one-hot.

    After each change two readings are yielded: with plain logits, and with logits divided by their
    spread (`normalise`). After the last change only the second is. If the user stops a run, no
    further settings are tried.

    Args:
        spec: The comparison, and the settings of the user.
        folder: The folder of the source.
        at: Device and precision.
        before: Tokens that were read already. It is counted on, for the progress.
    """
    # with the settings of the user
    reading = SourceReading.read(spec, folder, at, before=before)
    yield reading
    yield reading.normalise()
    if reading.is_stopped:
        return

    # in float32
    changes: tuple[str, ...] = ()
    wide = replace(at, dtype="float32")
    if at.dtype != "float32" and fits(spec.comparison.checkpoint, wide):
        at = wide
        changes = ("float32",)
        reading = SourceReading.read(spec, folder, at, changes, reading.read_tokens)
        yield reading
        yield reading.normalise()
        if reading.is_stopped:
            return

    # with all keys: an indexer (DeepSeek-V3.2) chooses others for a tiny change of the scores
    if reading.indexed:
        spec = replace(spec, all_keys=True)
        changes = (*changes, "attention to all keys")
        reading = SourceReading.read(spec, folder, at, changes, reading.read_tokens)
        yield reading
        yield reading.normalise()
        if reading.is_stopped:
            return

    # With more tokens, and attention scores with which RoPE matters. All variants read all tokens
    # of a run, not only a part of them (`in_whole`).
    settings = spec.settings
    if settings.text is not None:
        changes = (*changes, "synthetic tokens")
    more = replace(settings, text=None, tokens=max(LEAST_SPREAD_TOKENS, settings.spread))
    spec = replace(spec, settings=more, in_whole=True)
    factor = _best_factor(folder, at, spec)
    if factor is not None:
        spec = replace(spec, score_factor=factor)
        changes = (*changes, f"attention scores multiplied by {factor:g}")
    last = SourceReading.read(spec, folder, at, changes, reading.read_tokens)
    yield last.normalise()


def _best_factor(folder: Path, at: DeviceSpec, spec: ComparisonSpec) -> float | None:
    """Find the factor of attention scores with which a small fault of RoPE shows best.

    A model with random weights attends to all tokens alike, and one with large weights to a single
    token; in neither does a wrong RoPE change the result much. With all scores multiplied by a
    factor, on both sides, attention is between the two. The small (faint) fault is one more factor
    of FAINT_FAULT_FACTOR, 1.02.

    Args:
        folder: The folder of the source.
        at: Device and precision.
        spec: The comparison, and its settings.

    Returns:
        The factor, such as 16.0; None for a model without a softmax scale.
    """
    engine = TransformersEngine.load(folder, at, chunk=spec.settings.chunk)
    if not attention_modules(engine.model):
        return None
    # a few tokens over the furthest range of positions
    schedule = spec.comparison.schedule
    low, high = doublings(schedule.original_context, schedule.context)[-1]
    count = min(FACTOR_TOKENS, high)
    run = TokenRun.spread(low, high, synthetic(count, engine.vocabulary, spec.settings.seed))

    def visibility(factor: float) -> float:
        return _visibility_of_fault(replace(spec, score_factor=factor), engine, run)

    # first among powers of 16, then four times less and four times more than the best of them
    best = max(FACTORS, key=visibility)
    candidates = [best]
    for step in FACTOR_STEPS:
        candidates.append(best * step)
    return max(candidates, key=visibility)


def _visibility_of_fault(spec: ComparisonSpec, engine: TransformersEngine, run: TokenRun) -> float:
    """Return how much a small fault changes the logits, over the change that is allowed.

    The fault is attention scores that are 2 % larger. Changes are KLs from the source with the
    right RoPE (reference).

    Args:
        spec: The comparison, with a factor on all attention scores (`score_factor`).
        engine: The source, loaded in transformers.
        run: The tokens.
    """
    schedule = spec.comparison.schedule
    silent_spec = replace(spec, progress=Progress())  # shows no progress to the user
    fault_spec = replace(silent_spec, score_factor=FAINT_FAULT_FACTOR * spec.score_factor)
    reference = silent_spec.read_patched(engine, run)
    with_fault = fault_spec.read_patched(engine, run)

    # noise 1: frequencies that are two steps of float32 off
    nudged = silent_spec.read_patched(engine, run, schedule=nudge(schedule))
    noise_runs = [nudged]

    # noise 2: the tokens in three chunks. LongRoPE is left out: it chooses between two lists of
    # frequencies by the length of the text, so a chunk may get another list than the whole text.
    has_one_list = schedule.short_inv_freq is None
    if has_one_list and engine.chunked:
        chunk_tokens = math.ceil(len(run.ids) / CHUNKS_FOR_NOISE)
        noise_runs.append(silent_spec.read_patched(engine, run, chunk=chunk_tokens))

    # the KLs of independent errors add up
    noise = 0.0
    for noise_states in noise_runs:
        measures = _compare_normalised(engine, reference, noise_states)
        noise += measures.kl.quantile(0.95).item()

    fault_kl = _compare_normalised(engine, reference, with_fault).kl.mean().item()
    # SAME_KERNELS is the smallest tolerance, for two sides that run in the same transformers
    allowed_kl = tolerance(run.positions[-1], noise, floor=SAME_KERNELS)
    return float(fault_kl / allowed_kl)


def _compare_normalised(
    engine: TransformersEngine, reference: Tensor, hidden_states: Tensor
) -> Measures:
    """Compare two results of a model by their logits over the standard deviation of the logits.

    A model without logits is compared by its hidden states.
    """
    if not engine.has_logits:
        return measure_states(reference, hidden_states)
    logits = engine.head(reference)
    other_logits = engine.head(hidden_states)
    return measure_logits(logits, other_logits, targets=None, temperature=spread_of(logits))


CHUNKS_FOR_NOISE = 3
"""Chunks of a spread run, for the noise floor."""


@dataclass
class HiddenStates:
    """Hidden states, one tensor [positions, hidden_size] per run.

    All but `reference` and `baked` are of the parts of spread runs (`choose_parts`).
    """

    control: list[Tensor] = field(default_factory=list)
    """The unpatched source."""

    reference: list[Tensor] = field(default_factory=list)
    """The source patched to the schedule."""

    reference_of_parts: list[Tensor] = field(default_factory=list)
    """The reference in the parts; those of `reference` where a part is the run."""

    noise_runs: list[tuple[TransformersEngine | None, list[Tensor]]] = field(default_factory=list)
    """The reference in variants that differ only by rounding.

    These are other chunks, frequencies 2 ulp of float32 away, weights rounded as a fold rounds
    them, and another precision. Each has the engine for its head, None for the source.
    """

    formula: list[Tensor] = field(default_factory=list)
    """The source with log-n, if the output has its approximation."""

    faint: list[Tensor] = field(default_factory=list)
    """The reference with attention scores 2 % larger; empty without a softmax scale."""

    baked: list[Tensor] = field(default_factory=list)
    """The output."""

    speed: dict[str, float] = field(default_factory=dict)
    """Tokens per second of whole runs, by name."""

    def noise_floor(self, kls: list[float], part: float) -> float:
        """Return the noise floor: the KL in nats that rounding causes where nothing is wrong.

        `max(sum of the KLs in the same precision, part * largest KL in another precision)`

        In the same precision, each run changes one kind of rounding. Such errors are independent
        and KL is quadratic in them, so these KLs add. A run in another precision changes all
        rounding at once, and far more than the output does, which is computed in the precision of
        the source. Therefore only a part of its KL counts.

        With 2e-6 and 1e-6 in the same precision, 10e-6 in another, and a part of 0.2, the noise
        floor is max(2e-6 + 1e-6, 0.2 * 10e-6) = 3e-6.

        Args:
            kls: 95th percentiles of the KL from the reference, one per entry of `noise_runs`.
            part: The part of the KL in another precision that counts, from 0 to 1. It is 1 if the
                output rounds differently, as with a server, or with weights that a fold rounds.
        """
        in_same_precision = 0.0
        in_other_precision = 0.0
        for (engine, _), kl in zip(self.noise_runs, kls, strict=True):
            if engine is None:  # the engine of the source, so its precision
                in_same_precision += kl
            else:
                in_other_precision = max(in_other_precision, kl * part)
        return max(in_same_precision, in_other_precision)

    def read_runs(
        self, name: str, runs: list[TokenRun], read: Callable[[TokenRun], Tensor]
    ) -> list[Tensor]:
        """Return the hidden states of every run, and keep the speed of a whole one.

        A whole run has every position from 0 on, and others have gaps between their positions.

        Args:
            name: The key under which `speed` gets the tokens per second, such as "baked".
            runs: Sequences of tokens with their positions.
            read: Reads a run, and returns its hidden states.
        """
        states = []
        for run in runs:
            begin = time.perf_counter()
            hidden = read(run)
            seconds = time.perf_counter() - begin
            # a whole run that the user has stopped has fewer hidden states
            if run.kind == "whole" and len(hidden) == len(run.kept):
                self.speed[name] = round(len(run.ids) / seconds, 1)
            states.append(hidden)
        return states


@dataclass(frozen=True)
class ComparisonSpec:
    """A comparison with its settings and the callbacks of the caller."""

    comparison: Comparison
    settings: Settings
    progress: Progress

    score_factor: float = 1.0
    """The factor of attention scores in every model."""

    all_keys: bool = False
    """Whether indexers choose all keys."""

    in_whole: bool = False
    """Whether control, faint fault and noise are measured over whole spread runs."""

    def read_patched(
        self,
        engine: TransformersEngine,
        run: TokenRun,
        chunk: int = 0,
        schedule: Schedule | None = None,
        scale: LogN | QueryScaling | None = None,
    ) -> Tensor:
        """Run the source with the RoPE that the output must have, and return its hidden states.

        The model is patched for this run, and restored afterwards.

        Args:
            engine: The source, loaded in transformers.
            run: The tokens.
            chunk: How many tokens are run at a time; 0 for the number of the engine.
            schedule: The frequencies and the attention factor; None for those of the output.
            scale: The scaling of queries by position (log-n, or steps in its place); None for the
                scaling of the output, if it has one.

        Returns:
            The hidden states of the compared tokens, [len(run.kept), hidden_size].
        """
        comparison = self.comparison
        schedule = schedule or comparison.schedule
        query_scaling = scale or comparison.scale
        usual_chunk = engine.chunk
        undo_patch = patch(
            engine.model,
            schedule,
            comparison.spec.mla,
            query_scaling,
            comparison.queries,  # the end of the name of the module that outputs queries
        )
        try:
            engine.chunk = chunk or usual_chunk
            return self.plain(engine, run)  # runs the patched model
        finally:
            engine.chunk = usual_chunk
            undo_patch()

    def plain(self, engine: TransformersEngine, run: TokenRun) -> Tensor:
        """Run a loaded model without patching it, and return its hidden states.

        Returns:
            The hidden states of the compared tokens, [len(run.kept), hidden_size].
        """
        # the user can stop runs over every position only
        progress = self.progress
        if run.kind != "whole":
            progress = Progress(advance=self.progress.advance)
        with ExitStack() as stack:
            scale_scores(stack, engine.model, self.score_factor)
            if self.all_keys:
                choose_all_keys(stack, engine.model)
            return engine.hidden_states(run.ids, run.positions, run.kept, progress)


def choose_parts(
    spec: ComparisonSpec, engine: TransformersEngine, at: DeviceSpec, runs: list[TokenRun]
) -> list[TokenRun]:
    """Return fewer tokens over the same positions for each run of tokens, to save time.

    A run of 512 tokens over a range of positions becomes 128 tokens over that range. Some models
    and settings need all tokens, and the run itself is returned.

    Args:
        spec: The comparison. Its field `in_whole` asks for all tokens.
        engine: The source, loaded in transformers.
        at: The device and the precision.
        runs: All runs. Runs over every position (`kind` "whole") are left out.
    """
    parts = []
    for run in runs:
        if run.kind != "spread":
            continue

        # Layer by layer, weights are read from the disk in each pass. Fewer tokens do not make that
        # faster.
        saves_no_time = at.layer_by_layer

        # Sliding windows count tokens, and not positions. In a model with a window of 256, the last
        # of 512 tokens sees some tokens, and the last of 128 sees all.
        has_full_attention = sees_all_keys(engine.model, len(run.ids))

        is_short = len(run.ids) <= PART_TOKENS
        if spec.in_whole or is_short or saves_no_time or not has_full_attention:
            parts.append(run)
        else:
            parts.append(run.part())
    return parts


def read_parts(
    runs: list[TokenRun],
    states: list[Tensor],
    parts: list[TokenRun],
    read: Callable[[TokenRun], Tensor],
) -> list[Tensor]:
    """Return the hidden states of each part of a run.

    A run has, for example, 512 tokens over a range of positions, and its part 128 tokens over the
    same range. If the part is the run itself (the same object), its hidden states are not computed
    again.

    Args:
        runs: The runs. Part number i belongs to run number i, and the last runs may have no part.
        states: The hidden states of the runs, a tensor for each.
        parts: The parts.
        read: A function that computes the hidden states of a part.
    """
    states_of_parts = []
    for number, part in enumerate(parts):
        is_whole_run = part is runs[number]
        if is_whole_run:
            states_of_parts.append(states[number])
        else:
            states_of_parts.append(read(part))
    return states_of_parts


def read_source(
    engine: TransformersEngine,
    spec: ComparisonSpec,
    runs: list[TokenRun],
    dtype: str,
    parts: list[TokenRun] | None = None,
) -> HiddenStates:
    """Return the hidden states of the source in all variants that a comparison needs.

    These are the unscaled source (control), the source with the schedule (reference), and the
    reference up to three times more with nothing but other rounding (noise).

    Args:
        engine: The source. A fold multiplies weights, which rounds them in the output; here they
            are rounded likewise at the end, and stay so.
        spec: The comparison, and its settings.
        runs: The tokens, which the reference reads.
        dtype: The precision of the computation.
        parts: The part of each spread run, which the other variants read; None for the spread runs
            themselves.
    """
    comparison = spec.comparison
    schedule = comparison.schedule
    samples = parts
    if samples is None:
        samples = [run for run in runs if run.kind == "spread"]
    states = HiddenStates()

    def read_reference(run: TokenRun) -> Tensor:
        return spec.read_patched(engine, run)

    # the control: the unscaled source
    states.control = [spec.plain(engine, run) for run in samples]
    # the formula of log-n, where the output approximates it by steps
    if isinstance(comparison.scale, QueryScaling) and schedule.log_n is not None:
        states.formula = [spec.read_patched(engine, run, scale=schedule.log_n) for run in samples]
    # the reference: the source patched to the schedule, also over every position
    states.reference = states.read_runs("reference", runs, read_reference)
    states.reference_of_parts = read_parts(runs, states.reference, samples, read_reference)

    # the noise: an entry of `noise_runs` is the model that was run, None for `engine`, and its
    # hidden states in each sample
    noise_runs = states.noise_runs

    # First in chunks. A model with two lists of frequencies, for short and for long texts, is left
    # out: a chunk may use the other list than the whole run.
    if schedule.short_inv_freq is None and engine.chunked:
        in_chunks = []
        for run in samples:
            chunk = math.ceil(len(run.ids) / CHUNKS_FOR_NOISE)
            in_chunks.append(spec.read_patched(engine, run, chunk))
        noise_runs.append((None, in_chunks))

    # then with frequencies two steps of float32 away
    nearby = nudge(schedule)
    nudged = [spec.read_patched(engine, run, schedule=nearby) for run in samples]
    noise_runs.append((None, nudged))

    # last, since it changes the engine, with the weights rounded as a fold rounds them
    folded = comparison.rounded_weights(dtype)
    if folded:
        stored = {name: comparison.checkpoint.tensors[name].dtype for name in folded}
        round_weights(engine.model, stored)
        rounded = [read_reference(run) for run in samples]
        noise_runs.append((None, rounded))
    return states


def read_noise_run(
    engine: TransformersEngine, spec: ComparisonSpec, runs: list[TokenRun]
) -> tuple[TransformersEngine, list[Tensor]]:
    """Return an entry of `noise_runs`: the spread runs in an engine of another precision.

    The engine keeps only its head.
    """
    states = [spec.read_patched(engine, run) for run in runs if run.kind == "spread"]
    return engine.without_layers(), states
