"""Query scaling by position: log-n, and its approximation by the query scaling of stock architectures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .errors import RecipeError
from .lazy import np

if TYPE_CHECKING:
    from .forms import Vector

LOSSLESS = 13  # exponent: weights times 2^-13 keep their bits, and both they and beta ln p fit into float16 at run time
EXACT = 1e-3  # a deviation below this is less than bfloat16's own rounding of the scale


@dataclass(frozen=True)
class LogN:
    """Log-n: the query at position p times `ln(p + 1) / ln(length)`; kind "clamped" takes 1 where that is below 1.

    length: in tokens, at which the factor is 1.

    Su 2021, https://kexue.fm/archives/8823 (full); Su 2023, https://kexue.fm/archives/9948 (clamped).
    Raises RecipeError for a length below 2, where it has no meaning.
    """

    kind: Literal["clamped", "full"]
    length: int

    def __post_init__(self) -> None:
        if self.length < 2:
            raise RecipeError(f"log-n over {self.length} token has no scale; pass a longer --log-n-length")

    def scale(self, positions: Vector) -> Vector:
        """The factor of each query, float64, in the shape of `positions`."""
        ratio = np.log(np.asarray(positions, dtype=np.float64) + 1) / math.log(self.length)
        return np.maximum(ratio, 1.0) if self.kind == "clamped" else ratio


@dataclass(frozen=True)
class QueryScaling:
    """`gain (1 + beta ln(1 + floor(p / length)))`: the query scaling of Ministral 3 and of llama.cpp's mistral3.

    p: the position of the query. length: in tokens. gain: 1 in those classes; another one has to be folded into the
    weights that make queries.
    """

    beta: float
    length: int
    gain: float = 1.0

    def scale(self, positions: Vector) -> Vector:
        """The factor of each query, float64, in the shape of `positions`."""
        steps = np.floor(np.asarray(positions, dtype=np.float64) / self.length)
        return np.asarray(self.gain * (1 + self.beta * np.log1p(steps)))


def approximate_log_n(log_n: LogN, exponent: int = LOSSLESS) -> QueryScaling:
    """The log-n approximation: the QueryScaling that comes nearest to log-n.

    clamped: `beta = 1 / ln L` with length L gives 1 for p < L, and `ln(kL) / ln L` for p from (k - 1) L to kL - 1,
    which is log-n at the last of these positions and above it before. full: with length 1 and a large beta the 1 in
    front is negligible; the gain 2^-exponent undoes beta, a power of two so that no bit of a weight is lost.
    """
    if log_n.kind == "clamped":
        return QueryScaling(1 / math.log(log_n.length), log_n.length)
    return QueryScaling(2.0**exponent / math.log(log_n.length), 1, 2.0**-exponent)


def effective_scaling(log_n: LogN | None, written: QueryScaling | None, deviation: float) -> LogN | QueryScaling | None:
    """The scaling of queries that an output has: log-n, or its approximation where they differ by more than noise.

    log_n: of the schedule, None without one. written: the log-n approximation in the output, None without one.
    deviation: of `written` from `log_n`, relative; above 1e-3, bfloat16's own rounding, `written` is returned.
    """
    return written if written is not None and deviation > EXACT else log_n


def deviation(log_n: LogN, steps: QueryScaling, context: int) -> float:
    """Largest difference of a log-n approximation from log-n over a context, relative where log-n is above 1.

    steps: the approximation. context: in tokens.
    """
    starts = np.arange(0, context, steps.length, dtype=np.float64)
    ends = np.minimum(starts + steps.length, context) - 1
    positions = np.concatenate([starts, ends])
    wanted = log_n.scale(positions)
    return float(np.max(np.abs(steps.scale(positions) - wanted) / np.maximum(wanted, 1.0)))
