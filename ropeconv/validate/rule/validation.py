"""What a comparison of logits yields, and the rule by which it agrees."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from ..sampling.positions import Bucket
from .measures import Figures

KL_FLOOR = 1e-5  # float32 noise of untrained models; wrong frequencies give 1e-2 and more
ANGLE_ERROR = 2.0**-22  # rounding of position * inv_freq and of inv_freq itself, in float32
SEPARATION = 10.0
NOISE = 5.0
RULE = (
    f"a bucket agrees when 95 % of its positions have a KL of at most {KL_FLOOR:g} + (last position * 2^-22)^2 + "
    f"{NOISE:g} x the noise floor; beyond the trained context the unscaled source has to be {SEPARATION:g} times "
    "further away than that; the noise floor is the sum of the KLs of the reference from itself in other chunks, with "
    "frequencies two steps of float32 away, and with weights rounded where a fold rounds them, or a fifth of that from "
    "float32 in low precision, at the worst up to that bucket"
)


@dataclass(frozen=True)
class BucketResult:
    """Figures of one bucket of positions.

    last: its last position. run: "spread" (a few tokens over the whole range) or "whole" (every token before it).
    kl_*, max_dlogit: of the baked checkpoint from the reference. top1, top5: share of equal likeliest tokens. loss_*:
    of the next token, None where it is not known. control_kl: mean of the unscaled source. noise_kl: the floor, a
    95th percentile. tolerance: the KL allowed.

    A bucket agrees when 95 % of its positions are within the tolerance: a wrong rotation shows everywhere, while a
    router of experts may tip over at single tokens by a rounding.
    """

    name: str
    last: int
    kl_mean: float
    kl_95: float
    kl_max: float
    max_dlogit: float
    top1: float
    control_kl: float
    tolerance: float
    agrees: bool
    top5: float = 1.0
    loss_reference: float | None = None
    loss_baked: float | None = None
    noise_kl: float = 0.0
    run: Literal["spread", "whole"] = "spread"


@dataclass(frozen=True)
class Validation:
    """The result over all buckets, and the rule's verdict in a sentence.

    tokens: of a spread run; length: of the run over every position, 0 without one. curve: of that run, position and KL.
    speed: tokens per second of the reference's and the baked checkpoint's whole runs. partial: whether it was stopped.
    precision_kl: in low precision, how far the reference is from itself in float32, at the end of the context.
    frequencies: before and after, radians per token. lengths: trained and new, in tokens. unrotated: what dimensions
    without rotation add to sum_i cos(m theta_i), None in results of earlier versions. unchecked: what this way of
    running cannot tell. third_kl: of the source with the method said through its config from the reference, the worst
    95th percentile of a spread run; None where that was not asked for.
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
    rule: str = RULE

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, stable."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Validation:
        """What `to_dict` made, of this or an earlier version."""
        known = {item.name for item in fields(cls)}
        buckets = tuple(BucketResult(**bucket) for bucket in data["buckets"])
        return cls(**{key: value for key, value in data.items() if key in known} | {"buckets": buckets})


def bucket_result(
    run: Bucket,
    figures: Figures,
    control_kl: float,
    noise: float = 0.0,
    kind: Literal["spread", "whole"] = "spread",
) -> BucketResult:
    """The figures of a bucket with the tolerance at its last position. noise: the floor."""
    last = run.positions[-1]
    tolerance = KL_FLOOR + (last * ANGLE_ERROR) ** 2 + NOISE * noise
    return BucketResult(
        name=run.name,
        last=last,
        kl_mean=figures.kl_mean,
        kl_95=figures.kl_95,
        kl_max=figures.kl_max,
        max_dlogit=figures.max_dlogit,
        top1=figures.top1,
        control_kl=control_kl,
        tolerance=tolerance,
        agrees=figures.kl_95 <= tolerance,
        top5=figures.top5,
        loss_reference=figures.loss_reference,
        loss_baked=figures.loss_other,
        noise_kl=noise,
        run=kind,
    )


def with_rounded_weights(result: BucketResult) -> BucketResult:
    """A result of quantised weights: their mean KL may be a tenth of the control's, nothing smaller can be told."""
    allowed = max(result.tolerance, result.control_kl / SEPARATION)
    return replace(result, tolerance=allowed, agrees=result.kl_mean <= allowed)


def noise_floor(same: list[float], other: list[float]) -> float:
    """Of 95th percentiles of the KL, in the same precision and against another one.

    Small independent errors of logits add in the KL, which is quadratic in them.
    """
    return max(sum(same), *(kl / NOISE for kl in other), 0.0)


def conclusion(results: list[BucketResult], unchanged: bool) -> tuple[bool, str]:
    """Whether everything agrees and the control does not, in a sentence."""
    if not all(result.agrees for result in results):
        worst = max(results, key=lambda result: result.kl_95 / result.tolerance)
        return False, f"Disagrees: KL {worst.kl_95:.2e} at {worst.name}, where {worst.tolerance:.2e} is allowed."
    if unchanged:
        return True, "Agrees everywhere. The recipe changes no frequency, so there is no control."
    unclear = [r for r in results[1:] or results if r.control_kl < SEPARATION * max(r.kl_95, r.tolerance)]
    if unclear:
        return False, f"Inconclusive: at {unclear[0].name} the unscaled model agrees too, so these logits cannot tell."
    return True, "Agrees everywhere, and the unscaled source does not."
