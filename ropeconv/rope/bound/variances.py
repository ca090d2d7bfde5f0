"""The sum of the bound with unequal variances: how much each pair of dimensions weighs in a head's logits.

Su 2024, https://kexue.fm/archives/10122, compares a key that is like the query with a random one, at distance m. For
components of variance sigma_j^2 the logits differ by sum_i (sigma_2i^2 + sigma_2i+1^2) cos(m theta_i) on average, which
is B(m) where all are equal. Queries and keys of a model have variances of their own, so a key k' like the query q is
read as the query's deviation from its mean, in the scale of the keys: k' - E k = g (q - E q), with one g per pair, the
square root of the ratio of the pair's variances V (and one per dimension that does not rotate). Then for any
distribution, whatever its means and covariances,

    E q^T R_m k' - E q^T R_m k = sum_i sqrt(V_q,i V_k,i) cos(m theta_i) + sum_j sigma_q,j sigma_k,j

with the second sum over dimensions that do not rotate. It is Su's sum where queries and keys have the same variances.
It does not change where a pair of the queries is multiplied by c and that of the keys by 1/c, or both are rotated by
the same angle, as no logit does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..lazy import np

if TYPE_CHECKING:
    from ..forms import Vector


class PairWeights(NamedTuple):
    """The weights of some heads in B_w(m) = sum_i w_i cos(m theta_i) + u, with sum_i w_i + u = d/2.

    rotated: w, float64 [heads, rotary_dim / 2]; all are 1 where variances are equal. unrotated: u, float64 [heads].
    Both are 0 for a head whose queries or keys do not vary.
    """

    rotated: Vector
    unrotated: Vector

    def times(self, attention_factor: float) -> PairWeights:
        """The same with cos and sin multiplied by an attention factor, which the unrotated dimensions do not have."""
        return PairWeights(self.rotated * attention_factor**2, self.unrotated)


def pair_weights(
    queries: Vector, keys: Vector, rotary_dim: int, layout: Literal["half", "interleaved"] = "half"
) -> PairWeights:
    """The weights of all heads of a layer from the variances of their dimensions.

    queries: float64 [heads, head_dim]. keys: float64 [kv_heads, head_dim]; each serves heads / kv_heads consecutive
    heads of queries. rotary_dim: the first so many dimensions rotate. layout: pairs are (i, i + rotary_dim / 2) in
    "half", (2i, 2i + 1) in "interleaved". Variances are in any unit, since the result is relative.
    """
    keys = np.repeat(keys, len(queries) // len(keys), axis=0)
    rotated = np.sqrt(_pairs(queries, rotary_dim, layout) * _pairs(keys, rotary_dim, layout))
    unrotated = np.sqrt(queries[:, rotary_dim:] * keys[:, rotary_dim:]).sum(axis=1)
    total = rotated.sum(axis=1) + unrotated
    scale = np.divide(queries.shape[1] / 2, total, out=np.zeros_like(total), where=total > 0)
    return PairWeights(rotated * scale[:, None], unrotated * scale)


def normalised_variances(variances: Vector, means: Vector) -> Vector:
    """The variances of y_j / rms(y), for independent gaussian components y_j over which a norm divides by rms(y).

    variances, means: of y_j, float64 [groups, n]; each row is normalised on its own. Returns float64 [groups, n]. By
    1 / |y|^2 = int_0^inf exp(-t |y|^2) dt, whose expectation is a product over components; the integral is taken over
    ln t by the trapezoidal rule, whose error is below 1e-9 here.
    """
    found = np.zeros_like(variances)
    steps = np.exp(np.arange(-60, 60, 0.25))[:, None]
    for row, (spread, mean) in enumerate(zip(variances, means, strict=True)):
        size = (spread + mean**2).sum()
        if size == 0:
            continue
        variance, mean = spread / size, mean / math.sqrt(size)
        damped = 1 / (1 + 2 * steps * variance)
        density = np.exp((0.5 * np.log(damped) - steps * mean**2 * damped).sum(axis=1, keepdims=True)) * steps * 0.25
        second = (density * (variance * damped + (mean * damped) ** 2)).sum(axis=0)
        first = (density * mean * damped / np.sqrt(math.pi * steps)).sum(axis=0)
        found[row] = len(variance) * (second - first**2)
    return found


def _pairs(variances: Vector, rotary_dim: int, layout: str) -> Vector:
    half = rotary_dim // 2
    if layout == "half":
        return variances[:, :half] + variances[:, half:rotary_dim]
    return variances[:, :rotary_dim:2] + variances[:, 1:rotary_dim:2]
