"""Compare logits of a GGUF file in llama.cpp with those of a reference, which `gguf_reference.py` makes."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from ..engines.engine import Progress
from ..engines.llamacpp import LlamaCppEngine
from ..errors import BadSource
from ..models.gguf import GgufSource
from ..rope.schedule import QueryScaling
from .comparison import Comparison, Settings
from .gguf_reference import GgufReference, ReferenceLogits, gguf_reference, weights_type
from .sampling import Bucket, tail_buckets, usual_length
from .validation import (
    POWER,
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
)

if TYPE_CHECKING:
    from torch import Tensor

EACH = 128


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
    runs = tail_buckets(schedule.original_context, length, EACH)
    kept = [position for run in runs for position in run.positions]
    width, generator = file.tensors["token_embd.weight"].shape[1], torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(width, (length,), generator=generator).tolist()
    progress.note(f"Running {length} tokens {reference.runs} times: control, reference and output.")
    progress.total(reference.runs * length)
    logits = reference.logits(ids, kept, progress)
    engine = LlamaCppEngine(comparison.baked)
    stock = torch.as_tensor(engine.logits(ids, kept, progress))
    results, temperature = _judged(runs, logits, stock, reference), 1.0
    if not rounded and _power(results) < POWER:
        spread = spread_of(logits.reference)
        over_spread = _judged(runs, logits, stock, reference, spread)
        if _power(over_spread) > _power(results):
            results, temperature = over_spread, spread
    same = not rounded and bool((logits.reference == stock).all())
    agrees, sentence = conclusion(results, comparison.unchanged)
    if agrees and same:
        sentence = f"Equal to the last bit. {sentence}"
    elif agrees and rounded:
        sentence += f" The weights are {rounded}: a tenth of the control is allowed."
    sentence += reference.remark
    sentence += otherwise([f"logits divided by their spread of {temperature:.2g}"] if temperature != 1 else [])
    if isinstance(comparison.scale, QueryScaling):
        sentence += " The output and the reference scale queries in steps, in place of log-n."
    return Validation(
        "", "cpu", schedule.digest, length, settings.seed, tuple(results), agrees, sentence, runtime=engine.runtime,
        temperature=temperature, rule=rule(reference.floor) + reference.rule, **comparison.described(),
    )  # fmt: skip


def check_gguf(comparison: Comparison, settings: Settings) -> GgufReference:
    """Choose the reference of a GGUF file. Raises BadSource if it cannot be compared with its source."""
    rounded = _rounded(comparison)
    if rounded and comparison.unchanged:
        raise BadSource(
            f"{comparison.baked} differs from its source only in the type of the weights ({rounded}), so there is no "
            "control; compare a --outtype f32 export"
        )
    return gguf_reference(comparison, settings)


def _rounded(comparison: Comparison) -> str:
    """Return the type of the weights if the source has another one, else an empty string."""
    same = isinstance(comparison.source, GgufSource)
    return "" if same else weights_type(GgufSource(comparison.baked).file)


def _judged(
    runs: list[Bucket], logits: ReferenceLogits, stock: Tensor, reference: GgufReference, temperature: float = 1.0
) -> list[BucketResult]:
    """Return the result of each bucket of positions."""

    def between(left: Tensor, right: Tensor, rows: slice) -> Measures:
        return measure(left[rows], right[rows, : left.shape[1]], temperature=temperature)

    edges = [0, *accumulate(len(run.positions) for run in runs)]
    parts = [slice(first, last) for first, last in pairwise(edges)]
    noise = 0.0
    if logits.other_control is not None:
        noise = max(between(logits.control, logits.other_control, rows).kl.mean().item() for rows in parts)
    results = []
    for run, rows in zip(runs, parts, strict=True):
        control_kl = between(logits.reference, logits.control, rows).kl.mean().item()
        allowed = tolerance(run.positions[-1], 0.0, reference.floor)
        result = bucket_result(run, between(logits.reference, stock, rows), control_kl, allowed=allowed)
        results.append(reference.judged(result, noise))
    return results


def _power(results: list[BucketResult]) -> float:
    """Return the smallest ratio of the KL of the control to the allowed KL, beyond the trained context."""
    return min(result.control_kl / result.tolerance for result in results[1:] or results)
