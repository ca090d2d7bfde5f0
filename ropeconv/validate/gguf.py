"""Compare logits of a GGUF file in llama.cpp with those of its source, which computes the schedule
in another way.

A source in GGUF runs in llama.cpp, with metadata keys given at loading, or with other divisors over
another base: both use the same kernels on the same weights. Schedules that neither can express, and
checkpoints, run in transformers, patched from the schedule.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..convert.from_gguf.source import GgufCheckpoint
from ..engines.engine import Progress
from ..engines.llamacpp import LlamaCppEngine, overrides
from ..engines.llamacpp_program import Override
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.load import DeviceSpec, choose_place, folder_of
from ..engines.transformers.memory import host_bytes
from ..engines.transformers.patch import patch
from ..errors import BadSource
from ..formats.disk import human
from ..formats.files import scratch
from ..formats.gguf.edit import Edit, write_new
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import F32, TYPES
from ..inspection.kv_cache import gguf_cache
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.forms import Plain
from ..rope.schedule import QueryScaling, Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.purpose import gives_no_logits
from ..runtimes.llamacpp.read_header import FREQS, WINDOW_NORM, arch_of, rope_tensors, stored_pairs
from ..runtimes.llamacpp.scaling import ArchKeys
from .comparison import Comparison, Settings
from .sampling import (
    SAMPLE,
    Bucket,
    TokenRun,
    affordable_length,
    block_runs,
    length_beyond,
    tail_buckets,
    usual_length,
)
from .validation import (
    DEVIATIONS,
    KL_FLOOR,
    PART,
    POWER,
    SAME_KERNELS,
    SEPARATION,
    BucketResult,
    Measures,
    Validation,
    beyond,
    bucket_result,
    conclusion,
    measure,
    on_reach,
    otherwise,
    reached,
    rule,
    spread_of,
    tolerance,
    with_noise,
    with_rounded_weights,
)

if TYPE_CHECKING:
    from torch import Tensor

EACH = 128
"""Positions of each range that are compared."""
SHORT = 1024
"""Tokens that are run at every position where others go beyond the trained context."""
SPLIT = 8.0
"""The base of a reference with divisors, over that of its source: a runtime that ignores the
divisors is far away.
"""
SECOND_SPLIT = 4.0
"""That of a second one, which shows how far two ways of rounding are apart."""


@dataclass(frozen=True)
class ReferenceLogits:
    """Logits after some tokens, [positions, vocabulary].

    control: of the unscaled source. reference: of the source with the schedule. second: the
    schedule in a further way, which rounds otherwise; None where nothing is rounded. as_output:
    whether that is computed with the weights of the output, and the reference with others.
    other_control: of the unscaled source, computed as the output is; None where it is not needed.
    """

    control: Tensor
    reference: Tensor
    second: Tensor | None = None
    as_output: bool = False
    other_control: Tensor | None = None


@dataclass(frozen=True)
class GgufReference:
    """A way to make the source of a GGUF file compute the schedule.

    logits: runs all tokens, and returns the logits after those that are kept. times: how often each
    sequence is run, with the run of the output. spreads: whether positions may have gaps. floor:
    the KL that is always allowed. separation: as in `with_rounded_weights`; None where the two
    sides compute with the same weights. remark: for the report. rule: what else is allowed, for the
    report.
    """

    logits: Callable[[list[TokenRun], Progress], ReferenceLogits]
    times: int = 3
    spreads: bool = False
    floor: float = SAME_KERNELS
    separation: float | None = None
    remark: str = ""
    rule: str = ""


DIVISORS = " The reference has the frequencies as divisors over another base."
DIVISORS_RULE = (
    "; with weights that are not in float32, whose products round otherwise where a frequency"
    f" does, there are two such references: the mean KL from them may be {PART:g} times that"
    f" between them and {DEVIATIONS:g} standard errors larger than that, or a thousandth of that of"
    " the control, which must be ten times as far beyond it"
)
EXPORTED_RULE = (
    "; for quantised weights, the mean KL may be that of the output's own weights with the"
    f" schedule as divisors, and {PART:g} times that and {DEVIATIONS:g} standard errors more"
)
DEQUANTISED = " The reference has the dequantised weights of the source, in transformers."
DEQUANTISED_RULE = (
    "; the mean KL may be twice that of the unscaled source between llama.cpp and transformers"
    " more, and the control must be ten times as far beyond it"
)


def logits_of(engine: LlamaCppEngine, runs: list[TokenRun], progress: Progress) -> Tensor:
    """Return the logits of runs, one after the other, in one process of llama.cpp: [positions,
    vocabulary].
    """
    import torch

    with engine.opened():
        parts = []
        for run in runs:
            positions = run.positions if run.has_gaps else None
            parts.append(engine.logits(run.ids, run.kept, progress, positions))
    return torch.cat(parts)


def by_keys(
    source: GgufSource, keys: dict[str, Override], runs: list[TokenRun], progress: Progress
) -> ReferenceLogits:
    """Run the source in llama.cpp, with metadata keys that are given when it is loaded."""
    control = logits_of(LlamaCppEngine(source.path), runs, progress)
    reference = logits_of(LlamaCppEngine(source.path, keys), runs, progress)
    return ReferenceLogits(control, reference)


def by_divisors(
    source: GgufSource,
    spec: RopeSpec,
    schedule: Schedule,
    splits: tuple[float, ...],
    is_output: bool,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run a file in llama.cpp, and again with the frequencies of the schedule as divisors over
    other bases.

    source: the source of the output, or the output itself, whose own scaling is then taken away.
    spec: the RoPE of the source. splits: the other bases over that of the source; the second is for
    the noise.
    """
    if is_output:
        with scratch() as folder:
            control = logits_of(
                _divided(source.file, spec, spec.current(), folder, SPLIT), runs, progress
            )
    else:
        control = logits_of(LlamaCppEngine(source.path), runs, progress)

    divided = []
    for split in splits:
        with scratch() as folder:
            divided.append(
                logits_of(_divided(source.file, spec, schedule, folder, split), runs, progress)
            )
    return ReferenceLogits(control, *divided)


