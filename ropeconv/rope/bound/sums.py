"""The sums of the bound, f(m) = (d - r)/2 + sum_i cos(m theta_i), and their weighted form.

float32 by blocks finds every distance that may violate, float64 decides nearly all of them, and
values within its own error of zero are decided in decimal arithmetic of 50 digits.

`pair_weights` serves the sum with unequal variances: how much each pair of dimensions weighs in a
head's logits. Su 2024, https://kexue.fm/archives/10122, compares a key that is like the query with
a random one, at distance m. For components of variance sigma_j^2 the logits differ by
sum_i (sigma_2i^2 + sigma_2i+1^2) cos(m theta_i) on average, which is B(m) where all are equal.
Queries and keys of a model have variances of their own, so a key k' like the query q is read as the
query's deviation from its mean, in the scale of the keys: k' - E k = g (q - E q), with one g per
pair, the square root of the ratio of the pair's variances V (and one per dimension that does not
rotate). Then for any distribution, whatever its means and covariances,

    E q^T R_m k' - E q^T R_m k = sum_i sqrt(V_q,i V_k,i) cos(m theta_i) + sum_j sigma_q,j sigma_k,j

with the second sum over dimensions that do not rotate. It is Su's sum where queries and keys have
the same variances. It does not change where a pair of the queries is multiplied by c and that of
the keys by 1/c, or both are rotated by the same angle, as no logit does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..forms import Vector

Distances = NDArray[np.int64]
Single = NDArray[np.float32]

BLOCK = 256
"""Distances of a block, whose sums are one row of a product of matrices."""
CHUNK = 1 << 18
"""Distances that are computed at a time."""
DIGITS = 50
"""Digits of decimal arithmetic."""
PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534"
)


class Sums:
    """The sums f(m, t) = (d - r)/2 + sum_i cos(m theta_i) of one head.

    t = ln b is the base, theta_i = exp(-c_i t), c_i = 2i/r.

    Args:
        rotary_dim: r.
        head_dim: d; by default r.

    Attributes:
        unrotated: (d - r)/2, the term of the dimensions that do not rotate.
    """

    def __init__(self, rotary_dim: int, head_dim: int | None = None) -> None:
        self.rotary_dim = rotary_dim
        self.head_dim = head_dim or rotary_dim
        self.unrotated = (self.head_dim - rotary_dim) / 2
        self.exponents: Vector = 2.0 * np.arange(rotary_dim // 2) / rotary_dim

    @property
    def float32_margin(self) -> float:
        """A sum of `sums_in_float32` further from zero has the right sign: twice its error."""
        return 1e-3 + 2e-6 * self.rotary_dim

    @property
    def automatic(self) -> bool:
        """Whether no base violates, since half of the dimensions or more do not rotate."""
        return self.unrotated >= self.rotary_dim / 2

    def inv_freq(self, log_base: float) -> Vector:
        """theta_i of the base e^log_base: radians per token, float64 [r/2]."""
        return np.asarray(np.exp(-self.exponents * log_base))

    def steepness(self, log_base: float) -> float:
        """s with |df/dt| <= s m from `log_base` on.

        df/dt = sum m c theta sin(m theta), and theta falls with t.
        """
        return float(self.exponents @ self.inv_freq(log_base))

    def curvature(self, distances: Distances | Vector, log_base: float) -> Vector:
        """A bound on |d2f/dt2| from `log_base` on: sum (m c theta)^2 + m c^2 theta. Shape [n]."""
        weighted = self.exponents * self.inv_freq(log_base)
        bound = distances * (distances * (weighted @ weighted) + self.exponents @ weighted)
        return np.asarray(bound, np.float64)

    def taylor(self, distances: Vector, log_bases: Vector) -> tuple[Vector, Vector]:
        """f and df/dt for pairs (m, t), each of shape [n]."""
        angle = distances[:, None] * np.exp(-np.multiply.outer(log_bases, self.exponents))
        value = np.cos(angle).sum(axis=1) + self.unrotated
        slope = (angle * np.sin(angle)) @ self.exponents
        return value, slope

    def exact(self, distance: int, log_base: Decimal) -> tuple[Decimal, Decimal]:
        """f and df/dt at one distance and one ln b, in decimal arithmetic of 50 digits."""
        # an angle of up to 2^27 loses 9 digits in cos, which leaves 40
        with localcontext(prec=DIGITS):
            value = Decimal(self.unrotated)
            slope = Decimal(0)
            for pair in range(self.rotary_dim // 2):
                exponent = Decimal(2 * pair) / self.rotary_dim
                angle = distance * (-exponent * log_base).exp()
                cosine, sine = cos_sin(angle)
                value += cosine
                slope += exponent * angle * sine
            return value, slope


def float64_error(pairs: int, length: int) -> float:
    """A bound on the error of `sums_in_float64` at distances below a length, for some pairs.

    A phase is off by 3 ulp, its cosine by one.
    """
    return pairs * (4e-16 * length + 1e-15) + 1e-12


def sums_in_float64(inv_freq: Vector, unrotated: float, distances: Distances) -> Vector:
    """f at `distances`, float64 [n].

    Args:
        inv_freq: Radians per token, [r/2].
        unrotated: (d - r)/2.
        distances: In tokens, [n].
    """
    return np.asarray(np.cos(np.multiply.outer(distances, inv_freq)).sum(axis=1) + unrotated)


def sums_in_float32(inv_freq: Vector, unrotated: float, distances: NDArray[np.number]) -> Single:
    """f at `distances`, float32 [n], within 1e-6 r; parameters as in `sums_in_float64`.

    Phases are reduced in float64 first.
    """
    return np.asarray(np.cos(phases(distances, inv_freq)).sum(axis=1) + np.float32(unrotated))


class Blocks:
    """f over whole blocks of distances, as a product of matrices in float32.

    cos((a + j) theta) = cos(a theta) cos(j theta) - sin(a theta) sin(j theta). The r terms are at
    most r / sqrt(2) in all, so that rounding costs less than `largest_error` = 5e-8 r^2 + 1e-6 r.
    """

    def __init__(self, inv_freq: Vector, unrotated: float) -> None:
        self.inv_freq = inv_freq
        self.unrotated = unrotated
        # j from the middle of a block, which halves the largest phase; [2 pairs, 256]
        near = phases(np.arange(BLOCK) - (BLOCK - 1) / 2, inv_freq).T
        self.columns = np.concatenate([np.cos(near), np.sin(near)])
        rotary_dim = 2 * len(inv_freq)
        self.largest_error = 5e-8 * rotary_dim**2 + 1e-6 * rotary_dim

    def cosine_sums(self, first: Distances) -> Single:
        """sum_i cos(m theta_i), float32 [n, 256], for blocks that begin at n distances `first`."""
        far = phases(first + (BLOCK - 1) / 2, self.inv_freq)
        return np.asarray(np.concatenate([np.cos(far), -np.sin(far)], axis=1) @ self.columns)


def scan(
    inv_freq: Vector, unrotated: float, start: int, stop: int, limit: float, rate: float = 0.0
) -> Distances:
    """Return the distances at which the sum of cosines is below a limit, rising, int64 [n].

    The sum is f(m) = (d - r)/2 + sum_i cos(m theta_i) for a head of d dimensions of which r rotate,
    at a distance of m tokens. The limit is limit + rate m. Sums are computed in float32: no
    distance is missed, but the result may have some whose f is a little above the limit, so a
    caller computes the sums of the result again.

    Args:
        inv_freq: Radians per token, float64 [r/2].
        unrotated: (d - r)/2.
        start: The first distance, in tokens.
        stop: The distance behind the last, in tokens.
        limit: The limit of f at distance 0.
        rate: By how much the limit rises per token.
    """
    # The limit on sum_i cos(m theta_i) alone, without (d - r)/2. It is raised by the largest error
    # of float32, so that no distance is missed.
    blocks = Blocks(inv_freq, unrotated)
    cosine_limit = limit + (blocks.largest_error - unrotated)
    found = [np.empty(0, dtype=np.int64)]

    # A block is 256 consecutive distances. Each round computes some consecutive blocks, which are
    # given by their first distances, [blocks].
    for first_distances in block_starts(start, stop):
        # one limit for all distances of a block: the highest of their limits
        limit_of_block = (cosine_limit + rate * (first_distances + BLOCK)).astype(np.float32)
        cosine_sums = blocks.cosine_sums(first_distances)  # [blocks, 256]
        is_below = cosine_sums < limit_of_block[:, np.newaxis]
        # the flat array begins with the first distance of the round, and has no gaps
        distances = first_distances[0] + np.flatnonzero(is_below.reshape(-1))
        found.append(distances[distances < stop])  # the last block may end beyond `stop`
    return np.concatenate(found)


def block_starts(start: int, stop: int) -> Iterator[Distances]:
    """First distances of the blocks from `start` to `stop`, in arrays that grow.

    The first violation is often near.
    """
    size = 16 * BLOCK
    while start < stop:
        first = np.arange(start, min(start + size, stop), BLOCK)
        yield first
        start += len(first) * BLOCK
        size = min(CHUNK, size * 4)


def exact_value(inv_freq: Vector, unrotated: float, distance: int) -> Decimal:
    """f at one distance in decimal arithmetic of 50 digits; `inv_freq` is taken as exact."""
    with localcontext(prec=DIGITS):
        total = Decimal(0)
        for value in inv_freq:
            cosine, _ = cos_sin(distance * Decimal(float(value)))
            total += cosine
        return Decimal(unrotated) + total


def cos_sin(angle: Decimal) -> tuple[Decimal, Decimal]:
    """cos and sin by quarters of a rotation and their series, for angles up to 1e30."""
    quarters = int((angle / (PI / 2)).to_integral_value())
    remainder = angle - quarters * (PI / 2)
    cosine = Decimal(0)
    sine = Decimal(0)
    term = Decimal(1)
    index = 0

    # the series of both at once: 1 - x^2/2 + ..., and x - x^3/6 + ...
    while abs(term) > Decimal(10) ** -DIGITS:
        cosine += term
        term *= remainder / (index + 1)
        sine += term
        term *= -remainder / (index + 2)
        index += 2

    # cos(x + pi/2) = -sin x, sin(x + pi/2) = cos x
    quarter = quarters % 4
    if quarter == 0:
        return cosine, sine
    if quarter == 1:
        return -sine, cosine
    if quarter == 2:
        return -cosine, -sine
    return sine, -cosine


def phases(distances: NDArray[np.number], inv_freq: Vector) -> Single:
    """m theta between -pi and pi, float32 [n, r/2]: numpy's float32 cosine is ten times as fast."""
    angles = np.multiply.outer(distances, inv_freq / math.tau)
    angles -= np.rint(angles)
    angles *= math.tau
    return np.asarray(angles, dtype=np.float32)


