"""The sums of the bound, f(m) = (d - r)/2 + sum_i cos(m theta_i), in float32, float64 and decimal arithmetic.

float32 by blocks finds every distance that may violate, float64 decides nearly all of them, and values within its own
error of zero are decided in decimal arithmetic of 50 digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any

from ..lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..forms import Vector

    Distances = NDArray[np.int64]
    Single = NDArray[np.float32]
else:
    Distances = Single = object

BLOCK = 256
CHUNK = 1 << 18
DIGITS = 50
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534")


class Sums:
    """The sums f(m, t) = (d - r)/2 + sum_i cos(m theta_i), t = ln b, theta_i = exp(-c_i t), c_i = 2i/r, of one head.

    rotary_dim: r. head_dim: d. unrotated: (d - r)/2, the term of the dimensions that do not rotate.
    """

    def __init__(self, rotary_dim: int, head_dim: int | None = None) -> None:
        self.rotary_dim = rotary_dim
        self.head_dim = head_dim or rotary_dim
        self.unrotated = (self.head_dim - rotary_dim) / 2
        self.exponents: Vector = 2.0 * np.arange(rotary_dim // 2) / rotary_dim

    @property
    def sure(self) -> float:
        """Values of `rough` that are further from zero than this have the right sign: twice its error and more."""
        return 1e-3 + 2e-6 * self.rotary_dim

    @property
    def automatic(self) -> bool:
        """Whether no base violates, since half of the dimensions or more do not rotate."""
        return self.unrotated >= self.rotary_dim / 2

    def inv_freq(self, log_base: float) -> Vector:
        """theta_i of the base e^log_base: radians per token, float64 [r/2]."""
        return np.asarray(np.exp(-self.exponents * log_base))

    def steepness(self, log_base: float) -> float:
        """s with |df/dt| <= s m from `log_base` on: df/dt = sum m c theta sin(m theta), and theta falls with t."""
        return float(self.exponents @ self.inv_freq(log_base))

    def curvature(self, distances: Distances | Vector, log_base: float) -> Vector:
        """A bound on |d2f/dt2| from `log_base` on: sum (m c theta)^2 + m c^2 theta. Shape [n]."""
        weighted = self.exponents * self.inv_freq(log_base)
        return np.asarray(distances * (distances * (weighted @ weighted) + self.exponents @ weighted), np.float64)

    def taylor(self, distances: Vector, log_bases: Vector) -> tuple[Vector, Vector]:
        """f and df/dt for pairs (m, t), each of shape [n]."""
        angle = distances[:, None] * np.exp(-np.multiply.outer(log_bases, self.exponents))
        return np.cos(angle).sum(axis=1) + self.unrotated, (angle * np.sin(angle)) @ self.exponents

    def exact(self, distance: int, log_base: Decimal) -> tuple[Decimal, Decimal]:
        """f and df/dt at one distance and one ln b, in decimal arithmetic of 50 digits."""
        with localcontext(prec=DIGITS):
            value, slope = Decimal(self.unrotated), Decimal(0)
            for pair in range(self.rotary_dim // 2):
                exponent = Decimal(2 * pair) / self.rotary_dim
                angle = distance * (-exponent * log_base).exp()
                cosine, sine = cos_sin(angle)
                value += cosine
                slope += exponent * angle * sine
            return value, slope


def float64_error(pairs: int, length: int) -> float:
    """A bound on the error of `values` at distances below `length`: a phase is off by 3 ulp, its cosine by one.

    pairs: number of frequencies.
    """
    return pairs * (4e-16 * length + 1e-15) + 1e-12


def values(inv_freq: Vector, unrotated: float, distances: Distances) -> Vector:
    """f at `distances`, float64 [n]. inv_freq: radians per token, [r/2]. unrotated: (d - r)/2."""
    return np.asarray(np.cos(np.multiply.outer(distances, inv_freq)).sum(axis=1) + unrotated)


def rough(inv_freq: Vector, unrotated: float, distances: NDArray[Any]) -> Single:
    """f at `distances`, float32 [n], within 1e-6 r: phases are reduced in float64 first. Parameters as in `values`."""
    return np.asarray(np.cos(phases(distances, inv_freq)).sum(axis=1) + np.float32(unrotated))


class Blocks:
    """f over whole blocks of distances, as a product of matrices in float32.

    cos((a + j) theta) = cos(a theta) cos(j theta) - sin(a theta) sin(j theta). The r terms are at most r / sqrt(2) in
    all, so that rounding costs less than `slack` = 5e-8 r^2 + 1e-6 r.
    """

    def __init__(self, inv_freq: Vector, unrotated: float) -> None:
        self.inv_freq, self.unrotated = inv_freq, unrotated
        near = phases(np.arange(BLOCK) - (BLOCK - 1) / 2, inv_freq).T
        self.columns = np.concatenate([np.cos(near), np.sin(near)])
        rotary_dim = 2 * len(inv_freq)
        self.slack = 5e-8 * rotary_dim**2 + 1e-6 * rotary_dim

    def rotated(self, first: Distances) -> Single:
        """sum_i cos(m theta_i), float32 [n, 256], for blocks of 256 distances that begin at the n distances `first`."""
        far = phases(first + (BLOCK - 1) / 2, self.inv_freq)
        return np.asarray(np.concatenate([np.cos(far), -np.sin(far)], axis=1) @ self.columns)


def scan(
    inv_freq: Vector, unrotated: float, start: int, stop: int, limit: float, rate: float = 0.0
) -> Iterator[Distances]:
    """Every distance m in start .. stop - 1 with f(m) < limit + rate m, and a few just above, rising, int64 arrays.

    inv_freq: radians per token, float64 [r/2]. unrotated: (d - r)/2. start, stop: in tokens. limit: the value below
    which f is looked for. rate: by how much that value rises per token.
    """
    blocks = Blocks(inv_freq, unrotated)
    limit += blocks.slack - unrotated
    for first in starts(start, stop):
        allowed = (limit + rate * (first + BLOCK)).astype(np.float32)
        found = first[0] + np.flatnonzero((blocks.rotated(first) < allowed[:, None]).reshape(-1))
        yield found[found < stop]


def starts(start: int, stop: int) -> Iterator[Distances]:
    """First distances of the blocks from `start` to `stop`, in arrays that grow: the first violation is often near."""
    size = 16 * BLOCK
    while start < stop:
        first = np.arange(start, min(start + size, stop), BLOCK)
        yield first
        start += len(first) * BLOCK
        size = min(CHUNK, size * 4)


def everything(found: Iterator[Distances]) -> Distances:
    """The arrays of a scan joined into one, int64 [n]."""
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def exact_value(inv_freq: Vector, unrotated: float, distance: int) -> Decimal:
    """f at one distance in decimal arithmetic of 50 digits. inv_freq: float64 [r/2], taken as exact."""
    with localcontext(prec=DIGITS):
        angles = (distance * Decimal(float(value)) for value in inv_freq)
        return Decimal(unrotated) + sum((cos_sin(angle)[0] for angle in angles), Decimal(0))


def cos_sin(angle: Decimal) -> tuple[Decimal, Decimal]:
    """cos and sin by quarter turns and their series, for angles up to 1e30."""
    turns = int((angle / (PI / 2)).to_integral_value())
    rest = angle - turns * (PI / 2)
    cosine, sine, term, index = Decimal(0), Decimal(0), Decimal(1), 0
    while abs(term) > Decimal(10) ** -DIGITS:
        cosine += term
        term *= rest / (index + 1)
        sine += term
        term *= -rest / (index + 2)
        index += 2
    return ((cosine, sine), (-sine, cosine), (-cosine, -sine), (sine, -cosine))[turns % 4]


def phases(distances: NDArray[Any], inv_freq: Vector) -> Single:
    """m theta within half a turn of zero, float32, shape [n, r/2]: numpy's float32 cosine is ten times as fast."""
    turns = np.multiply.outer(distances, inv_freq / math.tau)
    turns -= np.rint(turns)
    turns *= math.tau
    return np.asarray(turns, dtype=np.float32)