def _divided(
    file: GgufFile, spec: RopeSpec, schedule: Schedule, folder: Path, split: float
) -> LlamaCppEngine:
    """Return a copy of a file, in a folder, that computes a schedule by divisors over `split` times
    its base.
    """
    plain = Plain(split * spec.rope_theta)
    keys = overrides(replace(schedule, form=plain), arch_of(file).name)
    assert keys is not None, "a plain base has keys"
    rotates = schedule.inv_freq > 0
    divisors = np.where(
        rotates, plain.inv_freq(spec.rotary_dim) / np.where(rotates, schedule.inv_freq, 1.0), 1e30
    )
    unused = stored_pairs(ArchKeys(file, arch_of(file)), spec.rotary_dim) - len(divisors)
    divisors = np.concatenate([divisors, np.ones(unused)])
    removed = frozenset({FREQS} & file.tensors.keys())
    edit = Edit(added={FREQS: divisors.astype("<f4").tobytes()}, removed=removed)
    for shard, path in enumerate(file.paths):
        write_new(file, shard, edit, folder / path.name)
    return LlamaCppEngine(folder / file.path.name, keys)


def patched(
    comparison: Comparison, checkpoint: Source, dtype: str, runs: list[TokenRun], progress: Progress
) -> ReferenceLogits:
    """Run a checkpoint of the source in transformers in a precision, with rotary modules patched
    from the schedule.
    """
    (run,) = runs
    with folder_of(checkpoint, dtype) as folder:
        at = choose_place(checkpoint, DeviceSpec("cpu", dtype, stands_for=comparison.stands_for))
        engine = TransformersEngine.load(folder, at, chunk=len(run.ids))
        control = engine.logits(run.ids, run.kept, progress)
        patch(
            engine.model, comparison.schedule, comparison.spec, comparison.scale, comparison.queries
        )
        return ReferenceLogits(control, engine.logits(run.ids, run.kept, progress))


