"""Compares logits of a GGUF file in llama.cpp with those of a reference made from its source.

Of a source in GGUF the reference is that file, loaded with key overrides for the schedule, which gives the same bits
where keys can express it. Of a checkpoint it is transformers in float32, patched at run time.
"""

from __future__ import annotations

from typing import Any

from ..engines import Progress
from ..engines.llamacpp import LlamaCppEngine
from ..engines.llamacpp.overrides import overrides
from ..engines.transformers import DeviceSpec, TransformersEngine
from ..engines.transformers.load import local_folder
from ..errors import BadSource
from ..formats.gguf import GgufFile
from ..formats.gguf.types import F32, TYPES
from ..rope.log_n import QueryScaling
from ..runtimes.llamacpp.read_file import arch_of, rope_tensors
from ..runtimes.llamacpp.read_header import WINDOW_NORM
from ..sources import GgufSource
from .comparison import Comparison
from .rule.measures import compare_logits, spread_of
from .rule.validation import (
    KL_FLOOR,
    POWER,
    SAME_KERNELS,
    BucketResult,
    Validation,
    bucket_result,
    conclusion,
    otherwise,
    rule,
    tolerance,
    with_rounded_weights,
)
from .sampling.positions import Bucket, tail_buckets, usual_length
from .settings import Settings

EACH = 128


def validate_gguf(
    comparison: Comparison, settings: Settings | None = None, progress: Progress | None = None
) -> Validation:
    """Compares the logits of a GGUF file in llama.cpp with those of the reference, and of the unscaled source.

    comparison: the output and its source. settings: `tokens` is the length of the sequence, by default four times the
    trained context, up to 8192. progress: callbacks. Raises BadSource where no key overrides make the source compute
    the schedule.
    """
    import torch

    settings, progress = settings or Settings(), progress or Progress()
    schedule, file, source = comparison.schedule, GgufSource(comparison.baked).file, comparison.source
    usual = usual_length(schedule.original_context, schedule.context)
    length = min(schedule.context, settings.tokens or usual)
    if length <= schedule.original_context:
        progress.note(
            f"{length} tokens stay inside the trained context of {schedule.original_context}; --tokens reaches beyond"
        )
    rounded = "" if isinstance(source, GgufSource) else weights_type(file)
    if rounded and comparison.unchanged:
        raise BadSource(
            f"{comparison.baked} changes nothing but the weights' type ({rounded}), and then there is no measure for a "
            "difference; compare a --outtype f32 export"
        )
    runs = tail_buckets(schedule.original_context, length, EACH)
    kept = [position for run in runs for position in run.positions]
    width, generator = file.tensors["token_embd.weight"].shape[1], torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(width, (length,), generator=generator).tolist()
    progress.note(f"Running {length} tokens three times: control, reference, baked.")
    progress.total(3 * length)
    if isinstance(source, GgufSource):
        control, reference = _by_overrides(comparison, source, file, ids, kept, progress)
    else:
        control, reference = _patched(comparison, ids, kept, progress)
    engine = LlamaCppEngine(comparison.baked)
    stock = torch.as_tensor(engine.logits(ids, kept, progress))
    floor = SAME_KERNELS if isinstance(source, GgufSource) else KL_FLOOR
    results, temperature = _judged(runs, reference, stock, control, floor, bool(rounded)), 1.0
    if not rounded and _power(results) < POWER:
        spread = spread_of(reference)
        over_spread = _judged(runs, reference, stock, control, floor, temperature=spread)
        if _power(over_spread) > _power(results):
            results, temperature = over_spread, spread
    same = not rounded and bool((reference == stock).all())
    agrees, sentence = _sentence(*conclusion(results, comparison.unchanged), same, rounded)
    sentence += otherwise([f"logits divided by their spread of {temperature:.2g}"] if temperature != 1 else [])
    if isinstance(comparison.scale, QueryScaling):
        sentence += " The reference scales queries in the steps that were written, which is not log-n to the letter."
    return Validation(
        "", "cpu", schedule.digest, length, settings.seed, tuple(results), agrees, sentence, runtime=engine.runtime,
        temperature=temperature, rule=rule(floor), **comparison.described(),
    )  # fmt: skip


