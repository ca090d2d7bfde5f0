"""The upper bound on the size of a score, which decays with the distance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..forms import Vector


def score_bound(inv_freq: Vector, distances: NDArray[Any]) -> Vector:
    """(1/(r/2)) sum_{n = 1}^{r/2} |S_n|, S_n = sum_{i < n} exp(j m theta_i), at some distances m, float64 [n].

    inv_freq: theta_i in radians per token, float64 [r/2], in the order of the pairs. distances: in tokens, [n]. With
    h_i the complex product of pair i of a query and a key, and h_{r/2} = 0, the score of the rotated dimensions is at
    most max_i |h_{i+1} - h_i| sum_n |S_n|. At distance 0 the result is (r/2 + 1)/2. Su et al. 2021,
    https://arxiv.org/abs/2104.09864, section 3.4.3.
    """
    turned = np.exp(1j * np.multiply.outer(distances, inv_freq))
    return np.asarray(np.abs(turned.cumsum(axis=1)).mean(axis=1))