def score_bound(inv_freq: Vector, distances: NDArray[np.number]) -> Vector:
    """RoFormer's relative upper bound on the score of a query and a key, by their distance.

    Su et al. 2021, https://arxiv.org/abs/2104.09864, section 3.4.3, use it to show that scores
    decay with the distance m. S_n = sum_{i = 0}^{n - 1} exp(j m theta_i) is the sum over the first
    n of r/2 pairs, with j the imaginary unit, and the result is the mean of |S_n| over
    n = 1, ..., r/2. A score of the rotated dimensions is at most r/2 times that, times a number of
    the query and the key that m does not change: max_i |h_{i+1} - h_i|, with h_i the complex
    product of their pairs i, and h_{r/2} = 0.

    Args:
        inv_freq: theta_i in radians per token, float64 [r/2], in the order of the pairs.
        distances: The distances m, in tokens, [n].

    Returns:
        The mean of |S_n| at each distance, float64 [n]; (r/2 + 1)/2 at distance 0.
    """
    rotations = np.exp(1j * np.multiply.outer(distances, inv_freq))  # [n, r/2]
    partial_sums = rotations.cumsum(axis=1)  # S_1, ..., S_{r/2}
    return np.asarray(np.abs(partial_sums).mean(axis=1))


class PairWeights(NamedTuple):
    """Weights of some heads in B_w(m) = sum_i w_i cos(m theta_i) + u; sum_i w_i + u = d/2."""

    rotated: Vector
    """w, float64 [heads, rotary_dim / 2]; all are 1 where variances are equal."""

    unrotated: Vector
    """u, float64 [heads]; like w, it is 0 for a head whose queries or keys do not vary."""

    def times(self, attention_factor: float) -> PairWeights:
        """The same with cos and sin times an attention factor, which unrotated dimensions lack."""
        return PairWeights(self.rotated * attention_factor**2, self.unrotated)


