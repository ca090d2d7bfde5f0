"""Compares logits of a GGUF file in llama.cpp with those of a reference made from its source.

How the reference is made is in `gguf_reference.py`.
"""

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
    """Compares the logits of a GGUF file in llama.cpp with those of the reference, and of the unscaled source.

    comparison: the output and its source. settings: `tokens` is the length of the sequence, by default four times the
    trained context, up to 8192. progress: callbacks. Raises BadSource where nothing makes the source compute the
    schedule.
    """
    import torch

    settings, progress = settings or Settings(), progress or Progress()
    schedule, file = comparison.schedule, GgufSource(comparison.baked).file
    how, rounded = check_gguf(comparison, settings), _rounded(comparison)
    usual = usual_length(schedule.original_context, schedule.context)
    length = min(schedule.context, settings.tokens or usual)
    if length <= schedule.original_context:
        progress.note(
            f"{length} tokens stay inside the trained context of {schedule.original_context}; --tokens reaches beyond"
        )
    runs = tail_buckets(schedule.original_context, length, EACH)
    kept = [position for run in runs for position in run.positions]
    width, generator = file.tensors["token_embd.weight"].shape[1], torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(width, (length,), generator=generator).tolist()
    progress.note(f"Running {length} tokens {how.runs} times, control, reference and output among them.")
    progress.total(how.runs * length)
    read = how.logits(ids, kept, progress)
    engine = LlamaCppEngine(comparison.baked)
    stock = torch.as_tensor(engine.logits(ids, kept, progress))
    results, temperature = _judged(runs, read, stock, how), 1.0
    if not rounded and _power(results) < POWER:
        spread = spread_of(read.reference)
        over_spread = _judged(runs, read, stock, how, spread)
        if _power(over_spread) > _power(results):
            results, temperature = over_spread, spread
    same = not rounded and bool((read.reference == stock).all())
    agrees, sentence = conclusion(results, comparison.unchanged)
    if agrees and same:
        sentence = f"Equal to the last bit. {sentence}"
    elif agrees and rounded:
        sentence += f" The weights are {rounded}: a tenth of the control is allowed."
    sentence += how.said
    sentence += otherwise([f"logits divided by their spread of {temperature:.2g}"] if temperature != 1 else [])
    if isinstance(comparison.scale, QueryScaling):
        sentence += " The reference scales queries in the steps that were written, which is not log-n to the letter."
    return Validation(
        "", "cpu", schedule.digest, length, settings.seed, tuple(results), agrees, sentence, runtime=engine.runtime,
        temperature=temperature, rule=rule(how.floor) + how.rule, **comparison.described(),
    )  # fmt: skip


def check_gguf(comparison: Comparison, settings: Settings) -> GgufReference:
    """How the reference of a GGUF file is made. Raises BadSource where it cannot be compared with its source."""
    rounded = _rounded(comparison)
    if rounded and comparison.unchanged:
        raise BadSource(
            f"{comparison.baked} changes nothing but the weights' type ({rounded}), and then there is no measure for a "
            "difference; compare a --outtype f32 export"
        )
    return gguf_reference(comparison, settings)


def _rounded(comparison: Comparison) -> str:
    """The type of the weights of a file that has others than its source; empty where they are the same."""
    same = isinstance(comparison.source, GgufSource)
    return "" if same else weights_type(GgufSource(comparison.baked).file)


def _judged(
    runs: list[Bucket], read: ReferenceLogits, stock: Tensor, how: GgufReference, temperature: float = 1.0
) -> list[BucketResult]:
    """The result of each bucket of positions."""

    def between(one: Tensor, other: Tensor, rows: slice) -> Measures:
        return measure(one[rows], other[rows, : one.shape[1]], temperature=temperature)

    edges = [0, *accumulate(len(run.positions) for run in runs)]
    parts = [slice(first, last) for first, last in pairwise(edges)]
    noise = 0.0
    if read.other_control is not None:
        noise = max(between(read.control, read.other_control, rows).kl.mean().item() for rows in parts)
    results = []
    for run, rows in zip(runs, parts, strict=True):
        away = between(read.reference, read.control, rows).kl.mean().item()
        allowed = tolerance(run.positions[-1], 0.0, how.floor)
        result = bucket_result(run, between(read.reference, stock, rows), away, allowed=allowed)
        results.append(how.judged(result, noise))
    return results


def _power(results: list[BucketResult]) -> float:
    """The smallest KL of the control over the one that is allowed, beyond the trained context."""
    return min(result.control_kl / result.tolerance for result in results[1:] or results)
