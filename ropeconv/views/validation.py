"""Shows validations as tables and sentences."""

from __future__ import annotations

import math

from ..validate.rule.validation import BucketResult, Validation
from .legends import HIDDEN_STATES, VALIDATION, legend
from .sheet import Sheet

STATES = (
    "positions", "relative error", "95 %", "max", "allowed", "cosine", "unscaled source", "",
)  # fmt: skip
COLUMNS = (
    "positions", "KL mean", "KL 95 %", "KL max", "allowed", "max |dlogit|", "top-1", "top-5", "unscaled source", "",
)  # fmt: skip
OPTIONAL = ("KL max", "max |dlogit|", "top-5", "KL mean", "top-1")


def show_validation(result: Validation, title: str, sheet: Sheet) -> None:
    """Shows a validation: a row per bucket of positions with whether it agrees, and the sentence on the result.

    title: of the first table.
    """
    whole = title if result.unchecked else f"Every position up to {result.length:,}, {result.chunk} at a time"
    for run, words in (("spread", title), ("whole", whole)):
        shown = [bucket for bucket in result.buckets if bucket.run == run]
        if any(bucket.cosine is not None for bucket in shown):
            columns = sheet.table(words, STATES, [_states(bucket) for bucket in shown])
            meanings = HIDDEN_STATES
        elif shown:
            columns = sheet.table(words, COLUMNS, [_bucket(bucket) for bucket in shown], optional=OPTIONAL)
            meanings = VALIDATION
    if result.buckets:
        sheet.say(legend(meanings, columns))
    sheet.say(result.sentence)
    if result.unchecked:
        sheet.say(f"Not seen this way: {'; '.join(result.unchecked)}.")
    if result.precision_kl:
        sheet.say(f"In {result.dtype} the reference itself is a KL of {result.precision_kl:.1e} away from float32.")


def _states(bucket: BucketResult) -> tuple[str, ...]:
    """A row for hidden states: relative errors in place of the KLs that stand for them."""
    kls = (bucket.kl_mean, bucket.kl_95, bucket.kl_max, bucket.tolerance)
    errors = [f"{math.sqrt(2 * kl):.1e}" for kl in kls]
    control, word = f"{math.sqrt(2 * bucket.control_kl):.1e}", "agrees" if bucket.agrees else "disagrees"
    return bucket.name, *errors, f"{bucket.cosine:.9f}", control, word


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _bucket(bucket: BucketResult) -> tuple[str, ...]:
    return (
        bucket.name, f"{bucket.kl_mean:.1e}", f"{bucket.kl_95:.1e}", f"{bucket.kl_max:.1e}", f"{bucket.tolerance:.1e}",
        f"{bucket.max_dlogit:.1e}", _share(bucket.top1), _share(bucket.top5), f"KL {bucket.control_kl:.1e}",
        "agrees" if bucket.agrees else "disagrees",
    )  # fmt: skip