def pair_weights(
    queries: Vector, keys: Vector, rotary_dim: int, layout: Literal["half", "interleaved"] = "half"
) -> PairWeights:
    """How much each pair of dimensions counts in the logits of each head of a layer.

    The weight of a pair is the square root of the product of its variances in queries and in keys.
    Variances are in any unit, since the result is relative.

    Args:
        queries: The variances of queries, float64 [heads, head_dim].
        keys: The variances of keys, float64 [kv_heads, head_dim]; each serves heads / kv_heads
            consecutive heads of queries.
        rotary_dim: The first so many dimensions rotate.
        layout: Pairs are (i, i + rotary_dim / 2) in "half", (2i, 2i + 1) in "interleaved".
    """
    # grouped-query attention: each head of keys serves several heads of queries
    keys = np.repeat(keys, len(queries) // len(keys), axis=0)
    query_pairs = _pairs(queries, rotary_dim, layout)
    key_pairs = _pairs(keys, rotary_dim, layout)
    rotated = np.sqrt(query_pairs * key_pairs)
    unrotated = np.sqrt(queries[:, rotary_dim:] * keys[:, rotary_dim:]).sum(axis=1)

    # so that all weights are 1 for equal variances: their sum is half of the head, d/2
    half_head = queries.shape[1] / 2
    total = rotated.sum(axis=1) + unrotated
    scale = np.divide(half_head, total, out=np.zeros_like(total), where=total > 0)
    return PairWeights(rotated * scale[:, None], unrotated * scale)


def normalised_variances(variances: Vector, means: Vector) -> Vector:
    """The variances of y_j / rms(y), for independent gaussian components y_j of a norm's input.

    They are those of queries or keys behind an RMS norm. With n components,
    rms(y) = |y| / sqrt(n), so y_j / rms(y) = sqrt(n) u_j with u = y / |y| on the unit sphere, and
    the variance is n (E u_j^2 - (E u_j)^2).

    Args:
        variances: The variances of y_j, float64 [groups, n]; each row is normalised separately.
        means: The means of y_j, float64 [groups, n].

    Returns:
        The variances after the norm, float64 [groups, n].
    """
    normalised = np.zeros_like(variances)
    for row in range(len(variances)):
        mean_square = (variances[row] + means[row] ** 2).sum()  # E |y|^2
        if mean_square == 0:
            continue

        # the norm removes the scale of y, so y is first scaled to E |y|^2 = 1
        unit_variance = variances[row] / mean_square
        unit_mean = means[row] / math.sqrt(mean_square)
        mean_of_u, mean_of_squares = _moments_on_sphere(unit_variance, unit_mean)  # E u_j, E u_j^2
        n = variances.shape[1]
        normalised[row] = n * (mean_of_squares - mean_of_u**2)
    return normalised


LOG_STEP = 0.25
"""The width of a step in ln t of the integrals over t."""


def _moments_on_sphere(variance: Vector, mean: Vector) -> tuple[Vector, Vector]:
    """The moments E[y_j / |y|] and E[(y_j / |y|)^2] of a gaussian vector y, scaled to length 1.

    The y_j are independent, and E |y|^2 = 1. The divisions are written as integrals over t:
    1 / |y|^2 = int_0^inf exp(-t |y|^2) dt and 1 / |y| = int_0^inf exp(-t |y|^2) / sqrt(pi t) dt. So
    the moments are integrals of E[y_j exp(-t |y|^2)] and E[y_j^2 exp(-t |y|^2)]. These are known
    for each t, since exp(-t |y|^2) is the product of exp(-t y_j^2) over the components, and each
    factor times the density of y_j is the density of another gaussian, times its mass:

        mass      E exp(-t y_j^2) = sqrt(D_j) exp(-t mean_j^2 D_j),  D_j = 1 / (1 + 2 t variance_j)
        mean      mean_j D_j
        variance  variance_j D_j

    The trapezoidal rule over ln t has an error below 1e-9 here.

    Args:
        variance: The variances of y_j, float64 [n].
        mean: The means of y_j, float64 [n].

    Returns:
        The first and the second moments, both float64 [n].
    """
    t = np.exp(np.arange(-60, 60, LOG_STEP))[:, None]  # [t, 1]

    # for each t and each component, [t, n]: D_j, and the logarithm of the mass
    damping = 1 / (1 + 2 * t * variance)
    log_mass = 0.5 * np.log(damping) - t * mean**2 * damping

    # int g(t) dt = int g(t) t d(ln t), where g has the product of the masses of all components
    mass_of_all = np.exp(log_mass.sum(axis=1, keepdims=True))  # [t, 1]
    weight = mass_of_all * t * LOG_STEP

    # E[y_j^2 exp(-t |y|^2)] = mass (variance + mean^2) and E[y_j exp(-t |y|^2)] = mass * mean, with
    # the variance and the mean of the other gaussian
    second = (weight * (variance * damping + (mean * damping) ** 2)).sum(axis=0)
    first = (weight * mean * damping / np.sqrt(math.pi * t)).sum(axis=0)
    return first, second


def _pairs(variances: Vector, rotary_dim: int, layout: str) -> Vector:
    """The sum of the variances of each pair, float64 [heads, rotary_dim / 2]."""
    half = rotary_dim // 2
    if layout == "half":
        return variances[:, :half] + variances[:, half:rotary_dim]
    return variances[:, :rotary_dim:2] + variances[:, 1:rotary_dim:2]
