"""Formulas from papers: bases for a length, attention factors, the critical dimension, the asymptotic base."""

from __future__ import annotations

import math


def theta_for_length(theta: float, context: int, target: int) -> float:
    """`theta^(ln(L'/2pi) / ln(L/2pi))`: the base with which the critical dimension completes one period in L' tokens.

    theta: the trained base. context: L, the trained length in tokens. target: L', the new length in tokens.

    Liu et al. 2024, "Scaling Laws of RoPE-based Extrapolation"; used by Gradient for Llama 3 262k and 1048k.
    """
    return float(theta ** (math.log(target / (2 * math.pi)) / math.log(context / (2 * math.pi))))


def theta_steps(theta: float, context: int, targets: list[int]) -> list[float]:
    """The base of `theta_for_length` for each stage of a training, rounded down, as in Gradient's checkpoints.

    theta, context: base and trained length in tokens of the first model. targets: the length of each stage in tokens.
    The formula composes, so every base follows from the first model, not from the rounded base of the stage before.
    """
    return [float(math.floor(theta_for_length(theta, context, target))) for target in targets]


def ntk_theta(theta: float, factor: float, rotary_dim: int) -> float:
    """The NTK-aware base `theta s^(r/(r-2))`, with which the lowest frequency is divided by exactly s (bloc97 2023)."""
    return float(theta * factor ** (rotary_dim / (rotary_dim - 2)))


def critical_dimension(theta: float, context: int, rotary_dim: int) -> int:
    """Number of dimensions that complete a period within `context` tokens: `2 ceil((r/2) log_theta(L/2pi))`, 0 to r.

    theta: the base, above 1. context: L in tokens. rotary_dim: r. Liu et al. 2024, "Scaling Laws of RoPE-based
    Extrapolation". 92 for Llama 2, 70 for Llama 3 (printed as 72).
    """
    pairs = math.ceil(rotary_dim / 2 * math.log(context / (2 * math.pi), theta))
    return 2 * min(max(pairs, 0), rotary_dim // 2)


def temperature_attention_factor(factor: float, slope: float = 0.1, intercept: float = 1.0) -> float:
    """YaRN's attention factor `sqrt(1/t) = a ln s + b`, 1 for s <= 1, with a = `slope`, b = `intercept`, s = `factor`.

    Peng et al. 2023 fit a = 0.1 for Llama, 0.07 for Mistral.
    """
    return 1.0 if factor <= 1 else slope * math.log(factor) + intercept


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """LongRoPE's attention factor `sqrt(1 + ln s / ln L)`, 1 for s <= 1; L in tokens (Ding et al. 2024)."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_context))


def mscale_ratio(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """DeepSeek's attention factor `(0.1 m ln s + 1) / (0.1 m_all ln s + 1)`, which replaces YaRN's 0.1 ln s + 1.

    factor: s. mscale: m, mscale_all_dim: m_all. Source: transformers `_compute_yarn_parameters`.
    """
    return temperature_attention_factor(factor, 0.1 * mscale) / temperature_attention_factor(
        factor, 0.1 * mscale_all_dim
    )


def mscale_for(factor: float, attention_factor: float) -> tuple[float, float]:
    """A pair (mscale, mscale_all_dim) whose `mscale_ratio` is an attention factor, for readers that know only the pair.

    factor: s, above 1. attention_factor: the wanted ratio. mscale_all_dim is 1, unless mscale would then be 0, which
    readers take as absent.
    """
    for mscale_all_dim in (1.0, 2.0):
        denominator = temperature_attention_factor(factor, 0.1 * mscale_all_dim)
        mscale = (attention_factor * denominator - 1) / (0.1 * math.log(factor))
        if abs(mscale) > 1e-6:
            break
    return mscale, mscale_all_dim


def asymptotic_base(length: int) -> float:
    """L / x0 with Ci(x0) = 0, x0 = 0.6165...: the limit of the smallest base for L = `length` tokens as the head grows.

    (2 / d) sum_i cos(m theta_i) tends to (Ci(m) - Ci(m / b)) / ln b, and Ci(m) to 0 (Su 2024).
    """
    zero = 0.6
    for _ in range(8):
        zero -= cosine_integral(zero) * zero / math.cos(zero)
    return length / zero


def cosine_integral(x: float) -> float:
    """The cosine integral Ci(x) = gamma + ln x + sum_k (-1)^k x^(2k) / (2k (2k)!), for 0 < x up to about 20."""
    total, term, k = 0.5772156649015329 + math.log(x), 1.0, 0
    while abs(term) > 1e-18:
        k += 2
        term *= -x * x / (k * (k - 1))
        total += term / k
    return total
