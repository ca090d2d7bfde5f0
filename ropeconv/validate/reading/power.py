"""Chooses how the source is read, so that the logits can tell a wrong output from a right one.

The choice is made on the source alone, before the output is read. Its measure is the power: the KL of the control over
the one that rounding is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...engines import Progress
from ...engines.transformers import DeviceSpec, TransformersEngine
from ...engines.transformers.attention_scores import attention_modules
from ...engines.transformers.load import fits_in_gpu
from ...engines.transformers.patch import nudged
from ..rule.measures import Measures, measure, spread_of
from ..rule.states import measure_states
from ..rule.validation import DETAIL, POWER, SAME_KERNELS, SEPARATION, tolerance
from ..sampling.positions import doubling_buckets
from ..sampling.token_runs import TokenRun
from ..sampling.tokens import synthetic
from .hidden_states import PARTS, ComparisonSpec
from .source_reading import FAINT, SourceReading

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
        said = f"The unscaled source is {reading.power:.1e} times as far away as rounding may be"
        spec.progress.note(
            f"{said}, a faint fault {reading.detail:.1e} times: looking for a comparison that tells more."
        )
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
    if at.dtype != "float32" and fits_in_gpu(spec.comparison.checkpoint, 4):
        at, changes = replace(at, dtype="float32"), ("float32",)
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


def _normalised(engine: TransformersEngine, wanted: Any, read: Any) -> Measures:
    """Measures between hidden states of one model, by logits over their spread where it has any."""
    if not engine.has_logits:
        return measure_states(wanted, read)
    reference = engine.head(wanted)
    return measure(reference, engine.head(read), None, spread_of(reference))