def dequantised(
    comparison: Comparison,
    source: GgufCheckpoint,
    dtype: str,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run a source in GGUF in transformers, with its weights dequantised, and in llama.cpp for the
    noise.
    """
    checkpoint = source.in_dtype(dtype)
    size = human(sum(file.size for file in checkpoint.files()))
    progress.note(
        f"The weights of {comparison.against} take {size} as {dtype}, on the disk and in memory."
    )
    plain = logits_of(LlamaCppEngine(checkpoint.inner.path), runs, progress)
    return replace(patched(comparison, checkpoint, dtype, runs, progress), other_control=plain)


def exported(
    comparison: Comparison,
    source: Source,
    output: GgufSource,
    runs: list[TokenRun],
    progress: Progress,
) -> ReferenceLogits:
    """Run a checkpoint in transformers, and the weights of its quantised export with the schedule
    as divisors.

    The latter differs from the checkpoint by the same quantised weights as the output does.
    """
    logits = patched(comparison, source, "float32", runs, progress)
    with scratch() as folder:
        engine = _divided(output.file, comparison.spec, comparison.schedule, folder, SPLIT)
        second = logits_of(engine, runs, progress)
    return replace(logits, second=second, as_output=True)


def weights_type(file: GgufFile) -> str:
    """Return the name of the most frequent type of matrices in a file; empty for F32."""
    return "" if file.usual_type == F32 else TYPES[file.usual_type].name


def validate_gguf(
    comparison: Comparison, settings: Settings | None = None, progress: Progress | None = None
) -> Validation:
    """Compare the logits of a GGUF file in llama.cpp with those of the reference, and of the
    unscaled source.

    Args:
        comparison: The output and its source.
        settings: `tokens` is the length of a run over every position. By default positions are
            spread up to the new context, or where llama.cpp cannot have gaps between them, it is
            four times the trained one, up to 8192, and more where that is affordable.
        progress: Callbacks.

    Raises:
        BadSource: If nothing makes the source compute the schedule.
    """

    settings = settings or Settings()
    progress = progress or Progress()
    schedule = comparison.schedule
    output = GgufSource(comparison.baked)
    if gives_no_logits(output.file, arch_of(output.file)):
        raise BadSource(
            f"{comparison.baked} is an encoder, of which llama.cpp gives no logits to compare; its"
            " keys are right, so compare the embeddings of `llama-server --embeddings` with those"
            " of its model in transformers"
        )
    references = [check_gguf(comparison, settings)]
    inside = _in_llamacpp(comparison, output, of_output=True) if not references[0].spreads else None
    if inside is not None and inside.spreads and not settings.tokens:
        references.append(inside)
    rounded = _rounded(comparison)

    results: list[BucketResult] = []
    temperature, same = 1.0, True
    engine = LlamaCppEngine(comparison.baked)
    planned = [
        (reference, _runs(comparison, settings, reference, bool(references[1:])))
        for reference in references
    ]
    read = [run for _, runs in planned for run in runs]
    progress.total(
        sum(reference.times * len(run.ids) for reference, runs in planned for run in runs)
    )
    for reference, runs in planned:
        _say(runs, reference, progress)
        logits = reference.logits(runs, progress)
        stock = logits_of(engine, runs, progress)
        judged = _judged(runs, logits, stock, reference)
        if not rounded and _power(judged, schedule) < POWER:
            judged, temperature = _sharper(judged, runs, logits, stock, reference, schedule)
        results += judged
        same = (
            same
            and logits.reference.shape == stock.shape
            and bool((logits.reference == stock).all())
        )

    # llama.cpp against itself is the sharper comparison; the other one shows that the weights were
    # converted well
    decisive = judged if len(references) > 1 else None
    agrees, sentence = conclusion(
        results, comparison.unchanged, schedule.original_context, decisive
    )
    if agrees and same:
        sentence = f"Equal to the last bit. {sentence}"
    elif agrees and rounded:
        sentence += f" The weights are {rounded}: {_allowed(references[0])}."
    sentence += on_reach(results, schedule.original_context, schedule.context, "--tokens")
    sentence += references[0].remark + comparison.remark
    if len(references) > 1:
        sentence += (
            " Up to the new context, llama.cpp is compared with itself on the weights of the"
            " output."
        )
    sentence += otherwise(
        [f"logits divided by their spread of {temperature:.2g}"] if temperature != 1 else []
    )
    if isinstance(comparison.scale, QueryScaling):
        sentence += " The output and the reference scale queries in steps, in place of log-n."
    return Validation(
        "",
        "cpu",
        schedule.digest,
        max(len(run.ids) for run in read),
        settings.seed,
        tuple(results),
        agrees,
        sentence,
        runtime=engine.runtime,
        length=max((len(run.ids) for run in read if run.kind == "whole"), default=0),
        temperature=temperature,
        rule=rule(references[0].floor) + "".join(reference.rule for reference in references),
        reached=reached(results),
        **comparison.described(),
    )


def _allowed(reference: GgufReference) -> str:
    """Return what rounded weights may add to the KL, for a sentence."""
    if reference.separation is None:
        return "the noise of that is measured and allowed"
    return "a tenth of the control is allowed"


def _runs(
    comparison: Comparison, settings: Settings, reference: GgufReference, short: bool
) -> list[TokenRun]:
    """Return the tokens of a comparison: blocks of them up to the new context, or every position up
    to a length.

    short: whether another comparison goes beyond the trained context, so that this one need not.
    """
    import torch

    schedule = comparison.schedule
    file = GgufSource(comparison.baked).file
    original = schedule.original_context
    context = schedule.context
    vocabulary = file.tensors["token_embd.weight"].shape[1]
    if reference.spreads and not settings.tokens:
        return block_runs(original, context, vocabulary, settings.seed, EACH)

    if settings.tokens:
        length = min(context, settings.tokens)
    elif short and usual_length(original, context) <= original < context:
        length = SHORT
    else:
        length = _whole_length(comparison, reference.times)
    generator = torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(vocabulary, (length,), generator=generator).tolist()
    return [TokenRun.over_all("whole", ids, tail_buckets(original, length, EACH))]


def _say(runs: list[TokenRun], reference: GgufReference, progress: Progress) -> None:
    """Note what will be run."""
    tokens = sum(len(run.ids) for run in runs)
    over = f", spread over {runs[-1].positions[-1] + 1:,} positions" if runs[-1].has_gaps else ""
    progress.note(
        f"Running {tokens:,} tokens{over} {reference.times} times: control, reference and output."
    )


def _whole_length(comparison: Comparison, times: int) -> int:
    """Return the default length of a run over every position. times: how often each token is
    read.
    """
    schedule = comparison.schedule
    output = GgufSource(comparison.baked)
    original = schedule.original_context
    context = schedule.context
    kept = gguf_cache(output.file, arch_of(output.file))
    cache = kept.bytes(length_beyond(original, context)) if kept else {}

    def seconds() -> float:
        begin = time.perf_counter()
        LlamaCppEngine(comparison.baked).logits(list(range(SAMPLE)), [SAMPLE - 1])
        return times * (time.perf_counter() - begin)

    needed = 2 * cache.get("f16", 0)  # it is float32 here
    return affordable_length(original, context, seconds, needed, host_bytes())


def check_gguf(comparison: Comparison, settings: Settings) -> GgufReference:
    """Return the sharpest reference of a GGUF file. Raises BadSource if it cannot be compared with
    its source.
    """
    if comparison.draft:
        kind = comparison.draft.says
        raise BadSource(
            f"{comparison.baked} is {kind}, which llama.cpp runs only with its target; validate"
            " that"
        )
    rounded = _rounded(comparison)
    output = GgufSource(comparison.baked)
    if rounded and comparison.unchanged:
        raise BadSource(
            f"{comparison.baked} differs from its source only in the type of the weights"
            f" ({rounded}), so there is no control; compare a --outtype f32 export"
        )
    source = comparison.source
    if not isinstance(source, GgufSource):
        inside = _in_llamacpp(comparison, output, of_output=True) if rounded else None
        if inside is not None:
            measured = partial(exported, comparison, source, output)
            return GgufReference(measured, 4, floor=KL_FLOOR, rule=EXPORTED_RULE)
        logits = partial(patched, comparison, source, "float32")
        return GgufReference(logits, floor=KL_FLOOR, separation=SEPARATION if rounded else None)
    reference = None if settings.dequantised else _in_llamacpp(comparison, source)
    if reference is not None:
        return reference
    checkpoint = comparison.checkpoint_or_dequantised(
        "cannot be given this schedule at loading, and cannot be dequantised either"
    )
    assert isinstance(checkpoint, GgufCheckpoint)
    logits = partial(
        dequantised,
        comparison,
        checkpoint,
        "float32" if settings.dtype == "auto" else settings.dtype,
    )
    return GgufReference(
        logits, 4, floor=KL_FLOOR, separation=math.inf, remark=DEQUANTISED, rule=DEQUANTISED_RULE
    )


def _in_llamacpp(
    comparison: Comparison, source: GgufSource, of_output: bool = False
) -> GgufReference | None:
    """Return the reference that llama.cpp computes from a GGUF file itself; None where it cannot.

    source: the source of the output, or with `of_output` the output, whose weights then run without
    its own scaling.
    """
    arch = arch_of(source.file)
    spec = comparison.spec
    schedule = comparison.schedule
    scales = (
        bool(schedule.log_n) or GgufSource(comparison.baked).file.get(WINDOW_NORM) is not None
    )  # queries or norms
    if scales or source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier"):
        return None
    keys = None if rope_tensors(source.file) else overrides(schedule, arch.name)
    two_lists = schedule.short_inv_freq is not None or spec.current().short_inv_freq is not None
    divides = arch.freqs == "used" and "local" not in spec.layers and not two_lists
    spreads = not two_lists and not _has_states(source.file)
    if (
        not of_output
        and keys is not None
        and (comparison.receipt.encoding == "keys" or not divides)
    ):
        return GgufReference(partial(by_keys, source, keys), spreads=spreads)
    if not divides:
        return None

    exact = not weights_type(source.file)
    splits = (SPLIT,) if exact else (SPLIT, SECOND_SPLIT)
    logits = partial(by_divisors, source, spec, schedule, splits, of_output)
    return GgufReference(
        logits, 2 + len(splits), spreads, remark=DIVISORS, rule="" if exact else DIVISORS_RULE
    )


def _has_states(file: GgufFile) -> bool:
    """Whether some layers of a model keep a state in place of keys and values, which has no
    gaps.
    """
    cache = gguf_cache(file, arch_of(file))
    return cache is not None and cache.states > 0


def _rounded(comparison: Comparison) -> str:
    """Return the type of the weights if the source has another one, else an empty string."""
    same = isinstance(comparison.source, GgufSource)
    return "" if same else weights_type(GgufSource(comparison.baked).file)


def _judged(
    runs: list[TokenRun],
    logits: ReferenceLogits,
    stock: Tensor,
    reference: GgufReference,
    temperature: float = 1.0,
) -> list[BucketResult]:
    """Return the result of each bucket of positions."""

    def between(left: Tensor, right: Tensor, rows: slice) -> Measures:
        width = min(left.shape[1], right.shape[1])
        return measure(left[rows, :width], right[rows, :width], temperature=temperature)

    parts = list(_parts(runs))
    pairs: list[Measures] = []
    if logits.second is not None:
        pairs = [between(logits.reference, logits.second, rows) for _, _, rows in parts]
    noise = 0.0
    if logits.other_control is not None:
        noise = max(
            between(logits.control, logits.other_control, rows).kl.mean().item()
            for _, _, rows in parts
        )

    results = []
    for kind, bucket, rows in parts:
        control_kl = between(logits.reference, logits.control, rows).kl.mean().item()
        allowed = tolerance(bucket.positions[-1], 0.0, reference.floor)
        measures = between(logits.reference, stock, rows)
        result = bucket_result(bucket, measures, control_kl, kind=kind, allowed=allowed)
        if logits.second is not None:
            second = measures if logits.as_output else between(logits.second, stock, rows)
            result = with_noise(
                result, measures, second, max(pairs, key=lambda pair: float(pair.kl.mean()))
            )
        elif reference.separation is not None:
            result = with_rounded_weights(result, noise, reference.separation)
        results.append(result)
    return results


def _sharper(
    judged: list[BucketResult],
    runs: list[TokenRun],
    logits: ReferenceLogits,
    stock: Tensor,
    reference: GgufReference,
    schedule: Schedule,
) -> tuple[list[BucketResult], float]:
    """Return the results with logits over their spread where these have more power, and what logits
    are divided by.
    """
    spread = spread_of(logits.reference)
    over_spread = _judged(runs, logits, stock, reference, spread)
    if _power(over_spread, schedule) > _power(judged, schedule):
        return over_spread, spread
    return judged, 1.0


def _parts(runs: list[TokenRun]) -> Iterator[tuple[Literal["spread", "whole"], Bucket, slice]]:
    """Yield each bucket with the kind of its run, and the slice of its positions among those of all
    runs.
    """
    first = 0
    for run in runs:
        for bucket, rows in run.parts():
            yield run.kind, bucket, slice(first + rows.start, first + rows.stop)
        first += len(run.kept)


def _power(results: list[BucketResult], schedule: Schedule) -> float:
    """Return the smallest ratio of the KL of the control to the allowed KL, beyond the trained
    context.
    """
    return min(
        result.control_kl / result.tolerance
        for result in beyond(results, schedule.original_context)
    )
