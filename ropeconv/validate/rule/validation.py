"""Validation, the result of a comparison of logits, and the rule by which it agrees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from ..sampling.positions import Bucket
from .measures import Figures

KL_FLOOR = 1e-5  # float32 noise between different kernels; wrong frequencies give 1e-2 and more
SAME_KERNELS = 1e-5  # sharp models with frequencies rounded otherwise have 7e-6 where 3e-7 is measured
ANGLE_ERROR = 2.0**-22  # rounding of position * inv_freq and of inv_freq itself, in float32
RESOLUTION = 1e-12  # of a KL in float32
SEPARATION = 10.0
POWER = 1000.0  # of a control over what is allowed: errors of 3 % of what the method changes are noticed then
DETAIL = 100.0  # of a faint fault over what is allowed
NOISE = 5.0
TWICE = 2.0  # means over a hundred positions differ by a quarter from run to run


STATES = "hidden states are compared, and half of their squared relative error is called KL: "


def rule(floor: float, states: bool = False) -> str:
    """The rule of a comparison in a sentence.

    floor: the KL in nats that is always allowed. states: whether hidden states are compared in place of logits.
    """
    return (STATES if states else "") + (
        f"a bucket agrees when 95 % of its positions have a KL of at most {floor:g} + (last position * 2^-22)^2 + "
        f"{NOISE:g} x the noise floor; beyond the trained context the unscaled source has to be {SEPARATION:g} times "
        "further away than that; the noise floor is the sum of the KLs of the reference from itself in other chunks, "
        "with frequencies two steps of float32 away, and with weights rounded where a fold rounds them, or in low "
        "precision a fifth of that from float32 (all of it with a fold), at the worst up to that bucket; without "
        "noise, no more is allowed than a hundredth of the KL of the reference with all attention scores 2 % larger"
    )


RULE = rule(KL_FLOOR)


@dataclass(frozen=True)
class BucketResult:
    """Figures of one bucket of positions.

    name: its positions. last: its last position. run: "spread" (a few tokens over the whole range) or "whole" (every
    token before it). kl_*, max_dlogit: of the output from the reference, KL in nats. top1, top5: share of equal
    likeliest tokens. loss_*: of the next token in nats, None where it is not known. control_kl: mean KL of the unscaled
    source. noise_kl: the noise floor, a 95th percentile, or a mean with `rounded_weights`. tolerance: the KL that is
    allowed. agrees: by the rule. rounded_weights: whether weights are not in float32, and so the mean KL is compared.
    cosine: of hidden states, where these are compared, what 95 % of positions have at least; half of the squared
    relative error is their KL, max_dlogit is of their numbers, and they have no top1 and top5.

    A bucket agrees where 95 % of its positions are within the tolerance: a wrong rotation shows everywhere, while
    rounding may change the choice of a router of experts at single tokens.
    """

    name: str
    last: int
    kl_mean: float
    kl_95: float
    kl_max: float
    max_dlogit: float
    top1: float | None
    control_kl: float
    tolerance: float
    agrees: bool
    top5: float | None = 1.0
    loss_reference: float | None = None
    loss_baked: float | None = None
    noise_kl: float = 0.0
    run: Literal["spread", "whole"] = "spread"
    rounded_weights: bool = False
    cosine: float | None = None

    @property
    def compared_kl(self) -> float:
        """The KL that is compared with the tolerance: the 95th percentile, of quantised weights the mean."""
        return self.kl_mean if self.rounded_weights else self.kl_95

    def figure(self, kl: float) -> str:
        """A KL of this bucket in words; of hidden states the relative error that it stands for."""
        return f"KL {kl:.2e}" if self.cosine is None else f"relative error {math.sqrt(2 * kl):.2e}"

    @property
    def is_distinguished(self) -> bool:
        """Whether the unscaled source is far enough away."""
        if self.rounded_weights:  # the tolerance is often a part of the control, and so equal but for rounding
            return self.control_kl * (1 + 1e-9) >= SEPARATION * self.tolerance
        return self.control_kl >= SEPARATION * max(self.kl_95, self.tolerance)


@dataclass(frozen=True)
class Validation:
    """The result of a comparison over all buckets.

    transformers: version, or empty. device: that it ran on. digest: of the schedule. tokens: of a spread run. seed: of
    the tokens. agrees: by the rule. sentence: the result for people. runtime: name and version. length: of the run over
    every position, 0 without one. chunk: tokens read at a time. curve: (position, KL) of that run. speed: tokens per
    second of whole runs. partial: whether it was stopped early. precision_kl: in low precision, KL of the reference
    from itself in float32, at the end of the context. frequencies: before and after, radians per token. lengths:
    trained and new, in tokens. unrotated: (d - r)/2, None in results of earlier versions. unchecked: properties that
    this run cannot check. config_reference_kl: KL of the source with the method in its config from the reference, the
    worst 95th percentile of a spread run; None where it was not run. rule: in a sentence. score_factor: by which the
    attention scores of both sides were multiplied. temperature: by which logits were divided for the KL. All KL in
    nats.
    """

    transformers: str
    device: str
    digest: str
    tokens: int
    seed: int
    buckets: tuple[BucketResult, ...]
    agrees: bool
    sentence: str
    runtime: str = "transformers"
    dtype: str = "float32"
    length: int = 0
    chunk: int = 0
    partial: bool = False
    curve: tuple[tuple[int, float], ...] = ()
    precision_kl: float = 0.0
    speed: dict[str, float] = field(default_factory=dict)
    frequencies: dict[str, list[float]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    unrotated: float | None = None
    unchecked: tuple[str, ...] = ()
    config_reference_kl: float | None = None
    score_factor: float = 1.0
    temperature: float = 1.0
    rule: str = RULE

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data; keys stay within a schema."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Validation:
        """The inverse of `to_dict`, also for results of earlier versions."""
        known = {item.name for item in fields(cls)}
        buckets = tuple(BucketResult(**bucket) for bucket in data["buckets"])
        return cls(**{key: value for key, value in data.items() if key in known} | {"buckets": buckets})


def tolerance(last: int, noise: float, floor: float = KL_FLOOR, faint: float = math.inf) -> float:
    """The KL in nats that is allowed in a bucket.

    last: its last position. noise: the noise floor, in nats. floor: what is allowed at position 0 without noise. faint:
    the KL of a faint fault, of which no more than a hundredth is allowed besides noise: where attention hardly matters,
    little is wrong.
    """
    return min(floor + (last * ANGLE_ERROR) ** 2, max(faint / DETAIL, RESOLUTION)) + NOISE * noise


def bucket_result(
    run: Bucket,
    figures: Figures,
    control_kl: float,
    noise: float = 0.0,
    kind: Literal["spread", "whole"] = "spread",
    allowed: float | None = None,
) -> BucketResult:
    """The result of a bucket, with the tolerance at its last position.

    run: the bucket. figures: of the output from the reference. control_kl: mean KL of the unscaled source, in nats.
    noise: the noise floor, in nats. kind: of the run that the bucket belongs to. allowed: the
    tolerance, by default `tolerance` at the last position.
    """
    last = run.positions[-1]
    allowed = tolerance(last, noise) if allowed is None else allowed
    return BucketResult(
        name=run.name,
        last=last,
        kl_mean=figures.kl_mean,
        kl_95=figures.kl_95,
        kl_max=figures.kl_max,
        max_dlogit=figures.max_dlogit,
        top1=figures.top1,
        control_kl=control_kl,
        tolerance=allowed,
        agrees=figures.kl_95 <= allowed,
        top5=figures.top5,
        loss_reference=figures.loss_reference,
        loss_baked=figures.loss_other,
        noise_kl=noise,
        run=kind,
        cosine=figures.cosine,
    )


def with_rounded_weights(result: BucketResult) -> BucketResult:
    """The result for quantised weights, whose mean KL may be up to a tenth of that of the control."""
    allowed = max(result.tolerance, result.control_kl / SEPARATION)
    return replace(result, tolerance=allowed, agrees=result.kl_mean <= allowed, rounded_weights=True)


def with_noise(result: BucketResult, noise: float, part: float = 0.0) -> BucketResult:
    """The result for weights that are not in float32, with which the two sides do not round alike.

    noise: the mean KL of the unscaled source between the two sides, in nats; the mean KL may be twice of that besides
    the tolerance. part: of the KL of the control, which is allowed too.
    """
    allowed = max(result.tolerance + TWICE * noise, part * result.control_kl)
    return replace(result, tolerance=allowed, agrees=result.kl_mean <= allowed, rounded_weights=True, noise_kl=noise)


def noise_floor(same: list[float], other: list[float], part: float = 1 / NOISE) -> float:
    """The noise floor in nats: the sum of `same`, or a part of the largest of `other` where that is larger.

    same, other: 95th percentiles of the KL of the reference from its variants in the same precision and in another.
    part: of `other`; 1 where the two sides do not round alike. KL is quadratic in errors of logits, so that those of
    independent errors add.
    """
    return max(sum(same), *(kl * part for kl in other), 0.0)


def conclusion(results: list[BucketResult], unchanged: bool) -> tuple[bool, str]:
    """Whether all buckets agree and the control does not, and a sentence on that.

    results: per bucket. unchanged: whether the recipe changes no frequency, so that there is no control.
    """
    if not all(result.agrees for result in results):
        worst = max(results, key=lambda result: result.compared_kl / result.tolerance)
        found, allowed = (worst.figure(kl) for kl in (worst.compared_kl, worst.tolerance))
        return False, f"Disagrees: {found} at {worst.name}, where {allowed.rpartition(' ')[2]} is allowed."
    if unchanged:
        return True, "Agrees everywhere. The recipe changes no frequency, so there is no control."
    unclear = [result for result in results[1:] or results if not result.is_distinguished]
    what = "logits" if results[0].cosine is None else "hidden states"
    if unclear:
        return False, f"Inconclusive: at {unclear[0].name} the unscaled model agrees too, so these {what} cannot tell."
    return True, "Agrees everywhere, and the unscaled source does not."


def otherwise(changes: Sequence[str]) -> str:
    """A sentence on what was compared otherwise than usual; empty without `changes`, which are phrases."""
    return f" Compared otherwise than usual, to tell more: {', '.join(changes)}." if changes else ""
