"""What a comparison of logits yields, and the rule by which it agrees."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .compare import Figures
from .positions import Bucket

KL_FLOOR = 1e-5  # float32 noise of untrained models; wrong frequencies give 1e-2 and more
ANGLE_ERROR = 2.0**-22  # rounding of position * inv_freq and of inv_freq itself, in float32
SEPARATION = 10.0
ROUNDING = 30.0  # untrained models amplify a rounding more than trained ones


@dataclass(frozen=True)
class BucketResult:
    """Figures of one bucket of positions. tolerance: the KL allowed there. control_kl: mean of the unscaled source.

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


@dataclass(frozen=True)
class Validation:
    """The result over all buckets, and the rule's verdict in a sentence."""

    transformers: str
    device: str
    digest: str
    tokens: int
    seed: int
    buckets: tuple[BucketResult, ...]
    agrees: bool
    sentence: str
    runtime: str = "transformers"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, stable."""
        return asdict(self)


def judge(run: Bucket, figures: Figures, control: Figures, expected: float = 0.0) -> BucketResult:
    """The figures of a bucket with the tolerance at its last position. expected: KL that rounded weights cost."""
    last = run.positions[-1]
    tolerance = KL_FLOOR + (last * ANGLE_ERROR) ** 2 + ROUNDING * expected
    return BucketResult(
        name=run.name,
        last=last,
        kl_mean=figures.kl_mean,
        kl_95=figures.kl_95,
        kl_max=figures.kl_max,
        max_dlogit=figures.max_dlogit,
        top1=figures.top1,
        control_kl=control.kl_mean,
        tolerance=tolerance,
        agrees=figures.kl_95 <= tolerance,
    )


def verdict(results: list[BucketResult], unchanged: bool) -> tuple[bool, str]:
    """Whether everything agrees and the control does not, in a sentence."""
    if not all(result.agrees for result in results):
        worst = max(results, key=lambda result: result.kl_95 / result.tolerance)
        return False, f"Disagrees: KL {worst.kl_95:.2e} at {worst.name}, where {worst.tolerance:.2e} is allowed."
    if unchanged:
        return True, "Agrees everywhere. The recipe changes no frequency, so there is no control."
    blind = [r for r in results[1:] or results if r.control_kl < SEPARATION * max(r.kl_95, r.tolerance)]
    if blind:
        return False, f"Blind: at {blind[0].name} the unscaled source agrees as well, so these logits cannot tell."
    return True, "Agrees everywhere, and the unscaled source does not."
