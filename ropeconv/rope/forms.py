"""Closed forms: the few formulas that configuration files can name.

A form is the formula that a `rope_scaling` block names, with its numbers. Every form yields
`inv_freq`, float64, shape `[rotary_dim / 2]`, radians per token, highest frequency first.

Some pairs of dimensions do not rotate: their inv_freq is 0, so cos = 1 and sin = 0 at every
position. p-RoPE has them in place of the slowest pairs (Barbero et al. 2024,
https://arxiv.org/abs/2410.06205), DroPE in place of all (Gelberg et al. 2025,
https://arxiv.org/abs/2512.12167). As a divisor of a frequency, such a pair has 1e30, as llama.cpp's
converter writes for Gemma 4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
"""float64 of one dimension."""


def theta_for_length(theta: float, context: int, target: int) -> float:
    """The base with which the critical dimension completes one period in L' tokens.

    The critical dimension is the slowest one that completes a period in training. The base is
    `theta^(ln(L'/2pi) / ln(L/2pi))`: Liu et al. 2024, "Scaling Laws of RoPE-based Extrapolation";
    Gradient used it for Llama 3 262k and 1048k.

    Args:
        theta: The trained base.
        context: L, the trained length in tokens.
        target: L', the new length in tokens. The formula composes, so that the base of every stage
            of a training follows from the first model.
    """
    exponent = math.log(target / (2 * math.pi)) / math.log(context / (2 * math.pi))
    return float(theta**exponent)


def ntk_theta(theta: float, factor: float, rotary_dim: int) -> float:
    """The NTK-aware base `theta s^(r/(r-2))`, which divides the lowest frequency by exactly s.

    bloc97 2023, where s is the factor.
    """
    return float(theta * factor ** (rotary_dim / (rotary_dim - 2)))


def critical_dimension(theta: float, context: int, rotary_dim: int) -> int:
    """Number of dimensions that complete a period within `context` tokens, from 0 to r.

    `2 ceil((r/2) log_theta(L/2pi))`: Liu et al. 2024, "Scaling Laws of RoPE-based Extrapolation".
    It is 92 for Llama 2, and 70 for Llama 3 (printed as 72).

    Args:
        theta: The base, above 1.
        context: L in tokens.
        rotary_dim: r.
    """
    pairs = math.ceil(rotary_dim / 2 * math.log(context / (2 * math.pi), theta))
    return 2 * min(max(pairs, 0), rotary_dim // 2)


def temperature_attention_factor(
    factor: float, slope: float = 0.1, intercept: float = 1.0
) -> float:
    """YaRN's attention factor `sqrt(1/t) = a ln s + b`, and 1 for s <= 1.

    Peng et al. 2023 fit a = 0.1 for Llama, 0.07 for Mistral.

    Args:
        factor: s.
        slope: a.
        intercept: b.
    """
    if factor <= 1:
        return 1.0
    return slope * math.log(factor) + intercept


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """LongRoPE's attention factor `sqrt(1 + ln s / ln L)`, and 1 for s <= 1 (Ding et al. 2024).

    Args:
        factor: s.
        original_context: L in tokens.
    """
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context))


def mscale_ratio(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """DeepSeek's attention factor `(0.1 m ln s + 1) / (0.1 m_all ln s + 1)`.

    It replaces YaRN's 0.1 ln s + 1. Source: transformers `_compute_yarn_parameters`.

    Args:
        factor: s.
        mscale: m.
        mscale_all_dim: m_all.
    """
    numerator = temperature_attention_factor(factor, 0.1 * mscale)
    denominator = temperature_attention_factor(factor, 0.1 * mscale_all_dim)
    return numerator / denominator


def mscale_for(factor: float, attention_factor: float) -> tuple[float, float]:
    """A pair (mscale, mscale_all_dim) that gives an attention factor, for DeepSeek's keys.

    Some readers of a config only know the pair. They compute the attention factor as
    `A = (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1)` (`mscale_ratio`).

    Args:
        factor: s, above 1.
        attention_factor: The wanted factor, A.
    """

    def solve_for_mscale(mscale_all_dim: float) -> float:
        denominator = temperature_attention_factor(factor, 0.1 * mscale_all_dim)
        return (attention_factor * denominator - 1) / (0.1 * math.log(factor))

    # Any mscale_all_dim belongs to a right pair, and 1 is usual. Where mscale would then be 0,
    # which readers take for an absent key, mscale_all_dim is 2.
    mscale = solve_for_mscale(1.0)
    if abs(mscale) > 1e-6:
        return mscale, 1.0
    return solve_for_mscale(2.0), 2.0


def asymptotic_base(length: int) -> float:
    """L / x0 with Ci(x0) = 0, x0 = 0.6165...: the limit of the smallest base as the head grows.

    (2 / d) sum_i cos(m theta_i) tends to (Ci(m) - Ci(m / b)) / ln b, and Ci(m) to 0 (Su 2024), Ci
    the cosine integral.

    Args:
        length: L in tokens.
    """
    return length / 0.6165054856207162


NO_ROTATION = 1e30
"""The divisor of a pair that does not rotate."""
LEAST_OF_NO_ROTATION = 1e29
"""Divisors from here on are those of pairs that do not rotate."""
LARGEST_FLOAT32 = 3.4028234663852886e38


def divide(base: Vector, divisors: Vector | Sequence[float]) -> Vector:
    """base_i / divisor_i in radians per token, float64 [rotary_dim / 2].

    The result is 0 where the divisor is 1e29 or more.
    """
    divisors = np.asarray(divisors, dtype=np.float64)
    return np.where(divisors < LEAST_OF_NO_ROTATION, base / divisors, 0.0)


def divisors(base: Vector, inv_freq: Vector) -> Vector:
    """base_i / inv_freq_i, and 1e30 where inv_freq_i is 0: the inverse of `divide`.

    Both arguments and the result are float64 [rotary_dim / 2].
    """
    return np.asarray(
        np.divide(base, inv_freq, out=np.full(len(base), NO_ROTATION), where=inv_freq > 0)
    )


def written_divisors(divisors: Sequence[float]) -> list[float]:
    """Divisors as configs have them: the largest float32 in place of 1e29 or more.

    Times theta^(2i/r), that is infinite in float32, in which runtimes compute, so that the
    frequency is exactly 0.
    """
    return [
        float(divisor) if divisor < LEAST_OF_NO_ROTATION else LARGEST_FLOAT32
        for divisor in divisors
    ]


def wavelengths(inv_freq: Vector) -> Vector:
    """2 pi / inv_freq in tokens, nan for pairs that do not rotate; float64 [rotary_dim / 2]."""
    return np.asarray(
        np.divide(math.tau, inv_freq, out=np.full(len(inv_freq), math.nan), where=inv_freq > 0)
    )


def count_zero(inv_freq: Vector) -> int:
    """How many pairs do not rotate.

    Args:
        inv_freq: Radians per token, float64 [rotary_dim / 2].
    """
    return int(np.count_nonzero(inv_freq == 0))


def base_inv_freq(theta: float, rotary_dim: int) -> Vector:
    """`theta^(-2i/rotary_dim)` for i = 0 .. rotary_dim/2 - 1, radians per token, float64.

    Su et al. 2021, RoFormer.
    """
    index = np.arange(rotary_dim // 2, dtype=np.float64)
    return np.asarray(theta ** (-2.0 * index / rotary_dim), dtype=np.float64)


@dataclass(frozen=True)
class Form:
    """A formula with its numbers."""

    kind: ClassVar[str]
    """The `rope_type` under which transformers knows it."""

    theta: float
    """The base."""

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
class InterpolatedForm(Form):
    """`theta^(-2i/r) / factor`: position interpolation (Chen et al. 2023)."""

    kind: ClassVar[str] = "linear"
    factor: float = 1.0

    def inv_freq(self, rotary_dim: int) -> Vector:
        return base_inv_freq(self.theta, rotary_dim) / self.factor


@dataclass(frozen=True)
class Yarn(Form):
    """YaRN's frequencies as its published code computes them: a ramp over the pair index.

    `dim(beta) = r ln(L / (2 pi beta)) / (2 ln theta)` is the (fractional) pair that rotates `beta`
    times within the original context `L`. With `low = dim(beta_fast)` and `high = dim(beta_slow)`,
    floored and ceiled if `truncate`, `low` at least 0, `high` at most `r - 1`, and `ramp_i =
    clip((i - low) / (high - low), 0, 1)`:

    inv_freq_i = theta_i (1 - ramp_i) + theta_i / factor * ramp_i

    The ramp of the paper is another one, linear in `L / wavelength`: that is `Llama3`. Source:
    https://github.com/jquesnelle/yarn, transformers `_compute_yarn_parameters`.

    Each end has one bound only, so that they can cross, and then the code does the opposite of what
    YaRN means. Where all pairs rotate more than `beta_fast` times (L above about 200 theta^2), it
    divides every frequency. Where all rotate fewer than `beta_slow` times, it divides none.
    `order_ends` gives the form that is meant, and `simplify_crossed` that of what is computed.
    """

    kind: ClassVar[str] = "yarn"
    factor: float
    """s, by which the slow frequencies are divided."""

    original_context: int
    """L, in tokens."""

    beta_fast: float = 32.0
    """Rotations within L above which a frequency is unchanged."""

    beta_slow: float = 1.0
    """Rotations within L below which a frequency is divided by the factor."""

    truncate: bool = True
    """Whether the ends of the ramp are rounded to whole pairs."""

    def ramp(self, rotary_dim: int) -> Vector:
        """Share of interpolation per pair, float64 [rotary_dim / 2], from 0 to 1.

        0 keeps a frequency, 1 divides it by `factor`. It rises from the pair that rotates
        `beta_fast` times within the trained context to the one that rotates `beta_slow` times.
        """
        low, high = self.ends(rotary_dim)
        if low == high:
            high += 0.001  # as the reference code does, against a division by zero
        index = np.arange(rotary_dim // 2, dtype=np.float64)
        return np.clip((index - low) / (high - low), 0.0, 1.0)

    def ends(self, rotary_dim: int) -> tuple[float, float]:
        """The pairs at which the ramp begins and ends; the first is the larger if they cross."""
        low = self._pair_with(self.beta_fast, rotary_dim)
        high = self._pair_with(self.beta_slow, rotary_dim)
        if self.truncate:
            low = math.floor(low)
            high = math.ceil(high)

        # the last pair is rotary_dim / 2 - 1, and still the code of the paper and every runtime
        # have rotary_dim - 1 here (find_correction_range of transformers)
        return max(low, 0.0), min(high, rotary_dim - 1.0)

    def order_ends(self, rotary_dim: int) -> Form:
        """The form whose ramp does not end before it begins; this one where the ends do not cross.

        In place of crossed ends it has a step behind the first one, as llama.cpp computes it
        (`rope_yarn_ramp` in ggml/src/ggml-cpu/ops.cpp).
        """
        low, high = self.ends(rotary_dim)
        if low <= high:
            return self
        last_pair = rotary_dim // 2 - 1
        if low >= last_pair:
            return Plain(self.theta)

        # equal betas are a step, here between the pairs low and low + 1
        power = self.theta ** (-(2 * low + 1) / rotary_dim)
        beta = self.original_context * power / (2 * math.pi)
        return replace(self, beta_fast=beta, beta_slow=beta, truncate=True)

    def _pair_with(self, rotations: float, rotary_dim: int) -> float:
        """The (fractional) pair that rotates so often within the trained context L.

        Pair i rotates `n = L theta^(-2i/r) / 2pi` times, so `i = r ln(L / (2pi n)) / (2 ln theta)`.
        """
        length = self.original_context / (2 * math.pi * rotations)
        return rotary_dim * math.log(length) / (2 * math.log(self.theta))

    def inv_freq(self, rotary_dim: int) -> Vector:
        base = base_inv_freq(self.theta, rotary_dim)
        ramp = self.ramp(rotary_dim)
        return base * (1 - ramp) + base / self.factor * ramp


def simplify_crossed(form: Form, rotary_dim: int) -> Form:
    """The form without a ramp that computes the same as YaRN whose ends are crossed.

    Such a YaRN divides all frequencies or none. Its keys mean another form to llama.cpp
    (`Yarn.order_ends`), and with another base its ends may not be crossed.

    Args:
        form: A form of any kind. The result is the same form for any other YaRN and kind.
        rotary_dim: The dimensions that rotate, two for each pair.
    """
    if not isinstance(form, Yarn):
        return form
    low, high = form.ends(rotary_dim)
    if low <= high:
        return form

    ramp = form.ramp(rotary_dim)
    if np.all(ramp == 1):
        return InterpolatedForm(form.theta, form.factor)
    if np.all(ramp == 0):
        return Plain(form.theta)
    return form  # beta_fast is below beta_slow


@dataclass(frozen=True)
class Llama3(Form):
    """NTK-by-parts as published (Peng et al. 2023, section 3.2), which is Llama 3.1's scaling.

    With `n_i = L theta_i / (2 pi)` rotations and `keep_i = clip((n_i - low) / (high - low), 0, 1)`:

    inv_freq_i = theta_i (keep_i + (1 - keep_i) / factor)

    The paper's `alpha` and `beta` are `low_freq_factor` and `high_freq_factor`. Where high is not
    above low, as in the second revision of Llama 4 Scout (1 and 1), there is no ramp: keep_i is 1
    from `n_i = low` on, else 0, as transformers has it. Source: Meta `llama3/model.py`,
    transformers `_compute_llama3_parameters`.
    """

    kind: ClassVar[str] = "llama3"
    factor: float
    original_context: int
    """L, in tokens."""

    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def inv_freq(self, rotary_dim: int) -> Vector:
        # with 8,192 trained tokens, a pair with a wavelength of 2,048 rotates 4 times
        base = base_inv_freq(self.theta, rotary_dim)
        rotations = self.original_context * base / (2 * math.pi)
        width = self.high_freq_factor - self.low_freq_factor
        if width > 0:
            keep = np.clip((rotations - self.low_freq_factor) / width, 0.0, 1.0)
        else:
            keep = np.where(rotations < self.low_freq_factor, 0.0, 1.0)
        return base * (keep + (1 - keep) / self.factor)


@dataclass(frozen=True)
class LongRope(Form):
    """LongRoPE: every frequency divided by an entry of a list (Ding et al. 2024).

    A divisor of 1e29 or more, as in GGUF files, is that of a pair that does not rotate:
    inv_freq_i = 0.
    """

    kind: ClassVar[str] = "longrope"
    short_factor: tuple[float, ...]
    """The list up to `original_context` tokens, rotary_dim / 2 numbers."""

    long_factor: tuple[float, ...]
    """The list beyond, of the same length."""

    original_context: int
    """In tokens."""

    def inv_freq(self, rotary_dim: int) -> Vector:
        return divide(base_inv_freq(self.theta, rotary_dim), self.long_factor)

    def short_inv_freq(self, rotary_dim: int) -> Vector:
        """Frequencies while no position reaches `original_context`, as `inv_freq` gives them."""
        return divide(base_inv_freq(self.theta, rotary_dim), self.short_factor)


@dataclass(frozen=True)
class DynamicNtk(Form):
    """transformers' `dynamic`: the base grows with the sequence length n, from L tokens on.

    `theta(n) = theta ((factor n / L) - (factor - 1))^(r / (r - 2))` for n > L, else theta. Configs
    with it can be read; none is written, since files hold fixed frequencies only. `inv_freq` gives
    the frequencies for n <= L.
    """

    kind: ClassVar[str] = "dynamic"
    factor: float
    original_context: int
    """L, in tokens."""

    @property
    def scaled(self) -> bool:
        return True

    def inv_freq(self, rotary_dim: int) -> Vector:
        return base_inv_freq(self.theta, rotary_dim)
