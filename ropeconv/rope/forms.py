"""Closed forms: the few formulas that configuration files can name.

A form is the formula that a `rope_scaling` block names, with its numbers. Every form yields `inv_freq`, float64, shape
`[rotary_dim / 2]`, radians per token, highest frequency first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from .lazy import Vector as Vector
from .lazy import np
from .zero_frequencies import divided


def base_inv_freq(theta: float, rotary_dim: int) -> Vector:
    """`theta^(-2i/rotary_dim)` for i = 0 .. rotary_dim/2 - 1, radians per token, float64 (Su et al. 2021, RoFormer)."""
    index = np.arange(rotary_dim // 2, dtype=np.float64)
    return np.asarray(theta ** (-2.0 * index / rotary_dim), dtype=np.float64)


@dataclass(frozen=True)
class Form:
    """A formula with its numbers. kind: the `rope_type` under which transformers knows it. theta: the base."""

    kind: ClassVar[str]
    theta: float

    def inv_freq(self, rotary_dim: int) -> Vector:
        """The frequencies in radians per token, float64, shape `[rotary_dim / 2]`."""
        raise NotImplementedError

    @property
    def scaled(self) -> bool:
        """Whether the formula changes the frequencies of its base."""
        return getattr(self, "factor", None) != 1.0


@dataclass(frozen=True)
class Plain(Form):
    """`theta^(-2i/r)`: rotary embedding without scaling."""

    kind: ClassVar[str] = "default"

    def inv_freq(self, rotary_dim: int) -> Vector:
        return base_inv_freq(self.theta, rotary_dim)

    @property
    def scaled(self) -> bool:
        return False


@dataclass(frozen=True)
class Interpolated(Form):
    """`theta^(-2i/r) / factor`: position interpolation (Chen et al. 2023)."""

    kind: ClassVar[str] = "linear"
    factor: float = 1.0

    def inv_freq(self, rotary_dim: int) -> Vector:
        return base_inv_freq(self.theta, rotary_dim) / self.factor


@dataclass(frozen=True)
class Yarn(Form):
    """YaRN's frequencies as every runtime computes them: a ramp over the pair index.

    `dim(beta) = r ln(L / (2 pi beta)) / (2 ln theta)` is the (fractional) pair that turns `beta` times
    within the original context `L`. With `low = dim(beta_fast)` and `high = dim(beta_slow)`, floored and
    ceiled if `truncate`, clamped to `[0, r - 1]`, and `ramp_i = clip((i - low) / (high - low), 0, 1)`:

        inv_freq_i = theta_i (1 - ramp_i) + theta_i / factor * ramp_i

    The ramp of the paper is another one, linear in `L / wavelength`: that is `Llama3`. factor: s. original_context: L,
    in tokens. Source: https://github.com/jquesnelle/yarn, transformers `_compute_yarn_parameters`.
    """

    kind: ClassVar[str] = "yarn"
    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def ramp(self, rotary_dim: int) -> Vector:
        """Share of interpolation per pair, float64 [rotary_dim / 2]: 0 keeps a frequency, 1 divides it by `factor`."""

        def pair_turning(turns: float) -> float:
            length = self.original_context / (2 * math.pi * turns)
            return rotary_dim * math.log(length) / (2 * math.log(self.theta))

        low, high = pair_turning(self.beta_fast), pair_turning(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0.0), min(high, rotary_dim - 1.0)
        if low == high:
            high += 0.001  # as the reference code does, against a division by zero
        index = np.arange(rotary_dim // 2, dtype=np.float64)
        return np.clip((index - low) / (high - low), 0.0, 1.0)

    def inv_freq(self, rotary_dim: int) -> Vector:
        base, ramp = base_inv_freq(self.theta, rotary_dim), self.ramp(rotary_dim)
        return base * (1 - ramp) + base / self.factor * ramp


@dataclass(frozen=True)
class Llama3(Form):
    """NTK-by-parts as published (Peng et al. 2023, section 3.2), which is Llama 3.1's scaling.

    With `turns_i = L theta_i / (2 pi)` and `keep_i = clip((turns_i - low) / (high - low), 0, 1)`:

        inv_freq_i = theta_i (keep_i + (1 - keep_i) / factor)

    The paper's `alpha` and `beta` are `low_freq_factor` and `high_freq_factor`. Where high is not above low, as in the
    second revision of Llama 4 Scout (1 and 1), there is no ramp: keep_i is 1 from `turns_i = low` on, else 0, as
    transformers has it. original_context: L, in tokens.
    Source: Meta `llama3/model.py`, transformers `_compute_llama3_parameters`.
    """

    kind: ClassVar[str] = "llama3"
    factor: float
    original_context: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def inv_freq(self, rotary_dim: int) -> Vector:
        base = base_inv_freq(self.theta, rotary_dim)
        turns = self.original_context * base / (2 * math.pi)
        width = self.high_freq_factor - self.low_freq_factor
        if width > 0:
            keep = np.clip((turns - self.low_freq_factor) / width, 0.0, 1.0)
        else:
            keep = np.where(turns < self.low_freq_factor, 0.0, 1.0)
        return base * (keep + (1 - keep) / self.factor)


@dataclass(frozen=True)
class LongRope(Form):
    """LongRoPE: every frequency divided by an entry of a list (Ding et al. 2024).

    short_factor: the list up to `original_context` tokens, long_factor: the list beyond, of rotary_dim / 2 numbers
    each. A divisor of 1e29 or more, as in GGUF files, is that of a pair that does not rotate: inv_freq_i = 0.
    """

    kind: ClassVar[str] = "longrope"
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_context: int

    def inv_freq(self, rotary_dim: int) -> Vector:
        return divided(base_inv_freq(self.theta, rotary_dim), self.long_factor)

    def short_inv_freq(self, rotary_dim: int) -> Vector:
        """Frequencies while no position reaches `original_context`: radians per token, float64 [rotary_dim / 2]."""
        return divided(base_inv_freq(self.theta, rotary_dim), self.short_factor)


@dataclass(frozen=True)
class DynamicNtk(Form):
    """transformers' `dynamic`: the base grows with the sequence length n, from `original_context` L tokens on.

    `theta(n) = theta ((factor n / L) - (factor - 1))^(r / (r - 2))` for n > L, else theta. Configs with it can be read;
    none is written, since files hold fixed frequencies only. `inv_freq` gives the frequencies for n <= L.
    """

    kind: ClassVar[str] = "dynamic"
    factor: float
    original_context: int

    @property
    def scaled(self) -> bool:
        return True

    def inv_freq(self, rotary_dim: int) -> Vector:
        return base_inv_freq(self.theta, rotary_dim)
