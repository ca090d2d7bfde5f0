"""p-RoPE, the rope type `proportional` of transformers (Gemma 4): the first pairs rotate, the others stand still."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .forms import Form, base_inv_freq
from .lazy import np
from .zero_frequencies import count_zero

if TYPE_CHECKING:
    from .forms import Vector

SAME = 1.2e-7  # relative; float32 rounds by half of that


@dataclass(frozen=True)
class Proportional(Form):
    """`theta^(-2i/r) / factor` for the first int(partial_rotary_factor * r / 2) pairs, and 0 for all others.

    The exponents are those of the whole head, unlike in models that rotate a part of it. Barbero et al. 2024,
    https://arxiv.org/abs/2410.06205 (p-RoPE); transformers `_compute_proportional_rope_parameters`.

    factor: divides every frequency. partial_rotary_factor: the share of pairs that rotate, from 0 to 1.
    """

    kind: ClassVar[str] = "proportional"
    factor: float = 1.0
    partial_rotary_factor: float = 1.0

    @property
    def scaled(self) -> bool:
        return self.factor != 1.0 or self.partial_rotary_factor < 1.0

    def inv_freq(self, rotary_dim: int) -> Vector:
        rotating = int(self.partial_rotary_factor * rotary_dim // 2)
        index = np.arange(rotary_dim // 2)
        return np.where(index < rotating, base_inv_freq(self.theta, rotary_dim) / self.factor, 0.0)


def recognise(inv_freq: Vector, theta: float) -> Proportional | None:
    """The form of a vector whose first pairs are theta^(-2i/r) / factor and whose others are 0; None for other vectors.

    inv_freq: radians per token, float64 [rotary_dim / 2], equal to the form to within 1.2e-7. theta: the base that is
    tried first, before the one that the vector itself gives.
    """
    zeros, rotary_dim = count_zero(inv_freq), 2 * len(inv_freq)
    rotating = len(inv_freq) - zeros
    if not zeros or not (inv_freq[:rotating] > 0).all():
        return None
    factor = 1.0 if not rotating or abs(inv_freq[0] - 1) <= SAME else float(1 / inv_freq[0])
    bases = [theta]
    if rotating > 1 and inv_freq[0] > inv_freq[rotating - 1]:
        own = float(inv_freq[0] / inv_freq[rotating - 1]) ** (rotary_dim / (2 * (rotating - 1)))
        bases += [round(own, 3), own] if math.isfinite(own) else []
    for base in bases:
        form = Proportional(base, factor, share(rotating, rotary_dim))
        if np.allclose(form.inv_freq(rotary_dim), inv_freq, rtol=SAME, atol=0.0):
            return form
    return None


def rotating_share(form: Form, rotary_dim: int) -> float:
    """The share of the pairs of a form that rotate. rotary_dim: twice the number of its pairs."""
    if isinstance(form, Proportional):
        return form.partial_rotary_factor
    inv_freq = form.inv_freq(rotary_dim)
    still = count_zero(inv_freq)
    return share(len(inv_freq) - still, rotary_dim) if still else 1.0


def share(rotating: int, rotary_dim: int) -> float:
    """The partial_rotary_factor p with which int(p * rotary_dim // 2) is `rotating`, a number of pairs."""
    found = 2 * rotating / rotary_dim
    return found if int(found * rotary_dim // 2) == rotating else math.nextafter(found, 2.0)