def _judged(
    runs: list[Bucket],
    reference: Any,
    stock: Any,
    control: Any,
    floor: float,
    rounded: bool = False,
    temperature: float = 1.0,
) -> list[BucketResult]:
    """The result of each bucket of positions.

    runs: the buckets. reference, stock, control: logits [positions, vocabulary]. floor: the KL that is always allowed.
    rounded: whether weights are quantised. temperature: by which logits are divided for the KL.
    """
    results, first = [], 0
    for run in runs:
        rows = slice(first, first + len(run.positions))
        first = rows.stop
        known = reference[rows]
        away = compare_logits(known, control[rows], temperature).kl_mean
        figures = compare_logits(known, stock[rows, : known.shape[1]], temperature)
        result = bucket_result(run, figures, away, allowed=tolerance(run.positions[-1], 0.0, floor))
        results.append(with_rounded_weights(result) if rounded else result)
    return results


def _power(results: list[BucketResult]) -> float:
    """The smallest KL of the control over the one that is allowed, beyond the trained context."""
    return min(result.control_kl / result.tolerance for result in results[1:] or results)


def _by_overrides(
    comparison: Comparison, source: GgufSource, file: GgufFile, ids: list[int], kept: list[int], progress: Progress
) -> tuple[Any, Any]:
    """Logits of a source in GGUF in llama.cpp, as it is and with key overrides for the schedule."""
    import torch

    schedule = comparison.schedule
    given = None if schedule.log_n else overrides(schedule, arch_of(source.file).name)
    if given is None or _needs_more_than_keys(source.file, file):
        raise BadSource(
            f"{comparison.against} cannot take this schedule as metadata at loading; give --against the "
            "safetensors checkpoint of that model"
        )
    engines = (LlamaCppEngine(source.path, keys) for keys in ({}, given))
    control, reference = (torch.as_tensor(engine.logits(ids, kept, progress)) for engine in engines)
    return control, reference


def _patched(comparison: Comparison, ids: list[int], kept: list[int], progress: Progress) -> tuple[Any, Any]:
    """Logits of a checkpoint in transformers, as it is and patched to the schedule."""
    folder, at = local_folder(comparison.checkpoint), DeviceSpec("cpu", "float32", stands_for=comparison.stands_for)
    engine = TransformersEngine.load(folder, at, chunk=len(ids))
    control = engine.logits(ids, kept, progress)
    scale = comparison.scale
    engine.patch(comparison.schedule, comparison.spec, scale, comparison.queries if scale else "")
    return control, engine.logits(ids, kept, progress)


def _needs_more_than_keys(before: GgufFile, after: GgufFile) -> bool:
    """Whether key overrides are not enough: rope tensors, yarn_log_multiplier, or norms with a folded factor."""
    own = before.get(f"{arch_of(before).name}.rope.scaling.yarn_log_multiplier")
    return bool(rope_tensors(before)) or bool(own) or after.get(WINDOW_NORM) is not None


def weights_type(file: GgufFile) -> str:
    """The name of the most frequent type of matrices in a file; empty where that is F32."""
    types = [info.type for info in file.tensors.values() if len(info.shape) > 1]
    usual = max(set(types), key=types.count)
    return "" if usual == F32 else TYPES[usual].name


def _sentence(agrees: bool, sentence: str, same: bool, rounded: str) -> tuple[bool, str]:
    if not agrees:
        return agrees, sentence
    if same:
        return agrees, f"Equal to the last bit. {sentence}"
    return agrees, f"{sentence} The weights are {rounded}: a tenth of the control is allowed." if rounded else sentence
