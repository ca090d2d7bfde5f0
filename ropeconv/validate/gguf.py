"""Compare logits of a GGUF file in llama.cpp with those of its source, which computes the schedule in another way.

A source in GGUF runs in llama.cpp, with metadata keys given at loading, or with other divisors over another base: both
use the same kernels on the same weights. Schedules that neither can express, and checkpoints, run in transformers,
patched from the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..convert.from_gguf.source import GgufCheckpoint
from ..engines.engine import Progress
from ..engines.llamacpp import LlamaCppEngine, overrides
from ..engines.llamacpp_program import Override
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.load import DeviceSpec, folder_of, placed
from ..engines.transformers.patch import patch
from ..errors import BadSource
from ..formats.disk import human
from ..formats.files import scratch
from ..formats.gguf.edit import Edit, write_new
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import F32, TYPES
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.forms import Plain
from ..rope.schedule import QueryScaling, Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.read_header import FREQS, WINDOW_NORM, arch_of, rope_tensors, stored_pairs
from ..runtimes.llamacpp.scaling import ArchKeys
from .comparison import Comparison, Settings
from .sampling import TokenRun, tail_buckets, usual_length
from .validation import (
    KL_FLOOR,
    POWER,
    SAME_KERNELS,
    SEPARATION,
    BucketResult,
    Measures,
    Validation,
    bucket_result,
    conclusion,
    measure,
    otherwise,
    rule,
    spread_of,
    tolerance,
    with_rounded_weights,
)

if TYPE_CHECKING:
    from torch import Tensor

EACH = 128
"""Positions at the end of each range that are compared."""
SPLIT = 8.0
"""The base of a reference with divisors, over that of its source: a runtime that ignores the divisors is far away."""


@dataclass(frozen=True)
class ReferenceLogits:
    """Logits after some tokens, [positions, vocabulary].

    control: of the unscaled source. reference: of the source with the schedule. other_control: of the unscaled source,
    computed as the other of the two was; None if both were computed alike.
    """

    control: Tensor
    reference: Tensor
    other_control: Tensor | None = None


@dataclass(frozen=True)
class GgufReference:
    """A way to make the source of a GGUF file compute the schedule.

    logits: runs all tokens, and returns the logits after those at the rising indices. runs: how often the whole
    sequence is run, with the run of the output. floor: the KL that is always allowed. separation: as in
    `with_rounded_weights`; None where the two sides compute with the same weights in float32. remark: for the report.
    rule: what else is allowed, for the report.
    """

    logits: Callable[[list[int], list[int], Progress], ReferenceLogits]
    runs: int = 3
    floor: float = SAME_KERNELS
    separation: float | None = None
    remark: str = ""
    rule: str = ""


DIVISORS = " The reference has the frequencies as divisors over another base."
DIVISORS_RULE = (
    "; with weights that are not in float32, whose products round otherwise where a frequency does, the mean KL may be "
    "a thousandth of that of the control, or twice that of the unscaled source between these two ways more"
)
DEQUANTISED = " The reference has the dequantised weights of the source, in transformers."
DEQUANTISED_RULE = (
    "; the mean KL may be twice that of the unscaled source between llama.cpp and transformers more, and the control "
    "must have ten times that KL"
)


def by_keys(
    source: GgufSource, keys: dict[str, Override], ids: list[int], kept: list[int], progress: Progress
) -> ReferenceLogits:
    """Run the source in llama.cpp, with metadata keys that are given when it is loaded."""
    control, reference = (LlamaCppEngine(source.path, given).logits(ids, kept, progress) for given in ({}, keys))
    return ReferenceLogits(control, reference)


def by_divisors(
    source: GgufSource, spec: RopeSpec, schedules: list[Schedule], ids: list[int], kept: list[int], progress: Progress
) -> ReferenceLogits:
    """Run the source in llama.cpp, and again with the frequencies of each schedule as divisors over another base.

    spec: the RoPE of the source. schedules: of the reference, and of the unscaled source where the other way to write
    it causes noise.
    """
    control = LlamaCppEngine(source.path).logits(ids, kept, progress)
    divided = []
    for schedule in schedules:
        with scratch() as folder:
            divided.append(_divided(source.file, spec, schedule, folder).logits(ids, kept, progress))
    return ReferenceLogits(control, *divided)


def _divided(file: GgufFile, spec: RopeSpec, schedule: Schedule, folder: Path) -> LlamaCppEngine:
    """Return a copy of a file, in a folder, that computes a schedule by divisors."""
    plain = Plain(SPLIT * spec.rope_theta)
    keys = overrides(replace(schedule, form=plain), arch_of(file).name)
    assert keys is not None, "a plain base has keys"
    rotates = schedule.inv_freq > 0
    divisors = np.where(rotates, plain.inv_freq(spec.rotary_dim) / np.where(rotates, schedule.inv_freq, 1.0), 1e30)
    unused = stored_pairs(ArchKeys(file, arch_of(file)), spec.rotary_dim) - len(divisors)
    divisors = np.concatenate([divisors, np.ones(unused)])
    removed = frozenset({FREQS} & file.tensors.keys())
    edit = Edit(added={FREQS: divisors.astype("<f4").tobytes()}, removed=removed)
    for shard, path in enumerate(file.paths):
        write_new(file, shard, edit, folder / path.name)
    return LlamaCppEngine(folder / file.path.name, keys)


def patched(
    comparison: Comparison, checkpoint: Source, dtype: str, ids: list[int], kept: list[int], progress: Progress
) -> ReferenceLogits:
    """Run a checkpoint of the source in transformers in a precision, with rotary modules patched from the schedule."""
    with folder_of(checkpoint, dtype) as folder:
        at = placed(checkpoint, DeviceSpec("cpu", dtype, stands_for=comparison.stands_for))
        engine = TransformersEngine.load(folder, at, chunk=len(ids))
        control = engine.logits(ids, kept, progress)
        patch(engine.model, comparison.schedule, comparison.spec, comparison.scale, comparison.queries)
        return ReferenceLogits(control, engine.logits(ids, kept, progress))


def dequantised(
    comparison: Comparison, source: GgufCheckpoint, dtype: str, ids: list[int], kept: list[int], progress: Progress
) -> ReferenceLogits:
    """Run a source in GGUF in transformers, with its weights dequantised, and in llama.cpp for the noise."""
    checkpoint = source.in_dtype(dtype)
    size = human(sum(file.size for file in checkpoint.files()))
    progress.note(f"The weights of {comparison.against} take {size} as {dtype}, on the disk and in memory.")
    plain = LlamaCppEngine(checkpoint.inner.path).logits(ids, kept, progress)
    return replace(patched(comparison, checkpoint, dtype, ids, kept, progress), other_control=plain)


def weights_type(file: GgufFile) -> str:
    """Return the name of the most frequent type of matrices in a file; empty for F32."""
    return "" if file.usual_type == F32 else TYPES[file.usual_type].name


def validate_gguf(
    comparison: Comparison, settings: Settings | None = None, progress: Progress | None = None
) -> Validation:
    """Compare the logits of a GGUF file in llama.cpp with those of the reference, and of the unscaled source.

    Args:
        comparison: The output and its source.
        settings: `tokens` is the length of the sequence, by default four times the trained context, up to 8192.
        progress: Callbacks.

    Raises:
        BadSource: If nothing makes the source compute the schedule.
    """
    import torch

    settings, progress = settings or Settings(), progress or Progress()
    schedule, file = comparison.schedule, GgufSource(comparison.baked).file
    reference, rounded = check_gguf(comparison, settings), _rounded(comparison)
    usual = usual_length(schedule.original_context, schedule.context)
    length = min(schedule.context, settings.tokens or usual)
    if length <= schedule.original_context:
        progress.note(f"{length} tokens are within the trained context of {schedule.original_context}; raise --tokens")
    width, generator = file.tensors["token_embd.weight"].shape[1], torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(width, (length,), generator=generator).tolist()
    run = TokenRun.over_all("whole", ids, tail_buckets(schedule.original_context, length, EACH))
    progress.note(f"Running {length} tokens {reference.runs} times: control, reference and output.")
    progress.total(reference.runs * length)
    logits = reference.logits(ids, run.kept, progress)
    engine = LlamaCppEngine(comparison.baked)
    stock = engine.logits(ids, run.kept, progress)
    results, temperature = _judged(run, logits, stock, reference), 1.0
    if not rounded and _power(results) < POWER:
        spread = spread_of(logits.reference)
        over_spread = _judged(run, logits, stock, reference, spread)
        if _power(over_spread) > _power(results):
            results, temperature = over_spread, spread
    same = not rounded and bool((logits.reference == stock).all())
    agrees, sentence = conclusion(results, comparison.unchanged)
    if agrees and same:
        sentence = f"Equal to the last bit. {sentence}"
    elif agrees and rounded:
        sentence += f" The weights are {rounded}: a tenth of the control is allowed."
    sentence += reference.remark + comparison.remark
    sentence += otherwise([f"logits divided by their spread of {temperature:.2g}"] if temperature != 1 else [])
    if isinstance(comparison.scale, QueryScaling):
        sentence += " The output and the reference scale queries in steps, in place of log-n."
    return Validation(
        "", "cpu", schedule.digest, length, settings.seed, tuple(results), agrees, sentence, runtime=engine.runtime,
        temperature=temperature, rule=rule(reference.floor) + reference.rule, **comparison.described(),
    )  # fmt: skip


def check_gguf(comparison: Comparison, settings: Settings) -> GgufReference:
    """Return the sharpest reference of a GGUF file. Raises BadSource if it cannot be compared with its source."""
    if comparison.draft:
        kind = comparison.draft.says
        raise BadSource(f"{comparison.baked} is {kind}, which llama.cpp runs only with its target; validate that")
    rounded = _rounded(comparison)
    if rounded and comparison.unchanged:
        raise BadSource(
            f"{comparison.baked} differs from its source only in the type of the weights ({rounded}), so there is no "
            "control; compare a --outtype f32 export"
        )
    source = comparison.source
    if not isinstance(source, GgufSource):
        logits = partial(patched, comparison, source, "float32")
        return GgufReference(logits, floor=KL_FLOOR, separation=SEPARATION if rounded else None)
    reference = None if settings.dequantised else _in_llamacpp(comparison, source)
    if reference is not None:
        return reference
    checkpoint = comparison.checkpoint_or_dequantised(
        "cannot be given this schedule at loading, and cannot be dequantised either"
    )
    assert isinstance(checkpoint, GgufCheckpoint)
    logits = partial(dequantised, comparison, checkpoint, "float32" if settings.dtype == "auto" else settings.dtype)
    return GgufReference(logits, 4, KL_FLOOR, math.inf, DEQUANTISED, DEQUANTISED_RULE)


def _in_llamacpp(comparison: Comparison, source: GgufSource) -> GgufReference | None:
    """Return the reference that llama.cpp computes from the source itself; None where it cannot."""
    arch, spec, schedule = arch_of(source.file), comparison.spec, comparison.schedule
    scales = bool(schedule.log_n) or GgufSource(comparison.baked).file.get(WINDOW_NORM) is not None  # queries or norms
    if scales or source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier"):
        return None
    keys = None if rope_tensors(source.file) else overrides(schedule, arch.name)
    two_lists = schedule.short_inv_freq is not None or spec.current().short_inv_freq is not None
    divides = arch.freqs == "used" and "local" not in spec.layers and not two_lists
    if keys is not None and (comparison.receipt.encoding == "keys" or not divides):
        return GgufReference(partial(by_keys, source, keys))
    if not divides:
        return None
    exact = not weights_type(source.file)
    logits = partial(by_divisors, source, spec, [schedule, *([] if exact else [spec.current()])])
    runs, separation = (3, None) if exact else (4, POWER)
    return GgufReference(logits, runs, separation=separation, remark=DIVISORS, rule=DIVISORS_RULE)


def _rounded(comparison: Comparison) -> str:
    """Return the type of the weights if the source has another one, else an empty string."""
    same = isinstance(comparison.source, GgufSource)
    return "" if same else weights_type(GgufSource(comparison.baked).file)


def _judged(
    run: TokenRun, logits: ReferenceLogits, stock: Tensor, reference: GgufReference, temperature: float = 1.0
) -> list[BucketResult]:
    """Return the result of each bucket of positions."""

    def between(left: Tensor, right: Tensor, rows: slice) -> Measures:
        return measure(left[rows], right[rows, : left.shape[1]], temperature=temperature)

    noise, other = 0.0, logits.other_control
    if other is not None:
        noise = max(between(logits.control, other, rows).kl.mean().item() for _, rows in run.parts())
    results = []
    for bucket, rows in run.parts():
        control_kl = between(logits.reference, logits.control, rows).kl.mean().item()
        allowed = tolerance(bucket.positions[-1], 0.0, reference.floor)
        result = bucket_result(bucket, between(logits.reference, stock, rows), control_kl, allowed=allowed)
        rounded = reference.separation
        results.append(result if rounded is None else with_rounded_weights(result, noise, rounded))
    return results


def _power(results: list[BucketResult]) -> float:
    """Return the smallest ratio of the KL of the control to the allowed KL, beyond the trained context."""
    return min(result.control_kl / result.tolerance for result in results[1:] or results)
